"""Distribution functions of targets against SciPy, and of distributions for which NumPyro has none."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from numpyro_bnn.distributions.distribution_functions import distribution_function

TRIALS = np.array([1, 4, 30])
P = np.array([0.3, 0.5, 0.9])
GATE = np.array([0.2, 0.6, 0.9])


def cut(low, high):
    return stats.truncnorm((low - P) / 2, (high - P) / 2, P, 2.0).cdf


DISTRIBUTIONS = {
    "poisson": (lambda: dist.Poisson(jnp.asarray(TRIALS)), stats.poisson(TRIALS).cdf),
    "binomial": (lambda: dist.Binomial(TRIALS, P), stats.binom(TRIALS, P).cdf),
    "beta-binomial": (
        lambda: dist.BetaBinomial(1.5, 2.0, TRIALS),
        stats.betabinom(TRIALS, 1.5, 2.0).cdf,
    ),
    "geometric": (lambda: dist.Geometric(P), stats.geom(P, loc=-1).cdf),
    "uniform": (lambda: dist.DiscreteUniform(-2, 5), stats.randint(-2, 6).cdf),
    "zero-inflated": (
        lambda: dist.ZeroInflatedPoisson(GATE, jnp.asarray(TRIALS)),
        lambda y: np.where(y >= 0, GATE, 0) + (1 - GATE) * stats.poisson(TRIALS).cdf(y),
    ),
    "zero-inflated, logits": (
        lambda: dist.ZeroInflatedDistribution(
            dist.Binomial(TRIALS, P), gate_logits=jnp.log(GATE / (1 - GATE))
        ),
        lambda y: np.where(y >= 0, GATE, 0) + (1 - GATE) * stats.binom(TRIALS, P).cdf(y),
    ),
    "mixture": (
        lambda: dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])), dist.Exponential(jnp.stack([P, 2 * P], -1))
        ),
        lambda y: 0.3 * stats.expon(scale=1 / P).cdf(y) + 0.7 * stats.expon(scale=0.5 / P).cdf(y),
    ),
    "mixture of two families": (
        lambda: dist.MixtureGeneral(
            dist.Categorical(jnp.full((3, 2), 0.5)),
            [dist.Normal(P, 2.0), dist.Exponential(P)],
            support=dist.constraints.real,
        ),
        lambda y: (stats.norm(P, 2.0).cdf(y) + stats.expon(scale=1 / P).cdf(y)) / 2,
    ),
    "delta": (lambda: dist.Delta(jnp.asarray(TRIALS)), lambda y: 1.0 * (y >= TRIALS)),
    "normal above": (lambda: dist.TruncatedNormal(P, 2.0, low=0.5), cut(0.5, np.inf)),
    "normal below": (lambda: dist.TruncatedNormal(P, 2.0, high=4.0), cut(-np.inf, 4.0)),
    "normal between": (lambda: dist.TruncatedNormal(P, 2.0, low=0.5, high=4.0), cut(0.5, 4.0)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(
    "wrap",
    [lambda distribution: distribution, lambda distribution: distribution.expand([3]).to_event(1)],
)
def test_it_is_that_of_scipy_inside_and_outside_of_the_support(name, wrap):
    distribution, exact = DISTRIBUTIONS[name]
    at = jax.jit(lambda y: distribution_function(wrap(distribution()), y))
    for y in (-3.0, -1.0, 0.0, 0.5, 1.0, 2.5, 4.0, 27.0, 1000.0):
        found = jnp.broadcast_to(at(jnp.full(3, y)), 3)
        np.testing.assert_allclose(found, exact(y), rtol=2e-5, atol=1e-6)


def test_entries_of_a_vector_are_taken_by_themselves():
    covariance = np.array([[4.0, 0.5], [0.5, 0.25]])
    y = np.array([1.0, 0.2])
    expected = stats.norm(0.0, [2.0, 0.5]).cdf(y)
    factor, rest = np.array([[1.0], [0.5]]), np.array([3.0, 1e-6])
    for distribution in (
        dist.MultivariateNormal(jnp.zeros(2), covariance),
        dist.LowRankMultivariateNormal(jnp.zeros(2), factor, rest),
    ):
        np.testing.assert_allclose(distribution_function(distribution, y), expected, rtol=1e-5)


def test_a_distribution_without_one_is_named():
    with pytest.raises(NotImplementedError, match=r"VonMises.*predictions\.sample\(key\)"):
        distribution_function(dist.VonMises(0.0, 1.0), jnp.zeros(3))
