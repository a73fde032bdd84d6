"""Regressors of other packages, each from standardised rows to predictions of new rows.

Boosted trees (CatBoost, LightGBM, scikit-learn), a Gaussian process, and `bde`. All give a :class:`Forecast`:
the predictions as those of a model are, and the ends of a central 90 % interval where a package has its
own. Trees that stop by validation rows, or take a scale from them, hold out :data:`VALIDATED` of the
rows that they get, as `bde` does.
"""

import json
import subprocess
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import norm
from sklearn.model_selection import train_test_split

from numpyro_bnn.posterior.predictive_draws import Predictions

# The share of its rows that `bde` stops its optimisation by.
VALIDATED = 0.15
# Probabilities of the ends of a central 90 % interval.
ENDS = (0.05, 0.95)
# Rows that a Gaussian process gets at most: its time goes with their third power.
MOST_OF_A_PROCESS = 2000

_BDE = """
import json, sys, numpy as np
from bde import BdeRegressor
from bde.loss import GaussianNLL
parts = np.load(sys.argv[1])
model = BdeRegressor(loss=GaussianNLL(), **json.loads(sys.argv[2]))
model.fit(parts["x"], parts["y"])
np.save(sys.argv[3], np.asarray(model.predict(parts["x_test"], raw=True)))
"""
# Of two layers as its README has it, of four as its published figures have it.
BDE = {
    "bde": {
        "hidden_layers": [16, 16],
        "n_members": 8,
        "epochs": 200,
        "patience": 10,
        "warmup_steps": 5000,
        "n_samples": 2000,
        "n_thinning": 2,
    },
    "four layers, bde": {
        "hidden_layers": [16] * 4,
        "n_members": 10,
        "epochs": 1200,
        "patience": 20,
        "warmup_steps": 50_000,
        "n_samples": 1000,
        "n_thinning": 10,
    },
}


def gaussians(mean, scale):
    """Predictions of Gaussian distributions, (chain, draw, row), as those of a model are."""

    def evaluate(what, y):
        normal = norm(mean, scale)
        return {what: normal.logpdf(y) if what == "log_prob" else normal.cdf(y)}

    return Predictions({"mean": mean, "scale": scale}, evaluate)


def bde(python, settings, x, y, x_new):
    """`bde` in a process of its own; its networks give a mean and a scale before its transformation."""
    with tempfile.TemporaryDirectory() as folder:
        data, raw = Path(folder) / "data.npz", Path(folder) / "raw.npy"
        np.savez(data, x=x, y=y, x_test=x_new)
        command = [python, "-c", _BDE, data, json.dumps(settings), raw]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"bde failed:\n{done.stderr[-2000:]}")
        values = np.load(raw)
    return gaussians(values[..., 0], np.logaddexp(values[..., 1], 0) + 1e-6)


def gaussian_process(x, y, x_new):
    """Means and scales by an anisotropic RBF kernel and noise, exact, of the first rows."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    first = slice(MOST_OF_A_PROCESS)
    x, y, x_new = (np.asarray(values, np.float64) for values in (x[first], y[first], x_new))
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel(0.1)
    with warnings.catch_warnings():
        # A length scale at its bound is that of a column which does not matter.
        warnings.simplefilter("ignore", ConvergenceWarning)
        gaussian = GaussianProcessRegressor(kernel, random_state=0).fit(x, y)
    return gaussian.predict(x_new, return_std=True)


class Forecast(NamedTuple):
    """What a regressor says of new rows."""

    predictions: Predictions  # as those of a model are; one chain of one draw where there are none
    # Its own central 90 % interval, (row, 2); None: that of the predictions
    ends: np.ndarray | None = None


def single(mean, scale):
    """A forecast of one Gaussian distribution a row."""
    mean = np.asarray(mean, np.float64)
    return Forecast(gaussians(mean[None, None], np.broadcast_to(scale, mean.shape)[None, None]))


def held_out(x, y, seed):
    """Rows to fit, and rows that stop a fit or give a scale: (x, y) each."""
    x, x_held, y, y_held = train_test_split(x, y, test_size=VALIDATED, random_state=seed)
    return (x, y), (x_held, y_held)


def with_residual_scale(model, validation):
    """A function of rows that predicts with the standard deviation of validation residuals."""
    x, y = validation
    scale = np.sqrt(np.mean((model.predict(x) - y) ** 2))
    return lambda rows: single(model.predict(rows), scale)


def catboost(x, y, x_new, seed, *, validate=False):
    """CatBoost with a mean and a variance a row, and the disagreement of ten parts of its trees.

    As the published figures of `bde` have it: 1000 trees; with `validate` up to 5000, stopped by
    validation rows. Refits disagree more (`findings/catboost_posterior_sampling_has_no_spread.sh`).
    """
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(
        random_seed=seed,
        depth=6,
        iterations=5000 if validate else 1000,
        learning_rate=0.05,
        loss_function="RMSEWithUncertainty",
        allow_writing_files=False,
        verbose=False,
        thread_count=1,
        early_stopping_rounds=100 if validate else None,
    )
    if validate:
        (x, y), validation = held_out(x, y, seed)
        model.fit(x, y, eval_set=validation)
    else:
        model.fit(x, y)
    mean, knowledge, data = model.virtual_ensembles_predict(
        x_new, prediction_type="TotalUncertainty", virtual_ensembles_count=10
    ).T
    return single(mean, np.sqrt(knowledge + data))


def lightgbm(x, y, x_new, seed):
    """LightGBM: a mean, one scale from validation rows, and the ends of the interval as quantiles."""
    from lightgbm import LGBMRegressor, early_stopping

    fitted, validation = held_out(x, y, seed)

    def trees(**loss):
        model = LGBMRegressor(
            n_estimators=5000, learning_rate=0.05, random_state=seed, n_jobs=1, verbose=-1, **loss
        )
        stop = early_stopping(100, verbose=False)
        return model.fit(*fitted, eval_X=validation[0], eval_y=validation[1], callbacks=[stop])

    ends = [trees(objective="quantile", alpha=level).predict(x_new) for level in ENDS]
    forecast = with_residual_scale(trees(), validation)(x_new)
    return forecast._replace(ends=np.sort(np.transpose(ends), axis=1))


def histogram_trees(x, y, x_new, seed):
    """scikit-learn's boosted trees at their defaults: a mean, and one scale from validation rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    fitted, validation = held_out(x, y, seed)
    model = HistGradientBoostingRegressor(random_state=seed).fit(*fitted)
    return with_residual_scale(model, validation)(x_new)


def process(x, y, x_new, seed):
    """A Gaussian process, exact, of 2000 rows at most."""
    return single(*gaussian_process(x, y, x_new))


OTHERS = {
    "CatBoost": catboost,
    "CatBoost, validated": partial(catboost, validate=True),
    "LightGBM": lightgbm,
    "histogram boosting": histogram_trees,
    "Gaussian process": process,
}
