"""A second sampler agrees with a sound run and parts from a biased one."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from nets import Linear
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn.pipeline import _higher

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
Y = (X @ np.array([1.0, -0.5]) + 0.5 * RNG.normal(size=40)).astype(np.float32)


def model(x, y=None):
    net = bnn.random_module("net", Linear(), bnn.priors.Normal(1.0), x[:1])
    with numpyro.plate("data", x.shape[0]):
        mean = net(numpyro.subsample(x, event_dim=1))
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=target)


def run(kernel, num_samples=500, thinning=1):
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=300,
        num_samples=num_samples,
        thinning=thinning,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, Y)
    return mcmc


def test_two_samplers_of_one_posterior_agree():
    report = bnn.second_opinion(run(NUTS(model)), progress_bar=False)
    assert report.second.agrees, report.second.worst
    assert report.second.num_compared == 4 * 2 * len(X)
    assert "A second run agrees" in report.explanation


def test_a_biased_sampler_is_caught_although_its_chains_agree():
    """SGLD near the limit of stability: variances up to twice too large, with perfect R-hat."""
    largest = np.linalg.eigvalsh(4.0 * X.T @ X + np.eye(2))[-1]
    kernel = bnn.SGLD(model, step_size=1.5 / float(largest))
    biased = run(kernel, num_samples=10_000, thinning=10)
    report = bnn.second_opinion(biased, X[:10], num_samples=1000, progress_bar=False)
    assert report.predictions.max_rhat < 1.01
    assert not report.second.agrees
    assert "A second run parts from this one" in report.explanation


def test_the_second_sampler_looks_closer():
    assert _higher(NUTS(model)) == 0.95
    assert _higher(NUTS(model, target_accept_prob=0.97)) == 0.99
    assert _higher(bnn.BAOAB(model, step_size=0.1)) == 0.95


def test_errors_say_what_to_give():
    fresh = bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1)
    with pytest.raises(ValueError, match=r"numpyro_bnn\.MCMC after `run`, got MCMC before"):
        bnn.second_opinion(fresh)
    with pytest.raises(ValueError, match=r"got dict\. To compare finished runs use diagnose"):
        bnn.second_opinion({"a": jnp.zeros((1, 2))})
    of_potential = bnn.MCMC(
        bnn.MALA(potential_fn=lambda z: jnp.sum(z**2), step_size=0.1),
        num_warmup=1,
        num_samples=2,
        progress_bar=False,
    )
    of_potential.run(jax.random.key(0), init_params=jnp.zeros(2))
    with pytest.raises(ValueError, match="MALA carries no model to sample again"):
        bnn.second_opinion(of_potential)
