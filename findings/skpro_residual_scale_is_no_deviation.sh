#!/usr/bin/env bash
# skpro 2.16.0: the .9 intervals of `ResidualDouble` cover .81 by default, and 1 or .02 with squared residuals.
#
# Guess, written first: `ResidualDouble(LinearRegression())` has a Normal with the residuals' deviation, so its .9 interval
# covers about .9 of new rows, and `residual_trafo="squared"` is the other way to the same deviation.
#
# Seen: what the second regressor predicts is the scale as it is. By default that is the mean absolute residual, which is .80
# of the deviation, so the .9 interval covers .81 and the .5 interval .40. With `residual_trafo="squared"` it is the variance
# with no root, so the cover depends on the unit: for a deviation of 2 the .9 interval holds all rows, for the same
# targets in hundreds (deviation .02) it holds .02 of them. For `dist="Laplace"` the default scale is right.
# The squared case is in the library's open issue 492. There is no warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "skpro==2.16.0" "scikit-learn==1.6.1"
"$work/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression
from skpro.regression.residual import ResidualDouble

warnings.simplefilter("error", UserWarning)
ROWS = 2000


def cover(noise, unit=1.0, prob=0.9, **options):
    found, deviations = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = pd.DataFrame({"x": rng.normal(size=2 * ROWS)})
        y = pd.DataFrame({"y": unit * (x["x"] + 2 * noise(rng, 2 * ROWS))})
        model = ResidualDouble(LinearRegression(), **options).fit(x[:ROWS], y[:ROWS])
        low, high = model.predict_interval(x[ROWS:], coverage=prob).to_numpy().T
        truth = y["y"].to_numpy()[ROWS:]
        found.append(((low <= truth) & (truth <= high)).mean())
        deviations.append(np.sqrt(model.predict_var(x[ROWS:]).to_numpy().mean()))
    print(f"{noise.__name__} noise, unit {unit}, {options}: deviation {np.mean(deviations):.4f} for {2 * unit}, "
          f"the {prob} interval covers {np.mean(found):.3f}")
    return np.mean(found)


def normal(rng, size):
    return rng.normal(size=size)


def laplace(rng, size):
    return rng.laplace(scale=0.5**0.5, size=size)


print(f"skpro {version('skpro')}, scikit-learn {version('scikit-learn')}")
assert abs(cover(laplace, dist="Laplace") - 0.9) < 0.01, "the Laplace is not right"
assert abs(cover(normal) - 0.81) < 0.01, "the default cover is another"
assert abs(cover(normal, unit=0.01) - 0.81) < 0.01, "the default depends on the unit"
assert abs(cover(normal, prob=0.5) - 0.41) < 0.015, "the default cover is another"
assert cover(normal, residual_trafo="squared") > 0.995, "squared residuals give another cover"
assert cover(normal, unit=0.01, residual_trafo="squared") < 0.05, "squared residuals do not depend on the unit"
PYTHON
