#!/usr/bin/env bash
# NumPyro 0.22.0: `log_likelihood` scores new rows with the `deterministic` values of the old rows.
#
# Guess, written first: `log_likelihood(model, mcmc.get_samples(), x_new, y_new)` runs the model on `x_new`, as
# `Predictive(model, samples)` does, and so a deterministic site such as mu = b x in the samples is computed anew.
#
# Seen: `Predictive` leaves the recorded deterministic values out, `log_likelihood` puts them in. Where both tables
# have the same number of rows (or one row), the new targets are scored at the old predictions, and nothing is said.
# Taking the deterministic site out of the samples gives the right numbers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "numpyro==0.22.0" "jax==0.10.2" "jaxlib==0.10.2"
"$work/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, Predictive, log_likelihood


def model(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 10))
    mu = numpyro.deterministic("mu", b * x)
    numpyro.sample("y", dist.Normal(mu, 1), obs=y)


x, x_new = jnp.linspace(-1, 1, 20), jnp.linspace(4, 6, 20)
mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=200, progress_bar=False)
mcmc.run(jax.random.key(0), x, 2 * x)
samples = mcmc.get_samples()
only_b = {"b": samples["b"]}
y_new = samples["b"].mean() * x_new

mean = Predictive(model, samples)(jax.random.key(1), x_new)["y"].mean()
seen = float(log_likelihood(model, samples, x_new, y_new)["y"].mean())
right = float(log_likelihood(model, only_b, x_new, y_new)["y"].mean())
print(f"numpyro {numpyro.__version__}, jax {jax.__version__}")
print(f"mean prediction for the new rows: {mean:.2f} (targets: {y_new.mean():.2f})")
print(f"mean log likelihood: {seen:.2f} with mu among the samples, {right:.2f} without it")
assert abs(mean - y_new.mean()) < 0.2, "Predictive no longer computes mu anew"
assert right > -5 and seen < -30, "log_likelihood no longer takes the old mu"
PYTHON
