"""What a kernel may have beyond NumPyro's interface, for ``MCMC`` to use: no kernel is known by its class.

A kernel implements what it needs, of these:

- ``looks_at_all_rows`` - true where a model that subsamples would be frozen at one minibatch;
- ``takes_host_rows`` - true where data may stay on the host (:class:`~numpyro_bnn.OnHost`);
- ``take_batch_size(structure)`` - take the number of rows at a time that the model names;
- ``is_cold(num_steps)`` - whether chains only descend, so that those of one start may be equal;
- ``with_pilot(key, args, kwargs)`` - the kernel to run, after what must be found before chains begin,
  such as the number of rungs of a ladder;
- ``evidence_of(fields)`` - what its fields, (chain, draw, …) by name, tell of the log evidence.
"""

from typing import Any

import jax
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from numpyro_bnn.potential.sites import Structure

# A number beyond those of the keys that chains split from theirs.
_PILOT = 2**31 - 1


def take_batch_size(kernel: MCMCKernel, structure: Structure) -> None:
    """Let a kernel that works on minibatches take the size of those that the model names."""
    if hasattr(kernel, "take_batch_size"):
        kernel.take_batch_size(structure)


def is_cold(kernel: MCMCKernel, num_steps: int) -> bool:
    """Whether chains only descend, so that those of one start and one key may well be equal."""
    return hasattr(kernel, "is_cold") and kernel.is_cold(num_steps)


def after_pilot(kernel: MCMCKernel, keys: jax.Array, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The kernel to run.

    :param keys: of the chains, or of the only one.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    """
    if not hasattr(kernel, "with_pilot"):
        return kernel
    key = jax.random.fold_in(keys if is_prng_key(keys) else keys[0], _PILOT)
    return kernel.with_pilot(key, args, kwargs)


def evidence_of(kernel: MCMCKernel, fields: dict[str, Any]) -> Any:
    """What a run tells of the log evidence; None for kernels that tell nothing."""
    return kernel.evidence_of(fields) if hasattr(kernel, "evidence_of") else None
