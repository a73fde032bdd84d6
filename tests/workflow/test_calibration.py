"""Split conformal calibration: exact finite-sample coverage of wrong models, temperatures, refusals."""

import functools
import pickle
from types import SimpleNamespace

import few_draws
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.special import ndtr, softmax
from scipy.stats import kstest, norm
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.workflow import calibration as conformal
from numpyro_bnn.workflow import estimators
from numpyro_bnn.workflow.calibration import nominal_sets, uniforms
from numpyro_bnn.workflow.check_fit import refuse_training_rows
from numpyro_bnn.workflow.estimator_inputs import calibration_rows, held_out

pytestmark = [
    # Fits of a few draws, which are never known within tolerance.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
]
RNG = np.random.default_rng(0)

rare = row_model(lambda x, rate: dist.Poisson(rate * jnp.exp(x[:, 0])), rate=dist.LogNormal())
alone = row_model(lambda x, mean: dist.Delta(mean + x[:, 0]), mean=dist.Normal())


def test_counts_that_are_hardly_ever_above_zero_have_finite_intervals():
    """Both ends of the central interval are 0, and a third of the targets is 1."""
    x = np.zeros((40, 1))
    y = (np.arange(40) % 3 == 0).astype(int)
    draws = bnn.Draws({"rate": np.full((1, 4), 1e-5)}, rare)
    made = bnn.calibrate(draws, x, y, coverage=0.9)
    low, high = made.predict_interval(x[:3])
    np.testing.assert_allclose([low, high], [[-1.0] * 3, [1.0] * 3], atol=1e-3)
    assert made.evaluate(x, y).after.coverage == 1.0


def test_intervals_of_counts_hold_the_share_that_was_asked_for_and_no_more():
    """A model that is right, whose own intervals hold more: they end at whole numbers."""
    rng = np.random.default_rng(0)
    x = rng.normal(scale=0.7, size=(6000, 1))
    y = rng.poisson(4 * np.exp(x[:, 0]))
    made = bnn.calibrate(bnn.Draws({"rate": np.full((1, 2), 4.0)}, rare), x[:2000], y[:2000], 0.8)
    own, after = made.evaluate(x[2000:], y[2000:])
    assert own.coverage > 0.86
    assert abs(after.coverage - 0.8) < 3 * np.sqrt(0.8 * 0.2 * (1 / 2000 + 1 / 4000))
    assert after.size < own.size - 0.5


def test_predictions_without_any_spread_are_refused():
    draws = bnn.Draws({"mean": np.zeros((1, 4))}, alone)
    with pytest.raises(ValueError, match=r'of 40 rows are single numbers.*method="cqr"'):
        bnn.calibrate(draws, np.zeros((40, 1)), RNG.normal(size=40))


class Known:
    """An estimator whose predictions are known in closed form."""

    draws_ = None

    def __init__(self, predictions):
        self.predictions = predictions

    def get_params(self):
        return {}


def narrow(x):
    """A predictive distribution that is half as wide as the truth N(x, (1 + |x|)²), and off by 0.3."""
    mean = np.broadcast_to(x[:, 0] + 0.3, (1, 2, len(x)))
    scale = np.broadcast_to(np.array([0.4, 0.6])[None, :, None], mean.shape)

    def evaluate(what, y):
        assert what == "cdf"
        return {what: ndtr((y - mean) / scale)}

    return Predictions({"mean": mean, "scale": scale}, evaluate)


def overconfident(x):
    """Class probabilities of a softmax at a third of the temperature, and with two classes exchanged."""
    logits = 3 * x[:, [1, 0, 2, 3]]
    probs = softmax(logits, -1)[None, None]

    def evaluate(what, y):
        return {what: np.log(probs[..., np.arange(len(x)), y])}

    return Predictions({"probs": probs}, evaluate)


def regression_rows(count, rng):
    x = rng.normal(size=(count, 1))
    return x, x[:, 0] + (1 + np.abs(x[:, 0])) * rng.normal(size=count)


def class_rows(count, rng):
    x = rng.normal(size=(count, 4))
    shares = softmax(x, -1).cumsum(1)
    return x, (shares < rng.uniform(size=(count, 1))).sum(1)


def inside_of(calibrated, x, y):
    if calibrated.temperature is not None:
        return calibrated.predict_set(x)[np.arange(len(y)), y]
    low, high = calibrated.predict_interval(x)
    return (low <= y) & (y <= high)


