"""Whole numbers and weights that the device's types would wrap round or make infinite, at every door."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods

X = np.linspace(-1, 1, 6)[:, None].astype(np.float32)
LABELS = np.array([0, 1, 0, 1, 0, 1], np.int64)
BEYOND = LABELS + 2**32
PRIOR = bnn.priors.Normal(1.0)


def ready(units):
    return bnn.classification(bnn.MLP((2,), units), PRIOR)


def own(likelihood, data, **options):
    """A model whose target is a global array, so that it is no argument."""

    def model(x):
        b = numpyro.sample("b", dist.Normal())
        f = b * x if likelihood is likelihoods.categorical else b * x[:, 0]
        f = f * np.ones(2) if likelihood is likelihoods.categorical else f
        likelihood(f, data, **options)

    return model


def observed(distribution):
    def model(x):
        b = numpyro.sample("b", dist.Normal())
        with numpyro.plate("data", 6):
            numpyro.sample("y", distribution(b * x[:, 0]), obs=BEYOND)

    return model


def total(x, total):
    b = numpyro.sample("b", dist.Normal())
    with numpyro.plate("data", 6):
        numpyro.sample("y", dist.Binomial(total, logits=b * x[:, 0]), obs=LABELS)


CALLS = {
    "ready, two classes": (ready(1), (X, BEYOND)),
    "ready, several classes": (ready(2), (X, BEYOND)),
    "weights": (ready(2), (X, LABELS, np.full(6, 1e39))),
    "categorical": (own(likelihoods.categorical, BEYOND), (X,)),
    "bernoulli": (own(likelihoods.bernoulli, BEYOND), (X,)),
    "ordinal": (observed(lambda f: dist.OrderedLogistic(f, np.array([-1.0, 1.0]))), (X,)),
    "poisson": (own(likelihoods.poisson, BEYOND), (X,)),
    "negative binomial": (own(likelihoods.negative_binomial, BEYOND, concentration=1.0), (X,)),
    "a Poisson site": (observed(lambda f: dist.Poisson(np.e**f)), (X,)),
    "a binomial site": (observed(lambda f: dist.Binomial(2**31 - 1, logits=f)), (X,)),
    "totals": (total, (X, BEYOND)),
    "weights of rows": (own(likelihoods.poisson, LABELS, weights=np.full(6, 1e39)), (X,)),
}


def run(model, *args):
    mcmc = bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1, progress_bar=False)
    mcmc.run(jax.random.key(0), *args)


def optimize(model, *args):
    bnn.optimize(model, jax.random.key(0), *args, num_steps=0, progress_bar=False)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("door", [run, optimize])
def test_numbers_that_would_wrap_round_are_refused(name, door):
    model, args = CALLS[name]
    with pytest.raises(ValueError, match=r"do not fit|infinity|4294967296|4294967297"):
        door(model, *args)
