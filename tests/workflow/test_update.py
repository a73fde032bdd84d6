"""The posterior given more rows, or fewer: exact for linear models, honest where it cannot be reached."""

import functools
import pickle

import few_draws
import jax
import linear_gaussian
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from linear_gaussian import BIAS, KERNEL, NOISE, SCALE
from numpyro.infer import HMC
from sklearn.exceptions import ConvergenceWarning

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import mean_errors
from numpyro_bnn.workflow import update as module
from numpyro_bnn.workflow.row_energies import RowEnergies

X, Y = linear_gaussian.data(260)
ROWS = 100


def exact(x, y, model=linear_gaussian.model, shape=(4, 500), arguments=None, seed=0):
    """Independent draws of the posterior, which keep their rows as a run does."""
    mean, precision = linear_gaussian.posterior(x, y)
    noise = np.random.default_rng(seed).normal(size=(*shape, len(mean)))
    drawn = np.float32(mean + noise @ np.linalg.inv(np.linalg.cholesky(precision)))
    draws = bnn.Draws({KERNEL: drawn[..., :-1, None], BIAS: drawn[..., -1:]}, model)
    draws._args, draws._kwargs = ((x, y), {}) if arguments is None else arguments
    return draws


def log_evidence(x, y):
    rows = np.c_[x, np.ones(len(x))]
    covariance = NOISE**2 * np.eye(len(x)) + SCALE**2 * rows @ rows.T
    fit = y @ np.linalg.solve(covariance, y)
    return -0.5 * (np.linalg.slogdet(2 * np.pi * covariance)[1] + fit)


def assert_exact(run, x, y, before, unit=1.0):
    """Means, covariances and log evidence within five Monte Carlo errors of what they are."""
    mean, precision = linear_gaussian.posterior(x, y)
    off = linear_gaussian.weights(run) - mean
    products = off[..., :, None] * off[..., None, :] - np.linalg.inv(precision)
    errors = mean_errors(np.concatenate([off, products.reshape(*off.shape[:2], -1)], -1))
    assert errors.known.all()
    assert (np.abs(errors.mean) < 5 * errors.error).all()
    assert errors.ess.min() > 200
    gained = log_evidence(x, y) - log_evidence(*before) - (len(y) - len(before[1])) * np.log(unit)
    assert abs(run.log_evidence - gained) < 5 * run.log_evidence_error
    assert run.log_evidence_error < 0.1
    assert run.k_hat < 0.7
    assert run.effective_size > 500


@functools.cache
def first():
    return exact(X[:ROWS], Y[:ROWS])


@functools.cache
def updated(more):
    return bnn.update(first(), X[ROWS : ROWS + more], Y[ROWS : ROWS + more])


@pytest.mark.parametrize("more", [1, 10, 100])
def test_new_rows_give_the_posterior_of_all_rows(more):
    run, every = updated(more), slice(ROWS + more)
    assert_exact(run, X[every], Y[every], (X[:ROWS], Y[:ROWS]))
    assert (run.moves > 0) == (more == 100)
    assert run[KERNEL].shape == (4, 500, 3, 1)


@pytest.mark.parametrize("less", [1, 10, 50])
def test_rows_that_are_taken_away_are_forgotten(less):
    rows = np.arange(less) if less == 1 else np.arange(ROWS) < less
    run, left = bnn.without(first(), rows), slice(less, ROWS)
    assert_exact(run, X[left], Y[left], (X[:ROWS], Y[:ROWS]))
    np.testing.assert_array_equal(run._args[0], X[left])


@pytest.mark.parametrize("shape", [(4, 500), (64, 8)])
def test_moves_reach_what_no_weights_reach(shape):
    """The posterior of few rows is wide: that of many is far in its tail. Short chains are joined."""
    run = bnn.update(exact(X[:4], Y[:4], shape=shape), X[4:], Y[4:])
    assert run.moves > 2
    mean, precision = linear_gaussian.posterior(X, Y)
    errors = mean_errors(linear_gaussian.weights(run))
    assert (errors.known & (np.abs(errors.mean - mean) < 5 * errors.error)).all()
    np.testing.assert_allclose(errors.sd, np.sqrt(np.diag(np.linalg.inv(precision))), rtol=0.15)
    gained = log_evidence(X, Y) - log_evidence(X[:4], Y[:4])
    assert abs(run.log_evidence - gained) < 5 * run.log_evidence_error


