"""Networks that compute in half precision: sums over rows keep their digits, or the model is refused.

Complex parameters, for which no prior is, are refused, unless their values are given.
"""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from flax import nnx
from numpyro import handlers
from numpyro.infer import NUTS
from numpyro.infer.util import potential_energy
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn.likelihoods.observe import check_dtype

RNG = np.random.default_rng(0)
ROWS = 4000
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(int)
Y = X[:, 0] + 0.1 * X[:, 1]
# The spacing of bfloat16 at the sum of a few thousand log densities: eight nats and more.
SPACING = 8.0


class Half(nn.Module):
    outputs: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        x = jnp.tanh(nn.Dense(4, dtype=self.dtype)(x))
        return nn.Dense(self.outputs, dtype=self.dtype)(x)


class NNXHalf(nnx.Module):
    def __init__(self, outputs, dtype):
        self.inner = nnx.Linear(3, 4, dtype=dtype, rngs=nnx.Rngs(0))
        self.outer = nnx.Linear(4, outputs, dtype=dtype, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))


MODULES = {"linen": Half, "nnx": NNXHalf}


def classifier(kind, dtype):
    return network_model(
        MODULES[kind](2, dtype), bnn.priors.Normal(1.0), bnn.likelihoods.categorical
    )


def regression(kind, dtype):
    """A model that calls NumPyro itself."""

    def model(x, y=None):
        net = bnn.random_module("net", MODULES[kind](1, dtype), bnn.priors.Normal(1.0), x[:1])
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.5), obs=y)

    return model


MODELS = {"classifier": (classifier, LABELS), "regression": (regression, Y)}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("task", MODELS)
def test_log_densities_are_summed_in_single_precision(task, kind, dtype):
    """The energy is the float64 sum over rows of the outputs as they are rounded."""
    make, y = MODELS[task]
    model = make(kind, dtype)
    values = nets.weights(model, X, y)

    @jax.jit
    def evaluated(values):
        module = MODULES[kind](2 if task == "classifier" else 1, dtype)

        def network(x):
            net = bnn.random_module("net", module, bnn.priors.Normal(1.0), x[:1])
            return numpyro.deterministic("f", net(x))

        at = numpyro.handlers.seed(numpyro.handlers.substitute(network, data=values), 0)
        outputs = at(X)
        own = bnn.potential_of(model, X, y)(values)
        return outputs, own, potential_energy(model, (X, y), {}, values)

    outputs, own, theirs = evaluated(values)
    assert outputs.dtype == jnp.float32
    f = np.asarray(outputs, np.float64)
    if task == "classifier":
        logs = f[np.arange(ROWS), y] - np.logaddexp(f[:, 0], f[:, 1])
    else:
        logs = -((y - f[:, 0]) ** 2) / (2 * 0.25) - np.log(0.5 * np.sqrt(2 * np.pi))
    prior = sum(
        np.sum(np.square(v, dtype=np.float64) + np.log(2 * np.pi)) / 2
        for v in map(np.asarray, values.values())
    )
    for energy in (own, theirs):
        assert energy == pytest.approx(prior - logs.sum(), abs=SPACING / 400)


def test_the_network_itself_stays_in_half_precision():
    values = nets.weights(classifier("linen", jnp.bfloat16), X, LABELS)

    def output(dtype):
        def model(x):
            return bnn.random_module("net", Half(2, dtype), bnn.priors.Normal(1.0), x[:1])(x)

        return numpyro.handlers.seed(numpyro.handlers.substitute(model, data=values), 0)(X)

    half, single = output(jnp.bfloat16), output(jnp.float32)
    assert half.dtype == single.dtype == jnp.float32
    error = np.abs(half - single).max() / np.abs(single).max()
    assert 2**-12 < error < 2**-5


DISTRIBUTIONS = {
    "Normal": lambda f: (dist.Normal(f[:, 0], jnp.bfloat16(1)), Y.astype(jnp.bfloat16)),
    "Categorical": lambda f: (dist.Categorical(logits=f), LABELS),
    "one of several dimensions": lambda f: (
        dist.Normal(f, jnp.bfloat16(1)).to_event(1),
        X[:, :2].astype(jnp.bfloat16),
    ),
    "masked": lambda f: (dist.Categorical(logits=f).mask(X[:, 0] > 0), LABELS),
    "factor": lambda f: (dist.Unit(f[:, 0]), jnp.empty((ROWS, 0))),
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_what_a_model_rounds_itself_is_refused_before_a_run(distribution):
    def model(x):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
        own, values = DISTRIBUTIONS[distribution]((x @ w).astype(jnp.bfloat16))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", own, obs=values)

    mcmc = bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(TypeError, match=r"'y' is computed in bfloat16.* known to 8 nats.*float32"):
        mcmc.run(jax.random.key(0), X)


@pytest.mark.parametrize(
    ("distribution", "values"),
    [
        (dist.Normal(jnp.zeros(3, jnp.bfloat16), 1.0 * jnp.ones(3)), Y[:3]),
        (dist.Normal(jnp.zeros(3), 1.0), Y[:3].astype(np.float16)),
        (dist.Poisson(jnp.ones(3)), np.array([1, 2, 3])),
        (dist.Categorical(logits=jnp.zeros((3, 2))), LABELS[:3]),
    ],
    ids=["half and single", "targets in half", "counts", "classes"],
)
def test_distributions_whose_sums_keep_their_digits_are_taken(distribution, values):
    check_dtype("y", distribution, values)
    assert jnp.finfo(distribution.log_prob(values).dtype).bits >= 32


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
