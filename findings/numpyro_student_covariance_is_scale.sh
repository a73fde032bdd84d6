#!/usr/bin/env bash
# NumPyro 0.22.0: `covariance_matrix` of its multivariate Student distribution is not the covariance.
#
# Guess, written first: `covariance_matrix` has `variance` on its diagonal, as that of every other multivariate
# distribution here, so that ellipses and Mahalanobis distances of heavy-tailed targets come from it.
#
# Seen: it is the scale matrix. With 4 degrees of freedom `variance` is 2 and the diagonal of `covariance_matrix` 1, and
# draws have the covariance 2: an ellipse that should hold as much as a normal one with the covariance of the draws is
# .71 times as wide. `precision_matrix` is twice the inverse covariance. `variance` and `sample` are right.
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
SCALE = jnp.array([[1.0, 0.5], [0.5, 1.0]])
for df in (4.0, 6.0, 30.0):
    student = dist.MultivariateStudentT(df, jnp.zeros(2), jnp.linalg.cholesky(SCALE))
    right = df / (df - 2)
    diagonal = np.diag(student.covariance_matrix)
    print(f"df {df:4}: variance {student.variance[0]:.3f}, diagonal of covariance_matrix {diagonal[0]:.3f}")
    np.testing.assert_allclose(student.variance, right, rtol=1e-5)
    np.testing.assert_allclose(student.covariance_matrix, SCALE, rtol=1e-5, err_msg="no longer the scale matrix")
    np.testing.assert_allclose(student.precision_matrix, np.linalg.inv(SCALE), rtol=1e-4)

student = dist.MultivariateStudentT(6.0, jnp.zeros(2), jnp.linalg.cholesky(SCALE))
found = np.cov(np.asarray(student.sample(jax.random.key(0), (400_000,))).T)
print("draws with df 6 have the covariance", found.round(2).tolist())
np.testing.assert_allclose(found, 1.5 * SCALE, rtol=0.03)
PYTHON
