#!/usr/bin/env bash
# NGBoost 0.5.11 in scikit-learn 1.9.1: `score` is a loss, so a search over settings takes the worst.
#
# Guess, written first: `NGBRegressor` is a scikit-learn regressor, so `score` is better where it is higher, and
# `GridSearchCV(NGBRegressor(), {"n_estimators": [1, 100]})` on y = 3x + noise chooses 100 rounds.
#
# Seen: `score` is the mean negative log likelihood. The search maximises it: it chooses one round, whose predictions
# are close to the mean of y, and `cross_val_score` ranks models upside down. With a `scoring` of scikit-learn's
# own it chooses 100.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "ngboost==0.5.11" "scikit-learn==1.9.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from ngboost import NGBRegressor
from sklearn.model_selection import GridSearchCV

rng = np.random.default_rng(0)
x = rng.normal(size=(300, 1))
y = 3 * x[:, 0] + 0.1 * rng.normal(size=300)
x_new = rng.normal(size=(300, 1))


def search(scoring):
    grid = {"n_estimators": [1, 100]}
    found = GridSearchCV(NGBRegressor(verbose=False, random_state=0), grid, cv=3, scoring=scoring).fit(x, y)
    error = np.sqrt(np.mean((found.predict(x_new) - 3 * x_new[:, 0]) ** 2))
    return found.best_params_["n_estimators"], found.cv_results_["mean_test_score"].round(2), error


own, with_r2 = search(None), search("r2")
print(f"ngboost {version('ngboost')}, scikit-learn {version('scikit-learn')}")
print(f"its own score: {own[1]} for 1 and 100 rounds; chosen: {own[0]}, error on new rows {own[2]:.2f}")
print(f"scoring='r2':  {with_r2[1]} for 1 and 100 rounds; chosen: {with_r2[0]}, error on new rows {with_r2[2]:.2f}")
assert own[0] == 1 and own[1][0] > own[1][1], "a higher score is better now"
assert with_r2[0] == 100 and own[2] > 2 * with_r2[2], "the search no longer loses by it"
PYTHON
