#!/usr/bin/env bash
# scoringrules 0.10.0 with JAX: the energy score has the right value, and NaN as its gradient.
#
# Guess, written first: `es_ensemble(y, members, backend="jax")` can be the loss of a network that makes members, as the
# energy score is meant to be trained with; its gradient is that of finite differences to 1 %.
#
# Seen: the value is right to 1e-5, and every entry of the gradient is NaN. The spread sums the distances of all pairs of
# members, and a member's distance to itself is the square root of 0, whose derivative is infinite times 0. A sum over
# different members alone has the right gradient.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "scoringrules==0.10.0" "jax==0.9.2" "jaxlib==0.9.2"
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
import scoringrules

rng = np.random.default_rng(0)
members = jnp.asarray(rng.normal(size=(6, 2)), jnp.float32)
y = jnp.asarray(rng.normal(size=2), jnp.float32)


def theirs(members):
    return scoringrules.es_ensemble(y, members, backend="jax")


def by_pairs(members):
    count = len(members)
    first, second = np.triu_indices(count, 1)
    apart = jnp.linalg.norm(members[first] - members[second], axis=1).sum() / count**2
    return jnp.linalg.norm(members - y, axis=1).mean() - apart


gradient, right = jax.grad(theirs)(members), jax.grad(by_pairs)(members)
step = 1e-2
difference = (by_pairs(members.at[0, 0].add(step)) - by_pairs(members.at[0, 0].add(-step))) / (2 * step)
print(f"scoringrules {version('scoringrules')}, jax {jax.__version__}")
print(f"score {theirs(members):.5f}, by pairs of different members {by_pairs(members):.5f}")
print(f"gradient: {int(jnp.isnan(gradient).sum())} of {gradient.size} entries are NaN")
print(f"by pairs: {right[0, 0]:.4f} for the first entry, finite differences {difference:.4f}")
assert abs(theirs(members) - by_pairs(members)) < 1e-5, "the value is another one"
assert jnp.isnan(gradient).all(), "the gradient is finite now"
assert abs(right[0, 0] - difference) < 1e-2
PYTHON
