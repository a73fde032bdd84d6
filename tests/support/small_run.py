"""A short run of a small ready model: what compiles it for one file has compiled it for the others."""

import jax
import nets
import numpy as np

import numpyro_bnn as bnn

_RNG = np.random.default_rng(3)
X = _RNG.normal(size=(12, 2))
Y = X @ [1.0, -0.5] + 0.1 * _RNG.normal(size=12)
PRIOR = bnn.priors.Normal(1.0)


def regression(**options):
    return bnn.regression(bnn.MLP((2,), 1), PRIOR, noise=0.1, **options)


def unstarted(model):
    """A run before its first step."""
    kernel = bnn.RandomWalk(model, step_size=0.02)
    settings = {"num_warmup": 20, "num_samples": 100, "num_chains": 2}
    return bnn.MCMC(kernel, **settings, progress_bar=False)


def sample(run, x, y):
    starts = nets.starts(2, run.sampler.model, X, Y)
    run.run(jax.random.key(0), x, y, extra_fields=("potential_energy",), init_params=starts)
    return run
