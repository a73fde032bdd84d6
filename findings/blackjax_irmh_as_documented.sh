#!/usr/bin/env bash
# BlackJAX 1.7.1: `irmh`, independent Metropolis-Hastings, called as its documentation shows, samples another distribution.
#
# Guess, written first: `irmh(logdensity_fn, proposal_distribution)` with a proposal that is wider than the target and
# centred on it is exact, only slow; a proposal's density is for proposals that are not symmetric, as is said of it.
#
# Seen: without `proposal_logdensity_fn` the ratio of proposal densities is left out, as if the proposal were a random
# walk. It never cancels for a proposal that does not depend on the state, symmetric about its mean or not: the draws
# are of the target times the proposal. N(0, 1) proposed from N(0, 2²) has the variance .80, and from N(0, 1) itself .50.
# No warning, and chains agree with one another. The density must be a function of the old state and the new one, in this
# order: then the variance is 1. In the other order it counts the wrong way, and the variance is .67.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "blackjax==1.7.1" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import blackjax
import jax
import numpy as np

DRAWS = 200_000


def target(x):
    return -0.5 * x**2


def sampled(scale, **options):
    kernel = blackjax.irmh(target, lambda key: scale * jax.random.normal(key), **options)

    def step(state, key):
        state, info = kernel.step(key, state)
        return state, (state.position, info.is_accepted)

    keys = jax.random.split(jax.random.key(0), DRAWS)
    _, (draws, accepted) = jax.lax.scan(step, kernel.init(0.0), keys)
    return float(np.var(draws)), float(np.mean(accepted))


print(f"blackjax {version('blackjax')}, jax {jax.__version__}")
for scale in (2.0, 1.0):
    variance, accepted = sampled(scale)
    wrong = 1 / (1 + scale**-2)
    print(f"proposal sd {scale}: variance {variance:.3f} for 1, accepted {accepted:.2f}")
    np.testing.assert_allclose(variance, wrong, rtol=0.03, err_msg="it is no longer target times proposal")

    def density(old, new, scale=scale):
        return -0.5 * (new.position / scale) ** 2

    variance, accepted = sampled(scale, proposal_logdensity_fn=density)
    print(f"  with its density: variance {variance:.3f}, accepted {accepted:.2f}")
    np.testing.assert_allclose(variance, 1, rtol=0.03)

variance, _ = sampled(2.0, proposal_logdensity_fn=lambda new, old: -0.125 * new.position**2)
print(f"  in the other order: variance {variance:.3f}")
np.testing.assert_allclose(variance, 2 / 3, rtol=0.03)
PYTHON