@pytest.mark.parametrize(("num_rows", "share"), [(19, 18 / 20), (25, 24 / 26)])
@pytest.mark.parametrize(
    "method",
    ["aps", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cdf", "cqr", "raps"))],
)
def test_coverage_is_exact_though_the_model_is_wrong(method, num_rows, share):
    """The average over calibrations is ceil((n + 1) c) / (n + 1); one rank more or less is 4 or 5 %."""
    rng = np.random.default_rng(1)
    kind, rows = (narrow, regression_rows) if method[0] == "c" else (overconfident, class_rows)
    found = []
    for _ in range(200):
        calibrated = bnn.calibrate(Known(kind), *rows(num_rows, rng), method=method)
        found.append(inside_of(calibrated, *rows(50, rng)).mean())
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert error < 0.007
    assert abs(np.mean(found) - share) < 4 * error


def test_other_methods_agree_where_the_model_is_right():
    """Many rows of the right model: the threshold is the model's own, and the temperature is 1."""
    x, y = class_rows(20_000, np.random.default_rng(2))
    right = Known(lambda rows: overconfident(rows[:, [1, 0, 2, 3]] / 3))
    calibrated = bnn.calibrate(right, x, y)
    # Scores are uniform then, and the temperature of least loss has this standard error, seen in 50 runs.
    assert abs(calibrated.threshold - 0.9) < 4 * np.sqrt(0.9 * 0.1 / len(x))
    assert abs(calibrated.temperature - 1) < 4 * 0.01


@pytest.mark.parametrize("temperature", [0.4, 3.0])
def test_a_known_temperature_is_recovered(temperature):
    x, y = class_rows(20_000, np.random.default_rng(3))
    network = Known(lambda rows: overconfident(rows[:, [1, 0, 2, 3]] * temperature / 3))
    calibrated = bnn.calibrate(network, x, y)
    assert calibrated.temperature == pytest.approx(temperature, rel=0.04)
    scaled = calibrated.predict_proba(x)
    np.testing.assert_allclose(scaled.sum(1), 1)
    assert np.abs(scaled - softmax(x, -1)).max() < 0.02


def test_coverage_and_size_before_and_after():
    rng = np.random.default_rng(4)
    x, y = regression_rows(2000, rng)
    calibrated = bnn.calibrate(Known(narrow), *regression_rows(1000, rng))
    before, after = calibrated.evaluate(x, y)
    low, high = calibrated.predict_interval(x)
    inside = (low <= y) & (y <= high)
    assert after.coverage == inside.mean()
    more = np.append(inside, [0, 0, 1, 1])
    np.testing.assert_allclose(after.coverage_error, more.std(ddof=1) / np.sqrt(2004))
    np.testing.assert_allclose(after.size, (high - low).mean())
    own = narrow(x).quantiles((0.05, 0.95))
    assert before.coverage == ((own[0] <= y) & (y <= own[1])).mean() < 0.6
    np.testing.assert_allclose(before.size, (own[1] - own[0]).mean())
    # The mean width of the calibrated interval is beyond what the narrow model ever calls possible.
    assert abs(after.coverage - 0.9) < 0.05
    assert calibrated.threshold > 0.4995
    assert "0.45 is the model's own" in repr(calibrated)
    assert calibrated.num_rows == 1000
    assert "after: coverage 0." in str(calibrated.evaluate(x, y))


@pytest.mark.parametrize("kind", [(narrow, regression_rows), (overconfident, class_rows)])
def test_rows_without_a_target_are_left_out_with_a_count(kind):
    predictions, rows_of = kind
    x, y = rows_of(60, np.random.default_rng(8))
    gaps, known = np.where(np.arange(60) % 6 == 1, np.nan, y), np.arange(60) % 6 != 1
    with pytest.warns(
        UserWarning, match="calibrate: 10 of 60 rows have no target and are left out"
    ):
        found = bnn.calibrate(Known(predictions), x, gaps)
    expected = bnn.calibrate(Known(predictions), x[known], y[known])
    assert repr(found) == repr(expected)
    with pytest.warns(UserWarning, match="evaluate: 10 of 60 rows have no target"):
        evaluated = found.evaluate(x, gaps)
    assert evaluated == expected.evaluate(x[known], y[known])


def test_the_same_rows_serve_another_coverage():
    rng = np.random.default_rng(5)
    rows, new = regression_rows(500, rng), regression_rows(5, rng)[0]
    half = bnn.calibrate(Known(narrow), *rows).at(0.5)
    assert half.coverage == 0.5
    expected = bnn.calibrate(Known(narrow), *rows, coverage=0.5).predict_interval(new)
    np.testing.assert_array_equal(half.predict_interval(new), expected)
    with pytest.raises(ValueError, match=r"'cqr' are of coverage 0.9 alone, and coverage=0.5"):
        bnn.calibrate(Known(narrow), *rows, method="cqr").at(0.5)


def test_an_estimator_that_is_fitted_again_leaves_its_calibration_as_it_was():
    """The threshold belongs to the predictions that it was found for."""
    rng = np.random.default_rng(7)
    estimator = Known(narrow)
    calibrated = bnn.calibrate(estimator, *regression_rows(200, rng))
    new = regression_rows(5, rng)[0]
    before = calibrated.predict_interval(new)
    estimator.predictions = lambda x: narrow(x + 100.0)
    np.testing.assert_array_equal(calibrated.predict_interval(new), before)
    np.testing.assert_array_equal(
        calibrated.at(0.5).predict_interval(new),
        bnn.calibrate(Known(narrow), *regression_rows(200, np.random.default_rng(7)))
        .at(0.5)
        .predict_interval(new),
    )


def test_a_row_has_the_same_set_among_any_others():
    rng = np.random.default_rng(6)
    calibrated = bnn.calibrate(Known(overconfident), *class_rows(300, rng))
    x, _ = class_rows(50, rng)
    sets = calibrated.predict_set(x)
    np.testing.assert_array_equal(calibrated.predict_set(x[7:9]), sets[7:9])
    u = uniforms(rng.normal(size=(4000, 2)))
    assert kstest(u, "uniform").pvalue > 1e-3


# Forty rows to train on, as in the tests of the estimators: the same compiled programs.
X = RNG.normal(3.0, 2.0, (60, 2))
Y = 10 * X[:, 0] - 5 * X[:, 1] + 100 + RNG.normal(size=60)
TEXT = np.where(np.median(Y) < Y, "high", "low")
SETTINGS = few_draws.SETTINGS | {"calibration": 1 / 3}


@functools.cache
def regressor():
    return bnn.BNNRegressor(**SETTINGS).fit(pd.DataFrame(X, columns=["age", "income"]), Y)


@functools.cache
def classifier():
    return bnn.BNNClassifier(**SETTINGS).fit(X, TEXT)


def test_a_regressor_holds_rows_out():
    network = regressor()
    table = pd.DataFrame(X, columns=["age", "income"])
    kept, held = held_out(network, Y)
    assert len(held) == 20
    assert sorted([*kept, *held]) == list(range(60))
    plain = bnn.calibrate(network.draws_, X[held].astype(np.float32), Y[held])
    assert network.calibration_.num_rows == 20
    assert network.calibration_.threshold == pytest.approx(plain.threshold, rel=1e-3)
    found = network.predict_interval(table, coverage=0.8)
    np.testing.assert_allclose(found, plain.at(0.8).predict_interval(X), rtol=1e-3)


def test_a_threshold_is_not_used_with_other_draws(monkeypatch):
    monkeypatch.setattr(estimators, "fit_model", few_draws.by_given_draws)
    table = pd.DataFrame(X, columns=["age", "income"])
    network = bnn.BNNRegressor(**SETTINGS).fit(table, Y)
    assert network.calibration_.num_rows == 20
    calibrated = network.predict_interval(table)
    np.testing.assert_array_equal(calibrated, network.calibration_.predict_interval(table))
    monkeypatch.setattr(estimators, "update", lambda *_, **__: network.draws_)
    network.set_params(calibration=None).partial_fit(table[:2], Y[:2])
    found = network.predict_interval(table)
    assert (np.abs(np.subtract(found, calibrated)) > 1e-3).all()
    np.testing.assert_array_equal(
        np.stack(found, 1), network.predict_quantiles(table, (0.05, 0.95))
    )


def test_a_stored_classifier_keeps_its_calibration():
    network = classifier()
    _, held = held_out(network, np.searchsorted(network.classes_, TEXT))
    share = np.mean(TEXT == "high")
    assert abs(np.mean(TEXT[held] == "high") - share) < 1 / len(held)
    sets = network.predict_set(X, coverage=0.8)
    assert sets.shape == (60, 2)
    np.testing.assert_array_equal(sets, network.calibration_.at(0.8).predict_set(X))
    loaded = pickle.loads(pickle.dumps(network))
    np.testing.assert_array_equal(loaded.predict_set(X, coverage=0.8), sets)
    plain = pickle.loads(pickle.dumps(network))
    plain.calibration_ = None
    np.testing.assert_array_equal(plain.predict_set(X, 0.8), nominal_sets(network, X, 0.8))


@pytest.mark.parametrize("network", [regressor, classifier])
def test_training_rows_are_refused(network):
    network = network()
    y = Y if network is regressor() else TEXT
    table = X if y is TEXT else pd.DataFrame(X, columns=["age", "income"])
    kept, held = held_out(network, y if y is Y else np.searchsorted(network.classes_, y))
    with pytest.raises(ValueError, match="40 of 60 calibration rows are training rows"):
        bnn.calibrate(network, table, y)
    labels = y if y is Y else (TEXT == "low").astype(int)
    some = np.concatenate([kept[:15], held])
    for run in (network.mcmc_, SimpleNamespace(mcmc=network.mcmc_, draws=network.draws_)):
        with pytest.raises(ValueError, match="15 of 35 calibration rows are training rows"):
            bnn.calibrate(run, X[some], labels[some])
        assert bnn.calibrate(run, X[held], labels[held]).num_rows == 20


def labels(x, y=None, offset=0.0):
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=offset), obs=y)


