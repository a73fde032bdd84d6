"""One step of a chain, in which all ingredients of a kernel work together.

:func:`unadjusted_step` advances the dynamics to the position where a gradient is needed, computes it, and
completes the step. :func:`adjusted_step` leaves proposal and decision to a Metropolis rule. Both update
preconditioner and tuning in warm-up; :func:`learned_metric` rescales momenta to a new metric.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.flat_position import normal_like, normals_like
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.accept import ProposalInputs
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Settings,
    kick,
    rescaled,
    temperature_along,
    where_needed,
)
from numpyro_bnn.samplers.sgmcmc.gradients import learned_noise
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState, record
from numpyro_bnn.samplers.sgmcmc.tuning import Ingredients


def learned_metric(
    parts: Ingredients,
    rows: Rows,
    before: SGMCMCState,
    dynamics: DynamicsState,
    gradient: PyTree,
    curvature: PyTree = None,
) -> tuple[PyTree, DynamicsState]:
    """Update the preconditioner by a gradient at the position, and rescale the momentum to the new metric."""
    # `curvature`, the diagonal of the Hessian, is for a metric that changes after warm-up too.
    metric, state = parts.preconditioner, before.preconditioner
    warming = before.i < before.num_warmup
    if getattr(metric, "data_size", 0) is None and rows.size:
        metric = dataclasses.replace(metric, data_size=rows.size)  # type: ignore[type-var]
    learned = metric.update(state, gradient, dynamics.position, warming, curvature)
    if dynamics.momentum is None or not metric.needs_warmup:
        return learned, dynamics
    old, new = metric.inverse_mass_matrix(state), metric.inverse_mass_matrix(learned)
    momentum = where_needed(
        warming, lambda: rescaled(dynamics.momentum, old, new), dynamics.momentum
    )
    return learned, dynamics._replace(momentum=momentum)


def conditioned(metric: Preconditioner, state: PyTree, rows: Rows) -> PyTree:
    """The state of a preconditioner, computed from the values that Gibbs holds fixed."""
    update = getattr(metric, "after_gibbs", None)
    return state if update is None else update(rows.potential, state)


def reconditioned(
    metric: Preconditioner, state: PyTree, rows: Rows, momentum: PyTree
) -> tuple[PyTree, PyTree]:
    """State of a preconditioner, and momentum, after Gibbs has changed the values of other blocks."""
    after = conditioned(metric, state, rows)
    if momentum is None or after is state:
        return after, momentum
    old, new = metric.inverse_mass_matrix(state), metric.inverse_mass_matrix(after)
    return after, rescaled(momentum, old, new)


def refresh_momentum(parts: Ingredients, state: SGMCMCState) -> SGMCMCState:
    """The state with a new momentum, where the kernel renews momenta."""
    if parts.resample_momentum is None:
        return state
    rng_key, key = jax.random.split(state.rng_key)
    settings = parts.settings(state.count, state.adaptation, state.preconditioner)
    dynamics = state.dynamics
    noise = normal_like(key, dynamics.momentum)
    momentum = parts.resample_momentum(parts.dynamics, dynamics, noise, settings, state.i)
    return state._replace(dynamics=dynamics._replace(momentum=momentum), rng_key=rng_key)


def unadjusted_step(parts: Ingredients, rows: Rows, state: SGMCMCState) -> SGMCMCState:
    """One step without a Metropolis decision: advance, estimate the gradient, complete."""
    # A step that completes its kicks first takes back half a kick by the gradient that it
    # kicks with: the half that is left belongs to this step.
    rng_key, key, key_probe = jax.random.split(state.rng_key, 3)
    warming = state.i < state.num_warmup
    noises = normals_like(key, parts.dynamics.num_noises, state.dynamics.position)
    settings = parts.settings(state.count, state.adaptation, state.preconditioner)
    dynamics = parts.dynamics.advance(state.dynamics, noises, settings)
    at = dynamics.position
    estimate = parts.gradient.estimate(rows, at, state.estimator)
    if parts.completes_kicks:
        dynamics = half_kick(parts, dynamics, estimate.gradient, settings, -1)

    def product(vector: PyTree) -> PyTree:
        """The derivative of the gradient estimate in a direction, which no anchor changes."""
        again = partial(parts.gradient.again, rows, state=state.estimator)
        return jax.jvp(lambda z: again(z).gradient, (at,), (vector,))[1]

    curvature = None
    if parts.preconditioner.varies:
        # Unbiased estimate of the diagonal of the Hessian, by one product with random signs.
        probe = jax.tree.map(lambda x: jnp.where(x < 0, -1.0, 1.0), normal_like(key_probe, at))
        curvature = jax.tree.map(jnp.multiply, probe, product(probe))
    # The momentum is not yet kicked by this gradient. Only draws of minibatches keep this temperature.
    along = state.gradient_temperature
    if parts.dynamics.has_momentum and not parts.all_rows:
        metric = settings.inverse_mass_matrix
        along = temperature_along(estimate.gradient, dynamics.momentum, metric).astype(along.dtype)
    learned, dynamics = learned_metric(parts, rows, state, dynamics, estimate.gradient, curvature)
    metric = parts.preconditioner.inverse_mass_matrix(learned)
    tuned = parts.tuning.at_gradient(parts, state.adaptation, product, metric, warming)
    if tuned.noise is not None:
        noise = learned_noise(
            tuned.noise, parts.gradient, rows, at, estimate, state.i, state.num_warmup
        )
        tuned = tuned._replace(noise=noise)
    settings = parts.settings(state.count, tuned, learned)
    dynamics = parts.dynamics.complete(dynamics, estimate.gradient, noises, settings)
    after = record(state, dynamics, estimate.value, estimate.gradient, at, settings)._replace(
        estimator=estimate.state,
        preconditioner=learned,
        adaptation=tuned,
        gradient_temperature=along,
        count=state.count + ~warming,
        rng_key=rng_key,
    )
    if parts.completes_kicks:
        # The estimator does not move on: the next step begins with the same minibatch.
        end = parts.gradient.estimate(rows, dynamics.position, estimate.state)
        dynamics = half_kick(parts, dynamics, end.gradient, settings, 1)
        after = after._replace(dynamics=dynamics)
    if parts.dynamics.tracks_work:
        work, now = after.dynamics.work, after.potential_energy
        error = (now - state.potential_energy + work).astype(state.energy_error.dtype)
        dynamics = after.dynamics._replace(work=jnp.zeros_like(work))
        after = after._replace(dynamics=dynamics, energy_error=error)
    return parts.tuning.after_step(parts, state, after)


def half_kick(
    parts: Ingredients, state: DynamicsState, gradient: PyTree, settings: Settings, sign: int
) -> DynamicsState:
    """The state with its momentum kicked for the part of a step that is pending, or back (`sign` -1)."""
    time = sign * parts.dynamics.pending_kick * jnp.asarray(settings.step_size)
    return state._replace(momentum=kick(state.momentum, gradient, time))


def adjusted_step(parts: Ingredients, rows: Rows, state: SGMCMCState) -> SGMCMCState:
    """A proposal or a trajectory, accepted or rejected."""
    assert parts.metropolis is not None
    rng_key, key = jax.random.split(state.rng_key)
    warming = state.i < state.num_warmup
    settings = parts.settings(state.count, state.adaptation, state.preconditioner)
    before = state.dynamics, state.potential_energy, state.estimator
    inputs = ProposalInputs(parts.dynamics, parts.gradient, rows, *before, settings, key)
    result = parts.metropolis.decide(inputs)
    dynamics, gradient = result.dynamics, result.gradient
    learned = state.preconditioner
    if gradient is not None:
        learned, dynamics = learned_metric(parts, rows, state, dynamics, gradient)
    seen = jnp.where(warming, state.i, state.count) + 1
    mean = state.mean_accept_prob + (result.accept_prob - state.mean_accept_prob) / seen
    after = record(state, dynamics, result.energy, gradient, dynamics.position, settings)
    # After a rejection the last gradient is not that of the chain's position.
    configurational = jax.tree.map(
        partial(jnp.where, result.accepted), after.configurational, state.configurational
    )
    after = after._replace(
        estimator=result.estimator,
        preconditioner=learned,
        accept_prob=result.accept_prob,
        mean_accept_prob=mean,
        num_steps=jnp.asarray(result.num_steps, jnp.int32),
        count=state.count + ~warming,
        rng_key=rng_key,
        configurational=configurational,
    )
    return parts.tuning.after_step(parts, state, after)
