"""Draws without their run know training rows: those of files, of approximations, of pickled estimators."""

import functools
import pickle

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from few_draws import SETTINGS
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.data.fingerprints import KNOWN_ROWS
from numpyro_bnn.posterior.training_data import rows_of_call
from numpyro_bnn.workflow.check_fit import refuse_training_rows
from numpyro_bnn.workflow.estimator_inputs import held_out

pytestmark = [
    # Fits of a few draws, which are never known within tolerance.
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)
NEW = RNG.normal(size=(40, 2)), RNG.normal(size=40)
KEY = jax.random.key(0)

line = row_model(lambda x, slope: dist.Normal(slope * x[:, 0], 0.2), slope=dist.Normal())


def run(path=None, x=X, y=Y):
    kernel = bnn.BAOAB(line, step_size=0.1 / len(x))
    options = {"num_warmup": 50, "num_samples": 200, "num_chains": 2, "progress_bar": False}
    mcmc = bnn.MCMC(kernel, draws=path, **options)
    mcmc.run(KEY, x, y)
    return mcmc


@functools.cache
def in_memory():
    return run()


def saved(folder):
    return bnn.load(bnn.save(in_memory(), folder / "run.npz"), line)


def in_a_folder(folder):
    run(folder / "run")
    return bnn.load(folder / "run", line)


def exported(folder):
    return bnn.from_inference_data(bnn.to_inference_data(in_memory()), line)


def approximated(folder):
    return bnn.mean_field(line, KEY, X, Y, num_steps=50, num_samples=50, progress_bar=False)


DOORS = [saved, in_a_folder, exported, approximated]


@pytest.mark.parametrize("door", DOORS)
def test_calibration_rows_are_compared_with_them(door, tmp_path):
    draws = door(tmp_path)
    # Held-out rows with some of the inputs of the fit, as in a designed experiment.
    bnn.calibrate(draws, X[:40], NEW[1])
    bnn.calibrate(draws, *NEW)
    # Numbers of another type are the same rows.
    for kind in (np.float32, np.float64):
        with pytest.raises(ValueError, match="calibrate: 60 of 60 calibration rows are training"):
            bnn.calibrate(draws, X.astype(kind), Y.astype(kind))
    some = (np.concatenate([new, old[:20]]) for new, old in zip(NEW, (X, Y)))
    with pytest.raises(ValueError, match="calibrate: 20 of 60 calibration rows are training rows"):
        bnn.calibrate(draws, *some)


def test_rows_of_leave_one_out_are_compared_with_them(tmp_path):
    draws = saved(tmp_path)
    whole, some = bnn.check_fit(draws, X, Y), bnn.check_fit(draws, X[:20], Y[:20])
    np.testing.assert_allclose(some.loo.by_row, whole.loo.by_row[:20])
    with pytest.raises(
        ValueError, match="check_fit: 40 of 40 rows, such as row 0, are no training"
    ):
        bnn.check_fit(draws, *NEW)


def test_of_many_rows_a_thousand_are_known(tmp_path):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(5000, 2)), rng.normal(size=5000)
    draws = bnn.load(bnn.save(run(x=x, y=y), tmp_path / "run.npz"), line)
    assert len(draws.info[KNOWN_ROWS]["noted"]["1"]) < 11_000
    with pytest.raises(ValueError, match=r"of 300 calibration rows are .* of which 0\.2 are known"):
        bnn.calibrate(draws, x[2000:2300], y[2000:2300])
    bnn.calibrate(draws, x[2000:2300], y[:300])
    bnn.check_fit(draws, x[2000:2300], y[2000:2300])
    with pytest.raises(ValueError, match="check_fit: most of these 300 rows are no training rows"):
        bnn.check_fit(draws, x[2000:2300], y[:300])


def coin(x, y=None, counts=None):
    slopes = numpyro.sample("slopes", dist.Normal().expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)


@pytest.mark.parametrize(("columns", "trained", "held_out"), [(5, 200, 1000), (3, 60, 100)])
def test_equal_rows_of_a_coarse_table_are_no_training_rows(columns, trained, held_out):
    """Rows of zeros and ones repeat themselves, those held out too; that is no sign of training rows."""
    refused = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, more = (rng.integers(0, 2, (n, columns)) * 1.0 for n in (trained, held_out))
        y, labels = (rng.integers(0, 2, n) for n in (trained, held_out))
        info = rows_of_call(coin, (x, y), {"counts": rng.poisson(0.5, trained)})
        draws = bnn.Draws({"slopes": np.zeros((1, 2, columns))}, coin, info=info)
        try:
            refuse_training_rows("calibrate", draws, more, labels)
        except ValueError:
            refused += 1
    # A few in a hundred; one in five, and two in three with the counts, without the error of the share.
    assert refused <= 2


def test_a_random_key_among_the_arguments_is_no_row():
    known = rows_of_call(lambda x, y, key: None, (X, Y, KEY), {})[KNOWN_ROWS]
    assert list(known["noted"]) == ["1"]


def test_a_pickled_estimator_knows_them():
    network = bnn.BNNRegressor(calibration=1 / 3, **SETTINGS).fit(X, Y)
    kept, held = held_out(network, Y)
    loaded = pickle.loads(pickle.dumps(network))
    assert bnn.calibrate(loaded, X[held], Y[held]).num_rows == 20
    with pytest.raises(ValueError, match="calibrate: 40 of 40 calibration rows are training rows"):
        bnn.calibrate(loaded, X[kept], Y[kept])


def test_data_that_cannot_be_compared_are_left_out(tmp_path):
    for x in (bnn.OnHost(X), {"a": X, "b": X[:3]}, None):
        assert KNOWN_ROWS not in bnn.data.fingerprints.noted_rows(None, (x, Y), {}, tuple)
    assert (
        KNOWN_ROWS
        not in bnn.load(
            bnn.save(bnn.Draws({"slope": Y[None]}, line), tmp_path / "d.npz"), line
        ).info
    )


TIMES = 1.7145e9 + 15 * np.arange(40)


@pytest.mark.parametrize("estimator", [bnn.BNNRegressor, bnn.BNNClassifier])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_they_are_refused_as_ready_models_do(estimator, kind):
    column = TIMES if kind == np.float32 else 2024 + np.arange(40) / 40
    other = np.arange(40.0)
    table = pd.DataFrame({"time": column.astype(kind), "other": other})
    for X, name in [(table, "'time'"), (np.stack([column, other], 1).astype(kind), "0")]:
        with pytest.raises(ValueError, match=f"BNN.*: column {name} of X lies around .*rounding"):
            estimator(num_samples=2, num_warmup=2).fit(X, np.arange(40) % 2)
