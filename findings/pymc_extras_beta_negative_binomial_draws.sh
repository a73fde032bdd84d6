#!/usr/bin/env bash
# pymc-extras 0.10.0 with PyMC 5.28.5: draws of BetaNegativeBinomial have a mean of .4 where its density has one of 5.
#
# Guess, written first: `BetaNegativeBinomial(alpha, beta, r)` has draws that its own `logp` agrees with: with 4, 5 and
# 3 a mean of 5 and 12 % of zeros. After a fit, the posterior predictive has the mean of the counts within 20 %.
#
# Seen: the density is right; the draws have a mean of .44 and 67 % of zeros. The drawn probability goes to
# `pm.NegativeBinomial` in the place of `mu`, and `r` in that of its `alpha`, so no count is ever expected above 1.
# The posterior is right, as it only needs the density; what it predicts is not, and a posterior predictive check
# rejects the model that made the counts. It is the same in 0.15.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "pymc-extras==0.10.0" "pymc==5.28.5" "pytensor==2.38.3"
"$work/venv/bin/python" - <<'PYTHON'
import logging
import warnings
from importlib.metadata import version

import numpy as np
import pymc as pm
from pymc_extras.distributions import BetaNegativeBinomial

warnings.simplefilter("ignore")
logging.getLogger("pymc").setLevel(logging.ERROR)
print(f"pymc-extras {version('pymc-extras')}, pymc {pm.__version__}")
alpha, beta, r = 4.0, 5.0, 3.0
distribution = BetaNegativeBinomial.dist(alpha, beta, r)
counts = np.arange(3000)
probability = np.exp(pm.logp(distribution, counts).eval())
draws = pm.draw(distribution, 50_000, random_seed=1)
stated = (probability * counts).sum()
print(f"density: sum {probability.sum():.4f}, mean {stated:.3f}, zeros {probability[0]:.3f}")
print(f"draws:   mean {draws.mean():.3f}, zeros {(draws == 0).mean():.3f}")

rng = np.random.default_rng(0)
data = rng.negative_binomial(r, rng.beta(alpha, beta, size=500))
with pm.Model():
    size = pm.Exponential("r", 0.2)
    BetaNegativeBinomial("count", alpha, beta, size, observed=data)
    trace = pm.sample(300, tune=300, chains=1, cores=1, random_seed=2, progressbar=False)
    predicted = pm.sample_posterior_predictive(trace, random_seed=3, progressbar=False)
fitted = trace.posterior["r"].values.mean()
new = predicted.posterior_predictive["count"].values
print(f"500 counts of mean {data.mean():.2f} from r = 3: fitted r {fitted:.2f}, predicted mean {new.mean():.2f}")
assert abs(probability.sum() - 1) < 1e-3 and abs(stated / 5 - 1) < 0.01, "the density is wrong as well"
assert draws.mean() < 0.6 and (draws == 0).mean() > 0.5, "the draws have changed"
assert abs(fitted - r) < 0.6, "the posterior is wrong as well"
assert new.mean() < 0.2 * data.mean(), "the predictions have changed"
PYTHON
