#!/usr/bin/env bash
# NumPyro 0.22.0: in float32 the probabilities of a negative binomial add up to twenty.
#
# Guess, written first: `NegativeBinomial2(mean=3, concentration=c)` goes to the Poisson distribution as c grows; at 1e8
# `log_prob` in float32 equals the Poisson's to three digits, and the probabilities add up to 1.
#
# Seen: at 1e6 a count's log probability is wrong by .02, at 1e8 by 3: more than 0, a probability above 1. The sum
# over the counts is 20, and nothing says so. In float64 all is right.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy
from scipy import stats

print(f"numpyro {numpyro.__version__}, jax {jax.__version__}, scipy {scipy.__version__}")
counts = np.arange(60)


def seen(concentration):
    with np.errstate(all="ignore"):
        log_prob = np.asarray(dist.NegativeBinomial2(3.0, concentration).log_prob(jnp.asarray(counts)), "f8")
    right = stats.nbinom.logpmf(counts, concentration, concentration / (concentration + 3))
    return abs(log_prob[2] - right[2]), np.exp(log_prob).sum()


for concentration in (1e2, 1e4, 1e6, 1e8):
    error, total = seen(concentration)
    print(f"float32, concentration {concentration:.0e}: log probability of 2 off by {error:.4f}, sum {total:.3f}")
small, large = seen(1e2), seen(1e8)
with jax.enable_x64(True):
    double = seen(1e8)
print(f"float64, concentration 1e+08: off by {double[0]:.7f}, sum {double[1]:.6f}")
assert small[0] < 1e-3 and abs(small[1] - 1) < 1e-3, "a small concentration is wrong"
assert large[0] > 1 and large[1] > 5, "a large concentration is right in float32 now"
assert double[0] < 1e-4 and abs(double[1] - 1) < 1e-4, "float64 is wrong as well"
PYTHON
