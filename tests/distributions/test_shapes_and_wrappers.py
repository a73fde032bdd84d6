"""Shapes, supports and wrappers of the distributions, beside those of NumPyro."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

from numpyro_bnn.distributions.linear_gaussian import LinearGaussian
from numpyro_bnn.distributions.stable_densities import Gamma
from numpyro_bnn.distributions.unwrap import unwrapped

NUM_DRAWS = 20_000
# One shape of linear targets, rows and weights.
N, P = 6, 3

# Distributions are arguments, so that those of equal shapes share one program.
log_density = jax.jit(lambda distribution, value: distribution.log_prob(value))
many_draws = jax.jit(lambda distribution: distribution.sample(jax.random.key(0), (NUM_DRAWS,)))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda d: d,
        lambda d: d.expand([3, 2]),
        lambda d: d.to_event(1),
        lambda d: d.expand([3, 2]).to_event(2),
        lambda d: d.expand([2]).to_event(1).expand([5]).to_event(1),
    ],
    ids=["plain", "expanded", "event", "expanded event", "twice"],
)
@pytest.mark.parametrize(
    "plain",
    [
        dist.Normal(jnp.array([1.0, 2.0]), 3.0),
        Gamma(jnp.array([1.0, 2.0]), 0.5),
        dist.Laplace(0, 1),
    ],
    ids=["normal", "gamma", "laplace"],
)
def test_unwrapping_gives_the_distribution_that_was_wrapped(plain, wrap):
    if plain.batch_shape == ():
        plain = plain.expand([2])
    found = unwrapped(wrap(plain))
    assert type(found) in (dist.Normal, Gamma, dist.Laplace)
    inner = unwrapped(plain)
    for name in found.arg_constraints:
        np.testing.assert_array_equal(getattr(found, name), getattr(inner, name))


def test_other_distributions_are_left_as_they_are():
    """A transformed or masked distribution is another distribution, and not a wrapper."""
    for distribution in (
        dist.LogNormal(0.0, 1.0),
        dist.Normal(0.0, 1.0).mask(False),
        dist.HalfNormal(2.0),
    ):
        assert unwrapped(distribution) is distribution


@pytest.mark.parametrize("sample_shape", [(), (2, 3)])
@pytest.mark.parametrize(
    ("concentration", "rate", "batch"),
    [(2.0, 1.0, ()), (jnp.ones(3), 2.0, (3,)), (jnp.ones((2, 1)), jnp.ones(4), (2, 4))],
)
def test_gamma_has_the_shapes_of_its_arguments(concentration, rate, batch, sample_shape):
    distribution = Gamma(concentration, rate)
    assert distribution.batch_shape == batch
    assert distribution.event_shape == ()
    drawn = jax.eval_shape(
        partial(distribution.sample, sample_shape=sample_shape), jax.random.key(0)
    )
    assert drawn.shape == (*sample_shape, *batch)
    assert jax.eval_shape(distribution.log_prob, drawn).shape == drawn.shape


def test_the_rate_divides_the_draws_of_one_key():
    one, ten = (many_draws(Gamma(0.7, rate)) for rate in (1.0, 10.0))
    np.testing.assert_allclose(one, 10 * ten, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 2)])
def test_a_linear_target_is_one_event(shape):
    distribution = LinearGaussian(jnp.zeros(shape), jnp.ones((*shape, 3)), 0.5)
    assert distribution.batch_shape == ()
    assert distribution.event_shape == shape
    assert distribution.event_dim == len(shape)
    np.testing.assert_array_equal(distribution.mean, np.zeros(shape))
    for sample_shape in ((), (2, 3)):
        drawn = jax.eval_shape(
            partial(distribution.sample, sample_shape=sample_shape), jax.random.key(0)
        )
        assert drawn.shape == (*sample_shape, *shape)
    assert jax.eval_shape(distribution.log_prob, jnp.zeros(shape)).shape == ()
    # Finite values of every entry make one event that is inside, one NaN one that is not.
    inside, outside = np.ones(shape), np.ones(shape)
    outside[0] = np.nan
    assert bool(distribution.support(inside))
    assert not bool(distribution.support(outside))
    assert distribution.support.event_dim == len(shape)


def test_a_scalar_scale_is_that_of_every_entry(double_precision):
    rng = np.random.default_rng(0)
    mean, features, y = rng.normal(size=N), rng.normal(size=(N, P)), rng.normal(size=N)
    one = LinearGaussian(mean, features, 0.7)
    each = LinearGaussian(mean, features, np.full(N, 0.7))
    found = float(log_density(one, y))
    assert found == pytest.approx(float(log_density(each, y)), rel=1e-14)
    covariance = features @ features.T + 0.49 * np.eye(N)
    expected = stats.multivariate_normal(mean, covariance).logpdf(y)
    assert found == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(one.variance, np.diag(covariance), rtol=1e-12)


def test_a_linear_target_serves_as_an_observed_site_and_passes_through_compiled_code(
    double_precision,
):
    rng = np.random.default_rng(4)
    features, y = rng.normal(size=(N, P)), rng.normal(size=N)

    def model() -> None:
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", LinearGaussian(jnp.zeros(N), features, scale), obs=y)

    found = jax.jit(lambda z: numpyro.infer.util.log_density(model, (), {}, z)[0])({"scale": 0.5})
    expected = stats.multivariate_normal(
        np.zeros(N), features @ features.T + 0.25 * np.eye(N)
    ).logpdf(y)
    assert float(found) == pytest.approx(expected + stats.halfnorm.logpdf(0.5), rel=1e-10)
    # A pytree: the distribution itself is an argument of a compiled function.
    distribution = LinearGaussian(jnp.zeros(N), features, 0.5)
    assert float(log_density(distribution, y)) == pytest.approx(expected, rel=1e-10)


def test_a_noise_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="invalid scale parameter"):
        LinearGaussian(jnp.zeros(2), jnp.ones((2, 1)), -1.0, validate_args=True)
    assert LinearGaussian.arg_constraints["scale"] is constraints.positive
