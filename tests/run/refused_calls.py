"""Models and short calls from which the pages of bad inputs are made."""

from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from numpyro import handlers
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors

KEY = jax.random.key(0)
ROWS = 5
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = np.arange(float(ROWS))
CLASSES = np.array([0, 1, 2, 0, 1])
NORMAL = priors.Normal()
F, LOGITS = jnp.zeros(ROWS), jnp.zeros((ROWS, 3))


def network(module, prior, *args, **options):
    """What `random_module` says inside a model."""
    return handlers.seed(partial(bnn.random_module, "net", module, prior, *args, **options), 0)()


def mlp(prior, **options):
    return network(nets.MLP(), prior, X[:1], **options)


def inside(call, *args, **options):
    """Call a helper inside a model."""
    return jax.eval_shape(lambda: handlers.seed(call, 0)(*args, **options))


def regression(*data, outputs=1, **options):
    return bnn.regression(nets.MLP(outputs=outputs), NORMAL, *data, **options)


def classification(*data, outputs=3):
    return bnn.classification(nets.MLP(outputs=outputs), NORMAL, *data)


def look(model, *args):
    """What any fit does first."""
    return bnn.optimize(model, KEY, *args, num_steps=0, progress_bar=False)


def mcmc(model, **options):
    settings = {"num_warmup": 1, "num_samples": 1, "progress_bar": False} | options
    return bnn.MCMC(HMC(model), **settings)


def streams(module):
    return bnn.random_module("net", module, NORMAL, apply_rng=["dropout"])(X)


def in_a_plate():
    with numpyro.plate("data", ROWS):
        bnn.random_module("net", nets.MLP(), NORMAL, X[:1])


def summed(x, y):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("data", ROWS):
        rows = numpyro.subsample(jnp.asarray(y), event_dim=0)
        numpyro.factor("likelihood", -jnp.sum((rows - w) ** 2))


def normal(x, y):
    numpyro.sample("y", dist.Normal(numpyro.sample("w", dist.Normal())), obs=jnp.asarray(y))


def subsampling(x, y):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("data", ROWS, subsample_size=2):
        rows = numpyro.subsample(jnp.asarray(y), event_dim=0)
        numpyro.sample("y", dist.Normal(w, 1.0), obs=rows)


def outer_product(x, y):
    w = numpyro.sample("w", dist.Normal().expand([3, 1]).to_event())
    numpyro.sample("y", dist.Normal(jnp.asarray(x) @ w, 1.0), obs=jnp.asarray(y))


def predicted(y):
    """Log scores of targets under two draws."""
    model = regression(X, Y, noise=1.0)
    draws = {k: jnp.stack([v, v]) for k, v in nets.weights(model, X, Y).items()}
    return bnn.predict(model, draws, X).log_prob(y)


def line(x):
    likelihoods.gaussian(numpyro.sample("w", dist.Normal()) * x[:, 0], noise=1.0)


class Named(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="a.b")(x)


def nan_at(values, index):
    values = values.copy()
    values[index] = np.nan
    return values