def with_offset(x, offset, y=None):
    labels(x, y, offset)


def test_training_rows_are_known_wherever_the_target_is_in_the_call():
    rng = np.random.default_rng(7)
    x, offset, y = rng.normal(size=(200, 2)), rng.normal(size=200), rng.integers(0, 2, 200)
    for args, named in (
        ((x, offset), {"y": y}),
        ((x, offset, y), {}),
        ((), {"y": y, "x": x, "offset": offset}),
    ):
        run = SimpleNamespace(_args=args, _kwargs=named, sampler=SimpleNamespace(model=with_offset))
        refuse_training_rows("calibrate", run, x[:50], 1 - y[:50])
        with pytest.raises(ValueError, match="calibrate: 50 of 50 calibration rows"):
            refuse_training_rows("calibrate", run, x[:50], y[:50])


def test_equal_rows_of_a_coarse_table_are_no_training_rows():
    rng = np.random.default_rng(7)
    x, y = rng.integers(0, 2, (200, 2)), rng.integers(0, 2, 200)
    run = SimpleNamespace(_args=(x, y), _kwargs={}, sampler=SimpleNamespace(model=labels))
    refuse_training_rows("calibrate", run, x[:50], y[:50])
    fine = rng.normal(size=(200, 2))
    run._args = (fine, y)
    one_by_chance = np.concatenate([fine[:1], rng.normal(size=(49, 2))])
    refuse_training_rows("calibrate", run, one_by_chance, y[:50])
    refuse_training_rows("calibrate", run, fine[:50], 1 - y[:50])
    with pytest.raises(ValueError, match="calibrate: 50 of 50 calibration rows"):
        refuse_training_rows("calibrate", run, fine[:50], y[:50])
    run._args, run._kwargs = (fine,), {}
    with pytest.raises(ValueError, match="calibrate: 50 of 50 calibration rows"):
        refuse_training_rows("calibrate", run, fine[:50], 1 - y[:50])
    run._args = (bnn.OnHost(fine), y)
    refuse_training_rows("calibrate", run, fine[:50], y[:50])


