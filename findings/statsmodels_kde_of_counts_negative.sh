#!/usr/bin/env bash
# statsmodels 0.15.0: the kernel density of counts, with the default bandwidth, is negative in the thousands.
#
# Guess, written first: `KDEMultivariate([counts], "o")` knows ordered discrete variables, so that its probabilities are
# not negative and add up to 1, and its distribution function is their running sum and near 1 at the largest count.
#
# Seen: the default bandwidth is the one for continuous variables, and grows with the standard deviation; the kernel of
# counts has (1 - bandwidth) in front. For 300 draws of Poisson(30) the bandwidth is 1.96 and the probability of 30
# is -1048. For Poisson(3) it is .57 and the probabilities are fine, but the distribution function, which sums over the
# values seen alone, ends at .91 and not at 1. `bw="cv_ls"` finds .61 for Poisson(30), and 99 % at the largest. No warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "statsmodels==0.15.0" "numpy==2.4.6" "scipy==1.16.3" "pandas==2.3.3"
"$work/venv/bin/python" - <<'PYTHON'
import warnings

import numpy as np
import statsmodels
from statsmodels.nonparametric.kernel_density import KDEMultivariate

print(f"statsmodels {statsmodels.__version__}, numpy {np.__version__}")
rng = np.random.default_rng(0)
grid = np.arange(-300, 400)
seen = {}
for mean in (3, 30):
    counts = rng.poisson(mean, 300)
    for bandwidth in (None, "cv_ls"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            density = KDEMultivariate([counts], "o", bw=bandwidth)
            at_mean, last = float(density.pdf([mean])), float(density.cdf([counts.max()]))
        said = [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]
        below = float(density.pdf(grid[grid <= counts.max()]).sum())
        name = bandwidth or "default"
        seen[mean, name] = density.bw[0], at_mean, last, below
        print(f"Poisson({mean}), {name}: bandwidth {density.bw[0]:.2f}, probability of {mean} {at_mean:.4g} (frequency "
              f"{(counts == mean).mean():.3f}), up to the largest {below:.4g}, by its distribution function {last:.4g}")
        assert not said, said
assert seen[30, "default"][1] < -100, "the probability is no longer negative"
np.testing.assert_allclose(seen[30, "default"][0], 1.96, atol=0.2)
assert seen[3, "default"][2] < 0.93 < 0.97 < seen[3, "default"][3] <= 1.001, "the distribution function is the sum now"
assert 0 < seen[30, "cv_ls"][1] < 0.2 and 0.97 < seen[30, "cv_ls"][2] <= 1
PYTHON
