"""Runs of a kernel as tests need them, in a line: without a progress bar, and not yet begun."""

import numpyro_bnn as bnn


def quiet(kernel, num_warmup, num_samples, num_chains=1, **options):
    lengths = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    return bnn.MCMC(kernel, **lengths, progress_bar=False, **options)


def together(kernel, num_warmup, num_samples, num_chains, **options):
    """All chains are steps of one program."""
    return quiet(kernel, num_warmup, num_samples, num_chains, chain_method="vectorized", **options)
