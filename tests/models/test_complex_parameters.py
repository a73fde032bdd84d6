"""Complex parameters, for which no prior is: refused, unless their values are given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from numpyro import handlers

import numpyro_bnn as bnn


class LinenWave(nn.Module):
    """A network with a complex parameter."""

    @nn.compact
    def __call__(self, x):
        phase = self.param("phase", lambda key: jnp.ones(2, jnp.complex64))
        return jnp.abs(nn.Dense(2)(x) * phase)


class NNXWave(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        self.phase = nnx.Param(jnp.ones(2, jnp.complex64))

    def __call__(self, x):
        return jnp.abs(self.layer(x) * self.phase[...])


@jax.tree_util.register_pytree_with_keys_class
class TreeWave:
    def __init__(self, weight, phase):
        self.weight, self.phase = weight, phase

    def tree_flatten_with_keys(self):
        keys = (jax.tree_util.GetAttrKey(name) for name in ("weight", "phase"))
        return tuple(zip(keys, (self.weight, self.phase))), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)

    def __call__(self, x):
        return jnp.abs(x @ self.weight * self.phase)


WAVES = {
    "linen": LinenWave,
    "nnx": NNXWave,
    "pytree": lambda: TreeWave(jnp.ones((3, 2)), jnp.ones(2, jnp.complex64)),
}


@pytest.mark.parametrize("kind", WAVES)
def test_complex_parameters_do_not_stay_fixed_without_a_word(kind):
    """No prior draws complex numbers, and an NNX or Equinox module would use the values that it has."""
    x = np.ones((4, 3), np.float32)

    def output(params=None):
        def model():
            prior = bnn.priors.Normal(1.0)
            return bnn.random_module("net", WAVES[kind](), prior, x[:1], params=params)(x)

        return handlers.seed(model, 0)()

    with pytest.raises(ValueError, match=r"\['phase'\] are complex.*real and the imaginary part"):
        output()
    one, three = (output({"phase": k * jnp.ones(2, jnp.complex64)}) for k in (1, 3))
    np.testing.assert_allclose(three, 3 * one, rtol=1e-5)
