"""Relevance of inputs against closed forms of a linear model."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.cli.job_report import relevance

SCALE = 0.5


def _linear(x, y=None):
    slopes = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x @ slopes, SCALE), obs=y)


def test_the_fall_is_that_of_a_linear_model():
    """Shuffling column j adds w² · 2 Var(x) to the squared error: the fall is w² Var(x) / scale²."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32)
    slopes = np.array([0.0, 0.3, 0.6])
    y = (x @ slopes + SCALE * rng.normal(size=4000)).astype(np.float32)
    draws = bnn.Draws({"w": np.tile(slopes.astype(np.float32), (2, 60, 1))}, _linear)
    groups = [("none", [0]), ("some", [1]), ("much", [2]), ("both", [1, 2])]
    found = relevance(draws, x, y, groups, num_shuffles=5)
    assert [one.name for one in found] == ["none", "some", "much", "both"]
    assert found[0].drop == pytest.approx(0, abs=1e-5)
    for one, size in zip(found[1:], (0.09, 0.36, 0.45)):
        # Shuffles of the same rows share their errors: the error over rows is the larger part.
        assert abs(one.drop - size / SCALE**2) < 4 * one.error
        assert 0 < one.error < 0.2 * one.drop
    assert relevance(draws, x, y, groups[1:2], num_shuffles=5) == found[1:2]
