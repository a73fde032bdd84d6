"""NumPyro's Gibbs over a network: a conjugate precision drawn exactly, the weights by HMC."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC
from numpyro.infer.gibbs import CustomGibbs, Gibbs
from quiet import quiet
from scipy.special import logsumexp

import numpyro_bnn as bnn

NOISE, CONCENTRATION, RATE = 0.5, 2.0, 1.0


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(15, 3))
    return x, x @ [1.0, -0.5, 0.2] + 0.3 + NOISE * rng.normal(size=15)


def model(x, y):
    tau = numpyro.sample("tau", dist.Gamma(CONCENTRATION, RATE))
    net = bnn.random_module("net", nets.Linear(), lambda path, shape: _given(tau), x[:1])
    bnn.likelihoods.gaussian(net, y, x=x, noise=NOISE)


def _given(tau):
    return dist.Normal(0.0, 1 / jnp.sqrt(tau))


def conditional(rng_key, gibbs_sites, hmc_sites):
    square = sum(jnp.sum(w**2) for name, w in hmc_sites.items() if name.startswith("net/"))
    size = sum(w.size for name, w in hmc_sites.items() if name.startswith("net/"))
    posterior = dist.Gamma(CONCENTRATION + size / 2, RATE + square / 2)
    return {"tau": posterior.sample(rng_key)}


def unchanged(rng_key, gibbs_sites, hmc_sites):
    return gibbs_sites


def composition(update):
    hmc = HMC(model, step_size=0.15, trajectory_length=0.9, adapt_step_size=False)
    return Gibbs([(CustomGibbs(update), ["tau"]), (hmc, None)])


def exact_moments(x, y):
    """Mean of tau and of log tau: weights integrated out in closed form, tau on a grid."""
    inputs = np.c_[x, np.ones(len(x))]
    u = np.linspace(-6, 4, 2001)  # log tau
    log_joint = np.empty_like(u)
    for i, tau in enumerate(np.exp(u)):
        covariance = NOISE**2 * np.eye(len(x)) + inputs @ inputs.T / tau
        _, determinant = np.linalg.slogdet(covariance)
        log_joint[i] = -0.5 * (determinant + y @ np.linalg.solve(covariance, y))
        log_joint[i] += CONCENTRATION * u[i] - RATE * tau  # Gamma, and d tau = tau du
    weight = np.exp(log_joint - logsumexp(log_joint))
    return weight @ np.exp(u), weight @ u


def test_the_precision_of_a_network_follows_its_marginal_posterior(data):
    mcmc = quiet(composition(conditional), 200, 3000, 2)
    z = nets.weights(model, *data)
    starts = {site: jnp.stack([value, -value]) for site, value in z.items()}
    mcmc.run(jax.random.key(0), *data, init_params=starts)
    tau = np.asarray(mcmc.get_samples(group_by_chain=True)["tau"], np.float64)
    for draws, expected in zip((tau, np.log(tau)), exact_moments(*data)):
        batches = draws.reshape(40, -1).mean(1)
        assert abs(draws.mean() - expected) < 4 * batches.std(ddof=1) / np.sqrt(40)


@pytest.mark.parametrize("num_chains", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_unconstrained_starts_are_constrained_for_blocks_that_want_that(data, num_chains):
    start = nets.weights(model, *data)
    starts = {site: jnp.stack([value] * num_chains) for site, value in start.items()}
    mcmc = quiet(composition(unchanged), 0, 2, num_chains)
    # A block that leaves its sites as they are is named.
    with pytest.warns(UserWarning, match="all draws of the block of tau are the same"):
        mcmc.run(jax.random.key(0), *data, init_params=starts)
    tau = mcmc.get_samples(group_by_chain=True)["tau"]
    np.testing.assert_allclose(tau, np.exp(starts["tau"])[:, None] * np.ones(2), rtol=1e-5)
