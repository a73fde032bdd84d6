#!/usr/bin/env bash
# scoringrules 0.10.0 and 0.11.0: without numba the weighted interval score adds the median in place of its error.
#
# Guess, written first: `weighted_interval_score(y, median, lower, upper, alpha)` is half of |y - median| and alpha / 2
# times each interval score, over the number of intervals + .5, as documented; and the same with NumPy and numba.
#
# Seen: with numba it is. With NumPy, which is taken where numba is not installed, the median is added as it is, and the
# target does not count. So a forecast is better the lower its median; scores can be negative; 100 degrees more in
# forecasts and targets alike make a score of .37 one of 9.5. No warning: `interval_score` and the CRPS do not change.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "scoringrules==0.10.0" "numpy==2.4.6" "scipy==1.16.3"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
import scoringrules
from scipy import stats

ALPHA = np.array([0.02, 0.1, 0.2, 0.5, 0.8])
y = np.random.default_rng(0).normal(size=4000)


def scores(y, median, centre):
    """Theirs, and by the formula, of the intervals of N(centre, 1) and a median."""
    lower, upper = (stats.norm.ppf(level, centre) + np.zeros((len(y), 1)) for level in (ALPHA / 2, 1 - ALPHA / 2))
    theirs = scoringrules.weighted_interval_score(y, np.full(len(y), median), lower, upper, ALPHA)
    each = scoringrules.interval_score(y[:, None], lower, upper, ALPHA)
    right = (abs(y - median) / 2 + each @ (ALPHA / 2)) / (len(ALPHA) + 0.5)
    return theirs.mean(), right.mean()


print(f"scoringrules {version('scoringrules')}, numpy {np.__version__}, backend {scoringrules.backends.active.name}")
crps = scoringrules.crps_normal(y, 0, 1).mean()
seen = {}
for name, move, median in (("right", 0, 0), ("median -10", 0, -10), ("median 10", 0, 10), ("all by 100", 100, 100)):
    seen[name] = scores(y + move, median, move)
    print(f"{name:10}: score {seen[name][0]:.3f}, by the formula {seen[name][1]:.3f} (CRPS of the right forecast {crps:.3f})")
    np.testing.assert_allclose(seen[name][0] - seen[name][1],
                               (median - abs(y + move - median).mean()) / 2 / 5.5, rtol=1e-6, err_msg="it has changed")
assert seen["median -10"][0] < 0 < seen["right"][0] < seen["median 10"][0], "the lowest median is no longer the best"
np.testing.assert_allclose(seen["right"][1], seen["all by 100"][1])
PYTHON
"$work/venv/bin/pip" install -q --disable-pip-version-check "numba==0.68.1" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
import numpy as np
import scoringrules

# The target is 0, the median -10, the interval from -1 to 1: (10 / 2 + 2 / 4) / 1.5.
one = np.zeros(1), np.full(1, -10.0), np.array([[-1.0]]), np.array([[1.0]]), np.array([0.5])
default, by_numpy = (np.ravel(scoringrules.weighted_interval_score(*one, backend=name))[0] for name in (None, "numpy"))
print(f"backend {scoringrules.backends.active.name}: {default:.3f}; numpy {by_numpy:.3f}")
np.testing.assert_allclose([default, by_numpy], [5.5 / 1.5, -4.5 / 1.5], err_msg="the two backends have changed")
PYTHON
