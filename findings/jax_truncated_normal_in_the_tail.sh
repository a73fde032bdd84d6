#!/usr/bin/env bash
# JAX 0.10.2: `jax.random.truncated_normal(key, 6, 7)` returns 7 each time.
#
# Guess, written first: a normal truncated to [a, a + 1] is drawn through its tail, so that float32 gives many different
# values with the right mean (6.157 at a = 6), or NaN where it cannot.
#
# Seen: the bounds go through `erf`, which is 1 in float32 beyond about 5.5. At a = 5 there are ten different values
# in 100,000 draws; at 6 and at 8 there is one, and it is the upper bound, where the density is lowest. On the other
# side, [-7, -6], the lower bound comes out. The draws are finite and within the bounds, so no check finds them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "jax==0.10.2" "jaxlib==0.10.2" "scipy==1.17.1"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np
import scipy
from scipy import stats

print(f"jax {jax.__version__}, scipy {scipy.__version__}")


def draws(low, high):
    return np.asarray(jax.random.truncated_normal(jax.random.key(0), low, high, (100_000,)))


seen = {}
for low in (2.0, 5.0, 6.0, 8.0):
    drawn, mean = draws(low, low + 1), stats.truncnorm(low, low + 1).mean()
    seen[low] = len(np.unique(drawn)), float(drawn.mean()) - mean
    print(f"[{low}, {low + 1}]: {seen[low][0]} different values, mean {drawn.mean():.4f}, right {mean:.4f}")
mirrored = draws(-7.0, -6.0)
print(f"[-7, -6]: {len(np.unique(mirrored))} different values, mean {mirrored.mean():.4f}")
assert seen[2.0][0] > 1000 and abs(seen[2.0][1]) < 0.01, "the draws near the middle are wrong"
assert seen[5.0][0] < 50 and seen[6.0][0] == seen[8.0][0] == 1, "the tail has more values now"
assert seen[6.0][1] > 0.8 and seen[8.0][1] > 0.8, "the tail is no longer at its far bound"
assert len(np.unique(mirrored)) == 1 and mirrored.mean() < -6.9
PYTHON
