#!/usr/bin/env bash
# NumPyro 0.22.0: with its default settings `SA` samples too narrow a distribution in two dimensions, and no R-hat sees it.
#
# Guess, written first: Sample Adaptive MCMC is exact for any number of points in its state, as its article proves, so
# that the default `adapt_state_size`, twice the number of dimensions, decides how well it mixes and nothing else.
#
# Seen: for a normal distribution with standard deviations 1 and 2, four chains of 200,000 draws have the variances .95
# and 3.04 for 1 and 4, fourteen Monte Carlo errors off, and R-hat is 1.0004: every chain agrees. With
# `adapt_state_size=50` they are 1.00 and 4.01, with `dense_mass=False` 1.01 and 4.02. So a state of four points must not
# estimate a covariance of two dimensions; in one dimension the default is right.
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
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, SA

SD = np.array([1.0, 2.0])


def model():
    numpyro.sample("x", dist.Normal(jnp.zeros(2), jnp.asarray(SD)).to_event(1))


print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
for options in ({}, {"adapt_state_size": 50}, {"dense_mass": False}):
    sizes = {"num_warmup": 5000, "num_samples": 200_000, "num_chains": 4}
    mcmc = MCMC(SA(model, **options), **sizes, chain_method="sequential", progress_bar=False)
    mcmc.run(jax.random.PRNGKey(1))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["x"], np.float64)
    size, rhat = effective_sample_size(draws), split_gelman_rubin(draws)
    ratio = draws.var((0, 1)) / SD**2
    error = np.sqrt(2 / size)
    print(f"{options}: variance over the right one {ratio.round(3)} (± {error.round(3)}), R-hat {rhat.max():.4f}")
    if options:
        assert (abs(ratio - 1) < 5 * error).all(), "these settings are wrong too"
    else:
        assert ratio[1] < 0.85 and abs(ratio[1] - 1) > 8 * error[1] and rhat.max() < 1.01, "it is right now"
PYTHON
