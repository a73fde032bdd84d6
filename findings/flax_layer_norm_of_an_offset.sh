#!/usr/bin/env bash
# Flax 0.12.8: layer and batch norm of values with an offset are wrong by factors of a thousand.
#
# Guess, written first: `LayerNorm` takes the mean off and divides by the standard deviation, so float32 rows of
# 10,000 + N(0, 1), held to .001, come out with mean 0 and deviation 1, as from Equinox.
#
# Seen: the variance is the mean of squares less the square of the mean (`use_fast_variance=True`). At 10,000 the
# squares are 1e8, where float32 is 8 apart, so the variance is noise: some rows come out with deviation .2, others with
# 1000. At an offset of 1000 the error is up to 13 %. linen and NNX agree; `use_fast_variance=False` mends it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "flax==0.12.8" "jax==0.10.2" "jaxlib==0.10.2" "equinox==0.13.8"
"$work/venv/bin/python" - <<'PYTHON'
import equinox as eqx
import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

noise = np.random.default_rng(0).normal(size=(8, 256))


def deviations(offset, which):
    x = jnp.asarray(offset + noise, jnp.float32)
    if which == "equinox":
        return jax.vmap(eqx.nn.LayerNorm(256))(x).std(1)
    if which == "nnx":
        return nnx.LayerNorm(256, rngs=nnx.Rngs(0))(x).std(1)
    if which == "nnx batch":
        return nnx.BatchNorm(1, rngs=nnx.Rngs(0))(x.reshape(-1, 1)).std()[None]
    layer = linen.LayerNorm(use_fast_variance=which == "linen")
    return layer.apply(layer.init(jax.random.key(0), x), x).std(1)


print(f"flax {flax.__version__}, equinox {eqx.__version__}, jax {jax.__version__}")
for offset in (0.0, 1e3, 1e4):
    for which in ("linen", "nnx", "nnx batch", "linen, exact", "equinox"):
        value = deviations(offset, which)
        print(f"offset {offset:7.0f}, {which:12}: deviations {value.min():.3f} to {value.max():.3f} (1 is right)")
for which in ("linen", "nnx", "nnx batch"):
    assert abs(deviations(0.0, which) - 1).max() < 0.01
    assert deviations(1e4, which).max() > 10, f"{which} is exact now"
for which in ("linen, exact", "equinox"):
    assert abs(deviations(1e4, which) - 1).max() < 0.01, f"{which} is no longer right"
PYTHON
