#!/usr/bin/env bash
# BlackJAX 1.7.1: `sghmc` with one integration step never looks at the gradient.
#
# Guess, written first: `blackjax.sghmc(grad, num_integration_steps=1, alpha=...)` is SGHMC with a fresh momentum at
# every step, which is Langevin dynamics, so on a unit Gaussian it settles at a variance near 1.
#
# Seen: position and momentum are both updated from the old state, and a call ends with its momentum thrown away. So
# the gradient of the last integration step moves nothing; with one step there is no other. The position is a random
# walk: two targets give the same draws, and the variance grows with the number of steps. With two steps the first
# gradient counts, and the two targets part.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "blackjax==1.7.1" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import blackjax
import jax
import jax.numpy as jnp

STEP = 0.1


def last_positions(target_gradient, integration_steps, num_steps=400, chains=500):
    sampler = blackjax.sghmc(
        lambda z, _: target_gradient(z), num_integration_steps=integration_steps, alpha=0.1
    )

    def one(key):
        def move(z, key):
            return sampler.step(key, z, None, STEP), None

        return jax.lax.scan(move, jnp.zeros(()), jax.random.split(key, num_steps))[0]

    return jax.vmap(one)(jax.random.split(jax.random.key(0), chains))


gaussian, narrow = (lambda z: -z), (lambda z: -100.0 * z)
same = jnp.array_equal(last_positions(gaussian, 1), last_positions(narrow, 1))
short, long = (float(last_positions(gaussian, 1, n).var()) for n in (400, 1600))
apart = jnp.array_equal(last_positions(gaussian, 2, 5), last_positions(narrow, 2, 5))
print(f"blackjax {blackjax.__version__}, jax {jax.__version__}")
print(f"one integration step: draws of two targets are the same: {bool(same)}")
print(f"variance after 400 and 1600 steps: {short:.1f}, {long:.1f} (the target has 1)")
print(f"two integration steps: the same: {bool(apart)}")
assert bool(same) and not bool(apart), "sghmc looks at its gradient now"
assert short > 2 and 3 < long / short < 5, "no random walk any more"
PYTHON
