"""Whatever takes a run takes what `fit` returned and a fitted estimator too, and means the same draws."""

import functools
import pickle

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import small_run
from numpyro.infer import NUTS
from small_run import PRIOR, X, Y

import numpyro_bnn as bnn
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.posterior.fitted import arguments_of, is_finished, run_of
from numpyro_bnn.workflow.fit import Fit

pytestmark = [
    # 100 draws of two chains are not meant to have converged.
    pytest.mark.filterwarnings("ignore:.*chain.*suspect")
]
rng = np.random.default_rng(3)
NAMES = np.where(X[:, 0] > 0.3, "warm", "cold")
KINDS = ("estimator", "fit", "run", "draws")
# Rows that were not fitted, of the shape of those that were: all doors share one program.
NEW, ITS_Y = X + 5.0, Y


@functools.cache
def doors():
    """One run in the four forms in which it is handed on; `fit` itself is tested elsewhere."""
    model = small_run.regression()
    run = small_run.sample(small_run.unstarted(model), X, Y)
    draws = draws_of(run)
    estimator = bnn.BNNRegressor()
    estimator.model_, estimator.mcmc_, estimator.draws_ = model, run, draws
    estimator.n_features_in_, estimator.calibration_ = 2, None
    whole = Fit(model, draws, run, draws, np.full(2, 0.5), None, {})
    return dict(zip(KINDS, (estimator, whole, run, draws)))


def model_of_run():
    return doors()["draws"].model


@functools.cache
def classifier():
    """An estimator of two classes by name, with draws from a normal distribution."""
    network = bnn.BNNClassifier()
    network.model_ = bnn.classification(bnn.MLP((), 2), PRIOR, X, (NAMES == "warm").astype(int))
    shapes = {"net/Dense_0.bias": (2,), "net/Dense_0.kernel": (2, 2)}
    values = {name: rng.normal(size=(2, 100, *shape)) for name, shape in shapes.items()}
    network.draws_ = bnn.Draws(values, network.model_)
    network.classes_, network.n_features_in_ = np.array(["cold", "warm"]), 2
    return network


def compared(run):
    data = (X, Y, NEW, ITS_Y)
    table = bnn.compare(model_of_run(), data, {"own": run}, "own", progress_bar=False)
    return table.predictions["own"].mean


def saved(run, folder):
    return bnn.load(bnn.save(run, folder / "run"), small_run.regression())["net/Dense_0.kernel"]


def drawn(run):
    ax = bnn.plots.plot_trace(run)
    lines = np.array([line.get_ydata() for line in ax.get_lines()])
    plt.close(ax.figure)
    return lines


def likelihood(run):
    return bnn.to_inference_data(run, NEW, ITS_Y)["log_likelihood"]["y"].values


