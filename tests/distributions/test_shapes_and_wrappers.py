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

from numpyro_bnn.distributions.gamma import Gamma
from numpyro_bnn.distributions.linear_gaussian import LinearGaussian
from numpyro_bnn.distributions.unwrap import unwrapped

NUM_DRAWS = 20_000
# One shape of linear targets, rows and weights.
N, P = 6, 3

# Distributions are arguments, so that those of equal shapes share one program.
log_density = jax.jit(lambda distribution, value: distribution.log_prob(value))
distribution_function = jax.jit(lambda distribution, value: distribution.cdf(value))
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


@pytest.mark.parametrize("concentration", [1.0, 2.0])
def test_draws_of_a_gamma_are_in_its_support(concentration):
    distribution = Gamma(concentration, 2.0)
    assert bool(distribution.support(many_draws(distribution)).all())


@pytest.mark.parametrize(("concentration", "rate"), [(0.05, 3.0), (1.0, 0.2), (7.5, 40.0)])
def test_gamma_has_density_distribution_function_and_moments_of_scipy(concentration, rate):
    distribution, theirs = Gamma(concentration, rate), stats.gamma(concentration, scale=1 / rate)
    x = theirs.ppf([0.05, 0.3, 0.5, 0.9, 0.999])
    assert (x > 1e-30).all()
    np.testing.assert_allclose(log_density(distribution, x), theirs.logpdf(x), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(distribution_function(distribution, x), theirs.cdf(x), rtol=2e-5)
    assert float(distribution.mean) == pytest.approx(theirs.mean(), rel=1e-6)
    assert float(distribution.variance) == pytest.approx(theirs.var(), rel=1e-6)


def test_the_rate_divides_the_draws_of_one_key():
    one, ten = (many_draws(Gamma(0.7, rate)) for rate in (1.0, 10.0))
    np.testing.assert_allclose(one, 10 * ten, rtol=1e-6)


def test_a_tiny_concentration_underflows_as_often_as_its_distribution_says():
    """P(τ < tiny) of Gamma(0.01): draws that would be zero stand at the smallest normal number."""
    drawn = np.asarray(many_draws(Gamma(0.01, 1.0)))
    smallest = np.finfo(drawn.dtype).tiny
    share = np.mean(drawn == smallest)
    exact = stats.gamma(0.01).cdf(float(smallest))
    assert abs(share - exact) < 4 * np.sqrt(exact * (1 - exact) / NUM_DRAWS)
    # Above it the logarithms follow the distribution.
    for quantile in (0.6, 0.8, 0.95):
        below = np.mean(drawn < stats.gamma(0.01).ppf(quantile))
        assert abs(below - quantile) < 4 * np.sqrt(quantile * (1 - quantile) / NUM_DRAWS)


def test_wrong_parameters_of_a_gamma_are_refused_like_those_of_numpyro():
    with pytest.raises(ValueError, match="invalid concentration parameter"):
        Gamma(-1.0, 1.0, validate_args=True)
    with pytest.raises(ValueError, match="invalid rate parameter"):
        Gamma(1.0, 0.0, validate_args=True)


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


def test_without_signal_the_target_is_plain_noise(double_precision):
    rng = np.random.default_rng(1)
    mean, scale, y = rng.normal(size=N), rng.uniform(0.5, 2, N), rng.normal(size=N)
    distribution = LinearGaussian(mean, np.zeros((N, P)), scale)
    expected = stats.norm(mean, scale).logpdf(y).sum()
    assert float(log_density(distribution, y)) == pytest.approx(expected, rel=1e-13)


def test_a_linear_target_in_other_units_has_the_density_of_a_change_of_variables(double_precision):
    """y c with mean, features and noise times c: the log density falls by n log c."""
    rng = np.random.default_rng(2)
    mean, features, y = rng.normal(size=N), rng.normal(size=(N, P)), rng.normal(size=N)
    plain = log_density(LinearGaussian(mean, features, 0.3), y)
    scaled = log_density(LinearGaussian(60 * mean, 60 * features, 18.0), 60 * y)
    assert float(plain - scaled) == pytest.approx(N * np.log(60), rel=1e-12)


def test_the_basis_of_the_weights_does_not_matter(double_precision):
    """Weights that are turned by a rotation are standard normal again."""
    rng = np.random.default_rng(3)
    features, y = rng.normal(size=(N, P)), rng.normal(size=N)
    rotation = np.linalg.qr(rng.normal(size=(P, P)))[0]
    plain, turned = (
        float(log_density(LinearGaussian(np.zeros(N), b, 0.4), y))
        for b in (features, features @ rotation)
    )
    assert turned == pytest.approx(plain, rel=1e-12)


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
