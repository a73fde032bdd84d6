"""Metropolis rules, which accept or reject proposals and so make a sampler exact at any step size.

A rule is an ingredient of a kernel: its :meth:`Metropolis.decide` makes a proposal and accepts or
rejects it. :func:`propose` judges one step (MALA, random walk, SGLD with ``accept=``);
:func:`trajectory` judges several, by the change of the energy plus the work that the dynamics summed up
(GGMC, AMAGOLD, HMC). :class:`~numpyro_bnn.samplers.sgmcmc.accept_windows.WindowedMetropolis` compares windows
of states at both ends.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_bnn._types import Number, PyTree
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Settings,
    accept_or_reject,
    langevin_work,
    log_acceptance,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.noise import normals_like


@dataclass(frozen=True)
class Metropolis:
    """A rule that makes proposals and accepts or rejects them.

    :param num_steps: steps of a trajectory; the most that it may have where a length is given.
    :param trajectory_length: mean duration of a trajectory, in the units of the step size; the
        number of steps is then drawn for each, uniformly between 1 and twice the mean, so that no direction
        always returns to its start.
    :param exact: whether the decision uses the energy on all rows; otherwise it uses that of the minibatch,
        which makes the sampler biased.
    :param caches_gradient: whether the gradient at the position is kept between proposals.
    :param needs_all_rows: whether the rule is correct only with gradients on all rows.
    """

    num_steps: int = 1
    exact: bool = True
    caches_gradient: bool = False
    trajectory_length: float | None = None
    needs_all_rows: bool = False

    def decide(self, begin: "ProposalInputs") -> "Decision":
        """Make a proposal and accept or reject it."""
        judge = trajectory if begin.method.tracks_work else propose
        return judge(self, begin)

    def draw_num_steps(self, key: jax.Array, step_size: Number) -> jax.Array:
        """The number of steps of one trajectory."""
        if self.trajectory_length is None:
            return jnp.asarray(self.num_steps)
        most = 2 * self.trajectory_length / step_size
        steps = jnp.ceil(jax.random.uniform(key) * most)
        return jnp.clip(steps, 1, self.num_steps).astype(int)


class ProposalInputs(NamedTuple):
    """The inputs of a Metropolis decision: the state of the chain and the ingredients that move it."""

    method: Dynamics  # Dynamics that make the proposal
    gradient: Estimator  # Estimator of the gradient
    rows: Rows  # Potential energy on all rows or some of them
    state: DynamicsState  # State of the dynamics before the proposal
    energy: jax.Array  # U at its position, in nats
    estimator: PyTree  # State of the gradient estimator
    settings: Settings  # Step size, temperature, metric
    key: jax.Array  # For the noise of the proposal and for the decision


class Decision(NamedTuple):
    """The state of a chain after a Metropolis decision."""

    # States of the dynamics and of the gradient estimator.
    dynamics: DynamicsState
    estimator: PyTree
    energy: jax.Array  # U at the position
    gradient: PyTree  # The last gradient computed; None for methods without gradients
    accept_prob: jax.Array  # Acceptance probability of the proposal
    # Whether the proposal was accepted, so that the gradient belongs to the position.
    accepted: jax.Array
    num_steps: jax.Array | int = 1  # Steps of the proposal


def propose(rule: Metropolis, begin: ProposalInputs) -> Decision:
    """Propose by one step of the dynamics, and accept or reject it."""
    # The same rows are used at both ends, so the densities of the proposal and of its reverse
    # are known given the rows; the energy on all rows makes the decision exact.
    method, gradient, rows, state, energy, estimator, settings, key = begin
    key_noise, key_accept = jax.random.split(key)
    noises = normals_like(key_noise, method.num_noises, state.position)
    if not method.uses_gradient:
        end = method.complete(state, None, noises, settings)
        end_energy = rows.energy(end.position)
        return _decide(key_accept, begin, end, end_energy, end_energy - energy, None, estimator)
    if rule.caches_gradient:
        here, after = state.gradient, estimator
    else:
        first = gradient.estimate(rows, state.position, estimator)
        here, after = first.gradient, first.state
    end = method.complete(state, here, noises, settings)
    there = gradient.estimate(rows, end.position, estimator)
    if rule.caches_gradient:
        end = end._replace(gradient=there.gradient)
    end_energy, change = there.value, there.value - energy
    if not rule.caches_gradient:
        if rule.exact:
            end_energy = rows.energy(end.position)
            change = end_energy - energy
        else:
            change = there.value - first.value
    work = langevin_work(state.position, here, end.position, there.gradient, settings)
    return _decide(key_accept, begin, end, end_energy, change + work, there.gradient, after)


def trajectory(rule: Metropolis, begin: ProposalInputs) -> Decision:
    """Propose by a trajectory, and accept or reject it; a rejection reverses the momentum."""
    method, gradient, rows, state, energy, estimator, settings, key = begin
    key_steps, key_accept, key_length = jax.random.split(key, 3)
    count = rule.draw_num_steps(key_length, settings.step_size)

    def step(i: jax.Array, carry: tuple) -> tuple:
        state, estimator, *_ = carry
        noises = normals_like(jax.random.fold_in(key_steps, i), method.num_noises, state.position)
        state = method.advance(state, noises, settings)
        estimate = gradient.estimate(rows, state.position, estimator)
        state = method.complete(state, estimate.gradient, noises, settings)
        new = (state, estimate.state, estimate.value, estimate.gradient)
        return jax.tree.map(_as, carry, new)

    real = energy.dtype
    like = jax.tree.map(jnp.zeros_like, state.position)
    carry = (state, estimator, jnp.zeros((), real), like)
    end, estimator, value, last = lax.fori_loop(0, count, step, carry)
    # A splitting that ends with a kick already has gradient and energy at the end of the trajectory.
    known = method.reuses_gradient and gradient.batch_size is None
    end_energy = value if known else jnp.asarray(rows.energy(end.position), real)
    change = end_energy - energy + end.work
    decision = _decide(key_accept, begin, end, end_energy, change, last, estimator)
    return decision._replace(num_steps=count)


def _as(old: jax.Array, new: jax.Array) -> jax.Array:
    return jnp.asarray(new, jnp.result_type(old))


def _decide(
    key: jax.Array,
    begin: ProposalInputs,
    end: DynamicsState,
    end_energy: jax.Array,
    energy_error: jax.Array,
    gradient: PyTree,
    estimator: PyTree,
) -> Decision:
    """Accept the end of a proposal with the probability given by its energy error, in nats."""
    log_accept = log_acceptance(energy_error, begin.settings.temperature)
    accept = jnp.log(jax.random.uniform(key, dtype=log_accept.dtype)) < log_accept
    state = accept_or_reject(accept, end, begin.state)
    kept = jnp.where(accept, end_energy, begin.energy)
    return Decision(state, estimator, kept, gradient, jnp.exp(log_accept), accept)
