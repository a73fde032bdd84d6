"""Targets that predictions are evaluated at: boolean classes, and targets that are missing."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from quiet import quiet
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


own_distribution = partial(linear, distribution=NormalOrMissing)
# The row with a missing target is hidden from the fit.
hiding = partial(linear, known=np.isfinite(MISSING))


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


ON_A_LINE = np.linspace(-1, 1, 12)[:, None].astype(np.float32)
KNOWN = np.arange(12) % 3 != 0
DISTRIBUTIONS = {
    "a number": lambda f: dist.Normal(f, 0.3),
    "a class": lambda f: dist.Bernoulli(logits=f),
    "several numbers": lambda f: dist.Normal(f[:, None] * jnp.ones(2), 0.3).to_event(1),
}


def target(kind):
    y = np.where(KNOWN, ON_A_LINE[:, 0] * 1.5, 0).astype(np.float32)
    return {"a number": y, "a class": (y > 0).astype(int), "several numbers": y[:, None] * [1, 1]}[
        kind
    ]


def masked(kind, always):
    def model(x, y=None, mask=None):
        w = numpyro.sample("w", dist.Normal())
        if always == "by gaps" and y is not None:
            mask, y = ~jnp.isnan(y), jnp.nan_to_num(y)
        if always is True and mask is None:
            mask = np.ones(len(x), bool)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", DISTRIBUTIONS[kind](w * x[:, 0]), obs=y, obs_mask=mask)

    return model


def run_of(model, y, mask=KNOWN):
    run = quiet(bnn.RandomWalk(model, step_size=0.1), 500, 2000, 2, thinning=20)
    # Looking for starts compiles for longer than the steps.
    run.run(
        jax.random.key(0),
        ON_A_LINE,
        y,
        mask=mask,
        init_params=nets.starts(2, model, ON_A_LINE, y, mask),
    )
    return run


CASES = [
    ("a number", False),
    ("a number", True),
    ("several numbers", False),
    ("a number", "by gaps"),
]


@pytest.mark.parametrize(("kind", "always"), CASES)
def test_predictions_scores_and_reports_of_missing_targets(kind, always):
    model, y = masked(kind, always), target(kind)
    given = np.where(KNOWN, y, np.nan) if always == "by gaps" else y
    run = run_of(model, given)
    w = np.asarray(run.get_samples(True)["w"])
    found = bnn.predict(None, run, ON_A_LINE)
    line = w[..., None] * ON_A_LINE[:, 0]
    assert np.allclose(found.mean if kind == "a number" else found.mean[..., 0], line, atol=1e-5)
    assert np.isfinite(bnn.scores.lppd(found, y)).all()
    report = bnn.diagnose(run, ON_A_LINE, y)
    assert len(bnn.check_fit(run, ON_A_LINE, given).loo.by_row) == KNOWN.sum()
    assert report.verdict not in ("invalid", "too_short")
    check = bnn.check_fit(run)
    assert len(check.loo.by_row) == KNOWN.sum()
    assert bnn.to_inference_data(run).log_likelihood["y"].shape[:3] == (2, 100, KNOWN.sum())


def test_calibration_of_a_run_with_missing_targets():
    run = run_of(masked("a number", False), target("a number"))
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (40, 1)).astype(np.float32)
    y = (1.5 * x[:, 0] + 0.3 * rng.normal(size=40)).astype(np.float32)
    low, high = bnn.calibrate(run, x, y).predict_interval(ON_A_LINE)
    assert (high > low).all()


def test_classes_that_are_missing_are_no_target_of_predictions():
    draws = {
        "w": np.array([[0.5, 1.0]]),
        "y": np.zeros((1, 2, 12)),
        "y_unobserved": np.zeros((1, 2, 12)),
    }
    found = bnn.predict(masked("a class", False), draws, ON_A_LINE)
    expected = 1 / (1 + np.exp(-draws["w"][..., None] * ON_A_LINE[:, 0]))
    assert np.allclose(found.probs[..., 1], expected, atol=1e-6)


def test_log_scores_and_their_errors_are_those_of_rows_with_a_label():
    model, y = masked("a class", False), target("a class")
    run, gaps = run_of(model, y, None), np.where(KNOWN, y, np.nan)
    with pytest.warns(UserWarning, match="lppd: 4 of 12 rows have no target"):
        score = bnn.scores.lppd(found := bnn.predict(None, run, ON_A_LINE), gaps)
    with pytest.warns(UserWarning, match="diagnose: 4 of 12 rows have no target"):
        assert "log score" in bnn.diagnose(run, ON_A_LINE, gaps).details()
    assert score == pytest.approx(bnn.scores.lppd(found.at_rows(KNOWN), y[KNOWN]), abs=1e-12)
    twice = np.flatnonzero(KNOWN)[[0, 1, 0]]
    chosen, again = found.at_rows(twice), y[twice]
    np.testing.assert_array_equal(chosen.log_prob(again)[:, :, 2], chosen.log_prob(again)[:, :, 0])
    with pytest.raises(ValueError, match="chosen more than once have one target each"):
        chosen.log_prob(np.append(again[:2], 1 - again[0]))


POSITIVE = np.linspace(0.5, 2, 5, dtype="f4")[:, None]
DRAWS = {"b": np.array([[0.5, 1.0, -0.5]])}


def model_of(distribution):
    return row_model(lambda x, b: distribution(b * jnp.log(x[:, 0])), b=dist.Normal())


WITH_NAN = {
    "numbers": lambda f: dist.Normal(f, 1.0),
    "classes": lambda f: dist.Bernoulli(logits=f),
    "several classes": lambda f: dist.Categorical(logits=f[:, None] * jnp.arange(3.0)),
    "counts": lambda f: dist.Poisson(jnp.exp(f)),
}


@pytest.mark.parametrize("name", WITH_NAN)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([np.nan], r"1 of 5 rows are NaN under every draw \(rows 2\), of which 1 have NaN"),
        ([-1.0], r"1 of 5 rows are NaN under every draw \(rows 2\)\. Fill"),
        ([np.nan, -1.0], r"2 of 5 rows .*\(rows 2, 3\), of which 1 have"),
        ([np.nan] * 3, r"3 of 5 rows .*\(rows 2, 3, 4\)"),
    ],
)
def test_rows_of_nan_are_named(name, values, message):
    x = POSITIVE.copy()
    x[2 : 2 + len(values), 0] = values
    with pytest.raises(ValueError, match=message):
        bnn.predict(model_of(WITH_NAN[name]), DRAWS, x)


def test_a_table_of_nan_alone_is_refused_too():
    with pytest.raises(ValueError, match="5 of 5 rows are NaN"):
        bnn.predict(model_of(WITH_NAN["numbers"]), DRAWS, POSITIVE * np.nan)


def test_a_distribution_without_a_mean_is_predicted():
    found = bnn.predict(model_of(lambda f: dist.Cauchy(f, 1.0)), DRAWS, POSITIVE)
    assert np.isnan(found.mean).all()
    assert np.isfinite(found.log_prob(POSITIVE[:, 0])).all()


def test_inputs_that_a_model_fills_in_are_predicted():
    def filled(x, y=None):
        model_of(WITH_NAN["numbers"])(jnp.where(jnp.isnan(x), 1.0, x), y)

    x = POSITIVE.copy()
    x[2] = np.nan
    assert np.isfinite(bnn.predict(filled, DRAWS, x).mean).all()


@pytest.mark.parametrize("name", ["classes", "several classes"])
def test_a_draw_of_nan_gives_no_probability(name):
    """NumPyro 0.22 gives the target 0 the probability 1 where logits of a Bernoulli are NaN."""
    draws = {"b": np.array([[0.5, np.nan]])}
    predictions = bnn.predict(model_of(WITH_NAN[name]), draws, POSITIVE)
    found = predictions.log_prob(np.array([0, 1, 0, 1, 0]))
    assert np.isnan(found).tolist() == [[[False] * 5, [True] * 5]]
    with pytest.raises(ValueError, match="log densities must be finite"):
        bnn.scores.lppd(predictions, np.array([0, 1, 0, 1, 0]))