def known(kind=narrow, rows=regression_rows, count=30, **options):
    return bnn.calibrate(Known(kind), *rows(count, np.random.default_rng(8)), **options)


def several_outputs(x):
    return Predictions({"mean": np.zeros((1, 1, len(x), 2))}, None)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: known(count=8), ValueError, "8 calibration rows are too few .* at least 9 rows"),
        (
            lambda: known().at(0.99),
            ValueError,
            "30 calibration .* coverage=0.99.* at least 99 rows",
        ),
        (lambda: known(coverage=90), ValueError, "strictly between 0 and 1, got 90. Give 0.9"),
        (lambda: known(method="aps"), ValueError, "method='aps' does not fit .* regression"),
        (lambda: known(several_outputs), ValueError, r"shape \(1, 1, 30, 2\), expected one target"),
        (
            lambda: known(overconfident, class_rows, method="cdf"),
            ValueError,
            r"method='cdf' .* classes. Take one of \('aps', 'raps'\)",
        ),
        (lambda: known().predict_set(X), TypeError, "'cdf'. Use `predict_interval`"),
        (lambda: known().predict_proba(X), TypeError, "'cdf'. Use `predict_interval`"),
        (
            lambda: known(overconfident, class_rows).predict_interval(X),
            TypeError,
            "'aps'. Use `predict_set`",
        ),
        (lambda: bnn.calibrate(3, X, Y), TypeError, "calibrate"),
        (lambda: bnn.calibrate(bnn.BNNRegressor(), X, Y), ValueError, "not fitted yet; call `fit`"),
        (
            lambda: bnn.BNNRegressor(**SETTINGS | {"calibration": 1.0}).fit(X, Y),
            ValueError,
            "calibration is a share strictly between 0 and 1, got 1.0",
        ),
        (
            lambda: bnn.BNNRegressor(**SETTINGS | {"calibration": 0.1}).fit(X, Y),
            ValueError,
            "0.1 of 60 rows holds out 6, too few .* at least 9",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_wrong_arguments_to_a_classifier_are_refused():
    labels = np.array([None, "middle"] * 30, object)
    with pytest.raises(ValueError, match="label 'middle', and the training labels are"):
        bnn.calibrate(classifier(), X, labels)
    labels[1::2] = TEXT[1::2]
    with (
        pytest.warns(UserWarning, match="30 of 60 rows have no target"),
        pytest.raises(ValueError, match="of 30 calibration rows are training rows"),
    ):
        bnn.calibrate(classifier(), X, labels)
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 2"):
        classifier().predict_set(X, 2)


def on_a_line(distribution):
    return row_model(lambda x, w: distribution(w * x[:, 0]), w=dist.Normal())


# Targets of which some values occur many times.
TIES = {
    "two values": (lambda f: dist.Normal(f, 1.0), np.repeat([0.0, 1.0], 10), 0.9),
    "ratings": (lambda f: dist.StudentT(4.0, f, 1.0), np.repeat([1.0, 2.0, 3.0, 4.0, 5.0], 6), 0.8),
    "zeros": (lambda f: dist.Normal(f, 2.0), np.r_[np.zeros(12), np.linspace(1, 4, 18)], 0.6),
    "far outside": (lambda f: dist.Normal(f, 0.01), np.repeat([0.0, 1.0], 10), 0.9),
    "large numbers": (
        lambda f: dist.Normal(1000.1 + f, 0.01),
        np.repeat([1000.1, 1001.3], 10),
        0.9,
    ),
    "counts": (lambda f: dist.Poisson(np.e**f), np.repeat([0, 1, 3, 6], 5), 0.8),
}


@pytest.mark.parametrize("method", ["cdf", "cqr"])
@pytest.mark.parametrize("name", TIES)
def test_values_that_occur_many_times_belong_to_the_interval_that_they_end(name, method):
    distribution, y, coverage = TIES[name]
    x, y = np.ones((len(y), 1), np.float32), y.astype(int if name == "counts" else np.float64)
    model = on_a_line(distribution)
    for seed in range(4):
        w = 0.5 + 0.1 * np.random.default_rng(seed).normal(size=(2, 20))
        draws = bnn.Draws({"w": w.astype(np.float32)}, model)
        calibrated = bnn.calibrate(draws, x, y, coverage, method)
        low, high = calibrated.predict_interval(x[:7])
        inside = (low[0] <= y) & (y <= high[0])
        assert inside.mean() >= coverage
        # No value but those is let in: the next one on each side is a score above the threshold.
        assert inside.sum() <= np.sum(calibrated.scores <= calibrated.threshold + 1e-4)


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_labels_that_occur_many_times_belong_to_their_set(method):
    x, y = np.ones((40, 1), np.float32), np.arange(40) % 2
    draws = bnn.Draws(
        {"w": np.full((2, 20), 0.3, np.float32)}, on_a_line(lambda f: dist.Bernoulli(logits=f))
    )
    sets = bnn.calibrate(draws, x, y, 0.9, method).predict_set(x[:7])
    assert np.mean(sets[0][y]) >= 0.9


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_every_class_keeps_rows_for_the_fit(share):
    sizes = np.array([1, 2, 4, 30, 63])
    y = np.repeat(np.arange(5), sizes)
    for seed in range(30):
        kept, held = calibration_rows("--calibration", y, share, seed, True)
        np.testing.assert_array_equal(np.sort(np.r_[kept, held]), np.arange(100))
        assert len(held) == round(100 * share)
        assert (np.bincount(y[kept], minlength=5) > 0).all()
        found = np.bincount(y[held], minlength=5)
        assert (np.abs(found - len(held) * (sizes - 1) / 95) < 1).all()


def test_rows_for_calibration_differ_from_seed_to_seed():
    held = [calibration_rows("", np.zeros(40), 0.5, seed, False)[1] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(held[0], held[1])
    assert set(held[0]) != set(held[2])


# -- scores, thresholds and temperatures by hand -----------------------------------------------


PROBS = np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.1, 0.6]])