def test_a_column_is_forgotten_with_the_only_rows_that_have_it():
    """Its weight goes back to the prior, seventeen times as wide."""
    x = X[:ROWS].copy()
    x[:, 0] = np.where(np.arange(ROWS) < 12, 3.0, 0.0)
    y, rest = Y[:ROWS] + 2 * x[:, 0], slice(12, ROWS)
    run = bnn.without(exact(x, y), np.arange(12))
    mean, precision = linear_gaussian.posterior(x[rest], y[rest])
    errors = mean_errors(linear_gaussian.weights(run))
    assert (errors.known & (np.abs(errors.mean - mean) < 5 * errors.error)).all()
    np.testing.assert_allclose(errors.sd, np.sqrt(np.diag(np.linalg.inv(precision))), rtol=0.1)
    lost = log_evidence(x[rest], y[rest]) - log_evidence(x, y)
    assert abs(run.log_evidence - lost) < 5 * run.log_evidence_error < 0.8


def test_a_second_batch_compiles_nothing_and_scores_add_up():
    run, gained, squares, count = first(), 0.0, 0.0, []
    for begin in range(ROWS, 200, 10):
        with nets.compilations() as compiled:
            run = bnn.update(run, X[begin : begin + 10], Y[begin : begin + 10])
        count.append(len(compiled))
        gained, squares = gained + run.log_evidence, squares + run.log_evidence_error**2
    # The first batch that moves draws compiles the moves.
    assert sum(n > 0 for n in count) <= 2
    total = log_evidence(X[:200], Y[:200]) - log_evidence(X[:ROWS], Y[:ROWS])
    assert abs(gained - total) < 5 * np.sqrt(squares)
    mean, _ = linear_gaussian.posterior(X[:200], Y[:200])
    errors = mean_errors(linear_gaussian.weights(run))
    assert (np.abs(errors.mean - mean) < 5 * errors.error).all()
    back = bnn.without(run, np.arange(ROWS, 200))
    assert abs(back.log_evidence + total) < 5 * back.log_evidence_error
    np.testing.assert_array_equal(back._args[1], Y[:ROWS])


def test_programs_and_step_sizes_serve_the_next_batch(monkeypatch):
    """Nothing is traced or sought a second time; a copy of the run in a file makes its programs anew."""
    run, built = updated(100), []
    assert run.moves > 0
    monkeypatch.setattr(module, "RowEnergies", lambda *a: built.append(a) or RowEnergies(*a))
    again = bnn.update(run, X[200:230], Y[200:230])
    assert not built
    assert run.info["updated"]["moved"] == again.info["updated"]["moved"]
    assert run.info["updated"]["step_size"] > 0
    assert pickle.loads(pickle.dumps(run)).moves == run.moves
    # More rows than there is room for.
    bnn.update(run, np.repeat(X, 2, 0), np.repeat(Y, 2))
    assert len(built) == 1


def changed(draws, model=None, values=None, stats=None, **info):
    """Other draws of a run, another model, or something else that is known of it."""
    made = bnn.Draws(values or draws, model or draws.model, stats, info)
    made._args = draws._args
    return made


def repeated(count, times):
    """A run of chains of so many independent draws, each of which is repeated."""
    few = exact(X[:ROWS], Y[:ROWS], shape=(4, count))
    return changed(few, values={name: np.repeat(value, times, 1) for name, value in few.items()})


def test_draws_of_equal_likelihood_are_no_copies():
    """Every other draw gives the new row the probability 1, in single precision."""

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y)

    noise = np.random.default_rng(0).normal(size=(2, 200, 2))
    drawn = np.float32([1, 0.02] + 0.001 * noise).reshape(2, 400)
    draws = bnn.Draws({"b": drawn}, model)
    draws._args, draws._kwargs = (np.ones(3), np.ones(3, int)), {}
    run = bnn.update(draws, np.full(1, 200.0), np.ones(1, int))
    assert (run.k_hat, run.moves, run["b"].shape) == (0, 0, (2, 400))


def test_errors_of_dependent_draws_stay_those_of_dependent_draws():
    """A run that repeats each draw ten times has a tenth of them, before and after."""
    run = bnn.update(repeated(50, 10), X[ROWS : ROWS + 1], Y[ROWS : ROWS + 1])
    assert mean_errors(linear_gaussian.weights(run)).ess.max() < 250
    assert run.effective_size < 250


