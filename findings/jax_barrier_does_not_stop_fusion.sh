#!/usr/bin/env bash
# JAX 0.10.2 on CPUs: `lax.optimization_barrier` does not prevent fusion; in 0.11.2 it does.
#
# Guess, written first: a scalar that goes through a barrier is computed once, in every version of JAX that has the
# barrier. Its documentation says that operations before it may not be fused into one kernel with operations after it.
#
# Seen: in 0.10.2 each of twelve loops that use the scalar holds a copy of the whole arithmetic before the barrier, so
# that it is compiled and executed twelve times; in 0.11.2 and 0.12.0 it is there once. (0.7.0, 0.8.0, 0.9.0 and 0.11.0
# do as 0.10.2. The newest need a newer Python, so that one is run here.) The values are the same. Where the scalar is a
# log density of a hundred terms, and the loops write the parts of a sampler's state, this was half of the compiled
# program. To be sure in an old version, look at `jit(f).lower(…).compile().as_text()`.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "jax==0.10.2" "jaxlib==0.10.2"
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp


def loops(x, old):
    # Rounding up stands for the arithmetic: it is easily counted.
    scalar = jax.lax.optimization_barrier(jnp.ceil(x[0]) + x[1] * x[2] - x[3])
    return [jnp.where(scalar > bound, x * bound, old) for bound in range(12)]


some = jnp.linspace(0.0, 1.0, 50)
program = jax.jit(loops).lower(some, some)
before = program.as_text().count("stablehlo.ceil")
after = program.compile().as_text().count(" ceil(")
print(f"jax {jax.__version__}: {before} before the compiler, {after} after it")
assert before == 1 and after == 12, "it has changed"
PYTHON
