#!/usr/bin/env bash
# NumPyro 0.22.0: `precision_matrix` of a low-rank normal is the inverse of its covariance for no rank that was tried.
#
# Guess, written first: it is the inverse of `covariance_matrix`, found by Woodbury's identity as its comment says, so
# that the posterior of `AutoLowRankMultivariateNormal` gives distances and conditional distributions.
#
# Seen: where the rank is less than the dimension, which is what the distribution is for, reading it raises a ValueError
# about axes of a triangular solve. Where both are equal, it comes back without a word and is wrong: with two dimensions
# its diagonal is negative (-1.12, -.94), where the inverse has .51 and .55, so that squared distances are negative.
# `covariance_matrix`, `log_prob` and `sample` are right: invert the covariance instead.
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

print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
for size, rank in ((3, 1), (3, 2), (5, 2)):
    factor = jax.random.normal(jax.random.key(size + rank), (size, rank))
    try:
        dist.LowRankMultivariateNormal(jnp.zeros(size), factor, jnp.ones(size)).precision_matrix
    except ValueError as error:
        print(f"dimension {size}, rank {rank}: {str(error).splitlines()[0][:70]}")
    else:
        raise SystemExit("it no longer raises where the rank is less than the dimension")

factor = jnp.array([[1.0, 0.5], [0.3, 1.0]])
normal = dist.LowRankMultivariateNormal(jnp.zeros(2), factor, jnp.ones(2))
right = np.linalg.inv(np.asarray(factor @ factor.T) + np.eye(2))
print("dimension 2, rank 2:", *np.diag(normal.precision_matrix), "on the diagonal for", *np.diag(right).round(3))
np.testing.assert_allclose(np.linalg.inv(np.asarray(normal.covariance_matrix)), right, rtol=1e-4)
at = np.array([1.0, -1.0])
density = -0.5 * at @ right @ at - np.log(2 * np.pi) + 0.5 * np.log(np.linalg.det(right))
np.testing.assert_allclose(normal.log_prob(jnp.asarray(at)), density, rtol=1e-4)
assert (np.diag(normal.precision_matrix) < 0).all(), "the diagonal is no longer negative"
PYTHON