def test_too_few_effective_draws_are_moved_and_the_next_batch_compiles_nothing():
    run = bnn.update(repeated(10, 50), X[ROWS : ROWS + 1], Y[ROWS : ROWS + 1])
    assert run.moves > 0
    assert run.effective_size >= module._NEEDED
    assert bnn.diagnose(run, X[:20]).verdict == "run_longer"
    with nets.compilations() as compiled:
        bnn.update(run, X[101:102], Y[101:102])
    assert not compiled


def with_offset(x, y=None, offset=0.0):
    """The model, with a known part of the mean for each row."""
    linear_gaussian.model(x, None if y is None else y - offset)


def test_further_arguments_by_row_are_given_by_name():
    offset = np.linspace(0.0, 5.0, 110)
    arguments = (X[:ROWS], Y[:ROWS] + offset[:ROWS]), {"offset": offset[:ROWS]}
    draws = exact(X[:ROWS], Y[:ROWS], with_offset, arguments=arguments)
    new = slice(ROWS, 110)
    run = bnn.update(draws, X[new], Y[new] + offset[new], offset=offset[new])
    assert_exact(run, X[:110], Y[:110], (X[:ROWS], Y[:ROWS]))
    with pytest.raises(ValueError, match=r"same arguments of the model, got .*offset"):
        bnn.update(draws, X[new], Y[new])


def test_estimators_and_ready_models_keep_the_units_of_their_first_fit():
    x, y = 3 * X + 5, 10 * Y - 40
    x[ROWS:] += 1.0
    network = bnn.MLP((), 1), bnn.priors.Normal(SCALE)
    model = bnn.regression(*network, x[:ROWS], y[:ROWS], noise=NOISE)
    units, estimator = model.standardization, bnn.BNNRegressor()
    rows, targets = (x - units.x_mean) / units.x_scale, (y - units.y_mean) / units.y_scale
    draws = exact(rows[:ROWS], targets[:ROWS], model, arguments=((x[:ROWS], y[:ROWS]), {}))
    estimator.draws_, estimator.model_, estimator.n_features_in_ = draws, model, 3
    estimator._asked = estimator._asks()
    run = estimator.partial_fit(x[ROWS:110], y[ROWS:110]).draws_
    assert_exact(run, rows[:110], targets[:110], (rows[:ROWS], targets[:ROWS]), units.y_scale)
    assert model.standardization is units
    assert run.model is model
    np.testing.assert_array_equal(run._args[1], y[:110])


def test_a_run_is_a_run_afterwards(tmp_path):
    mcmc = bnn.MCMC(HMC(linear_gaussian.model), num_warmup=200, num_samples=1000, num_chains=2,
                    progress_bar=False)  # fmt: skip
    mcmc.run(jax.random.key(0), X[:ROWS], y=Y[:ROWS])
    run = bnn.update(mcmc, X[ROWS:105], Y[ROWS:105])
    exactly, _ = linear_gaussian.posterior(X[:105], Y[:105])
    errors = mean_errors(np.asarray(bnn.predict(None, run, X[:20]).mean))
    assert (np.abs(errors.mean - np.c_[X[:20], np.ones(20)] @ exactly) < 5 * errors.error).all()
    assert bnn.diagnose(run, X[:20], Y[:20]).verdict == "within_tolerance"
    assert bnn.check_fit(run).loo.by_row.size == 105
    idata = bnn.to_inference_data(run)
    assert idata["observed_data"]["y"].size == 105
    loaded = bnn.load(bnn.save(run, tmp_path / "run"), linear_gaussian.model)
    assert loaded.info["updated"]["log_evidence"] == run.log_evidence
    again = bnn.update(loaded, X[105:110], Y[105:110])
    kept = bnn.update(run, X[105:110], Y[105:110])
    assert again.log_evidence == pytest.approx(kept.log_evidence, abs=1e-4)
    with pytest.raises(ValueError, match=r"105 calibration rows are training rows"):
        bnn.calibrate(run, X[:105], Y[:105])
    with pytest.raises(RuntimeError, match=r"update: these draws cannot be resampled .* Fit again"):
        bnn.update(loaded, X[105:205], Y[105:205] + 9)
    with pytest.raises(ValueError, match="without: these draws do not keep the rows"):
        bnn.without(loaded, [0])


