"""The scikit-learn estimators: their conventions, their numbers against `predict`, what they refuse."""

import functools
import pickle
import warnings
from dataclasses import replace
from unittest.mock import Mock

import few_outputs
import joblib
import nets
import numpy as np
import pandas as pd
import pytest
from few_draws import SETTINGS, TEXT, X, Y, by_given_draws
from flax import nnx
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import numpyro_bnn as bnn
from numpyro_bnn._sentences import percent
from numpyro_bnn.diagnostics.verdict import Verdict
from numpyro_bnn.workflow import estimators
from numpyro_bnn.workflow.estimator_inputs import BLOCK, hidden_sizes, weights_of

pytestmark = [
    # Fits of a few draws, which are never known within tolerance.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
]
RNG = np.random.default_rng(0)
KINDS = {"regressor": bnn.BNNRegressor, "classifier": bnn.BNNClassifier}
# No Monte Carlo average repeats to 10⁻⁷ for another order of the same sums.
EXEMPT = {
    f"check_sample_weight_equivalence_on_{kind}_data": "Monte Carlo averages"
    for kind in ("dense", "sparse")
}
VERDICTS = ("within_tolerance", "run_longer", "chains_disagree", "too_short", "invalid")
TEXTS = {
    "text": TEXT,
    "objects": TEXT.astype(object),
    "category": pd.Categorical(np.arange(40) % 3),
    "date": pd.date_range("2026-01-01", periods=40),
}
CHOSEN = (
    "check_complex_data",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimators_empty_data_messages",
    "check_estimator_cloneable",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_fit_score_takes_y",
    "check_fit2d_1sample",
    "check_no_attributes_set_in_init",
    "check_requires_y_none",
    "check_set_params",
)