@pytest.mark.parametrize(
    ("coverage", "rows"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.8, 4), (0.55, 2)]
)
def test_the_least_number_of_rows_is_that_of_a_finite_rank(coverage, rows):
    assert conformal.rows_needed(coverage) == rows
    scores = np.arange(float(rows))
    assert conformal.threshold(scores, coverage) == rows - 1
    with pytest.raises(ValueError, match=f"{rows - 1} calibration rows .* at least {rows} rows"):
        conformal.threshold(scores[1:], coverage)


def test_rounding_adds_no_rank():
    """100 * 0.55 is 55.00000000000001 in floating point."""
    assert conformal.rank(0.55, 99) == 55
    assert conformal.threshold(np.random.default_rng(0).permutation(np.arange(99.0)), 0.55) == 54.0


def test_a_class_scores_what_is_above_it_and_a_share_of_its_own():
    u = np.array([0.5, 0.1])
    expected = [[0.25, 0.65, 0.875, 0.975], [0.81, 0.62, 0.91, 0.06]]
    np.testing.assert_allclose(conformal.set_scores(PROBS, u), expected)
    # Two classes are free; the third costs a penalty and the fourth two.
    more = conformal.set_scores(PROBS, u, penalty=0.1) - expected
    np.testing.assert_allclose(more, [[0, 0, 0.1, 0.2], [0.1, 0, 0.2, 0]], atol=1e-12)


