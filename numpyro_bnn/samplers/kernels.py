"""What kernels record, and their temperatures, of which some combinations are refused.

A kernel at temperature T samples exp(−U/T). Exact draws of precisions, moves, and integrals over weights or
precisions are for T = 1: combined with another temperature they sample neither distribution.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._checks import warn

# Fields of HMC and NUTS that diagnostics use.
_HMC_FIELDS = ("potential_energy", "energy", "accept_prob", "num_steps", "adapt_state.step_size")


def fields_of(kernel: MCMCKernel) -> tuple[str, ...]:
    """Names of the state fields that a run of a kernel collects beside the draws."""
    if isinstance(kernel, Gibbs):
        # Large steps and minibatch noise heat the uncorrected block.
        number = uncorrected_block(kernel)
        names = () if number is None else kernel.blocks[number][0].default_fields
        return (*kernel.default_fields, *(name for name in names if "temperature" in name))
    return (*kernel.default_fields, *(_HMC_FIELDS if isinstance(kernel, HMC) else ()))


def has_exact_energy(kernel: MCMCKernel) -> bool:
    """Whether the field ``potential_energy`` of a kernel is the energy on all rows at each draw."""
    return bool(getattr(kernel, "has_exact_energy", True))


def uncorrected_block(kernel: MCMCKernel) -> int | None:
    """Number of the only block of Gibbs without Metropolis correction; None if not exactly one."""
    gibbs = getattr(kernel, "kernel", kernel)
    if not isinstance(gibbs, Gibbs):
        return None
    given = [block.default_fields for block, _ in gibbs.blocks]
    found = [i for i, n in enumerate(given) if "temperature" in n and "accept_prob" not in n]
    return found[0] if len(found) == 1 else None


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
    if others := temperatures_of(kernel) - {1.0}:
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


# A mean temperature is wrong if it is off by more than this share, and by so many standard errors.
_WRONG, _ERRORS = 0.05, 4.0
# The error comes from means over blocks of draws, much longer than the memory of momenta.
_SHORTEST, _MOST, _FEWEST = 50, 10, 8
_TOO_WARM = (
    "noise of the minibatches heats them, or the chains have not arrived, and draws are spread too widely. "
    "Take gradient_noise='auto' and step_size='auto', gradients.svrg, larger minibatches, smaller steps, or "
    "a longer warm-up"
)
_TOO_COLD = (
    "more noise is taken off than there is, or steps are too large. Take smaller steps, or a longer warm-up "
    "where the noise is estimated"
)


def temperature_of_momenta(stats: Mapping[str, ArrayLike]) -> tuple[float, float] | None:
    """Mean temperature of the momenta of a minibatch run over the one asked for, and its error."""
    # None at temperature 0, for short runs, and for kernels that do not record these fields: only minibatch
    # kernels with momenta and without a Metropolis decision do.
    if not {"kinetic_temperature", "gradient_temperature", "temperature"} <= stats.keys():
        return None
    measured, asked = (np.asarray(stats[n]) for n in ("kinetic_temperature", "temperature"))
    blocks = min(_MOST, measured.shape[1] // _SHORTEST)
    if blocks * len(measured) < _FEWEST or not (asked > 0).all():
        return None
    kept = measured.shape[1] // blocks * blocks
    ratio = np.asarray(measured[:, :kept] / asked[:, :kept], np.float64)
    means = ratio.reshape(-1, kept // blocks).mean(1)
    return float(means.mean()), float(means.std(ddof=1) / len(means) ** 0.5)


def warn_of_momenta(stats: Mapping[str, ArrayLike]) -> None:
    """Warn after a run whose momenta do not have the temperature that was asked for."""
    # Momenta decorrelate within a few steps: they show the effects of step size and minibatch noise early.
    if (found := temperature_of_momenta(stats)) is None:
        return
    value, error = found
    if not abs(value - 1) > max(_WRONG, _ERRORS * error):
        return
    why = _TOO_WARM if value > 1 else _TOO_COLD
    warn(
        f"Momenta of this run are {value:.3g} ± {error:.1g} times as warm as asked for: {why}; "
        "`bnn.diagnose` has the temperature of each site."
    )
