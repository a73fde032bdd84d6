"""Handlers of NumPyro around an integrated output layer: the posterior of the model inside, or an error."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import condition, do, mask, scale, scope
from scipy import stats

import numpyro_bnn as bnn

pytestmark = pytest.mark.usefixtures("double_precision")
ROWS, NOISE = 6, 0.7
RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(ROWS, 2)), RNG.normal(size=ROWS), RNG.normal(size=(2, 3))
V = np.array([0.5, -1.0, 2.0])
FEATURES = np.tanh(X @ W)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    numpyro.sample("unused", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ w) @ v + b, NOISE), obs=y)


def log_joint(handled, values):
    # As one program: operation by operation each would be compiled by itself.
    energy = jax.jit(bnn.potential_of(handled, X, Y))
    return -energy({name: jnp.asarray(v) for name, v in values.items()})


def expected(v=None):
    """log p(y, w) at W and unused = 0, with all weights of the output integrated out, or only b beside v."""
    mean = np.zeros(ROWS) if v is None else FEATURES @ v
    spread = FEATURES @ FEATURES.T if v is None else np.zeros((ROWS, ROWS))
    covariance = spread + 1.0 + NOISE**2 * np.eye(ROWS)
    prior = stats.norm.logpdf(np.concatenate([W.ravel(), [0.0], [] if v is None else v])).sum()
    return stats.multivariate_normal(mean, covariance).logpdf(Y) + prior


INTEGRATED = bnn.integrate_output(model)
REST = {"unused": 0.0}


@pytest.mark.parametrize(
    ("handled", "values", "exact"),
    [
        (INTEGRATED, REST | {"w": W}, expected()),
        (condition(INTEGRATED, {"w": W}), REST, expected()),
        (bnn.integrate_output(condition(model, {"w": W})), REST, expected()),
        # A given weight of the output layer is not integrated.
        (condition(INTEGRATED, {"v": V}), REST | {"w": W}, expected(V)),
        (scope(INTEGRATED, prefix="a"), {"a/w": W, "a/unused": 0.0}, expected()),
        # The distribution of the site itself stays, beside the value that the rest of the model sees.
        (
            do(INTEGRATED, {"w": W}),
            REST | {"w": 0 * W},
            expected() + stats.norm.logpdf(0 * W).sum() - stats.norm.logpdf(W).sum(),
        ),
    ],
    ids=["none", "condition hidden", "the same inside", "condition output", "scope", "do"],
)
def test_a_handler_outside_has_the_density_of_one_inside(handled, values, exact):
    np.testing.assert_allclose(log_joint(handled, values), exact, rtol=1e-10)


@pytest.mark.parametrize("handler", [scale(scale=0.5), mask(mask=jnp.arange(ROWS) < 3)])
@pytest.mark.parametrize(
    "inner",
    [INTEGRATED, bnn.regression(bnn.MLP((2,), 1), bnn.priors.FanIn(), integrate_output=True)],
)
def test_a_density_scaled_or_masked_outside_is_refused(handler, inner):
    handled = type(handler)(inner, handler.scale if isinstance(handler, scale) else handler.mask)
    with pytest.raises(ValueError, match="scales or masks the log density of 'y'"):
        bnn.potential_of(handled, X, Y)


def test_a_model_whose_output_weights_are_all_given_is_refused():
    given = condition(INTEGRATED, {"v": V, "b": 0.0})
    with pytest.raises(ValueError, match=r"whose values are given .* are not integrated"):
        bnn.potential_of(given, X, Y)
