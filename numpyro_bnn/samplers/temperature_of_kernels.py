"""Refuses a temperature other than 1 beside parts of a sampler that draw from the posterior itself.

A kernel at temperature T samples exp(−U/T). Exact draws of precisions, moves, and integrals over weights or
precisions are for T = 1: combined with another temperature they sample neither distribution.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel

# A schedule is evaluated at so many steps.
_STEPS = 10_000


def temperatures_of(kernel: MCMCKernel) -> set[float]:
    """The temperatures above 0 of a kernel, and of those inside of it; 1 for one without a temperature."""
    inner = [block for block, _ in getattr(kernel, "blocks", ())]
    inner += [kernel.kernel] if hasattr(kernel, "kernel") else []
    if inner:
        return set().union(*map(temperatures_of, inner))
    schedule: Callable | None = getattr(kernel, "temperature", None)
    if not callable(schedule):
        return {1.0}
    # Kernels may begin inside a program that is being traced.
    with jax.ensure_compile_time_eval():
        found = np.unique(np.asarray(jax.vmap(schedule)(jnp.arange(_STEPS))))
    return set(found[found > 0].tolist())


def refuse_temperature(kernel: MCMCKernel, reason: str) -> None:
    """Refuse a kernel at another temperature than 1; `reason` also says what to do."""
    others = temperatures_of(kernel) - {1.0}
    if others:
        raise ValueError(f"{type(kernel).__name__}: temperature={min(others):.4g}. {reason}")


def refuse_unequal(blocks: Sequence[MCMCKernel]) -> None:
    """Refuse blocks of Gibbs of which some are at another temperature than others."""
    found = [temperatures_of(kernel) for kernel in blocks]
    strange = [kernel for kernel, own in zip(blocks, found) if own - {1.0}]
    if strange and any(own != found[0] for own in found):
        names = ", ".join(type(kernel).__name__ for kernel in blocks if kernel is not strange[0])
        refuse_temperature(
            strange[0],
            f"The other blocks of Gibbs ({names}) draw at their own temperature, 1 where they have none, and "
            "blocks of several temperatures have no common distribution. Give all blocks one temperature; "
            "for precisions at another one than 1 sample all sites by one kernel, on "
            '`bnn.parameterize(model, "noncentered")`.',
        )
