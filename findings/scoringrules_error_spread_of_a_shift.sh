#!/usr/bin/env bash
# scoringrules 0.10.0 and 0.11.0: by its error-spread score an ensemble that is off by a standard deviation beats the right one.
#
# Guess, written first: the score is proper, as its article shows, so over many targets the ensemble of the targets' own
# distribution has the lowest mean `error_spread_score`, for a skewed distribution too: the score contains the skewness.
#
# Seen: the sum of cubes lacks the factor M of the sample skewness (that of `scipy.stats.skew(bias=False)`), so 50 members
# have a fiftieth of it: the term that makes the score proper is as good as gone. For exponential targets, members that
# are all too high by 1, the standard deviation, score 5.1 and the right ones 7.8. With the factor it is 16 and 4.9.
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

rng = np.random.default_rng(0)
y = rng.exponential(size=20_000)


def by_hand(y, members, divide):
    sd, error = members.std(1, ddof=1), members.mean(1) - y
    skewness = stats.skew(members, axis=1, bias=False) / divide
    return (sd**2 - error**2 - error * sd * skewness) ** 2


print(f"scoringrules {version('scoringrules')}, numpy {np.__version__}, scipy {version('scipy')}")
for size in (10, 50, 200):
    right = rng.exponential(size=(len(y), size))
    means = {}
    for shift in (0.0, 1.0):
        theirs = scoringrules.error_spread_score(y, right + shift)
        by_size = by_hand(y, right + shift, size)
        np.testing.assert_allclose(theirs, by_size, rtol=1e-6, err_msg="the skewness has changed")
        means[shift] = theirs.mean(), by_hand(y, right + shift, 1).mean()
    print(f"{size} members: right {means[0.0][0]:.2f}, too high by 1 {means[1.0][0]:.2f}; "
          f"with the sample skewness {means[0.0][1]:.2f} and {means[1.0][1]:.2f}")
    if size >= 50:
        assert means[1.0][0] < 0.8 * means[0.0][0], "the right ensemble is no longer the worse one"
        assert means[0.0][1] < 0.8 * means[1.0][1]
PYTHON
