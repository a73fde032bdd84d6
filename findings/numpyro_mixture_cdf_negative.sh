#!/usr/bin/env bash
# NumPyro 0.22.0: the distribution function of a mixture is negative below the support of one of its components.
#
# Guess: `MixtureGeneral` of a normal and an exponential distribution, on the real line by `support`, has as its `cdf` the
# weighted sum of both, so .079 at -1 with equal weights, where the exponential one has no mass. (It was written down after
# a sweep had shown the `cdf` of single distributions.)
#
# Seen: -.78. `cdf` of an exponential distribution is its formula without a check, 1 - exp(2) = -6.4 at -1 for the rate 2; so
# with half-normal and half-Cauchy ones; a uniform one gives 0. At a fifth of the mixture's own draws `cdf` is negative, down
# to -37, and its mean over them is .27 for .5, so that PIT values of targets below 0 are no probabilities. `log_prob` and
# `sample` are right, and above 0 `cdf` is. It gives no warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2" "scipy==1.16.3"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
below = {
    "exponential": (dist.Exponential(2.0), 1 - np.exp(2)),
    "half-normal": (dist.HalfNormal(1.0), -0.6827),
    "half-Cauchy": (dist.HalfCauchy(1.0), -0.5),
    "uniform": (dist.Uniform(0.0, 1.0), 0),
}
for name, (one, value) in below.items():
    print(f"{name}: distribution function at -1 is {one.cdf(-1.0):.3f} for 0")
    np.testing.assert_allclose(one.cdf(-1.0), value, atol=1e-3, err_msg="the value below the support has changed")

made = dist.MixtureGeneral(
    dist.Categorical(jnp.array([0.5, 0.5])),
    [dist.Normal(0.0, 1.0), dist.Exponential(1.0)],
    support=dist.constraints.real,
)


def right(x):
    return 0.5 * stats.norm.cdf(x) + 0.5 * stats.expon.cdf(x)


print(f"mixture at -1: {made.cdf(-1.0):.3f} for {right(-1):.3f}")
np.testing.assert_allclose(made.cdf(-1.0), 0.5 * stats.norm.cdf(-1) + 0.5 * (1 - np.e), atol=1e-4)
draws = np.asarray(made.sample(jax.random.key(0), (100_000,)))
pit = np.asarray(made.cdf(draws))
print(f"of its own draws: below 0 {np.mean(draws < 0):.3f}, negative distribution function {np.mean(pit < 0):.3f}, "
      f"lowest {pit.min():.1f}, mean {pit.mean():.3f} for .5")
np.testing.assert_allclose(np.mean(right(draws)), 0.5, atol=0.01)
assert np.mean(pit < 0) > 0.1 and pit.min() < -3 and pit.mean() < 0.35, "the distribution function has changed"
np.testing.assert_allclose(made.cdf(np.abs(draws)), right(np.abs(draws)), atol=1e-4)
density = 0.5 * stats.norm.pdf(draws[:1000]) + 0.5 * stats.expon.pdf(draws[:1000])
np.testing.assert_allclose(np.exp(made.log_prob(draws[:1000])), density, rtol=1e-4)
PYTHON
