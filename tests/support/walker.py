"""A kernel without a model, for tests of what happens around a kernel: its draws are known exactly."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer.mcmc import MCMCKernel


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
