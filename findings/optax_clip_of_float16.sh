#!/usr/bin/env bash
# optax 0.2.8: `clip_by_global_norm` turns large float16 gradients into zeros.
#
# Guess, written first: 100,000 gradients of 1 in float16 have the norm 316. `clip_by_global_norm(1.0)` divides by
# it, so each becomes .0032, which float16 holds well; a norm that cannot be held would be NaN and be seen.
#
# Seen: the squares are added up to a float16 number, which ends at 65504. With 100,000 ones the norm is infinite,
# and dividing by it gives zeros: the parameters stand still, and a loss that does not fall is all one sees.
# 60,000 ones are clipped rightly. Casting the gradients to float32 before the clipping mends it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "optax==0.2.8" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

clip = optax.clip_by_global_norm(1.0)


def clipped(size, dtype):
    gradients = {"w": jnp.ones(size, dtype)}
    updates, _ = clip.update(gradients, clip.init(gradients))
    return float(updates["w"][0]), float(optax.global_norm(gradients))


print(f"optax {optax.__version__}, jax {jax.__version__}")
for dtype in ("float32", "float16"):
    for size in (60_000, 100_000):
        value, norm = clipped(size, dtype)
        print(f"{dtype}, {size} gradients of 1: norm {norm:.1f}, each becomes {value:.5f} ({size**-0.5:.5f} is right)")
assert abs(clipped(100_000, "float32")[0] * 100_000**0.5 - 1) < 1e-3
assert abs(clipped(60_000, "float16")[0] * 60_000**0.5 - 1) < 1e-2
assert clipped(100_000, "float16") == (0.0, float("inf")), "the norm is held in a wider type now"
PYTHON
