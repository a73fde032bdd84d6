#!/usr/bin/env bash
# LightGBM 4.7.0: targets are rounded to float32 before anything is learned.
#
# Guess, written first: `LGBMRegressor().fit(X, y)` with a float64 `y` of times in seconds (1.7e9 + 0 … 399), trees
# of 100 leaves and 300 rounds, learns y to within a second or two, as scikit-learn's gradient boosting does.
#
# Seen: the label is kept as float32, whose neighbours at 1.7e9 are 128 apart. The 400 different targets become a few,
# predictions are wrong by up to 64, with no warning, and the error does not fall with more rounds. Subtracting an
# offset first mends it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "lightgbm==4.7.0" "scikit-learn==1.9.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
import lightgbm
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

x = np.arange(400.0)[:, None]
y = 1.7e9 + x[:, 0]


def lightgbm_error(y, rounds):
    model = lightgbm.LGBMRegressor(
        n_estimators=rounds, num_leaves=100, min_child_samples=1, learning_rate=0.3, verbose=-1, n_jobs=1
    )
    prediction = model.fit(x, y).predict(x)
    return np.abs(prediction - y).max(), len(np.unique(prediction.round()))


other = HistGradientBoostingRegressor(
    max_iter=300, min_samples_leaf=1, max_leaf_nodes=100, learning_rate=0.3, early_stopping=False
)
other_error = np.abs(other.fit(x, y).predict(x) - y).max()
few, values = lightgbm_error(y, 300)
many, _ = lightgbm_error(y, 600)
shifted, _ = lightgbm_error(y - y.mean(), 300)
print(f"lightgbm {lightgbm.__version__}, numpy {np.__version__}")
print(f"largest error after 300 and 600 rounds: {few:.1f}, {many:.1f} ({values} values for 400 targets)")
print(f"with the mean subtracted first: {shifted:.2f}; scikit-learn on the times themselves: {other_error:.2f}")
assert few > 50 and many > 50 and values < 10, "float64 targets are kept now"
assert shifted < 2 and other_error < 2, "the comparison no longer holds"
PYTHON
