"""Averages over many draws, to the digits that the draws have."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.posterior.exported import _averaged

X = np.zeros((2, 1), np.float32)
RNG = np.random.default_rng(0)

far = row_model(lambda x, mean: dist.Normal(mean + x[:, 0], 0.1), mean=dist.Normal(1000.0, 100.0))
sure = row_model(lambda x, logit: dist.Bernoulli(logits=logit + x[:, 0]), logit=dist.Normal())

MEANS = np.float32(1013.2 + 0.02 * RNG.normal(size=(4, 10_000)))
LOGITS = np.float32(5.0 + 0.1 * RNG.normal(size=(4, 10_000)))


def test_a_mean_that_is_far_from_zero_keeps_its_digits():
    """In single precision the sum of these draws is off by many Monte Carlo errors, 0.0001."""
    found = bnn.average(bnn.predict(far, {"mean": MEANS}, X))
    np.testing.assert_allclose(found.mean, MEANS.mean(dtype=np.float64), rtol=0, atol=1e-6)
    within = np.hypot(0.1, MEANS.std(dtype=np.float64))
    np.testing.assert_allclose(found.sd, within, rtol=1e-5)


def test_probabilities_add_up_to_one():
    exact = 1 / (1 + np.exp(-LOGITS.astype(np.float64))).ravel()
    found = bnn.average(bnn.predict(sure, {"logit": LOGITS}, X))
    np.testing.assert_allclose(found[0], [1 - exact.mean(), exact.mean()], rtol=1e-5)


@pytest.mark.parametrize("count", [1, 7, 40_000])
def test_exported_programs_average_alike(count):
    means, probs = MEANS.reshape(-1)[:count], RNG.uniform(0.9, 1.0, (count, 3)).astype(np.float32)
    scale = jnp.full(count, 0.5)
    found = jax.jit(_averaged)({"mean": jnp.asarray(means), "scale": scale})
    exact = means.astype(np.float64)
    np.testing.assert_allclose(found["mean"], exact.mean(), rtol=1e-7)
    np.testing.assert_allclose(found["sd"], np.hypot(0.5, exact.std()), rtol=1e-5)
    found = jax.jit(_averaged)({"probs": jnp.asarray(probs)})
    np.testing.assert_allclose(found["probs"], probs.mean(0, dtype=np.float64), rtol=3e-7)
