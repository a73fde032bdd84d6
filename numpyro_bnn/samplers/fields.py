"""Which fields of a kernel's state are collected beside the draws."""

from numpyro.infer import HMC
from numpyro.infer.gibbs import Gibbs
from numpyro.infer.mcmc import MCMCKernel

# Fields of HMC and NUTS that diagnostics use.
_HMC_FIELDS = ("potential_energy", "energy", "accept_prob", "num_steps", "adapt_state.step_size")


def fields_of(kernel: MCMCKernel) -> tuple[str, ...]:
    """Names of the state fields that a run of a kernel collects beside the draws."""
    if isinstance(kernel, Gibbs):
        return (*kernel.default_fields, *_temperatures_of_a_block(kernel))
    return (*kernel.default_fields, *(_HMC_FIELDS if isinstance(kernel, HMC) else ()))


def _temperatures_of_a_block(kernel: Gibbs) -> tuple[str, ...]:
    """Temperatures that the one block of a Gibbs sampler with an uncorrected kernel records.

    Steps that are too large, and noise of minibatches, would heat it unseen.
    """
    given = [block.default_fields for block in kernel._kernels]
    found = [names for names in given if "temperature" in names and "accept_prob" not in names]
    if len(found) != 1:
        return ()
    return tuple(name for name in found[0] if "temperature" in name)
