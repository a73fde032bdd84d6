"""Scores of predictions that are not Gaussian: counts, heavy tails, and times that may be censored."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn import scores
from numpyro_bnn.scores import inputs

ROWS = 3000
COUNTS = {
    "rare": (lambda f: dist.Poisson(0.02 * jnp.exp(f)), lambda f: stats.poisson(0.02 * np.exp(f))),
    "binomial": (
        lambda f: dist.Binomial(7, logits=f),
        lambda f: stats.binom(7, 1 / (1 + np.exp(-f))),
    ),
}


def predicted(distribution, draws, x):
    model = row_model(lambda x, w: distribution(w + x), w=dist.Normal(0.0, 1.0))
    return bnn.predict(model, {"w": np.asarray(draws, np.float32)}, x)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("name", COUNTS)
def test_the_transform_of_counts_is_uniform(name, rng):
    distribution, exact = COUNTS[name]
    x = rng.normal(size=ROWS).astype(np.float32)
    y = exact(0.3 + x).rvs(random_state=rng)
    found = scores.pit(predicted(distribution, [0.3], x), y)
    assert stats.kstest(found, "uniform").pvalue > 1e-3
    # Draws whose means are twice too high are seen.
    assert stats.kstest(scores.pit(predicted(distribution, [1.0], x), y), "uniform").pvalue < 1e-3


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_covered_where_it_lies_between_the_quantiles(name, rng):
    distribution, exact = COUNTS[name]
    x = rng.normal(size=ROWS).astype(np.float32)
    y = exact(0.3 + x).rvs(random_state=rng)
    made = predicted(distribution, [0.1, 0.5], x)
    for level in (0.5, 0.9):
        low, high = made.quantiles([(1 - level) / 2, (1 + level) / 2])
        inside = (y >= low) & (y <= high)
        np.testing.assert_array_equal(scores.coverage(made, y, level=level, pointwise=True), inside)
        assert inside.mean() > level - 3 * (level * (1 - level) / ROWS) ** 0.5


@pytest.mark.parametrize("rows", [2, 5])
def test_counts_of_several_outputs_are_judged_one_by_one(rows, rng):
    """As many rows as outputs, too: a probability of a row would broadcast there."""
    x = rng.normal(size=(rows, 2)).astype(np.float32)
    draws = np.array([0.1, 0.6])
    exact = stats.poisson(np.exp(draws[:, None, None] + x))
    y = exact.rvs(random_state=rng)[0]
    made = predicted(lambda f: dist.Poisson(jnp.exp(f)).to_event(1), draws, x)
    below, at = (exact.cdf(end).mean(0) for end in (y - 1, y))
    found = scores.pit(made, y)
    drawn = np.random.default_rng(0).uniform(size=y.shape)
    np.testing.assert_allclose(found, below + drawn * (at - below), atol=1e-5)
    inside = (at >= 0.25) & (below < 0.75)
    assert scores.coverage(made, y, level=0.5) == pytest.approx(inside.mean())


def crps_of(distribution, y):
    """The integral of (F(z) - 1[y ≤ z])², by its definition."""
    if hasattr(distribution.dist, "pmf"):
        numbers = np.arange(0, 2000)
        return float(np.sum((distribution.cdf(numbers) - (y <= numbers)) ** 2))
    below = integrate.quad(lambda z: distribution.cdf(z) ** 2, -np.inf, y, limit=200)[0]
    return below + integrate.quad(lambda z: distribution.sf(z) ** 2, y, np.inf, limit=200)[0]


OTHERS = {
    "poisson": (lambda f: dist.Poisson(jnp.exp(f)), lambda f: stats.poisson(np.exp(f))),
    "student": (lambda f: dist.StudentT(3.0, f, 0.5), lambda f: stats.t(3.0, f, 0.5)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_crps_is_that_of_the_distribution(name, rng):
    distribution, exact = OTHERS[name]
    x = np.linspace(-1, 1, 40).astype(np.float32)
    y = exact(x).rvs(random_state=rng)
    made = predicted(distribution, [0.0], x)
    expected = [crps_of(exact(f), float(t)) for f, t in zip(x, y)]
    found = scores.crps(made, y, pointwise=True)
    # Rows are drawn apart. E|X - y| and E|X - X'| each err by at most the sd of the distribution over √S.
    error = np.sqrt(np.mean(exact(x).std() ** 2) / inputs.SAMPLES)
    assert abs(np.mean(found - expected)) < 4 * error / len(x) ** 0.5
    assert np.abs(found - expected).max() < 5 * exact(x).std().max() / inputs.SAMPLES**0.5
    np.testing.assert_array_equal(found, scores.crps(made, y, pointwise=True))


def test_several_outputs_in_the_users_units_are_drawn_there(rng):
    x = rng.normal(size=(20, 2))
    y = np.stack([1e4 + x[:, 0], -300 + 5 * x[:, 1]], 1)
    noise = bnn.likelihoods.Precision.width(0.1, common=0.5, case=3.0)
    model = bnn.regression(bnn.MLP([2], 2), bnn.priors.Normal(1.0), x, y, noise=noise)
    sites = bnn.prior_predictive(model, jax.random.key(1), x[:4], 3)
    made = bnn.predict(model, {k: v for k, v in sites.items() if k != "y"}, x[:4])
    drawn = made.targets(5000)
    assert drawn.shape == (5001, 4, 2)
    error = made.scale.max((0, 1)) / 5000**0.5 + made.mean.std((0, 1))
    assert (np.abs(drawn.mean(0) - made.mean.mean((0, 1))) < 6 * error).all()


def test_a_gaussian_distribution_has_its_closed_form(rng):
    x = np.linspace(-1, 1, 5).astype(np.float32)
    made = predicted(lambda f: dist.Normal(f, 0.5), [0.0, 1.0], x)
    y = rng.normal(size=5)
    expected = scores.crps(made.mean, y, made.scale)
    assert scores.crps(made, y) == pytest.approx(expected, rel=1e-12)


def test_a_distribution_without_a_distribution_function_gives_samples(rng):
    x = np.linspace(-1, 1, 30).astype(np.float32)
    y = rng.uniform(-3, 3, 30)
    found = scores.pit(predicted(lambda f: dist.VonMises(f, 2.0), [0.0], x), y)
    # From -π, where a circle that is centred at 0 is cut.
    exact = np.array(
        [integrate.quad(stats.vonmises(2.0, loc=m).pdf, -np.pi, t)[0] for m, t in zip(x, y)]
    )
    np.testing.assert_allclose(found, exact, atol=5 * 0.5 / inputs.SAMPLES**0.5)


def test_a_distribution_without_a_variance_is_refused_by_name():
    def distribution(f):
        base = dist.Normal(f, 1.0)
        return dist.TransformedDistribution(base, dist.transforms.AffineTransform(0.0, 2.0))

    with pytest.raises(NotImplementedError, match="TransformedDistribution, has no mean"):
        predicted(distribution, [0.0], np.zeros(2, np.float32))
