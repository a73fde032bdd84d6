"""What tests of parallel tempering share: a model of known evidence, short runs, comparisons with both."""

import functools

import nets
import numpy as np
from numpyro.infer import HMC
from quiet import quiet
from scipy.special import logsumexp
from scipy.stats import gamma, multivariate_normal

import numpyro_bnn as bnn
from numpyro_bnn import priors


def hmc(model, num_steps):
    return HMC(model, num_steps=num_steps, trajectory_length=None)


def sampler(kernel, num_warmup=300, num_samples=2000, num_chains=2, **options):
    return quiet(kernel, num_warmup, num_samples, num_chains, **options)


def errors_of(draws, expected):
    """Mean of (chain, draw) against a number, in Monte Carlo errors.

    From effective sizes: batches of a hundred sweeps are not long beside what a ladder remembers.
    """
    draws = np.asarray(draws, np.float64)
    return abs(draws.mean() - expected) / bnn.diagnostics.mcse_mean(draws)


def check_evidence(mcmc, expected):
    """Every replica within four of the errors that it states, which are small."""
    assert mcmc.log_evidence.shape == mcmc.log_evidence_error.shape == (mcmc.num_chains,)
    assert (mcmc.log_evidence_error < 0.1).all()
    np.testing.assert_array_less(np.abs(mcmc.log_evidence - expected), 4 * mcmc.log_evidence_error)


def hierarchical(x, y=None):
    net = bnn.random_module("net", nets.Linear(), priors.Hierarchical(2.0, 1.0), x[:1])
    bnn.likelihoods.gaussian(net, y, x=x, noise=0.5)


@functools.cache
def hierarchy():
    """Data, log evidence, means of the slope's log precision and of the slope: weights integrated out in
    closed form, the two precisions on a grid."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(15, 1))
    y = 1.5 * x[:, 0] - 0.5 + 0.5 * rng.normal(size=15)
    u = np.linspace(-7, 4, 61)
    prior = gamma.logpdf(np.exp(u), 2.0) + u + np.log(u[1] - u[0])
    noise = 0.25 * np.eye(15)
    log_joint = prior[:, None] + prior
    slopes = np.zeros_like(log_joint)
    for i, slope in enumerate(np.exp(u)):
        for j, bias in enumerate(np.exp(u)):
            covariance = noise + x @ x.T / slope + 1 / bias
            log_joint[i, j] += multivariate_normal.logpdf(y, cov=covariance)
            slopes[i, j] = x[:, 0] @ np.linalg.solve(covariance, y) / slope
    evidence = logsumexp(log_joint)
    mass = np.exp(log_joint - evidence)
    return (x, y), evidence, mass.sum(1) @ u, (mass * slopes).sum()