def test_scores_of_a_distribution_grow_outwards_and_never_stop():
    """Inside they are |F - 1/2|, beyond they are distances in widths, without a jump back at the seam."""
    low, high = norm.ppf([conformal.TAIL, 1 - conformal.TAIL])
    y = np.linspace(0, 40, 2000)
    ends = np.full(2000, low), np.full(2000, high), np.full(2000, high - low)
    scores = conformal.cdf_scores(np.abs(norm.cdf(y) - 0.5), y, *ends)
    near = y < high
    np.testing.assert_allclose(scores[near], norm.cdf(y[near]) - 0.5)
    np.testing.assert_allclose(scores[~near], 0.4999 + (y[~near] - high) / (high - low))
    assert (np.diff(scores) > 0).all()
    mirrored = conformal.cdf_scores(np.abs(norm.cdf(-y) - 0.5), -y, *ends)
    np.testing.assert_allclose(mirrored, scores, atol=1e-12)


def test_an_interval_scores_how_far_the_target_is_outside():
    y, low, high = np.array([0.0, 2.0, 5.0]), np.full(3, 1.0), np.full(3, 4.0)
    np.testing.assert_array_equal(conformal.interval_scores(y, low, high), [1.0, -1.0, 1.0])


def test_a_temperature_of_one_changes_nothing_and_certain_rows_stay_finite():
    np.testing.assert_allclose(conformal.tempered(PROBS, 1.0), PROBS)
    certain = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    # Three of four are right: the least loss gives them odds of three to one.
    labels = np.array([0, 0, 1, 1])
    temperature = conformal.temperature_of(certain, labels)
    np.testing.assert_allclose(conformal.tempered(certain, temperature)[0], [0.75, 0.25], rtol=1e-3)
