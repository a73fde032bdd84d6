#!/usr/bin/env bash
# quantile-forest 1.4.2: each leaf remembers one random row, so the quantiles of a tree are all one number.
#
# Guess, written first: a quantile regression forest keeps the targets of all rows of a leaf. One tree without bootstrap
# whose single leaf holds all 500 rows must give the sample quantiles, here about -1.2, -.1, 1.2 at .1, .5, .9.
#
# Seen: `max_samples_leaf` is 1 unless it is set; the fit picks one row of each leaf at random. The three quantiles are
# the same number, and 20 bootstrap trees of such leaves give 90 % intervals that cover 79 % (87 % with
# `max_samples_leaf=None`, with which the one tree gives the sample quantiles exactly).
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "quantile-forest==1.4.2" "scikit-learn==1.9.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from quantile_forest import RandomForestQuantileRegressor

rng = np.random.default_rng(0)
x, y = rng.normal(size=(500, 1)), rng.normal(size=500)
y_new = rng.normal(size=5000)
levels = [0.1, 0.5, 0.9]


def one_tree(**options):
    forest = RandomForestQuantileRegressor(
        n_estimators=1, bootstrap=False, min_samples_leaf=500, random_state=0, **options
    )
    return np.asarray(forest.fit(x, y).predict(x[:1], quantiles=levels)).ravel()


def coverage(seed, **options):
    forest = RandomForestQuantileRegressor(n_estimators=20, min_samples_leaf=250, random_state=seed, **options)
    low, high = np.asarray(forest.fit(x, y).predict(x[:1], quantiles=[0.05, 0.95])).ravel()
    return np.mean((low <= y_new) & (y_new <= high))


plain, whole, right = one_tree(), one_tree(max_samples_leaf=None), np.quantile(y, levels)
covered = np.mean([coverage(seed) for seed in range(20)])
covered_whole = np.mean([coverage(seed, max_samples_leaf=None) for seed in range(20)])
print(f"quantile-forest {version('quantile-forest')}, scikit-learn {version('scikit-learn')}")
print("sample quantiles:        ", right.round(3))
print("one tree, as it comes:   ", plain.round(3))
print("one tree, all rows kept: ", whole.round(3))
print(f"a 90 % interval of 20 trees covers {covered:.3f}; with all rows kept {covered_whole:.3f}")
assert np.ptp(plain) == 0, "a leaf keeps more than one row now"
assert np.allclose(whole, right, atol=0.02), "all rows no longer give the sample quantiles"
assert covered < covered_whole - 0.02, "the intervals no longer differ"
PYTHON
