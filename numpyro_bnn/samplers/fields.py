"""Which fields of a kernel's state are collected beside the draws."""

from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs
from numpyro.infer.mcmc import MCMCKernel

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
