#!/usr/bin/env bash
# NumPyro 0.22.0: HMC with a short trajectory returns one value a thousand times, with an R-hat of 1.00 and acceptance 1.
#
# Guess, written first: `HMC(model, trajectory_length=1)` on N(0, 1), with 500 steps of warm-up, draws N(0, 1). A step
# cannot be longer than the trajectory, so one that is easily accepted is a trajectory of one step, slow and right.
#
# Seen: the step in use is at most the trajectory, but the step that is adapted is not: as long as more than 80 % is
# accepted it grows, to 3.4e38, the largest float32. Then the number of steps, trajectory / step rounded up, is 0: the
# division gives a number too small for float32. Nothing moves, acceptance is 1, and the step stays as it is. No warning
# and no divergence; the summary of one chain says n_eff 1.00, r_hat 1.00. "Short" is one standard deviation of one parameter,
# .3 of 100; a logistic regression of 200 rows at .1 stands still as well, and with 300 steps of warm-up. So in 0.21.0
# and 0.15.3. Look at `num_steps`. What helps: a step of one's own with `adapt_step_size=False`, `num_steps=1` with
# `trajectory_length=None`, or float64.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, MCMC

warnings.simplefilter("error")


def model(size):
    numpyro.sample("x", dist.Normal(jnp.zeros(size), 1.0).to_event(1))


def sampled(size, **options):
    mcmc = MCMC(HMC(model, **options), num_warmup=500, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(0), size, extra_fields=("num_steps", "accept_prob", "diverging", "adapt_state.step_size"))
    draws = np.asarray(mcmc.get_samples()["x"])[:, 0]
    fields = {name: np.asarray(value) for name, value in mcmc.get_extra_fields().items()}
    print(f"{size} parameters, {options}: {len(set(draws))} different draws of {len(draws)}, variance {draws.var():.2f},")
    step, accepted = fields["adapt_state.step_size"][-1], fields["accept_prob"].mean()
    print(f"  step {step:.3g}, steps a draw {fields['num_steps'].mean()}, accepted {accepted:.2f}")
    return mcmc, len(set(draws)), fields


print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
for size, length in ((1, 1.0), (100, 0.3)):
    mcmc, different, fields = sampled(size, trajectory_length=length)
    assert different == 1 and not fields["num_steps"].any(), "the chain moves now"
    assert (fields["accept_prob"] == 1).all() and not fields["diverging"].any()
    if size == 1:
        mcmc.print_summary()
for options in (
    {"trajectory_length": 1.0, "step_size": 1.0, "adapt_step_size": False},
    {"trajectory_length": None, "num_steps": 1},
    {"trajectory_length": 3.0},
):
    assert sampled(1, **options)[1] > 500, "these settings stand still too"
PYTHON