TAKES = {
    "predict": lambda run: bnn.predict(None, run, NEW).mean,
    "diagnose": lambda run: bnn.diagnose(run, NEW, ITS_Y).predictions.max_rhat,
    "second": lambda run: bnn.diagnose(doors()["run"], NEW, second=run).second.num_compared,
    "thin": lambda run: bnn.thin(run, 3, NEW)["net/Dense_0.kernel"],
    "stack": lambda run: bnn.stack(run, NEW, ITS_Y, key=jax.random.key(1)).info["weights"],
    "to_inference_data": likelihood,
    "calibrate": lambda run: bnn.calibrate(run, NEW, ITS_Y).threshold,
    "compare": compared,
    "plot_trace": drawn,
    "scores": lambda run: bnn.scores.rmse(bnn.predict(None, run, NEW), ITS_Y),
}
ANSWERS = {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*TAKES, "save"])
def test_every_form_of_a_run_gives_the_same_answer(name, kind, tmp_path):
    take = TAKES.get(name, lambda run: saved(run, tmp_path))
    if name not in ANSWERS:
        ANSWERS[name] = take(doors()["draws"])
    # An estimator predicts in blocks of its own.
    np.testing.assert_allclose(take(doors()[kind]), ANSWERS[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["estimator", "fit", "run"])
def test_the_training_data_are_found(kind):
    run = doors()[kind]
    np.testing.assert_array_equal(arguments_of(run)[0][0], X)
    assert bnn.thin(run, 2).info["thinned"]["draws"] == 200
    observed = bnn.to_inference_data(run)["observed_data"]["y"].values
    np.testing.assert_allclose(observed, Y, atol=1e-6)
    with pytest.raises(ValueError, match="12 of 12 calibration rows are training rows"):
        bnn.calibrate(run, X, Y)
    with pytest.raises(ValueError, match="'own' was fitted to 12 rows, and x has 10"):
        bnn.compare(model_of_run(), (X[:10], Y[:10], X, Y), {"own": run}, "own")


@pytest.mark.parametrize("kind", ["estimator", "fit", "run"])
def test_a_second_opinion_is_of_the_run_behind(kind, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "numpyro_bnn.workflow.compare.optimize", lambda *a, **k: seen.append(a) or {}
    )
    monkeypatch.setattr(bnn.MCMC, "run", lambda *args, **kwargs: None)
    monkeypatch.setattr("numpyro_bnn.workflow.compare.diagnose", lambda run, x, second: (run, x))
    draws, x = bnn.second_opinion(doors()[kind], kernel=NUTS(model_of_run()))
    assert draws.model is model_of_run()
    assert draws.num_draws == doors()["run"].num_samples
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(seen[0][2], X)


def test_labels_of_a_classifier_are_translated():
    network = classifier()
    probs = bnn.predict(None, network, X).probs
    right = np.where((NAMES == "warm")[None, None], probs[..., 1], probs[..., 0])
    report = bnn.diagnose(network, X, NAMES)
    numbers = bnn.diagnose(network.draws_, X, (NAMES == "warm").astype(int))
    assert report.verdict == numbers.verdict
    assert str(report) == str(numbers)
    assert "log score" in str(report).lower()
    likelihood = bnn.to_inference_data(network, X, NAMES)["log_likelihood"]["y"].values
    np.testing.assert_allclose(likelihood, np.log(right), atol=1e-5)
    weights = bnn.stack(network, X, NAMES, key=jax.random.key(0)).info["weights"]
    np.testing.assert_allclose(
        weights, bnn.stacking_weights(np.log(right.astype(np.float64))), atol=1e-4
    )
    with pytest.raises(ValueError, match=r"diagnose: y has the label 'mild', and the training"):
        bnn.diagnose(network, X[:1], ["mild"])
    with pytest.raises(ValueError, match=r"'own' was fitted to the labels \['cold', 'warm'\]"):
        bnn.compare(
            network.model_, (X, Y > 0, X, Y > 0), {"own": network}, "own", progress_bar=False
        )


def test_an_estimator_that_was_pickled_has_draws_and_no_run():
    again = pickle.loads(pickle.dumps(doors()["estimator"]))
    assert run_of(again) is None
    assert arguments_of(again) == ((), {})
    np.testing.assert_allclose(
        bnn.predict(None, again, X).mean, bnn.predict(None, doors()["estimator"], X).mean, rtol=1e-6
    )
    with pytest.raises(ValueError, match="or what keeps one, got BNNRegressor"):
        bnn.second_opinion(again)
    with pytest.raises(ValueError, match="thin: the inputs of these draws are not known"):
        bnn.thin(again, 2)


def test_a_stacked_fit_keeps_the_numbers_of_its_chains():
    stacked = bnn.stack(doors()["estimator"], X, Y, key=jax.random.key(0))
    stacked.info["left_out"] = {3: "exploded"}
    idata = bnn.to_inference_data(stacked, log_likelihood=False)
    assert idata["posterior"]["chain"].values.tolist() == [0]


def test_what_is_not_fitted_is_refused():
    blank = bnn.BNNRegressor()
    for use in (draws_of, is_finished, lambda run: bnn.predict(None, run, X)):
        with pytest.raises(ValueError, match="This BNNRegressor is not fitted yet"):
            use(blank)
    with pytest.raises(ValueError, match="BNNRegressor is not fitted yet"):
        bnn.second_opinion(blank)
    assert not is_finished(lambda: None)
    with pytest.raises(TypeError, match=r"or what `bnn.predict\(None, run, x\)` returns"):
        bnn.scores.rmse(doors()["estimator"], Y)
