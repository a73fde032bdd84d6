#!/usr/bin/env bash
# NumPyro 0.22.0: n_eff of a chain whose draws alternate is negative, -20,000 in `print_summary` next to r_hat 1.00.
#
# Guess, written first: where each draw is on the other side of the last one, the mean is better known than from independent
# draws, and n_eff of 4 chains of 1,000 draws is positive and about ten times the draws; that of ArviZ stops at 14,408.
#
# Seen: for a correlation of -.5 it is right. At -.9 it is below 0 for four tables of five, and goes from -900,000 to
# 4,000,000; at -.95 it is below 0 for all. The sum of correlations that it divides by goes below 0 by chance, and there is
# no bound, as there is in ArviZ. NumPyro's own HMC makes such chains: with a trajectory length of 3.1, half a turn of a
# normal of sd 1, the summary says n_eff -20,210, -17,714 and -20,446, r_hat 1.00 and no divergence. A rule such as "n_eff
# below 400" flags the means, which are right to .003; the standard deviations, 1.13, 1.11 and .87 for 1, are what is wrong.
# An error of the mean, which takes the square root of n_eff, is NaN.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2" "numpy==2.4.6"
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import HMC, MCMC

TABLES, CHAINS, DRAWS, BEFORE = 50, 4, 1000, 200
print(f"numpyro {numpyro.__version__}, jax {jax.__version__}, numpy {np.__version__}")
rng = np.random.default_rng(0)
sizes = {}
for correlation in (0.5, 0.0, -0.5, -0.9, -0.95):
    noise = rng.normal(size=(BEFORE + DRAWS, CHAINS, TABLES))
    values = np.zeros_like(noise)
    for draw in range(1, len(values)):
        values[draw] = correlation * values[draw - 1] + noise[draw]
    values = values[BEFORE:].swapaxes(0, 1)
    size = sizes[correlation] = effective_sample_size(values)
    print(f"correlation {correlation}: by theory {CHAINS * DRAWS * (1 - correlation) / (1 + correlation):,.0f}, "
          f"from the scatter of the mean {values.var() / values.mean((0, 1)).var():,.0f}; n_eff median {np.median(size):,.0f}, "
          f"from {size.min():,.0f} to {size.max():,.0f}, negative for {np.mean(size < 0):.2f} of the tables")


def model():
    numpyro.sample("x", dist.Normal(0, 1).expand([3]))


kernel = HMC(model, trajectory_length=3.1, adapt_mass_matrix=False)
mcmc = MCMC(kernel, num_warmup=300, num_samples=DRAWS, num_chains=CHAINS, chain_method="vectorized", progress_bar=False)
mcmc.run(jax.random.key(0), extra_fields=("diverging",))
mcmc.print_summary()
x = np.asarray(mcmc.get_samples(group_by_chain=True)["x"])
size, rhat = effective_sample_size(x), split_gelman_rubin(x)
print(f"HMC: mean {x.mean((0, 1)).round(4)}, sd {x.std((0, 1)).round(2)}, n_eff {size.round()}, r_hat {rhat.round(3)}")

for correlation in (0.5, 0.0, -0.5):
    right = CHAINS * DRAWS * (1 - correlation) / (1 + correlation)
    assert abs(np.median(sizes[correlation]) / right - 1) < 0.2, "it is wrong for other chains too"
assert np.mean(sizes[-0.9] < 0) > 0.3 and np.mean(sizes[-0.95] < 0) > 0.6, "it is no longer negative"
assert size.min() < 0 and rhat.max() < 1.02 and np.abs(x.mean((0, 1))).max() < 0.05, "HMC gets a positive size"
PYTHON
