#!/usr/bin/env bash
# NumPyro 0.22.0: a scalar `factor` inside of a plate counts once for every row of the plate.
#
# Guess, written first: `numpyro.factor("penalty", value)` adds `value` to the log density, wherever it stands. A plate
# declares rows of sample sites; a scalar has no rows, so a penalty on the weights of -1 stays -1.
#
# Seen: the site is broadcast to the plate. With 10 rows, -1 becomes -10, and a subsample of 5 of 10 rows also gives
# -10 (5 values, each scaled by 2). The prior that the
# penalty stands for grows with the size of the table, and no shape shows it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density


def only_factor(rows, subsample=None):
    with numpyro.plate("rows", rows, subsample_size=subsample):
        numpyro.factor("penalty", -1.0)


def total(*args):
    with numpyro.handlers.seed(rng_seed=0):
        return float(log_density(only_factor, args, {}, {})[0])


def prior_by_penalty(rows):
    w = numpyro.sample("w", dist.Uniform(-50, 50))
    with numpyro.plate("rows", rows):
        numpyro.factor("penalty", -0.5 * w**2)


def sd(rows):
    mcmc = MCMC(NUTS(prior_by_penalty), num_warmup=500, num_samples=4000, progress_bar=False)
    mcmc.run(jax.random.key(0), rows)
    return float(mcmc.get_samples()["w"].std())


print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
print(f"factor of -1 in a plate of 1, 10, and 5 of 10 rows: {total(1)}, {total(10)}, {total(10, 5)}")
one, hundred = sd(1), sd(100)
print(f"sd of a weight under the penalty of a unit normal: {one:.2f} (1 row), {hundred:.3f} (100 rows)")
assert (total(1), total(10), total(10, 5)) == (-1.0, -10.0, -10.0), "a scalar factor counts otherwise now"
assert 0.9 < one < 1.1 and 0.09 < hundred < 0.11, "the penalty no longer grows with the rows"
PYTHON
