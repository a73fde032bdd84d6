#!/usr/bin/env bash
# optax 0.2.8 with JAX 0.10.2: Adam of bfloat16 parameters never forgets a few large gradients.
#
# Guess, written first: the second moment of a constant gradient of 1 goes to 1 within 5 %, and falls back after some large
# gradients as it does in float32, since it remembers some 1000 steps (b2 = .999).
#
# Seen: moments have the type of the parameters, and .999 is 1 in bfloat16, so that the second moment never falls. It
# rises to .5 for gradients of 1, where a thousandth is rounded away: steps are 1.4 times too long. After five
# gradients of 30 it is 5, and still so after 15,000 gradients of .1, whose steps are 22 times too short. In float32 both
# are right. `mu_dtype` sets the type of the first moment only.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "optax==0.2.8" "jax==0.10.2" "jaxlib==0.10.2"
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

print(f"optax {optax.__version__}, jax {jax.__version__}")
adam = optax.adam(1e-3)


def steps(state, gradient, count, dtype):
    """The state after so many equal gradients, and the last step in learning rates."""
    gradient = jnp.full(1, gradient, dtype)

    def one(state, _):
        update, state = adam.update(gradient, state)
        return state, update

    state, updates = jax.lax.scan(one, state, None, count)
    return state, abs(float(updates[-1, 0])) / 1e-3


found = {}
for dtype in (jnp.float32, jnp.bfloat16):
    state, step = steps(adam.init(jnp.zeros(1, dtype)), 1.0, 5000, dtype)
    constant = float(state[0].nu[0]), step
    state, _ = steps(state, 30.0, 5, dtype)
    state, step = steps(state, 0.1, 15_000, dtype)
    found[dtype.__name__] = constant, (float(state[0].nu[0]), step)
    print(f"{dtype.__name__}: gradients of 1: second moment {constant[0]:.3f}, step {constant[1]:.2f} learning rates; "
          f"then 5 of 30 and 15,000 of .1: {state[0].nu[0]:.4f} and {step:.3f}")

(one, step), (after, last) = found["float32"]
assert abs(one - 1) < 0.01 and abs(step - 1) < 0.01 and abs(after - 0.01) < 1e-3 and abs(last - 1) < 0.02
(one, step), (after, last) = found["bfloat16"]
assert one < 0.6 and step > 1.3, "the second moment of equal gradients is no longer too small"
assert after > 3 and last < 0.1, "large gradients are no longer remembered for ever"
PYTHON
