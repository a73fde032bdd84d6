"""A kernel without a model, for tests of what happens around a kernel: its draws are known exactly."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel

import numpyro_bnn as bnn


class _WalkState(NamedTuple):
    z: Any
    count: jax.Array
    rng_key: jax.Array


class Walk(MCMCKernel):
    """Walks up by halves; chains that start below zero stay, and become NaN at the step they say."""

    sample_field = "z"

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        return _WalkState(init_params, jnp.array(0), rng_key)

    def sample(self, state, model_args, model_kwargs):
        broken = (state.z < 0) & (state.count >= -state.z)
        z = jnp.where(broken, jnp.nan, jnp.where(state.z < 0, state.z, state.z + 0.5))
        return _WalkState(z, state.count + 1, state.rng_key)


STARTS = jnp.asarray([1.0, 2.0])
# The draws of such a run, after two steps of warm-up.
WALKED = STARTS[:, None] + 0.5 * np.arange(3, 3 + 9)


def sampler(**where):
    """A run on disk of two chains: nine draws in chunks of three."""
    options = {"num_warmup": 2, "num_samples": 9, "num_chains": 2, "progress_bar": False}
    return bnn.MCMC(Walk(), checkpoint_every=3, **options, **where)


def run(mcmc):
    mcmc.run(jax.random.key(0), init_params=STARTS)
