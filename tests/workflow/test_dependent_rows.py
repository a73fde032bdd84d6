"""Estimators and `check_fit` where rows depend on one another."""

import few_draws
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from scipy.stats import norm
from small_models import row_model

import numpyro_bnn as bnn

rng = np.random.default_rng(0)
N = 1100
X = np.linspace(0, 1, N, dtype=np.float32)[:, None]
S = (X[:, 0] - X.mean()) / X.std()
Y = (S + 0.1 * rng.normal(size=N)).astype(np.float32)


def standardised(x, y=None):
    w = numpyro.sample("w", dist.Normal())
    f = (x[:, 0] - x.mean()) / x.std()
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * f, 0.1), obs=y)


# Every row is predicted by a program with all the others: a few of them say as much as all.
FEW_X, FEW_Y = X[::22], Y[::22]
SETTINGS = {"num_warmup": 20, "num_samples": 100, "num_chains": 2, "progress_bar": False}


@pytest.fixture(scope="module")
def run():
    mcmc = bnn.MCMC(bnn.BAOAB(standardised, step_size=0.003), **SETTINGS)
    mcmc.run(jax.random.key(0), FEW_X, FEW_Y)
    return mcmc


def test_check_fit_judges_all_rows_together():
    variance = 1 / (1 + S @ S / 0.01)
    mean = variance * (S @ Y) / 0.01
    draws = {"w": mean + np.sqrt(variance) * np.random.default_rng(1).normal(size=(2, 200))}
    without = (S * Y / 0.01).sum() - S * Y / 0.01, 1 + (S @ S - S**2) / 0.01
    exact = norm.logpdf(Y, S * without[0] / without[1], np.sqrt(0.01 + S**2 / without[1])).sum()
    found = bnn.check_fit(bnn.Draws(draws, standardised), X, Y)
    assert found.loo.elpd == pytest.approx(exact, abs=0.3)
    with pytest.raises(ValueError, match=r"`batch_size=1100`"):
        bnn.check_fit(bnn.Draws(draws, standardised), X, Y, batch_size=1000)


@pytest.mark.parametrize("rows", [slice(20), slice(None, None, -1)])
def test_check_fit_takes_all_rows_in_their_order_alone(run, rows):
    whole = bnn.check_fit(run)
    assert bnn.check_fit(run, FEW_X, FEW_Y).loo.elpd == pytest.approx(whole.loo.elpd)
    some, target = FEW_X[rows], FEW_Y[rows]
    with pytest.raises(ValueError, match=f"these {len(some)} rows are not all rows of the fit"):
        bnn.check_fit(run, some, target)


def test_check_fit_knows_all_rows_again_in_another_precision(run):
    wide = np.linspace(0, 1, N)[::22, None]
    other = bnn.MCMC(run.sampler, **SETTINGS)
    other.run(jax.random.key(0), wide, FEW_Y)
    for mcmc, given in ((run, wide), (other, FEW_X)):
        whole = bnn.check_fit(mcmc).loo.elpd
        assert bnn.check_fit(mcmc, given, FEW_Y).loo.elpd == pytest.approx(whole)


def test_check_fit_of_rows_that_are_alone_takes_some_of_them():
    alone = row_model(lambda x, w: dist.Normal(w * x[:, 0], 0.1), w=dist.Normal())
    mcmc = bnn.MCMC(bnn.BAOAB(alone, step_size=0.003), **SETTINGS)
    mcmc.run(jax.random.key(0), X[:50], Y[:50])
    assert np.isfinite(bnn.check_fit(mcmc, X[:20], Y[:20]).loo.elpd)


class Along(nn.Module):
    """A recurrent network along the rows of one series, from its end."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.RNN(nn.SimpleCell(3), reverse=True, keep_order=True)(x[None])[0])


@pytest.mark.parametrize("rows", [300, 40])
def test_an_estimator_predicts_rows_that_depend_on_one_another_together(rows):
    series = np.cumsum(rng.normal(size=(rows, 1)), 0)
    options = few_draws.SETTINGS | {"network": Along(), "likelihood": "gaussian"}
    estimator = bnn.BNNRegressor(**options)
    with pytest.warns(UserWarning, match="more draws may change these predictions"):
        estimator.fit(series, series[:, 0])
    expected = bnn.predict(None, estimator.draws_, series, batch_size=rows)
    np.testing.assert_array_equal(estimator.predictions(series).mean, expected.mean)
