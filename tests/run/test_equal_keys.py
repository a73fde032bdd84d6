"""Chains of one key are one chain: their agreement is no evidence, and `run` refuses them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from numpyro_bnn import schedules

Y = jnp.arange(3.0)


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def run(kernel, keys, num_chains, **options):
    settings = {"num_warmup": 2, "num_samples": 4, "progress_bar": False}
    mcmc = bnn.MCMC(kernel, num_chains=num_chains, **(settings | options))
    mcmc.run(keys, Y)
    return mcmc.get_samples(group_by_chain=True)["mean"]


KERNELS = {
    "NUTS": lambda: NUTS(model),
    "HMC": lambda: HMC(model),
    "SGLD": lambda: bnn.SGLD(model, step_size=0.01),
    "BAOAB": lambda: bnn.BAOAB(model, step_size=0.01, temperature=0.5),
    "cools": lambda: bnn.SGLD(
        model, step_size=0.01, temperature=optax.linear_schedule(0.0, 1.0, 3)
    ),
    "ParallelTempering": lambda: bnn.ParallelTempering(model, num_rungs=2),
}


def typed(*seeds):
    return jax.vmap(jax.random.key)(jnp.array(seeds))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("keys", "first", "second"),
    [
        (typed(1, 2, 1), 0, 2),
        (typed(3, 4, 4, 4), 1, 2),
        (jax.random.key_data(typed(5, 5)), 0, 1),
        (np.asarray(jax.random.key_data(typed(6, 5, 6))), 0, 2),
    ],
    ids=["two", "three", "old style", "NumPy"],
)
@pytest.mark.parametrize("method", ["parallel", "vectorized"])
def test_equal_keys_are_refused(name, keys, first, second, method):
    message = f"chains {first} and {second} have the same random key.*split\\(key, {len(keys)}\\)"
    with pytest.raises(ValueError, match=message):
        run(KERNELS[name](), keys, len(keys), chain_method=method)


def test_keys_of_their_own_are_taken_and_another_run_may_have_them():
    keys = typed(1, 2)
    mcmc = bnn.MCMC(
        KERNELS["SGLD"](), num_warmup=2, num_samples=4, num_chains=2, progress_bar=False
    )
    draws = []
    for given in (keys, keys, jax.random.key_data(keys)):
        mcmc.run(given, Y)
        draws.append(mcmc.get_samples(group_by_chain=True)["mean"])
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], draws[2])
    assert np.all(draws[0][0] != draws[0][1])


@pytest.mark.parametrize(
    "temperature", [0.0, pytest.param(0, marks=pytest.mark.slow), schedules.constant(0.0)]
)
def test_chains_that_only_descend_may_be_equal(temperature):
    draws = run(bnn.SGLD(model, step_size=0.01, temperature=temperature), typed(1, 1), 2)
    np.testing.assert_array_equal(draws[0], draws[1])