def with_given_draws(network, x, y):
    """An estimator fitted without a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators, "fit_model", by_given_draws)
        return network.fit(x, y)


@functools.cache
def fitted(kind="regressor"):
    network = KINDS[kind](**SETTINGS)
    return network.fit(X, Y) if kind == "regressor" else with_given_draws(network, X, TEXT)


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_checks_of_scikit_learn(name):
    checks = estimator_checks_generator(bnn.BNNRegressor(**SETTINGS))
    found = [(e, check) for e, check in checks if check.func.__name__ == name]
    assert found
    for estimator, check in found:
        check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_all_checks_of_scikit_learn(kind):
    check_estimator(KINDS[kind](**SETTINGS), expected_failed_checks=EXEMPT)


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("kernel", ["baoab", "tempering"])
def test_every_verdict_but_within_tolerance_warns(verdict, kernel):
    network = bnn.BNNRegressor(kernel=kernel, max_minutes=2.0)
    network.report_ = replace(fitted().report_, verdict=Verdict(verdict))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        network._warn_of_verdict()
    expected = not verdict.startswith("within_tolerance")
    assert len(caught) == expected
    if expected:
        assert caught[0].category is ConvergenceWarning
        said = str(caught[0].message)
        assert f"verdict: {network.report_.verdict.words}; " in said
        assert ("check(held_out=(X, y))" in said) == (verdict not in ("invalid", "too_short"))
        # So few draws cannot be checked, but scored.
        assert ("score(X, y)" in said) == (verdict == "too_short")
        tempers = verdict == "chains_disagree" and kernel == "baoab"
        assert ('kernel="tempering"' in said) == tempers
        assert ("max_minutes" in said) == (verdict != "invalid" and not tempers)


@pytest.mark.parametrize("column", TEXTS)
def test_columns_that_hold_no_numbers_are_named(column):
    table = pd.DataFrame({"age": X[:, 0], "what": TEXTS[column]})
    said = r"BNN.*: X is a DataFrame whose columns 'what' \(.*\) hold no numbers.*Mixed tables"
    for network in (bnn.BNNRegressor(**SETTINGS), bnn.BNNClassifier(**SETTINGS)):
        with pytest.raises(TypeError, match=said):
            network.fit(table, TEXT)
    with pytest.raises(TypeError, match=said):
        fitted().predict(table)


def test_columns_of_objects_that_are_numbers_are_taken():
    objects = pd.DataFrame(X).astype(object)
    np.testing.assert_array_equal(fitted().predict(objects), fitted().predict(X))


def test_a_number_is_one_hidden_layer():
    assert hidden_sizes(bnn.BNNRegressor(8)) == hidden_sizes(bnn.BNNRegressor((8,))) == (8,)
    assert hidden_sizes(bnn.BNNRegressor(np.array([8, 4]))) == (8, 4)
    assert hidden_sizes(bnn.BNNRegressor(())) == ()


def test_a_regressor_averages_the_draws():
    network = fitted()
    expected = bnn.average(bnn.predict(None, network.draws_, X))
    mean, scale = network.predict(X, return_std=True)
    np.testing.assert_allclose(mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(scale, expected.sd, rtol=1e-5)
    assert network.score(X, Y) > 0.9
    np.testing.assert_array_equal(network.predict(X), mean)


def with_many_draws(kind):
    """A fitted estimator without its run, as pickle leaves it, whose draws are enough for leave-one-out."""
    network = pickle.loads(pickle.dumps(fitted(kind)))
    many = {n: np.tile(v, (1, 5, *[1] * (v.ndim - 2))) for n, v in network.draws_.items()}
    network.draws_ = bnn.Draws(many, network.model_, info={"kernel": "BAOAB"})
    return network


@pytest.mark.parametrize(("kind", "y"), [("regressor", Y), ("classifier", TEXT)])
def test_the_check_is_about_the_rows_that_were_fitted(kind, y):
    with pytest.raises(ValueError, match="check_fit: 1 chains of 20 draws are too few"):
        fitted(kind).check()
    with pytest.raises(ValueError, match="2 of 2 rows, such as row 0, are no training rows"):
        fitted(kind).check(X[:2] + 0.5, y[:2])
    network = with_many_draws(kind)
    with pytest.raises(ValueError, match="training data of these draws are not known"):
        network.check()
    with pytest.raises(ValueError, match="these are not the training data of this model"):
        network.check(X, np.roll(y, 1))
    check = network.check(X, y, held_out=(X[:9] + 0.1, y[:9]))
    assert len(check.names) == 40
    by_kind = {
        "regressor": ("Intervals of 90 % hold", bnn.scores.coverage),
        "classifier": ("The likeliest class is right for", bnn.scores.accuracy),
    }
    said, share_of = by_kind[kind]
    share = share_of(network.predictions(X[:9] + 0.1), y[:9])
    assert f"{said} {percent(share)} ± 10 %" in " ".join(str(check).split())
    assert (check.quantities[0].name == "share of high") == (kind == "classifier")
    assert check.calibration.kind == ("pit" if kind == "regressor" else "confidence")
    expected = network.predictions(X).log_prob(y)
    # Every row is predicted worse without it.
    assert (check.loo.by_row < np.log(np.exp(expected.astype(np.float64)).mean((0, 1)))).all()


def test_a_label_that_was_not_fitted_cannot_be_checked():
    with pytest.raises(ValueError, match="check: y has the label 'other'"):
        with_many_draws("classifier").check(X[:2], np.array(["high", "other"]))


@pytest.mark.parametrize("score", [bnn.scores.lppd, bnn.scores.accuracy, bnn.scores.brier])
def test_scores_take_the_labels_of_the_fit(score):
    network = fitted("classifier")
    predictions, of_draws = network.predictions(X), bnn.predict(None, network.draws_, X)
    numbers = (TEXT == "low").astype(int)
    assert score(predictions, TEXT) == pytest.approx(score(of_draws, numbers))
    np.testing.assert_allclose(predictions.log_prob(TEXT), of_draws.log_prob(numbers), rtol=1e-4)
    with pytest.raises(ValueError, match=f"scores.{score.__name__}: y has the label 'other'"):
        score(predictions, np.where(TEXT == "low", "other", TEXT))


def test_intervals_hold_what_they_say():
    """The share of the predictive distribution itself below and above the ends."""
    network = fitted()
    low, high = network.predict_interval(X, coverage=0.8)
    predictions = network.predictions(X)
    np.testing.assert_allclose(predictions.cdf(low).mean((0, 1)), 0.1, atol=1e-4)
    np.testing.assert_allclose(predictions.cdf(high).mean((0, 1)), 0.9, atol=1e-4)
    three = network.predict_quantiles(X, (0.1, 0.5, 0.9))
    assert three.shape == (40, 3)
    np.testing.assert_allclose(three[:, [0, 2]], np.stack([low, high], 1))
    drawn = network.sample(X)
    assert drawn.shape == (20, 40)
    share = np.mean((drawn > low) & (drawn < high))
    assert abs(share - 0.8) < 5 * np.sqrt(0.8 * 0.2 / drawn.size)


def test_rows_get_the_same_numbers_in_larger_tables():
    network = fitted()
    many = np.tile(X, (BLOCK // 10, 1))
    # Sums over draws are in an order of NumPy's choice.
    np.testing.assert_allclose(network.predict(many)[:40], network.predict(X), rtol=1e-12)
    np.testing.assert_allclose(network.predict(X[7:8]), network.predict(X)[7:8], rtol=1e-12)
    targets = np.tile(Y, BLOCK // 10)
    np.testing.assert_allclose(
        network.predictions(many).log_prob(targets)[..., :40], network.predictions(X).log_prob(Y)
    )


def test_labels_of_text_and_booleans_come_back():
    network = fitted("classifier")
    assert network.classes_.tolist() == ["high", "low"]
    assert set(network.predict(X)) <= {"high", "low"}
    assert network.score(X, TEXT) > 0.9
    probs = network.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1.0)
    expected = bnn.average(bnn.predict(None, network.draws_, X))
    np.testing.assert_allclose(probs, expected, rtol=1e-5)
    assert network.sample(X).shape == (20, 40)
    booleans = with_given_draws(clone(network), X, TEXT == "high")
    assert booleans.predict(X).dtype == bool
    np.testing.assert_allclose(booleans.predict_proba(X)[:, 1], probs[:, 0], atol=0.1)


def test_columns_of_a_table_keep_their_names():
    table = pd.DataFrame(X, columns=["age", "income"])
    network = clone(fitted()).fit(table, pd.Series(Y))
    assert network.feature_names_in_.tolist() == ["age", "income"]
    assert network.draws_.info["columns"] == ["age", "income"]
    np.testing.assert_array_equal(network.predict(table), network.predict(table.copy()))
    with pytest.raises(ValueError, match="feature names should match"):
        network.predict(table[["income", "age"]])


def test_columns_may_have_numbers_for_names():
    table = pd.DataFrame(X)
    network = with_given_draws(bnn.BNNRegressor(**SETTINGS), table, Y)
    assert network.score(table, Y) == network.score(X, Y)
    with pytest.raises(ValueError, match="X has '1' where the training data had '0'"):
        network.score(table[[1, 0]], Y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_estimator_predicts_the_same(kind, tmp_path):
    network = fitted(kind)
    joblib.dump(network, tmp_path / "network")
    loaded = joblib.load(tmp_path / "network")
    np.testing.assert_array_equal(loaded.predict(X), network.predict(X))
    assert str(loaded.report_) == str(network.report_)
    assert not hasattr(loaded, "mcmc_")
    assert hasattr(network, "mcmc_")


@pytest.mark.slow
def test_any_network_of_flax():
    network = bnn.BNNRegressor(**SETTINGS | {"network": nets.MLP(1)}).fit(X, Y)
    assert network.predict(X).shape == (40,)
    assert network.score(X, Y) > 0.8


@pytest.mark.slow
def test_a_network_of_nnx_with_two_outputs():
    class Wide(nnx.Module):
        def __init__(self):
            self.layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.layer(x)

    options = {"network": Wide(), "likelihood": "heteroscedastic"}
    assert bnn.BNNRegressor(**SETTINGS | options).fit(X, Y).score(X, Y) > 0.8


def test_rows_of_weight_zero_are_left_out():
    zeros = (np.arange(40) < 30).astype(float)
    x, y, weights = weights_of(X, Y, zeros)
    np.testing.assert_array_equal(x, X[:30])
    np.testing.assert_array_equal(y, Y[:30])
    assert weights is None
    np.testing.assert_array_equal(weights_of(X, Y, 2 * zeros)[2], np.full(30, 2.0))
    assert weights_of(X, Y, None)[2] is None


@pytest.mark.slow
def test_balanced_classes():
    rare = np.array(["low"] * 36 + ["high"] * 4)
    noise = RNG.normal(size=(40, 2))
    plain = clone(fitted("classifier")).fit(noise, rare).predict_proba(noise)[:, 0].mean()
    balanced = clone(fitted("classifier")).set_params(class_weight="balanced")
    assert balanced.fit(noise, rare).predict_proba(noise)[:, 0].mean() > plain + 0.2


def test_a_second_fit_of_a_search_compiles_nothing():
    pipeline = make_pipeline(StandardScaler(), clone(fitted()))
    found = cross_val_score(pipeline, X, Y, cv=2)
    # Of eight seeds these means are 0.89 to 0.96; the fold that has to extrapolate scores 0.79 to 0.93.
    assert found.mean() > 0.85
    with nets.compilations() as compiled:
        again = cross_val_score(pipeline, X, 7 * Y - 1, cv=2)
    assert not compiled
    np.testing.assert_allclose(again, found, atol=0.05)
    search = GridSearchCV(clone(fitted()), {"num_samples": [20]}, cv=2).fit(X, Y)
    assert search.best_estimator_.num_samples == 20


@pytest.mark.slow
def test_several_processes():
    # With a noise for each row these few draws are far from stationary, and magnify differences more.
    network = clone(fitted()).set_params(likelihood="gaussian")
    found = cross_val_score(network, X, Y, cv=2, n_jobs=2)
    # Another seed moves these scores by 0.01 to 0.07; the order of sums in another process, which a chain
    # makes larger at every step, by up to 0.0002.
    np.testing.assert_allclose(found, cross_val_score(network, X, Y, cv=2), atol=1e-3)


def given_to_fit(network, x=X, y=Y):
    """The options that an estimator hands on to `fit`."""
    with pytest.MonkeyPatch.context() as patch:
        fit = Mock(side_effect=InterruptedError)
        patch.setattr(estimators, "fit_model", fit)
        with pytest.raises(InterruptedError):
            network.fit(x, y)
    return fit.call_args.kwargs


def test_every_setting_reaches_the_fit():
    own = {
        "until": bnn.Tolerance(relative=0.5),
        "max_minutes": 1.5,
        "batch_size": 7,
        "num_warmup": 3,
    }
    given = given_to_fit(bnn.BNNRegressor(**SETTINGS | own))
    names = ("kernel", "num_chains", "num_samples", "thinning")
    for name, value in ({n: SETTINGS[n] for n in names} | own).items():
        assert given[name] == value


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (1e-2, 25)),
        ({"kernel": "mclmc", "thinning": 7}, (1e-2, 7)),
        ({"kernel": "nuts"}, (None, None)),
        ({"until": bnn.Tolerance()}, (None, None)),
        ({"batch_size": 10}, (None, None)),
    ],
)
def test_regression_without_a_tolerance_takes_larger_steps(options, expected):
    given = given_to_fit(bnn.BNNRegressor(**options))
    assert (given.get("energy_variance"), given["thinning"]) == expected


def test_minibatches_and_classes_are_sampled_as_fit_does(monkeypatch):
    monkeypatch.setattr(estimators, "MANY_ROWS", 30)
    for given in (given_to_fit(bnn.BNNRegressor()), given_to_fit(bnn.BNNClassifier(), X, TEXT)):
        assert "energy_variance" not in given


@pytest.mark.slow
def test_a_run_until_predictions_are_known():
    loose = bnn.Tolerance(relative=0.5, log_score=1.0)
    options = {"until": loose, "num_samples": 40, "max_minutes": 20.0, "likelihood": "gaussian"}
    network = clone(fitted()).set_params(**options, kernel="nuts", thinning=1).fit(X, Y)
    assert network.mcmc_.stopped.reason == "within tolerance"
    assert network.report_.tolerance == loose


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (
            lambda: bnn.BNNClassifier(**SETTINGS).fit(X, np.ones(40)),
            ValueError,
            "one class alone, 1.0, expected",
        ),
        (lambda: bnn.BNNClassifier(**SETTINGS).sample(X), NotFittedError, "not fitted yet"),
        (lambda: bnn.BNNRegressor(**SETTINGS).fit(X, Y, np.zeros(40)), ValueError, "zero"),
        (
            lambda: bnn.BNNRegressor(**SETTINGS).fit(X, Y, -np.ones(40)),
            ValueError,
            "Negative values",
        ),
        (lambda: fitted().predict(X[:, :1]), ValueError, "X has 1 features, but BNNRegressor is"),
        (
            lambda: fitted().predict_interval(X, coverage=90),
            ValueError,
            "predict_interval: coverage is a share strictly between 0 and 1, got 90. Give 0.9 for 90 %",
        ),
        (
            lambda: fitted("classifier").predict_set(X, coverage=90),
            ValueError,
            "predict_set: coverage is a share strictly between 0 and 1, got 90",
        ),
        (
            lambda: bnn.BNNClassifier(**SETTINGS | {"hidden": "8"}).fit(X, TEXT),
            ValueError,
            "BNNClassifier: each entry of hidden, .* got '8'",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_a_target_of_two_columns():
    """The convention of scikit-learn: predictions (N, targets), in the units of each column."""
    x, y = few_outputs.data(40)
    network = bnn.BNNRegressor(**SETTINGS | {"hidden": (), "random_state": 1}).fit(x, y)
    mean, sd = network.predict(x, return_std=True)
    assert mean.shape == sd.shape == y.shape
    assert mean.dtype == np.float64
    assert network.score(x, y) > 0.5
    # Its noise is that of each column; the second has a hundred times the units of the first.
    assert 20 < sd[:, 1].mean() / sd[:, 0].mean() < 400
    ends = network.predict_quantiles(x, (0.1, 0.9))
    assert ends.shape == (40, 2, 2)
    low, high = network.predict_interval(x, 0.8)
    np.testing.assert_allclose(np.stack([low, high], -1), ends, rtol=1e-6)
    assert (low < mean).all()
    assert (mean < high).all()
    assert network.sample(x[:3]).shape == (20, 3, 2)
    assert get_tags(network).target_tags.multi_output


class Stopped(Exception):
    pass


@pytest.mark.parametrize("class_weight", ["balanced", {0: 1.0, 1: 5.0}, None])
def test_weights_of_classes_are_those_of_repeated_rows(class_weight, monkeypatch):
    seen = {}

    def stop(self, model, X, y, weights):
        seen["totals"] = np.bincount(y, weights)
        raise Stopped

    monkeypatch.setattr(bnn.BNNClassifier, "_fit", stop)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), (np.arange(30) < 10).astype(int)
    counts = np.where(y == 1, 3, np.arange(30) % 3)

    def totals(X, y, weights):
        with pytest.raises(Stopped):
            bnn.BNNClassifier(hidden=(2,), class_weight=class_weight).fit(X, y, weights)
        return seen["totals"]

    repeated = totals(np.repeat(X, counts, 0), np.repeat(y, counts), None)
    np.testing.assert_allclose(totals(X, y, counts), repeated)
    if class_weight == "balanced":
        np.testing.assert_allclose(repeated, counts.sum() / 2)


def kept_of(estimator, monkeypatch, *data):
    """What an estimator hands on to be fitted, and the classes that it knows."""
    seen = {}

    def stop(self, model, *data):
        seen["data"], seen["classes"] = data, getattr(self, "classes_", None)
        raise Stopped

    monkeypatch.setattr(estimator, "_fit", stop)
    with pytest.raises(Stopped):
        estimator(hidden=(2,)).fit(*data)
    return *seen["data"], seen["classes"]


@pytest.mark.parametrize("kind", ["string", "object", "category", "Int64", "boolean", "float"])
def test_rows_without_a_label_are_left_out_with_their_count(kind, monkeypatch):
    values = {"Int64": [0, 1], "boolean": [False, True], "float": [0.0, 1.0]}.get(kind, ["a", "b"])
    y = pd.Series([None, *values * 9, values[1]], dtype=kind)
    inputs, counts = np.arange(40.0).reshape(20, 2), np.arange(1.0, 21.0)
    with pytest.warns(UserWarning, match=r"BNNClassifier: 1 of 20 rows have no target"):
        found = kept_of(bnn.BNNClassifier, monkeypatch, inputs, y, counts)
    np.testing.assert_array_equal(found[0], inputs[1:])
    np.testing.assert_array_equal(found[1], [*[0, 1] * 9, 1])
    np.testing.assert_array_equal(found[2], counts[1:])
    assert found[3].tolist() == values


@pytest.mark.parametrize(
    "form", [np.asarray, pd.DataFrame, lambda y: pd.DataFrame(y).astype("Float64")]
)
def test_each_row_keeps_the_targets_that_it_has(form, monkeypatch):
    y = np.random.default_rng(0).normal(size=(20, 2))
    y[2, 0] = y[3, 1] = np.nan
    whole = kept_of(bnn.BNNRegressor, monkeypatch, np.zeros((20, 2)), form(y))
    np.testing.assert_array_equal(whole[1], y)
    y[5] = np.nan
    with pytest.warns(UserWarning, match=r"BNNRegressor: 1 of 20 rows have no target"):
        found = kept_of(bnn.BNNRegressor, monkeypatch, np.zeros((20, 2)), form(y))
    np.testing.assert_array_equal(found[1], np.delete(y, 5, 0))


BAD_TARGETS = {
    "a target without any value": (lambda y: np.c_[y, np.full(20, np.nan)], "NaN .* in column 1"),
    "no value at all": (lambda y: np.full(20, np.nan), "no value but NaN"),
    "infinity": (lambda y: np.c_[y, np.r_[np.nan, np.inf, y[2:]]], "infinity"),
    "text": (lambda y: np.array(["a", None] * 10, object), "y holds 'a', expected numbers"),
    "one value": (lambda y: np.full(20, 7), "y is 7 in all rows"),
    "dates": (lambda y: pd.Series(pd.date_range("2026-01-01", periods=20)), "y holds dates"),
}


@pytest.mark.parametrize("bad", BAD_TARGETS)
@pytest.mark.filterwarnings("ignore:BNNRegressor. 10 of 20 rows have no target")
def test_targets_that_are_not_merely_missing_are_refused(bad):
    change, said = BAD_TARGETS[bad]
    with pytest.raises((ValueError, TypeError), match=said):
        bnn.BNNRegressor().fit(np.zeros((20, 2)), change(np.arange(20.0)))


@pytest.mark.parametrize("estimator", [bnn.BNNRegressor, bnn.BNNClassifier])
@pytest.mark.parametrize(
    ("form", "column"), [(np.asarray, "1"), (lambda x: pd.DataFrame(x, columns=["a", "b"]), "'b'")]
)
def test_missing_inputs_are_named_with_their_place(estimator, form, column):
    x = np.zeros((20, 2))
    x[3:5, 1] = np.nan
    said = rf"X has 2 missing values \(NaN\), the first in row 3, column {column}\. .*SimpleImputer"
    with pytest.raises(ValueError, match=said):
        estimator().fit(form(x), np.arange(20) % 2)


@pytest.mark.parametrize("form", [list, pd.Series, lambda y: pd.Series(y, dtype="category")])
def test_labels_given_to_a_regressor_are_sent_to_the_classifier(form):
    with pytest.raises(ValueError, match=r"y holds 'no', expected numbers.*BNNClassifier"):
        bnn.BNNRegressor().fit(np.zeros((20, 2)), form(["no", "yes"] * 10))
