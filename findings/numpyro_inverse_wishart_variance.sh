#!/usr/bin/env bash
# NumPyro 0.22.0: the variance of an inverse Wishart distribution is right on the diagonal alone.
#
# Guess, written first: `variance` is that of the draws for every entry of the matrix, as it is for `Wishart`; and the
# mean of `InverseWishartCholesky` is that of its draws, as it is for `WishartCholesky`.
#
# Seen: off the diagonal it is the formula of the diagonal with another product in it. For the identity as scale it is
# too large by (df - p) / (df - p - 1): 1.14 times for 10 degrees of freedom in two dimensions, and 1.33 times for 6, near
# which a prior is vague. With a correlation of -.5 it is 1.08 times. No warning. The mean of the Cholesky factor is the
# factor of the mean matrix, whose last diagonal entry is .38 where draws have .34. Draws and densities are right.
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

DRAWS = 400_000
print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")


def right(df, scale):
    """Variances of all entries, of a scale with ones on its diagonal."""
    free = df - len(scale)
    return ((free + 1) * scale**2 + free - 1) / (free * (free - 1) ** 2 * (free - 3))


seen = {}
for df, correlation in ((6.0, 0.0), (10.0, 0.0), (10.0, -0.5)):
    scale = np.array([[1, correlation], [correlation, 1]])
    made = dist.InverseWishart(df, jnp.asarray(scale))
    drawn = np.asarray(made.sample(jax.random.key(0), (DRAWS,)))
    ratio = np.asarray(made.variance) / right(df, scale)
    seen[df, correlation] = ratio[0, 1]
    print(f"df {df:.0f}, correlation {correlation}: variance off the diagonal {made.variance[0, 1]:.5f}, "
          f"of draws {drawn[:, 0, 1].var():.5f} ({right(df, scale)[0, 1]:.5f} is right)")
    np.testing.assert_allclose(np.diag(ratio), 1, rtol=1e-4)
    log_density = stats.invwishart(df, scale).logpdf(drawn[0].astype(float))
    np.testing.assert_allclose(made.log_prob(drawn[0]), log_density, rtol=1e-4)
    if df == 10:  # With 6 the variance of the draws converges slowly.
        np.testing.assert_allclose(drawn.var(0), right(df, scale), rtol=0.05)
np.testing.assert_allclose(list(seen.values()), [4 / 3, 8 / 7, 1.081], atol=0.01, err_msg="the variance has changed")

for kind in (dist.WishartCholesky, dist.InverseWishartCholesky):
    made = kind(10.0, jnp.eye(2))
    drawn = np.asarray(made.sample(jax.random.key(0), (DRAWS,)))
    print(f"{kind.__name__}: last entry of the mean {made.mean[1, 1]:.3f}, of draws {drawn[:, 1, 1].mean():.3f}")
    if kind is dist.WishartCholesky:
        np.testing.assert_allclose(made.mean, drawn.mean(0), atol=0.01)
assert made.mean[1, 1] > 1.05 * drawn[:, 1, 1].mean(), "it is the mean of draws now"
PYTHON