def centred(x, y=None):
    """Rows depend on the others by their mean."""
    linear_gaussian.model(x - x.mean(0), y)


def latent_rows(x, y=None):
    slope = numpyro.sample("slope", dist.Normal())
    with numpyro.plate("data", len(x)):
        shift = numpyro.sample("shift", dist.Normal())
        numpyro.sample("y", dist.Normal(x[:, 0] * slope + shift), obs=y)


def on_rows(x, y=None):
    """The prior knows the number of rows."""
    nets.linear_regression(x, y, scale=SCALE * len(x) ** 0.5, noise=NOISE)


def with_factor(x, y=None):
    linear_gaussian.model(x, y)
    numpyro.factor("tilt", 2.0)


HOT = {"temperature": np.full((4, 500), 0.5)}
REFUSED = {
    "rows that depend on one another": (lambda d: changed(d, centred), "depend on one another"),
    "a prior that depends on rows": (lambda d: changed(d, on_rows), "its prior on the rows"),
    "a factor of no row": (lambda d: changed(d, with_factor), r"\['tilt'\] count once and not"),
    "a mixture": (lambda d: changed(d, weights=[1.0]), "stacked mixture"),
    "a choice of draws": (lambda d: changed(d, thinned={}), "chosen by `thin`"),
    "an approximation": (lambda d: changed(d, approximation=True), "of an approximation"),
    "another temperature": (lambda d: changed(d, stats=HOT), "temperature 0.5"),
    "no model": (lambda d: bnn.Draws(d), "no model"),
    "a site without draws": (lambda d: changed(d, values={KERNEL: d[KERNEL]}), "has no draws"),
    "latent values of rows": (
        lambda d: changed(
            d, latent_rows, {"slope": d[BIAS][..., 0], "shift": d[BIAS].repeat(ROWS, -1)}
        ),
        r"'shift' has shape \(100,\) in .*, and shape \(1,\) at one",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_new_posterior_is_refused(case):
    make, said = REFUSED[case]
    with pytest.raises(ValueError, match=f"^update: .*{said}"):
        bnn.update(make(first()), X[:3], Y[:3])


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X[:3], Y[:2], r"the same positive number of rows, got \[2, 3\]"),
        (X[:0], Y[:0], "the same positive number of rows"),
        (X[:3, :2], Y[:3], r"another form .*: shapes \(3, 2\) and \(\d+, 3\)"),
        (X[:3], np.full(3, 1e30), "not finite"),
        (X[:3], np.ones((3, 2)), "another form"),
    ],
)
def test_rows_of_another_form_are_refused(x, y, said):
    with pytest.raises(ValueError, match=said):
        bnn.update(first(), x, y)


@pytest.mark.parametrize("rows", [[], [ROWS], [0.5], np.ones(3, bool), np.arange(ROWS)])
def test_rows_that_are_not_there_are_refused(rows):
    with pytest.raises(ValueError, match=r"^without: rows "):
        bnn.without(first(), np.asarray(rows))


@pytest.mark.parametrize(("limit", "value"), [("_POWERS", 1), ("_LEAST_ACCEPTANCE", 1.1)])
def test_a_posterior_that_is_not_reached_is_not_given(limit, value, monkeypatch):
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(RuntimeError, match=r"was not reached from these draws: .* Fit again"):
        bnn.update(exact(X[:4], Y[:4]), X[4:], Y[4:])


def test_chains_stay_independent_where_rows_decide_between_them():
    """Two chains in each of two modes: nobody knows their masses, and the rows are of one."""
    draws, modes = first(), np.array([0.0, 0.0, 1.0, 1.0], np.float32)
    apart = changed(draws, values=dict(draws) | {BIAS: draws[BIAS] + modes[:, None, None]})
    run = bnn.update(apart, X[ROWS : ROWS + 3], Y[ROWS : ROWS + 3])
    assert run.moves == 0
    assert all(np.isin(chain, own).all() for chain, own in zip(run[KERNEL], draws[KERNEL]))
    assert run.log_evidence_error == np.inf
    assert bnn.diagnose(run, X[:20]).verdict == "chains_disagree"
    errors = mean_errors(linear_gaussian.weights(bnn.update(apart, X[ROWS:], Y[ROWS:])))
    assert (np.abs(errors.mean - linear_gaussian.posterior(X, Y)[0]) < 5 * errors.error).all()


