"""Calibrated intervals and sets of posteriors that are wrong on purpose."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from test_estimators import SETTINGS, TEXT, X, Y

import numpyro_bnn as bnn
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.workflow.calibration import at_temperature, best_temperature

pytestmark = pytest.mark.usefixtures("quick_compile")
RNG = np.random.default_rng(3)


def too_sure(x, y=None):
    """A line whose noise is said to be 0.3; it is 1, and skewed."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x[:, 0], 0.3), obs=y)


def too_sure_of_classes(x, y=None):
    """Logits three times too large."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Categorical(logits=3 * w * x), obs=y)


def draws_of(model):
    return Draws({"w": np.full((2, 5), 1.0, np.float32)}, model)


def line(count):
    x = RNG.normal(size=(count, 1))
    return x, x[:, 0] + RNG.exponential(size=count) - 1


def classes(count):
    x = RNG.normal(size=(count, 4))
    probs = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    return x, (RNG.uniform(size=(count, 1)) > probs.cumsum(1)).sum(1)


@pytest.mark.parametrize("method", ["cdf", "cqr"])
def test_intervals_of_a_model_that_is_too_sure(method):
    """Coverage has the variance of both samples: that of the rows, and that of the calibration."""
    x, y = line(2000)
    calibrated = bnn.calibrate(draws_of(too_sure), x, y, method=method)
    found = calibrated.evaluate(*line(4000))
    error = np.sqrt(0.9 * 0.1 * (1 / 2000 + 1 / 4000))
    assert found.before < 0.6
    assert abs(found.after - 0.9) < 4 * error
    assert found.error == pytest.approx(np.sqrt(0.09 / 4000))
    assert found.size_after > 2 * found.size_before
    low, high = calibrated.predict_interval(x[:5]).T
    assert (low < high).all()


def test_one_calibration_serves_other_coverages():
    calibrated = bnn.calibrate(draws_of(too_sure), *line(2000))
    x, y = line(4000)
    low, high = calibrated.predict_interval(x, coverage=0.5).T
    share = np.mean((y > low) & (y < high))
    assert abs(share - 0.5) < 4 * np.sqrt(0.25 * (1 / 2000 + 1 / 4000))
    once = bnn.calibrate(draws_of(too_sure), *line(50), method="cqr")
    with pytest.raises(ValueError, match=r"calibrated for coverage=0\.9, got 0\.5"):
        once.predict_interval(x, coverage=0.5)


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_sets_of_a_model_that_is_too_sure(method):
    calibrated = bnn.calibrate(draws_of(too_sure_of_classes), *classes(2000), method=method)
    found = calibrated.evaluate(*classes(4000))
    assert abs(found.after - 0.9) < 4 * np.sqrt(0.09 * (1 / 2000 + 1 / 4000))
    assert found.before < 0.85
    assert found.size_before < found.size_after < 4
    assert calibrated.predict_set(classes(7)[0]).shape == (7, 4)
    assert calibrated.temperature == pytest.approx(3.0, rel=0.15)
    np.testing.assert_allclose(calibrated.predict_proba(classes(7)[0]).sum(1), 1.0)


def test_a_temperature_of_one_changes_nothing_and_a_known_one_is_found():
    x, y = classes(20_000)
    probs = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    np.testing.assert_allclose(at_temperature(probs, 1.0), probs, rtol=1e-12)
    assert best_temperature(probs, y) == pytest.approx(1.0, abs=0.05)
    assert best_temperature(at_temperature(probs, 0.5), y) == pytest.approx(2.0, rel=0.05)


@functools.cache
def calibrated_estimator(kind):
    settings = SETTINGS | {"calibration": 0.3}
    if kind == "regressor":
        return bnn.BNNRegressor(**settings).fit(X, Y)
    return bnn.BNNClassifier(**settings).fit(X, TEXT)


def test_an_estimator_calibrates_itself():
    network = calibrated_estimator("regressor")
    assert network.calibration_.num_rows == 12
    assert network.draws_.info.get("columns") is None
    ends = network.predict_interval(X, coverage=0.8)
    np.testing.assert_allclose(ends, network.calibration_.predict_interval(X, 0.8))


def test_training_rows_are_refused():
    network = calibrated_estimator("regressor")
    trained = np.asarray(network.mcmc_._args[0]), np.asarray(network.mcmc_._args[1])
    with pytest.raises(ValueError, match="28 of the 28 rows of x_cal and y_cal were trained on"):
        bnn.calibrate(network, *trained)


def test_sets_of_an_estimator():
    network = calibrated_estimator("classifier")
    sets = network.predict_set(X, coverage=0.8)
    assert sets.shape == (40, 2)
    assert sets.any(1).mean() > 0.7
    assert repr(network.calibration_).startswith(
        "CalibratedClassification(coverage=0.9, method='aps'"
    )
    with pytest.raises(ValueError, match=r"holds the labels \['other'\]"):
        bnn.calibrate(network, X[:1], np.array(["other"]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: bnn.calibrate(draws_of(too_sure), *line(20), method="aps"),
            "one of .'cdf', 'cqr'.",
        ),
        (
            lambda: bnn.calibrate(draws_of(too_sure), *line(5)),
            "5 calibration rows cannot cover 0.9",
        ),
        (
            lambda: bnn.calibrate(draws_of(too_sure), line(5)[0], line(4)[1]),
            "x_cal has 5 rows and y_cal 4",
        ),
        (
            lambda: bnn.BNNRegressor(**SETTINGS | {"calibration": 1.5}).fit(X, Y),
            "between 0 and 1, got 1.5",
        ),
        (
            lambda: bnn.BNNClassifier(**SETTINGS).fit(X, TEXT).predict_set(X),
            "with `calibration=0.2`",
        ),
    ],
    ids=["method", "few rows", "lengths", "share", "no rows held out"],
)
def test_wrong_arguments_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
