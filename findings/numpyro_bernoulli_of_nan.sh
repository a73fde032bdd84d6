#!/usr/bin/env bash
# NumPyro 0.22.0: a Bernoulli whose logits are NaN is certain that its target is 0, inside jit.
#
# Guess, written first: the log probability of a target under logits of NaN is NaN, as under probabilities of NaN, so
# that a network that overflowed shows in every score.
#
# Seen: 0 for the target 0 and minus infinity for 1. The formula replaces logits that are not finite, which mends
# infinite ones, and NaN goes the way of minus infinity. A categorical distribution over probabilities with a NaN gives
# minus infinity at that class and an ordinary number at the others. Outside of jit the arguments are checked and
# refused. Binomial, geometric and categorical distributions of logits give NaN.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

TARGETS = jnp.array([0, 1])
MADE = {
    "Bernoulli, logits": lambda n: dist.Bernoulli(logits=n),
    "Bernoulli, probs": lambda n: dist.Bernoulli(probs=n),
    "Binomial, logits": lambda n: dist.Binomial(1, logits=n),
    "Categorical, logits": lambda n: dist.Categorical(logits=jnp.stack([0.0, n])),
    "Categorical, probs": lambda n: dist.Categorical(probs=jnp.stack([0.5, n])),
}
print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
found = {}
for name, make in MADE.items():
    found[name] = np.asarray(jax.jit(lambda n, make=make: make(n).log_prob(TARGETS))(jnp.nan))
    print(f"{name:20}: log probability of 0 and of 1: {found[name][0]}, {found[name][1]}")
assert found["Bernoulli, logits"].tolist() == [0.0, -np.inf], "logits of NaN are no longer certain"
assert found["Categorical, probs"].tolist() == [np.float32(np.log(0.5)), -np.inf]
for name in ("Bernoulli, probs", "Binomial, logits", "Categorical, logits"):
    assert np.isnan(found[name]).all(), name
PYTHON
