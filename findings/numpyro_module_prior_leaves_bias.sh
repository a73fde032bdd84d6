#!/usr/bin/env bash
# NumPyro 0.22.0: parameters that a dictionary of priors does not name are held at their initial values by MCMC.
#
# Guess, written first: `random_flax_module("net", nn.Dense(1), prior={"kernel": Normal(0, 1)})` refuses, since the
# bias has no prior; or the bias gets a flat prior and is drawn as well.
#
# Seen: the bias stays a `param` site. MCMC does not move it, leaves it out of `get_samples`, and says
# nothing. On rows with y = 3 + x the network predicts with a bias of 0: the data's level is lost, and the noise
# is estimated at 3 in place of .1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2" "flax==0.12.8"
"$work/venv/bin/python" - <<'PYTHON'
import flax
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from numpyro.contrib.module import random_flax_module
from numpyro.infer import MCMC, NUTS


def model(x, y, prior):
    net = random_flax_module("net", nn.Dense(1), prior=prior, input_shape=(1,))
    noise = numpyro.sample("noise", dist.HalfNormal(10))
    numpyro.sample("y", dist.Normal(net(x)[:, 0], noise), obs=y)


x = jnp.linspace(-1, 1, 60)[:, None]
y = 3 + x[:, 0] + 0.1 * jax.random.normal(jax.random.key(1), (60,))


def run(prior):
    mcmc = MCMC(NUTS(model), num_warmup=500, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.key(0), x, y, prior)
    return mcmc.get_samples()


part = run({"kernel": dist.Normal(0, 5)})
whole = run({"kernel": dist.Normal(0, 5), "bias": dist.Normal(0, 5)})
print(f"numpyro {numpyro.__version__}, flax {flax.__version__}, jax {jax.__version__}")
print("sites drawn with a prior for the kernel only:", sorted(part))
print("sites drawn with a prior for both:          ", sorted(whole))
print(f"noise: {part['noise'].mean():.2f} and {whole['noise'].mean():.2f} (made with .1)")
assert "net/bias" not in part and "net/bias" in whole, "the missing prior is noticed now"
assert part["noise"].mean() > 2 and whole["noise"].mean() < 0.2, "the bias moves now"
PYTHON
