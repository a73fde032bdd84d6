#!/usr/bin/env bash
# JAX 0.10.2: in float32 the distribution function of a large Poisson or Gamma variable leaves 0 to 1.
#
# Guess, written first: `jax.scipy.stats.poisson.cdf` at a count within three standard deviations of the rate is right
# to .001 in float32 for rates up to a million, lies between 0 and 1, and so does NumPyro's `Poisson(rate).cdf`.
#
# Seen: the largest error is .006 at a rate of 10,000 and .09 at 100,000. At a million the values go from -.37 to 1.32,
# and at ten million they are in the billions. `gammainc`, from which they come, does not say so. Intervals and
# calibration by the distribution function are wrong for such counts. In float64 all is right.
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

print(f"jax {jax.__version__}, numpyro {numpyro.__version__}, scipy {scipy.__version__}")


def seen(rate):
    counts = np.round(rate + np.linspace(-3, 3, 601) * rate**0.5)
    right = stats.poisson(rate).cdf(counts)
    ours = np.asarray(jax.scipy.stats.poisson.cdf(jnp.asarray(counts), rate), "f8")
    numpyros = np.asarray(dist.Poisson(rate).cdf(jnp.asarray(counts)), "f8")
    gammas = np.asarray(jax.scipy.stats.gamma.cdf(jnp.asarray(counts), rate), "f8")
    of_gamma = np.abs(gammas - stats.gamma(rate).cdf(counts)).max()
    return np.abs(ours - right).max(), ours.min(), ours.max(), np.abs(numpyros - right).max(), of_gamma


found = {}
for rate in (1e2, 1e4, 1e5, 1e6, 1e7):
    found[rate] = seen(rate)
    error, low, high, numpyros, gammas = found[rate]
    print(
        f"float32, rate {rate:.0e}: off by {error:.4f}, values {low:.3f} to {high:.3f}; "
        f"NumPyro's off by {numpyros:.4f}, a Gamma's by {gammas:.4f}"
    )
with jax.enable_x64(True):
    double = seen(1e6)
print(f"float64, rate 1e+06: off by {double[0]:.7f}")
assert max(found[1e2][0], found[1e2][3]) < 1e-3, "a small rate is wrong"
assert found[1e5][0] > 0.01, "a rate of 100,000 is right now"
assert found[1e6][1] < 0 and found[1e6][2] > 1 and found[1e6][3] > 0.1, "a rate of a million is right now"
assert double[0] < 1e-4, "float64 is wrong as well"
PYTHON
