#!/usr/bin/env bash
# JAX 0.10.2: `jnp.asarray` of a NumPy array compiles a program for every shape, and `jnp.array` none.
#
# Guess, written first: `jnp.asarray` is the cheaper of the two, as in NumPy: it copies where it must, and neither of them
# compiles anything.
#
# Seen: on a CPU each new shape or dtype is traced, lowered and compiled as a program of its own, some ten
# milliseconds each, where `jnp.array` and `jax.device_put` only copy. Batches whose sizes differ pay it again and again.
# So it is in 0.12.0.1; 0.7.0 compiled nothing.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import time

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

compiled = []


def heard(event, seconds, **about):
    if event.endswith("backend_compile_duration"):
        compiled.append(about.get("fun_name"))


jax.monitoring.register_event_duration_secs_listener(heard)
made = {}
for name, put in (("asarray", jnp.asarray), ("array", jnp.array), ("device_put", jax.device_put)):
    compiled.clear()
    begin = time.perf_counter()
    for rows in range(1, 51):
        put(np.ones((rows, 3), np.float32))
    print(f"jax {jax.__version__}, {name}: {len(compiled)} compilations of 50 shapes, {time.perf_counter() - begin:.2f} s")
    made[name] = len(compiled)
assert made["array"] == made["device_put"] == 0
assert made["asarray"] == 50, "asarray no longer compiles for each shape"
PYTHON
