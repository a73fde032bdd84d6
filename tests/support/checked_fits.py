"""Draws of an exact posterior and runs made of them, for the check of a fit."""

import functools
from types import SimpleNamespace

import linear_gaussian
import numpy as np
import numpyro
import numpyro.distributions as dist
from linear_gaussian import BIAS, KERNEL, NOISE, SCALE
from numpyro import handlers

import numpyro_bnn as bnn

X, Y = linear_gaussian.data(rows=40)
OUTLIER = 7


@functools.cache
def exact_draws(planted=False, chains=4, draws=1000):
    """Draws of the exact posterior, and the targets."""
    y = Y.copy()
    if planted:
        y[OUTLIER] += 6.0
    mean, precision = linear_gaussian.posterior(X, y)
    rng = np.random.default_rng(0)
    values = rng.multivariate_normal(mean, np.linalg.inv(precision), (chains, draws))
    return of_values(values, linear_gaussian.model), y


def of_values(values, model, **info):
    values = np.asarray(values, np.float32)
    sites = {KERNEL: values[..., :-1, None], BIAS: values[..., -1:]}
    return bnn.Draws(sites, model, info={"kernel": "NUTS", **info})


@functools.cache
def checked(planted=False):
    draws, y = exact_draws(planted)
    return bnn.check_fit(draws, X, y)


def fitted_to(*args, of=linear_gaussian.model, **kwargs):
    """What the check reads of a run: its draws and its data."""
    mcmc = SimpleNamespace(_args=args, _kwargs=kwargs, sampler=SimpleNamespace(model=of))
    draws = exact_draws()[0]
    return SimpleNamespace(draws=bnn.Draws(draws, of, draws.stats, draws.info), mcmc=mcmc)


def weighted(x, y=None, importance=None):
    with handlers.scale(scale=1.0 if importance is None else importance):
        linear_gaussian.model(x, y)


def line(x):
    bias = numpyro.sample(BIAS, dist.Normal(0.0, SCALE).expand([1]).to_event(1))
    slopes = numpyro.sample(KERNEL, dist.Normal(0.0, SCALE).expand([3, 1]).to_event(2))
    return (x @ slopes + bias)[:, 0]


def with_offset(x, offset, y=None):
    mean = line(x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean + offset, NOISE), obs=y)


def two_targets(x, up=None, down=None):
    mean = line(x)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("up", dist.Normal(mean, NOISE), obs=up)
        numpyro.sample("down", dist.Normal(-mean, NOISE), obs=down)
