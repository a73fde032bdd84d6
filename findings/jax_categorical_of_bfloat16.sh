#!/usr/bin/env bash
# JAX 0.10.2: `jax.random.categorical` on bfloat16 logits draws almost only the first classes.
#
# Guess, written first: logits that are all 0 are exact in bfloat16, so a draw among 4096 equal classes is uniform: a
# quarter falls into the first quarter, the mean is 2047.5.
#
# Seen: the Gumbel noise is drawn in the type of the logits. In bfloat16 it takes few values, many classes share the
# largest, and the first of them wins. More than 99 of 100 draws fall into the first quarter. float16 is biased less,
# float32 not. Casting the logits to float32 before the call mends it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np


def draws(dtype, classes=4096):
    return np.asarray(jax.random.categorical(jax.random.key(0), jnp.zeros(classes, dtype), shape=(20000,)))


print(f"jax {jax.__version__}")
first = {}
for name in ("bfloat16", "float16", "float32"):
    drawn = draws(name)
    first[name] = float((drawn < 1024).mean())
    print(f"{name}: {first[name]:.4f} of the draws in the first quarter, mean {drawn.mean():.0f} (2048 is right)")
small = (draws("bfloat16", 16) < 4).mean()
print(f"bfloat16 with 16 classes: {small:.4f} in the first quarter")
assert first["bfloat16"] > 0.9 and first["float16"] > 0.3, "low precision logits are drawn evenly now"
assert abs(first["float32"] - 0.25) < 0.02, "float32 is not even"
PYTHON
