#!/usr/bin/env bash
# NumPyro 0.22.0: a truncated normal at a bound 15 standard deviations above its location has an infinite log density.
#
# Guess, written first: in float32 density and distribution function are right while the bound is up to 8 standard
# deviations above the location, and get worse beyond.
#
# Seen: the distribution function at the median is .6 at 5, and NaN from 8 on. The log density is right at 12, and from
# 15 on it is plus infinity, as if such values were certain: an energy of a target that must be positive has no lower
# bound where a network's mean is far below zero. The mean is infinite there; at 12 the variance is a tenth too large.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.12.0.1" "jaxlib==0.12.0.1" "scipy==1.18.1"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
seen = {}
for low in (0.0, 5.0, 8.0, 12.0, 15.0, 30.0):
    made, right = dist.TruncatedNormal(0.0, 1.0, low=low), stats.truncnorm(low, np.inf)
    x = np.float32(right.ppf(0.5))
    seen[low] = [float(v) for v in (made.log_prob(x), made.cdf(x), made.mean, made.variance / right.var())]
    print(f"low {low}: log density {seen[low][0]:.4f} ({right.logpdf(x):.4f} is right), below the median "
          f"{seen[low][1]:.4f}, mean {seen[low][2]:.4f} ({right.mean():.4f}), variance over the right one {seen[low][3]:.3f}")
assert abs(seen[0.0][1] - 0.5) < 1e-5 and abs(seen[12.0][0] - 1.8033) < 1e-3
assert seen[5.0][1] > 0.55 and np.isnan(seen[8.0][1]), "the distribution function is right there now"
assert seen[15.0][0] == seen[30.0][0] == np.inf, "the density is finite there now"
assert seen[12.0][3] > 1.05 and seen[15.0][2] == np.inf, "the moments are right there now"
PYTHON
