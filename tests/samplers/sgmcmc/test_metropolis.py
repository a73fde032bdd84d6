"""Metropolis corrections: the ratio against transition densities, the draws against quantiles.

The energy is exp(y) - y, so that exp(y) has a Gamma distribution at every temperature: skewed, with one
steep and one flat side, its quantiles known. Gradients come from minibatches of two "data", far
enough apart that an uncorrected sampler is visibly wrong.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import one_step
from scipy import stats

from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Settings,
    accept_or_reject,
    langevin_work,
    log_acceptance,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import (
    Amagold,
    Langevin,
    RandomWalkProposal,
    Splitting,
)


def energy(y):
    return jnp.sum(jnp.exp(y) - y)


def minibatch_gradient(y, batch):
    """Unbiased over batch = 0, 1: the mean is exp(y) - 1."""
    return jnp.where(batch == 0, 1.6, 0.4) * jnp.exp(y) - jnp.where(batch == 0, 0.5, 1.5)


def exact_quantiles(temperature, probabilities):
    return np.log(stats.gamma(1 / temperature, scale=temperature).ppf(probabilities))


def normal_logpdf(x, mean, sd):
    return stats.norm(np.asarray(mean), np.asarray(sd)).logpdf(np.asarray(x)).sum()


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("method", ["amagold", "BAOAB", "ABOBA", "OBABO"])
def test_work_is_the_ratio_of_momentum_densities_over_a_trajectory(method):
    """Positions move by shears, so the density of a step is that of its momenta."""
    h, temperature, w, friction = 0.6, 0.7, 1.7, 0.9
    settings = Settings(h, temperature, w, friction)
    dynamics = Amagold() if method == "amagold" else Splitting(method, metropolis=True)
    batches, noises = (0, 1, 1, 0), (0.3, -1.1, 0.8)
    sd = np.sqrt(temperature / w)

    def log_target(y, p):
        return -(energy(y) + 0.5 * w * p**2) / temperature

    def friction_ratio(before, after, time=h):
        # Density of the exact friction step both ways, momenta reversed on the way back.
        c = np.exp(-friction * time)
        noise_sd = np.sqrt(1 - c**2) * sd
        return normal_logpdf(-before, -c * after, noise_sd) - normal_logpdf(
            after, c * before, noise_sd
        )

    def amagold_ratio(before, after, gradient):
        b = 0.5 * friction * h
        noise_sd = np.sqrt(4 * b * temperature / w) / (1 + b)
        forward = ((1 - b) * before - h * gradient) / (1 + b)
        backward = (-(1 - b) * after - h * gradient) / (1 + b)
        return normal_logpdf(-before, backward, noise_sd) - normal_logpdf(after, forward, noise_sd)

    y, p = jnp.asarray(0.4), jnp.asarray(-0.8)
    first = minibatch_gradient(y, batches[0])
    state = DynamicsState(
        y, p, gradient=first if dynamics.reuses_gradient else None, work=jnp.zeros(())
    )
    ratio = 0.0
    for batch, xi in zip(batches[1:], noises, strict=True):
        before = state
        noise = (jnp.asarray(xi), jnp.asarray(0.5 - xi))[: dynamics.num_noises]
        end = one_step(
            dynamics, state, noise, lambda x, b=batch: minibatch_gradient(x, b), settings
        )
        if method == "amagold":
            middle = before.position + 0.5 * h * w * before.momentum
            gradient = minibatch_gradient(middle, batch)
            ratio += amagold_ratio(before.momentum, end.momentum, gradient)
        elif method == "BAOAB":
            inner = before.momentum - 0.5 * h * before.gradient
            outer = end.momentum + 0.5 * h * end.gradient
            ratio += friction_ratio(inner, outer)
        elif method == "OBABO":
            keep = np.exp(-friction * h / 2)
            inner = keep * before.momentum + np.sqrt(1 - keep**2) * sd * noise[0]
            outer = (end.momentum - np.sqrt(1 - keep**2) * sd * noise[1]) / keep
            ratio += friction_ratio(before.momentum, inner, h / 2)
            ratio += friction_ratio(outer, end.momentum, h / 2)
        else:
            gradient = minibatch_gradient(before.position + 0.5 * h * w * before.momentum, batch)
            ratio += friction_ratio(
                before.momentum - 0.5 * h * gradient, end.momentum + 0.5 * h * gradient
            )
        state = end
    ratio += log_target(state.position, state.momentum) - log_target(y, p)
    change = energy(state.position) - energy(y) + state.work
    assert abs(ratio) > 0.1
    np.testing.assert_allclose(-change / temperature, ratio, rtol=1e-10)


@pytest.mark.usefixtures("double_precision")
def test_langevin_work_is_the_ratio_of_proposal_densities():
    epsilon, temperature = 0.5, 0.7
    rng = np.random.default_rng(0)
    y, z, g, k, w = (
        {"a": jnp.asarray(rng.uniform(0.5, 2.0, 3)), "b": jnp.asarray(rng.uniform(0.5, 2.0))}
        for _ in range(5)
    )
    settings = Settings(epsilon, temperature, w)

    def log_density(to, start, gradient):
        return sum(
            normal_logpdf(
                to[key],
                start[key] - 0.5 * epsilon * w[key] * gradient[key],
                np.sqrt(epsilon * temperature * w[key]),
            )
            for key in to
        )

    expected = log_density(z, y, g) - log_density(y, z, k)
    work = langevin_work(y, g, z, k, settings)
    np.testing.assert_allclose(work / temperature, expected, rtol=1e-10)
    # The same number as that of a leapfrog step from a new momentum, h^2 = epsilon.
    leapfrog = Splitting("BAB", metropolis=True)
    h = np.sqrt(epsilon)
    p = jax.tree.map(lambda a, b, c, m: ((b - a) / m + 0.5 * epsilon * c) / h, y, z, g, w)
    start = DynamicsState(y, p, gradient=g, work=jnp.zeros(()))
    end = one_step(leapfrog, start, (), lambda x: k, settings._replace(step_size=h))
    np.testing.assert_allclose(end.position["a"], z["a"], rtol=1e-12)
    np.testing.assert_allclose(end.work, work, rtol=1e-10)


CHAINS = 10_000
PROBABILITIES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98])


def assert_draws(draws, temperature):
    """Fractions below the exact quantiles, within 5 standard errors: draws are independent."""
    below = np.mean(np.asarray(draws)[:, None] < exact_quantiles(temperature, PROBABILITIES), 0)
    error = np.sqrt(PROBABILITIES * (1 - PROBABILITIES) / len(draws))
    assert np.all(np.abs(below - PROBABILITIES) < 5 * error), (below - PROBABILITIES) / error


def run_chains(transition, start, num_transitions, seed=0):
    @jax.jit
    @jax.vmap
    def chain(key):
        keys = jax.random.split(key, num_transitions)
        state, accepted = jax.lax.scan(transition, start, keys)
        return state.position, jnp.mean(accepted)

    positions, accepted = chain(jax.random.split(jax.random.key(seed), CHAINS))
    return np.asarray(positions), float(jnp.mean(accepted))


@pytest.mark.parametrize(
    ("method", "temperature"),
    [
        ("mala", 1.0),
        ("random_walk", 0.5),
        pytest.param("mala", 0.5, marks=pytest.mark.slow),
        pytest.param("random_walk", 1.0, marks=pytest.mark.slow),
    ],
)
def test_corrected_proposals_are_exact(method, temperature):
    settings = Settings(1.2, temperature, 1.5)
    dynamics = Langevin() if method == "mala" else RandomWalkProposal()

    def transition(state, key):
        noise_key, accept_key = jax.random.split(key)
        slope = jax.grad(energy)
        gradient = slope(state.position)
        noises = (jax.random.normal(noise_key),)
        proposal = dynamics.complete(state, gradient, noises, settings)
        error = energy(proposal.position) - energy(state.position)
        if method == "mala":
            new = slope(proposal.position)
            error += langevin_work(state.position, gradient, proposal.position, new, settings)
        accept = jnp.log(jax.random.uniform(accept_key)) < log_acceptance(error, temperature)
        return accept_or_reject(accept, proposal, state), accept

    draws, accepted = run_chains(transition, DynamicsState(jnp.zeros(())), 100)
    assert 0.2 < accepted < 0.9
    assert_draws(draws, temperature)


def test_acceptance_at_the_edges():
    np.testing.assert_allclose(log_acceptance(3.0, 2.0), -1.5)
    assert log_acceptance(-3.0, 2.0) == 0.0
    assert log_acceptance(np.nan, 1.0) == -np.inf
    assert log_acceptance(np.inf, 1.0) == -np.inf
    assert log_acceptance(1e-3, 0.0) == -np.inf
    assert log_acceptance(0.0, 0.0) == 0.0


def test_a_rejection_turns_the_momentum_and_forgets_the_work():
    start = DynamicsState(jnp.ones(2), jnp.ones(2), gradient=jnp.ones(2), work=jnp.asarray(0.0))
    end = DynamicsState(jnp.zeros(2), 2 * jnp.ones(2), gradient=jnp.zeros(2), work=jnp.asarray(5.0))
    kept = accept_or_reject(False, end, start)
    np.testing.assert_array_equal(kept.position, 1.0)
    np.testing.assert_array_equal(kept.momentum, -1.0)
    np.testing.assert_array_equal(kept.gradient, 1.0)
    taken = accept_or_reject(True, end, start)
    np.testing.assert_array_equal(taken.momentum, 2.0)
    assert kept.work == taken.work == 0.0