SETTINGS = few_draws.SETTINGS | {"num_samples": 100, "thinning": 1, "num_chains": 2}


def test_weights_may_be_given_by_place():
    model = bnn.regression(bnn.MLP((), 1), bnn.priors.Normal(1.0), noise=0.5)
    kernel = bnn.MALA(model, step_size=0.01)
    run = bnn.MCMC(kernel, num_samples=100, num_warmup=0, progress_bar=False)
    run.run(jax.random.key(0), X[:12], Y[:12], np.ones(12))
    with pytest.raises(ValueError, match="got \\['weights'\\] in one of them"):
        bnn.update(run, X[:1], Y[:1])
    assert abs(bnn.update(run, X[:1], Y[:1], weights=[1e-6]).log_evidence) < 1e-3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimators_take_rows_as_they_come():
    network = bnn.BNNRegressor(**SETTINGS | {"prior": dist.Normal()})
    assert network.partial_fit(X[:40], Y[:40]) is network
    units = network.model_.standardization
    network.partial_fit(X[40:42], Y[40:42])
    assert network.model_.standardization is units
    assert network.draws_.log_evidence < 0
    again = pickle.loads(pickle.dumps(network)).partial_fit(X[42:44], Y[42:44])
    assert len(again.draws_._args[0]) == 44
    with pytest.raises(ValueError, match="features"):
        network.partial_fit(X[:2, :2], Y[:2])
    with pytest.raises(ValueError, match="infinity"):
        network.partial_fit(X[:2], [1.0, np.inf])
    network.partial_fit(X[42:44], Y[42:44], sample_weight=[1.0, 2.0])
    weights = network.draws_._kwargs["weights"]
    assert weights.tolist() == [1.0] * 43 + [2.0]
    # The same network in other words.
    network.set_params(hidden=SETTINGS["hidden"][0]).partial_fit(X[44:46], Y[44:46])
    network.set_params(hidden=(5,))
    with pytest.raises(ValueError, match="hidden changed since the fit"):
        network.partial_fit(X[:2], Y[:2])
    network.set_params(hidden=SETTINGS["hidden"], calibration=0.2)
    with pytest.raises(ValueError, match=r"calibration=0.2 holds rows of a fit out"):
        network.partial_fit(X[:2], Y[:2])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_estimator_fits_all_rows_anew_where_its_draws_are_too_few():
    weights = np.arange(1.0, 45)
    network = bnn.BNNRegressor(**few_draws.SETTINGS).fit(X[:40], Y[:40], weights[:40])
    with pytest.raises(RuntimeError, match=r"^update: draws of shape 1 × 20 are too few"):
        bnn.update(network, X[40:44], Y[40:44], weights=weights[40:44])
    with pytest.warns(ConvergenceWarning, match=r"fitted anew \(update: draws of shape 1 × 20"):
        network.partial_fit(X[40:44], Y[40:44], weights[40:44])
    again = bnn.BNNRegressor(**few_draws.SETTINGS).fit(X[:44], Y[:44], weights)
    assert np.array_equal(network.predict(X), again.predict(X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_classifier_knows_its_classes_from_the_first_call():
    labels = np.where(np.median(Y) < Y, "high", "low")
    network = bnn.BNNClassifier(**SETTINGS)
    with pytest.raises(ValueError, match=r"classes must be passed on the first call"):
        network.partial_fit(X[:40], labels[:40])
    network.partial_fit(X[:40], labels[:40], classes=["high", "low", "none"])
    network.partial_fit(X[40:42], labels[40:42])
    assert network.predict_proba(X[:2]).shape == (2, 3)
    assert len(network.draws_._args[0]) == 42
    with pytest.raises(ValueError, match=r"'other', and the training labels are"):
        network.partial_fit(X[:1], ["other"])
    with pytest.raises(ValueError, match=r"is not the same as on last call"):
        network.partial_fit(X[:1], ["low"], classes=["high", "low"])
    network.set_params(class_weight="balanced")
    with pytest.raises(ValueError, match=r"class_weight='balanced' depends on all rows"):
        network.partial_fit(X[:1], ["low"])
