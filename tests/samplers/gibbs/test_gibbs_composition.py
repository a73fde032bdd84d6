"""NumPyro's Gibbs over a network: a conjugate precision drawn exactly, the weights by HMC."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from known_precision import CONCENTRATION, DATA, NOISE, RATE, exact_moments
from numpyro.infer import HMC
from numpyro.infer.gibbs import CustomGibbs, Gibbs
from quiet import quiet


def model(x, y):
    tau = numpyro.sample("tau", dist.Gamma(CONCENTRATION, RATE))
    nets.linear_regression(x, y, scale=1 / jnp.sqrt(tau), noise=NOISE)


def conditional(rng_key, gibbs_sites, hmc_sites):
    square = sum(jnp.sum(w**2) for name, w in hmc_sites.items() if name.startswith("net/"))
    size = sum(w.size for name, w in hmc_sites.items() if name.startswith("net/"))
    return {"tau": dist.Gamma(CONCENTRATION + size / 2, RATE + square / 2).sample(rng_key)}


def unchanged(rng_key, gibbs_sites, hmc_sites):
    return gibbs_sites


def composition(update):
    hmc = HMC(model, step_size=0.15, trajectory_length=0.9, adapt_step_size=False)
    return Gibbs([(CustomGibbs(update), ["tau"]), (hmc, None)])


def test_the_precision_of_a_network_follows_its_marginal_posterior():
    mcmc = quiet(composition(conditional), 200, 2000, 2)
    z = nets.weights(model, *DATA)
    starts = {site: jnp.stack([value, -value]) for site, value in z.items()}
    mcmc.run(jax.random.key(0), *DATA, init_params=starts)
    tau = np.asarray(mcmc.get_samples(group_by_chain=True)["tau"], np.float64)
    for draws, expected in zip((tau, np.log(tau)), exact_moments()):
        batches = draws.reshape(40, -1).mean(1)
        assert abs(draws.mean() - expected) < 4 * batches.std(ddof=1) / np.sqrt(40)


@pytest.mark.parametrize("num_chains", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_unconstrained_starts_are_constrained_for_blocks_that_want_that(num_chains):
    start = nets.weights(model, *DATA)
    starts = {site: jnp.stack([value] * num_chains) for site, value in start.items()}
    mcmc = quiet(composition(unchanged), 0, 2, num_chains)
    # A block that leaves its sites as they are is named.
    with pytest.warns(UserWarning, match="all draws of the block of tau are the same"):
        mcmc.run(jax.random.key(0), *DATA, init_params=starts)
    tau = mcmc.get_samples(group_by_chain=True)["tau"]
    np.testing.assert_allclose(tau, np.exp(starts["tau"])[:, None] * np.ones(2), rtol=1e-5)
