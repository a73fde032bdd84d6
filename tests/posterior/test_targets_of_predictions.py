"""Targets that predictions are evaluated at: boolean classes, and targets that are missing."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2)).astype(np.float32)
Y = X[:, 0].copy()
MISSING = np.where(np.arange(6) == 3, np.nan, Y).astype(np.float32)


def softmax(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2, 2]).to_event(2))
    likelihoods.categorical(x @ b, y)


def sigmoid(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    likelihoods.bernoulli(x @ b, y)


def linear(x, y=None, distribution=dist.Normal, known=True):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)), handlers.mask(mask=known):
        numpyro.sample("y", distribution(x @ b, 1.0), obs=y)


class NormalOrMissing(dist.Normal):
    """A distribution that allows for missing targets: they say nothing."""

    def log_prob(self, value):
        known = jnp.isfinite(value)
        return jnp.where(known, super().log_prob(jnp.where(known, value, 0.0)), 0.0)


def own_distribution(x, y=None):
    linear(x, y, NormalOrMissing)


def hiding(x, y=None):
    """The row with a missing target is hidden from the fit."""
    linear(x, y, known=np.isfinite(MISSING))


def draws_of(model):
    shape = (2, 60, 2, 2) if model is softmax else (2, 60, 2)
    return bnn.Draws({"b": RNG.normal(size=shape).astype(np.float32)}, model)


@pytest.mark.parametrize("model", [softmax, sigmoid])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_boolean_classes_are_zero_and_one(model, kind):
    predictions = bnn.predict(None, draws_of(model), X)
    y = Y > 0
    numbers = predictions.log_prob(y.astype(int))
    probs = predictions.probs[:, :, np.arange(6), y.astype(int)]
    np.testing.assert_allclose(np.exp(numbers), probs, rtol=1e-5)
    np.testing.assert_array_equal(predictions.log_prob(kind(y)), numbers)
    np.testing.assert_array_equal(predictions.log_likelihood(kind(y)), numbers)
    assert bnn.scores.lppd(predictions, kind(y)) == bnn.scores.lppd(predictions, y.astype(int))
    assert bnn.diagnose(draws_of(model), X, kind(y)).verdict == "too_short"


NEEDS = {
    "log_prob": lambda draws, y: bnn.predict(None, draws, X).log_prob(y),
    "log_likelihood": lambda draws, y: bnn.predict(None, draws, X).log_likelihood(y),
    "diagnose": lambda draws, y: bnn.diagnose(draws, X, y),
}


@pytest.mark.parametrize(
    ("needs", "value"),
    [*((needs, np.inf) for needs in NEEDS), *((n, np.nan) for n in list(NEEDS)[:2])],
)
def test_missing_targets_are_refused_and_not_called_impossible(needs, value):
    y = np.where(np.isnan(MISSING), value, MISSING)
    with pytest.raises(
        ValueError, match=f"1 of 6 rows are NaN or infinite, the first in row 3: {value}"
    ):
        NEEDS[needs](draws_of(linear), y)


def test_a_score_leaves_out_rows_without_a_target_and_refuses_infinite_ones():
    draws, known = draws_of(linear), ~np.isnan(MISSING)
    predictions = bnn.predict(None, draws, X)
    with pytest.warns(UserWarning, match="1 of 6 rows have no target and are left out"):
        found = bnn.scores.lppd(predictions, MISSING)
    of_known = bnn.predict(None, draws, X[known])
    assert found == pytest.approx(bnn.scores.lppd(of_known, MISSING[known]), rel=1e-6)
    with pytest.raises(
        ValueError, match="1 of 6 rows are NaN or infinite, the first in row 3: inf"
    ):
        bnn.scores.lppd(predictions, np.where(known, MISSING, np.inf))


def test_a_row_of_several_targets_counts_with_those_that_are_known():
    several = row_model(
        lambda x, b: dist.Normal(x * b, 1.0).to_event(1),
        plate="rows",
        b=dist.Normal(0, 1).expand([2]).to_event(1),
    )
    draws, y = draws_of(several), X.copy()
    predictions = bnn.predict(None, draws, X)
    whole = predictions.log_prob(y)
    y[4, 1] = np.nan
    missing = dist.Normal(X[4, 1] * np.asarray(draws["b"])[..., 1], 1.0).log_prob(X[4, 1])
    expected = whole - np.where(np.arange(6) == 4, np.asarray(missing)[..., None], 0.0)
    np.testing.assert_allclose(predictions.log_prob(y), expected, rtol=1e-5, atol=1e-5)


def test_calibration_refuses_infinite_targets():
    y = np.where(np.isnan(MISSING), np.inf, MISSING)
    with pytest.raises(ValueError, match="y has 1 NaN or infinite values"):
        bnn.calibrate(draws_of(linear), X, y, coverage=0.8)


def test_a_distribution_or_a_mask_may_allow_for_missing_targets():
    expected = bnn.predict(None, draws_of(linear), X).log_prob(Y).shape
    found = bnn.predict(None, draws_of(own_distribution), X).log_prob(MISSING)
    assert found.shape == expected
    assert (found[:, :, 3] == 0).all()
    predictions = bnn.predict(None, draws_of(hiding), X)
    assert (predictions.log_likelihood(MISSING)[:, :, 3] == 0).all()
    with pytest.raises(ValueError, match="row 3"):
        predictions.log_prob(MISSING)


def test_counts_of_hidden_rows_may_be_missing():
    def counts(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)), handlers.mask(mask=np.isfinite(MISSING)):
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ b)), obs=y)

    y = np.where(np.isfinite(MISSING), np.arange(6.0), np.nan).astype(np.float32)
    check = bnn.check_fit(draws_of(counts), X, y)
    assert "1 more row is without a target, or hidden" in str(check)
