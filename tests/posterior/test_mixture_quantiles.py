"""Quantiles of the average over draws, against closed forms; and the distribution functions behind them."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import optimize, stats
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn import scores
from numpyro_bnn.likelihoods.survival import PiecewiseHazard

X = np.linspace(-1.0, 1.0, 3)
LEVELS = (0.01, 0.3, 0.5, 0.975)
DISTRIBUTIONS = {
    "normal": (lambda m: dist.Normal(m, 2.0), lambda m: stats.norm(m, 2.0)),
    "student_t": (lambda m: dist.StudentT(3.0, m, 0.5), lambda m: stats.t(3.0, m, 0.5)),
    "cauchy": (lambda m: dist.StudentT(1.0, m, 0.5), lambda m: stats.t(1.0, m, 0.5)),
    "exponential": (lambda m: dist.Exponential(np.e**m), lambda m: stats.expon(scale=np.exp(-m))),
}


def predictions(distribution, draws):
    model = row_model(lambda x, w: distribution(w + x), w=dist.Normal(0.0, 1.0))
    return bnn.predict(model, {"w": np.asarray(draws, np.float32)}, X)


WIDE = {
    "far tails": ([5.0] * 4, lambda s: dist.LogNormal(0.0, s), stats.lognorm(5.0).cdf),
    "one wide draw": (
        [1.0] * 400 + [1e6],
        lambda s: dist.Normal(0.0, s),
        lambda y: (400 * stats.norm.cdf(y) + stats.norm.cdf(y / 1e6)) / 401,
    ),
    "one draw with far tails": (
        [2.0] * 400 + [8.0],
        lambda s: dist.LogNormal(0.0, s),
        lambda y: (400 * stats.lognorm(2.0).cdf(y) + stats.lognorm(8.0).cdf(y)) / 401,
    ),
    "no variance, and narrow": (
        [1e-8] * 4,
        lambda s: dist.StudentT(1.5, 0.0, s),
        lambda y: stats.t(1.5).cdf(y * 1e8),
    ),
}


@pytest.mark.parametrize("name", WIDE)
def test_quantiles_do_not_depend_on_the_widest_draw(name):
    draws, distribution, exact = WIDE[name]

    model = row_model(lambda x, s: distribution(s + 0 * x), s=dist.LogNormal())
    found = bnn.predict(model, {"s": np.asarray(draws, np.float32)}, X[:1]).quantiles(
        (0.05, 0.5, 0.95)
    )
    # Distribution functions in single precision have so many digits.
    np.testing.assert_allclose(exact(found[:, 0]), (0.05, 0.5, 0.95), rtol=3e-4)


def test_a_count_whose_mean_is_huge_in_one_draw_keeps_its_quantiles():
    made = predictions(lambda m: dist.Poisson(np.e**m), [0.5] * 400 + [20.0])
    expected = stats.poisson(np.exp(0.5 + X)).ppf(0.5)
    np.testing.assert_array_equal(made.quantiles(0.5)[0], expected)


def test_levels_that_single_precision_takes_for_one_are_refused():
    made = predictions(DISTRIBUTIONS["normal"][0], [0.5])
    with pytest.raises(ValueError, match=r"does not tell the level 0\.9999999 from 1"):
        made.quantiles((0.5, 0.9999999))


COUNTS = {
    "poisson": (lambda m: dist.Poisson(np.e**m), lambda m: stats.poisson(np.exp(m))),
    "negative binomial": (
        lambda m: dist.NegativeBinomial2(np.e**m, 2.0),
        lambda m: stats.nbinom(2.0, 2.0 / (2.0 + np.exp(m))),
    ),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("draw", [0.5, 4.0])
def test_quantiles_of_counts_are_whole_numbers(name, draw):
    distribution, exact = COUNTS[name]
    made = predictions(distribution, [draw])
    found = made.quantiles(LEVELS)
    distributions = exact(draw + X)
    np.testing.assert_array_equal(found, [distributions.ppf(level) for level in LEVELS])
    for at in (-1.0, 0.0, 2.0, 2.5):
        np.testing.assert_allclose(
            made.cdf(np.full(3, at))[0, 0], distributions.cdf(at), rtol=1e-4, atol=1e-6
        )


def test_quantiles_of_a_mixture_of_counts():
    found = predictions(COUNTS["poisson"][0], [0.0, 3.0]).quantiles([0.3, 0.45, 0.95])
    numbers = np.arange(200)[:, None]
    below = sum(stats.poisson(np.exp(w + X)).cdf(numbers) for w in (0.0, 3.0)) / 2
    np.testing.assert_array_equal(found, [(below < level).sum(0) for level in (0.3, 0.45, 0.95)])


def test_quantiles_of_times_with_a_hazard_in_pieces():
    breaks = (1.0,)

    model = row_model(
        lambda x, w: PiecewiseHazard(jnp.stack([w + x, w + x + 1.0], -1), breaks),
        w=dist.Normal(0.0, 1.0),
    )
    made = bnn.predict(model, {"w": np.float32([-0.5])}, X)
    found = made.quantiles(LEVELS)
    first, second = np.exp(-0.5 + X), np.exp(0.5 + X)
    for level, times in zip(LEVELS, found):
        target = -np.log1p(-level)
        expected = np.where(target <= first, target / first, 1 + (target - first) / second)
        np.testing.assert_allclose(times[:, 0], expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(times[:, 1], 1.0)


def test_quantiles_in_small_units_are_no_whole_numbers():
    unit = 1e-8
    found = predictions(lambda m: dist.Normal(unit * m, 2 * unit), [0.5]).quantiles(LEVELS)
    expected = np.stack([stats.norm(0.5 + X, 2.0).ppf(level) for level in LEVELS])
    np.testing.assert_allclose(found / unit, expected, rtol=1e-3, atol=1e-3)


def test_quantiles_of_two_far_draws_solve_the_mixture():
    found = predictions(DISTRIBUTIONS["normal"][0], [-30.0, 30.0]).quantiles([0.25, 0.6])

    def mixture(q, x, level):
        return 0.5 * (stats.norm.cdf(q, x - 30, 2) + stats.norm.cdf(q, x + 30, 2)) - level

    for row, x in enumerate(X):
        for place, level in enumerate((0.25, 0.6)):
            exact = optimize.brentq(mixture, -60, 60, args=(x, level))
            np.testing.assert_allclose(found[place, row], exact, atol=1e-3)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_integral_transform_is_that_of_the_distribution(name):
    """Student's t has other tails than a normal distribution of the same standard deviation."""
    distribution, exact = DISTRIBUTIONS[name]
    made = predictions(distribution, [0.2])
    y = exact(0.2 + X).ppf(0.9)
    np.testing.assert_allclose(scores.pit(made, y), 0.9, atol=1e-4)
    assert scores.coverage(made, y, level=0.79) == 0.0
    assert scores.coverage(made, y, level=0.81) == 1.0


def test_wrong_levels_are_refused():
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got \[0.0\]"):
        predictions(DISTRIBUTIONS["normal"][0], [0.0]).quantiles([0.0])


def test_classes_have_no_quantiles():
    with pytest.raises(AttributeError, match="not 'mean'"):
        predictions(lambda m: dist.Bernoulli(logits=m), [0.0]).quantiles([0.5])
