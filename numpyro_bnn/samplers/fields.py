"""The fields of a kernel's state that are collected beside the draws."""

from numpyro.infer import HMC
from numpyro.infer.mcmc import MCMCKernel

# What diagnoses of HMC and NUTS look at.
_HMC_FIELDS = ("potential_energy", "energy", "accept_prob", "num_steps", "adapt_state.step_size")


def fields_of(kernel: MCMCKernel) -> tuple[str, ...]:
    """Fields of its state that a kernel's run keeps, besides the draws."""
    return (*kernel.default_fields, *(_HMC_FIELDS if isinstance(kernel, HMC) else ()))
