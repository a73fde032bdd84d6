"""Quantiles of the average over draws, against closed forms; and the distribution functions behind them."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import optimize, stats

import numpyro_bnn as bnn
from numpyro_bnn import scores

X = np.linspace(-1.0, 1.0, 3)
LEVELS = (0.01, 0.3, 0.5, 0.975)
LAWS = {
    "normal": (lambda m: dist.Normal(m, 2.0), lambda m: stats.norm(m, 2.0)),
    "student_t": (lambda m: dist.StudentT(3.0, m, 0.5), lambda m: stats.t(3.0, m, 0.5)),
    "cauchy": (lambda m: dist.StudentT(1.0, m, 0.5), lambda m: stats.t(1.0, m, 0.5)),
    "exponential": (lambda m: dist.Exponential(np.e**m), lambda m: stats.expon(scale=np.exp(-m))),
}


def predictions(law, draws):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", law(w + x), obs=y)

    return bnn.predict(model, {"w": np.asarray(draws, np.float32)}, X)


@pytest.mark.parametrize("name", LAWS)
def test_quantiles_of_one_draw_are_those_of_its_law(name):
    law, exact = LAWS[name]
    found = predictions(law, [0.5]).quantiles(LEVELS)
    expected = np.stack([exact(0.5 + X).ppf(level) for level in LEVELS])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_quantiles_of_two_far_draws_solve_the_mixture():
    found = predictions(LAWS["normal"][0], [-30.0, 30.0]).quantiles([0.25, 0.6])

    def mixture(q, x, level):
        return 0.5 * (stats.norm.cdf(q, x - 30, 2) + stats.norm.cdf(q, x + 30, 2)) - level

    for row, x in enumerate(X):
        for place, level in enumerate((0.25, 0.6)):
            exact = optimize.brentq(mixture, -60, 60, args=(x, level))
            np.testing.assert_allclose(found[place, row], exact, atol=1e-3)


@pytest.mark.parametrize("name", LAWS)
def test_the_integral_transform_is_that_of_the_law(name):
    """Student's t has other tails than a normal law of the same standard deviation."""
    law, exact = LAWS[name]
    made = predictions(law, [0.2])
    y = exact(0.2 + X).ppf(0.9)
    np.testing.assert_allclose(scores.pit(made, y), 0.9, atol=1e-4)
    assert scores.coverage(made, y, level=0.79) == 0.0
    assert scores.coverage(made, y, level=0.81) == 1.0


def test_wrong_levels_are_refused():
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got \[0.0\]"):
        predictions(LAWS["normal"][0], [0.0]).quantiles([0.0])


def test_classes_have_no_quantiles():
    with pytest.raises(AttributeError, match="not 'mean'"):
        predictions(lambda m: dist.Bernoulli(logits=m), [0.0]).quantiles([0.5])
