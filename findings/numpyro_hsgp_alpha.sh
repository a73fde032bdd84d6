#!/usr/bin/env bash
# NumPyro 0.22.0: `alpha`, the "amplitude" of its approximate Gaussian processes, is the variance of the function.
#
# Guess, written first: amplitude is the standard deviation, as the documentation's word says, so a prior on the
# scale of the function goes in as it is.
#
# Seen: with `alpha=2` the squared exponential and the Matérn process have the variance 2, not 4. A prior that is meant
# for a standard deviation is another model than was written: heights of .8 came back as .38 ± .13, with predictions as
# good as the right ones. The periodic process of the same module, which needs a nightly TensorFlow Probability, squares
# `alpha` (variance 3.9 for 2, seen with 0.26.0.dev20261027), so that a trend and a season of one amplitude differ.
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
from numpyro.contrib.hsgp.approximation import hsgp_matern, hsgp_squared_exponential
from numpyro.handlers import condition, seed, trace

X, LENGTH = jnp.linspace(-1, 1, 5), 0.3
PROCESSES = {
    "squared exponential": lambda alpha: hsgp_squared_exponential(X, alpha, LENGTH, ell=2.0, m=60),
    "Matern 3/2": lambda alpha: hsgp_matern(X, 1.5, alpha, LENGTH, ell=2.0, m=200),
}


def variances(process):
    """The variance of the function at X, which is linear in standard normal sites."""
    sites = trace(seed(process, 0)).get_trace()
    normals = {name: site["value"] for name, site in sites.items() if site["type"] == "sample"}
    slopes = jax.jacobian(lambda values: seed(condition(process, values), 0)())(normals)
    return sum(np.square(np.asarray(slope)).sum(1) for slope in slopes.values())


print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
for name, process in PROCESSES.items():
    for alpha in (0.5, 2.0):
        found = variances(lambda alpha=alpha, process=process: process(alpha))
        print(f"{name:20}: alpha {alpha}, variance of the function {found.min():.3f} to {found.max():.3f}")
        np.testing.assert_allclose(found, alpha, rtol=0.01, err_msg="alpha is no longer the variance")
PYTHON
