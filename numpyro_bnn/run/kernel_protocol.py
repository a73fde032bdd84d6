"""Optional methods by which a kernel tells ``MCMC`` more than NumPyro's interface does.

``MCMC`` asks no kernel for its class. It asks whether the kernel has one of these:

- ``looks_at_all_rows`` - true where a model that subsamples would be frozen at one minibatch;
- ``takes_host_rows`` - true where data may stay on the host (:class:`~numpyro_bnn.OnHost`);
- ``take_batch_size(structure)`` - use the batch size that the model gives by ``subsample_size=``;
- ``check_num_warmup(num_warmup)`` - refuse a length of warm-up, which ``init`` gets as a traced number. Steps
  need nothing of ``init`` but the state then: their program is traced without it;
- ``is_zero_temperature(num_steps)`` - whether the temperature is 0, so that chains only descend, and chains
  from one start may be equal;
- ``with_pilot(key, args, kwargs)`` - the kernel to run, with settings found by a pilot run, such as the
  number of rungs of a ladder;
- ``state_for_data(state, args, kwargs)`` - the state with all that it keeps of data computed again, at the
  same position. NumPyro's ``refresh`` does so where a kernel has that; but it also makes the kernel a block
  of Gibbs, so kernels that are no such blocks have this method;
- ``ignores_row_count`` - whether rows of weight 0 change nothing;
- ``evidence_of(fields)`` - the estimate of the log evidence from its fields, (chain, draw, …) by name.

A state may have ``without_counts()``: the state where another run begins, without what it counted so far.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import HMC, NUTS, SA, hmc_util
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from numpyro_bnn._types import PyTree

# Folded into the key of the pilot run: a number that no chain uses.
_PILOT = 2**31 - 1
# Windows of the mass matrix: enough for a hundred million steps.
_MOST = 22


def keeps_all_in_state(kernel: MCMCKernel) -> bool:
    """Whether steps need nothing of ``init`` but the state; a subclass with its own may learn more there."""
    methods = {"init", "check_num_warmup"}
    owner = next(kind for kind in type(kernel).__mro__ if methods & vars(kind).keys())
    return methods <= vars(owner).keys()


def with_inner_kernels(sampler: MCMCKernel) -> Iterator[Any]:
    """A kernel, and the kernels inside it."""
    yield sampler
    inner = [block for block, _ in getattr(sampler, "blocks", ())]
    inner += [getattr(sampler, name, None) for name in ("kernel", "inner_kernel")]
    for kernel in inner:
        if isinstance(kernel, MCMCKernel):
            yield from with_inner_kernels(kernel)


def is_zero_temperature(kernel: MCMCKernel, num_steps: int) -> bool:
    """Whether the temperature is 0: chains only descend, and those of one start and key may be equal."""
    return hasattr(kernel, "is_zero_temperature") and kernel.is_zero_temperature(num_steps)


def after_pilot(
    kernel: MCMCKernel, keys: jax.Array, args: tuple, kwargs: dict[str, object]
) -> MCMCKernel:
    """The kernel to run, after its pilot run if it has one, chosen by the keys of its chains."""
    if not hasattr(kernel, "with_pilot"):
        return kernel
    key = jax.random.fold_in(keys if is_prng_key(keys) else keys[0], _PILOT)
    return kernel.with_pilot(key, args, kwargs)


def over_model(kernel: MCMCKernel, wrapper: Callable[[Callable], Callable]) -> MCMCKernel:
    """A copy of a kernel, with the kernel inside it, over another model."""
    if type(kernel).wrap_model is not MCMCKernel.wrap_model:
        return kernel.wrap_model(wrapper)
    made: Any = copy.copy(kernel)
    if isinstance(inner := getattr(made, "kernel", None), MCMCKernel) and inner.model is not None:
        made.kernel = over_model(inner, wrapper)
    if getattr(made, "_model", None) is not None:
        made._model = wrapper(made._model)
    return made


def can_recompute(kernel: MCMCKernel) -> bool:
    """Whether a kernel can compute again what its states keep of data."""
    inner = getattr(kernel, "kernel", None)
    if hasattr(kernel, "state_for_data"):
        return not isinstance(inner, MCMCKernel) or can_recompute(inner)
    return type(kernel).refresh is not MCMCKernel.refresh


def without_counts(state: PyTree) -> PyTree:
    """A state that was given to a run, without the counts of the run that it comes from."""

    def has_counts(state: PyTree) -> bool:
        return hasattr(state, "without_counts")

    return jax.tree.map(
        lambda s: s.without_counts() if has_counts(s) else s, state, is_leaf=has_counts
    )


def ignores_row_count(kernel: MCMCKernel) -> bool:
    """Whether rows of weight 0 change nothing of what a kernel does."""
    return getattr(kernel, "ignores_row_count", type(kernel) in (HMC, NUTS))


def windows(num_steps: jax.Array) -> jax.Array:
    """Begin and end of each window in which HMC, NUTS and BarkerMH of NumPyro adapt, of a traced length."""
    # NumPyro builds the windows in Python, so that each length is another program; all that it makes of them
    # is a table of their ends. This one has more rows than windows: those after the last end at no step, -1.
    is_short = num_steps < 150
    first = jnp.where(is_short, 15 * num_steps // 100, 75)
    stop = num_steps - jnp.where(is_short, num_steps // 10, 50)
    size = jnp.where(is_short, stop - first, 25) << jnp.arange(_MOST)
    begin = first + size - size[0]
    # Each window is twice as long as the one before, and the last takes what is left.
    doubles = 3 * size <= stop - begin
    end = jnp.where(doubles, begin + size, stop)
    is_window = jnp.roll(doubles, 1).at[0].set(num_steps >= 20)
    end = jnp.where(is_window, end, 0)
    start = jnp.where(num_steps < 20, num_steps, first)
    return jnp.stack([jnp.r_[0, begin, 0], jnp.r_[start, end, 0] - 1], 1)


def takes_traced_warmup(sampler: MCMCKernel) -> bool:
    """Whether ``init`` is that of NumPyro or of this package: others may need a number of Python."""
    kernels = list(with_inner_kernels(sampler))
    homes = {type(k).init.__module__.partition(".")[0] for k in kernels}
    # SA keeps the number where another trace finds it.
    is_known = homes <= {"numpyro", __name__.partition(".")[0]}
    return is_known and not any(isinstance(k, SA) for k in kernels)


_of_numpyro = hmc_util.build_adaptation_schedule


def _also_traced(num_steps: Any) -> Any:
    return (windows if isinstance(num_steps, jax.core.Tracer) else _of_numpyro)(num_steps)


hmc_util.build_adaptation_schedule = _also_traced
