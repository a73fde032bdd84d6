#!/usr/bin/env bash
# TensorFlow Probability 0.25.0 on JAX: the variance of GammaGamma leaves out the noise of the gamma itself.
#
# Guess, written first: `GammaGamma(concentration, mixing_concentration, mixing_rate)`, a gamma whose rate is itself
# drawn from a gamma, has a `variance()` and a `stddev()` that the draws agree with, as `mean()` does.
#
# Seen: with 3, 5 and 2 the mean is 1.5 for both, the stated variance .75, that of the draws 1.75. The formula is the
# variance of the mean given the rate; the mean of the variance given the rate is missing. The smaller the
# concentration, the more is missing: with .5, 5 and 2 it says .021 for .188, so `stddev()` is a third of what it
# should be. With 100 there is little to see.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "tensorflow-probability==0.25.0" "jax==0.5.3" "jaxlib==0.5.3" "numpy==2.2.6"
"$work/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

import jax
import numpy as np
from tensorflow_probability.substrates import jax as tfp

warnings.simplefilter("ignore")
print(f"tensorflow-probability {version('tensorflow-probability')}, jax {jax.__version__}")
for concentration in (0.5, 3.0, 100.0):
    mixing, rate = 5.0, 2.0
    gamma = tfp.distributions.GammaGamma(concentration, mixing, rate)
    draws = np.asarray(gamma.sample(1_000_000, seed=jax.random.PRNGKey(0)), "f8")
    between = (concentration * rate / (mixing - 1)) ** 2 / (mixing - 2)
    within = concentration * rate**2 / ((mixing - 1) * (mixing - 2))
    stated, seen = float(gamma.variance()), draws.var()
    print(f"concentration {concentration}: mean {float(gamma.mean()):.4f}, of the draws {draws.mean():.4f};")
    print(f"  variance {stated:.4f}, of the draws {seen:.4f}, by the law of total variance {between + within:.4f}")
    assert abs(draws.mean() / float(gamma.mean()) - 1) < 0.02, "the mean is wrong as well"
    assert abs(seen / (between + within) - 1) < 0.05, "the draws have another distribution"
    assert abs(stated / between - 1) < 1e-4, "the variance has changed"
PYTHON
