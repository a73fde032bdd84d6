"""Which fields of a kernel's state are collected beside the draws."""

from numpyro.infer import HMC
from numpyro.infer.mcmc import MCMCKernel

# Fields of HMC and NUTS that diagnostics use.
_HMC_FIELDS = ("potential_energy", "energy", "accept_prob", "num_steps", "adapt_state.step_size")


def fields_of(kernel: MCMCKernel) -> tuple[str, ...]:
    """Names of the state fields that a run of a kernel collects beside the draws."""
    return (*kernel.default_fields, *(_HMC_FIELDS if isinstance(kernel, HMC) else ()))
