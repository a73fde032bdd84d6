"""The kinetic temperature along gradients shows heat in one direction, which a mean over weights hides."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from quiet import together
from scipy.linalg import solve_discrete_lyapunov

import numpyro_bnn as bnn
from numpyro_bnn import gradients
from numpyro_bnn.diagnostics.sampler_stats import read, warnings_of
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import temperature_along

WEIGHTS, ROWS, BATCH, STEP, FRICTION = 200, 50, 5, 0.02, 5.0
CHAINS, DRAWS = 16, 120
# Of the prior: so wide that the gradient has hardly a part across the noise.
WIDE = 10.0
Y = 3 * np.random.default_rng(0).normal(size=ROWS).astype(np.float32)


def model(y):
    """All rows have one feature, the mean of the weights times √D: noise of minibatches has one direction."""
    weights = numpyro.sample("w", dist.Normal(0.0, WIDE).expand([WEIGHTS]).to_event(1))
    with numpyro.plate("rows", len(y)):
        y = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(weights.sum() / np.sqrt(WEIGHTS), 1.0), obs=y)


@cache
def stats_of(gradient):
    kernel = bnn.BAOAB(model, step_size=STEP, friction=FRICTION, gradient=gradient)
    run = together(kernel, 200, 10 * DRAWS, CHAINS, thinning=10)
    # From the posterior, but for the one direction that the data determine.
    start = WIDE * np.random.default_rng(2).normal(size=(CHAINS, WEIGHTS))
    start += Y.mean() / np.sqrt(WEIGHTS) - start.mean(1, keepdims=True)
    run.run(jax.random.key(0), Y, init_params={"w": jnp.asarray(start, jnp.float32)})
    return {name: np.asarray(value) for name, value in draws_of(run).stats.items()}


def exact(noise):
    """Variance of the momentum before the kick, along the feature: the chain is linear there.

    :param noise: variance of the gradient.
    """
    keep = np.exp(-FRICTION * STEP)
    curvature, half = ROWS + WIDE**-2, STEP / 2
    # The kick; then half a drift, friction, half a drift. Columns: position, momentum.
    kick = np.array([[1.0, 0.0], [-STEP * curvature, 1.0]])
    drift = np.array([[1.0, half], [0.0, 1.0]])
    friction = np.diag([1.0, keep])
    rest = drift @ friction @ drift
    kicked, damped = rest @ np.array([0.0, STEP]), drift @ np.array([0.0, np.sqrt(1 - keep**2)])
    added = noise * np.outer(kicked, kicked) + np.outer(damped, damped)
    return solve_discrete_lyapunov(rest @ kick, added)[1, 1]


@pytest.mark.parametrize(
    ("gradient", "noise"),
    [
        (gradients.minibatch(BATCH, "replacement"), ROWS**2 / BATCH * float(Y.var())),
        (gradients.svrg(BATCH, order="replacement"), 0.0),
    ],
    ids=["minibatch", "svrg"],
)
def test_it_is_that_of_the_momentum_along_the_noise(gradient, noise):
    """Within 5 Monte Carlo errors over chains; the mean over weights is right in both cases."""
    stats = stats_of(gradient)
    by_chain = stats["gradient_temperature"].mean(1)
    error = by_chain.std(ddof=1) / np.sqrt(CHAINS)
    right = exact(noise)
    assert (right > 7) == (noise > 0)
    assert error < 0.05 * right
    assert abs(by_chain.mean() - right) < 5 * error
    assert abs(stats["kinetic_temperature"].mean() - 1) < 0.1


def test_a_report_complains_of_shared_noise():
    shape = (CHAINS, DRAWS)
    said = warnings_of(read(stats_of(gradients.minibatch(BATCH, "replacement")), shape))
    assert any("Along minibatch gradients the kinetic temperature is" in s for s in said)
    assert any("gradients.svrg" in s for s in said)


@pytest.mark.slow
def test_a_report_does_not_complain_of_svrg():
    stats = stats_of(gradients.svrg(BATCH, order="replacement"))
    assert not warnings_of(read(stats, (CHAINS, DRAWS)))


def test_along_any_direction_a_momentum_has_the_temperature():
    rng = np.random.default_rng(1)
    metric = {
        "a": jnp.asarray(rng.uniform(0.1, 3, 5)),
        "b": jnp.asarray(rng.uniform(0.1, 3, (2, 2))),
    }
    direction = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), metric)
    count, temperature = 4000, 2.5
    momentum = jax.tree.map(
        lambda w: np.sqrt(temperature / w) * rng.normal(size=(count, *w.shape)), metric
    )
    along = jax.jit(jax.vmap(lambda p: temperature_along(direction, p, metric)))
    found = along(momentum)
    # The square of a normal has the relative variance 2.
    assert abs(found.mean() / temperature - 1) < 5 * np.sqrt(2 / count)
    nothing = jax.tree.map(jnp.zeros_like, direction)
    assert jnp.isnan(temperature_along(nothing, metric, 1.0))


@pytest.mark.parametrize(
    ("along", "kinetic", "complains"),
    [(3.0, 1.0, True), (1.4, 1.0, False), (3.0, 1.6, False)],
    ids=["shared", "of the step", "all weights hot"],
)
def test_the_verdict_is_limited_where_only_the_gradients_are_hot(along, kinetic, complains):
    """Not by a step near the largest; where all weights are hot, that is said in its place."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 500, 3))
    stats = {
        "temperature": np.ones((4, 500)),
        "kinetic_temperature": kinetic + 0.05 * rng.normal(size=(4, 500)),
        "gradient_temperature": along * rng.chisquare(1, size=(4, 500)),
    }
    report = bnn.diagnostics.diagnose_draws({"w": draws}, draws, sample_stats=stats)
    assert any(s.startswith("Along minibatch") for s in report.sentences) == complains
    limited = complains or kinetic != 1.0
    assert (report.needed_by == "the temperature of the sampler") == limited
