"""Targets of which some are missing, by NumPyro's ``obs_mask``: everything after the run knows the target."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from quiet import quiet

import numpyro_bnn as bnn

X = np.linspace(-1, 1, 12)[:, None].astype(np.float32)
KNOWN = np.arange(12) % 3 != 0
DISTRIBUTIONS = {
    "a number": lambda f: dist.Normal(f, 0.3),
    "a class": lambda f: dist.Bernoulli(logits=f),
    "several numbers": lambda f: dist.Normal(f[:, None] * jnp.ones(2), 0.3).to_event(1),
}


def target(kind):
    y = np.where(KNOWN, X[:, 0] * 1.5, 0).astype(np.float32)
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
    run.run(jax.random.key(0), X, y, mask=mask, init_params=nets.starts(2, model, X, y, mask))
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
    found = bnn.predict(None, run, X)
    line = w[..., None] * X[:, 0]
    assert np.allclose(found.mean if kind == "a number" else found.mean[..., 0], line, atol=1e-5)
    assert np.isfinite(bnn.scores.lppd(found, y)).all()
    report = bnn.diagnose(run, X, y)
    assert len(bnn.check_fit(run, X, given).loo.by_row) == KNOWN.sum()
    assert report.verdict not in ("invalid", "too_short")
    check = bnn.check_fit(run)
    assert len(check.loo.by_row) == KNOWN.sum()
    likelihoods = bnn.to_inference_data(run).log_likelihood["y"]
    assert likelihoods.shape[:3] == (2, 100, KNOWN.sum())


def test_calibration_of_a_run_with_missing_targets():
    run = run_of(masked("a number", False), target("a number"))
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (40, 1)).astype(np.float32)
    y = (1.5 * x[:, 0] + 0.3 * rng.normal(size=40)).astype(np.float32)
    low, high = bnn.calibrate(run, x, y).predict_interval(X)
    assert (high > low).all()


def test_classes_that_are_missing_are_no_target_of_predictions():
    draws = {
        "w": np.array([[0.5, 1.0]]),
        "y": np.zeros((1, 2, 12)),
        "y_unobserved": np.zeros((1, 2, 12)),
    }
    found = bnn.predict(masked("a class", False), draws, X)
    expected = 1 / (1 + np.exp(-draws["w"][..., None] * X[:, 0]))
    assert np.allclose(found.probs[..., 1], expected, atol=1e-6)


def test_log_scores_and_their_errors_are_those_of_rows_with_a_label():
    model, y = masked("a class", False), target("a class")
    run, gaps = run_of(model, y, None), np.where(KNOWN, y, np.nan)
    with pytest.warns(UserWarning, match="lppd: 4 of 12 rows have no target"):
        score = bnn.scores.lppd(found := bnn.predict(None, run, X), gaps)
    with pytest.warns(UserWarning, match="diagnose: 4 of 12 rows have no target"):
        assert "log score" in bnn.diagnose(run, X, gaps).details()
    assert score == pytest.approx(bnn.scores.lppd(found.at_rows(KNOWN), y[KNOWN]), abs=1e-12)
