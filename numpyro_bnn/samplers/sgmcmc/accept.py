"""Metropolis rules, which accept or reject proposals and so make a sampler exact at any step size.

A rule is an ingredient of a kernel: its :meth:`Metropolis.decide` makes a proposal and accepts or
rejects it. :func:`propose` judges one step (MALA, random walk, SGLD with ``accept=``);
:func:`trajectory` judges several, by the change of the energy plus the work that the dynamics summed up
(GGMC, AMAGOLD, HMC). :class:`WindowedMetropolis` compares windows of states at both ends.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_bnn._types import Number, PyTree
from numpyro_bnn.potential.flat_position import normals_like
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
        return jnp.clip(jnp.ceil(jax.random.uniform(key) * most), 1, self.num_steps).astype(int)


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
        return jax.tree.map(lambda old, now: jnp.asarray(now, jnp.result_type(old)), carry, new)

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


class _Window(NamedTuple):
    """A state drawn from the states seen so far in proportion to their weights."""

    log_weight: jax.Array  # of all of them
    energy: jax.Array
    state: DynamicsState

    def add(
        self, key: jax.Array, inside: Any, log_weight: Any, energy: Any, state: DynamicsState
    ) -> "_Window":
        """The window after one more state, which belongs to it only if `inside` is true."""
        log_weight = jnp.where(inside & jnp.isfinite(log_weight), log_weight, -jnp.inf)
        both = jnp.logaddexp(self.log_weight, log_weight)
        # While no state has any weight the difference is NaN, and no state is taken.
        taken = jnp.log(jax.random.uniform(key, dtype=both.dtype)) < log_weight - both

        def pick(new: Any, old: Any) -> jax.Array:
            return jnp.where(taken, new, old)

        return _Window(both, pick(energy, self.energy), jax.tree.map(pick, state, self.state))


def _reversed(state: DynamicsState) -> DynamicsState:
    return state._replace(momentum=jax.tree.map(jnp.negative, state.momentum))


@dataclass(frozen=True)
class WindowedMetropolis(Metropolis):
    """A rule that compares windows of states at both ends of a trajectory.

    A trajectory of L leapfrog steps is placed so that its start is one of its first W states, each equally
    likely. The first W states are the *reject window* and the last W the *accept window*; a window weighs the
    sum of exp(-H/T) over its states. The accept window is chosen with probability min(1, ratio of weights),
    and from the chosen window a state in proportion to its own weight. So a single bad state at the end does
    not reject the whole trajectory. The dynamics must take no noise of their own. Costs `num_steps` gradients
    on all rows. A rejection reverses the momentum.

    Source: R. M. Neal, *An improved acceptance procedure for the hybrid Monte Carlo algorithm*, J. Comp.
    Phys. 111 (1994).

    :param window: states at either end; 1 is plain HMC.
    """

    needs_all_rows: bool = True
    window: int = 1

    def decide(self, begin: ProposalInputs) -> Decision:
        """Run a trajectory, and draw the next state from the window at one of its ends."""
        method, gradient, rows, state, energy, estimator, settings, key = begin
        key_offset, key_back, key_ahead, key_accept = jax.random.split(key, 4)
        length, width = self.num_steps, self.window
        offset = jax.random.randint(key_offset, (), 0, width)
        start = state._replace(work=jnp.zeros_like(state.work))
        first = _Window(jnp.zeros_like(energy), energy, start)
        none = first._replace(log_weight=jnp.full_like(energy, -jnp.inf))

        def moved(state: DynamicsState, estimator: Any) -> tuple:
            state = method.advance(state, (), settings)
            estimate = gradient.estimate(rows, state.position, estimator)
            state = method.complete(state, estimate.gradient, (), settings)
            value = jnp.asarray(estimate.value, energy.dtype)
            log_weight = -(value - energy + state.work) / settings.temperature
            return state, estimate.state, value, log_weight

        def back(i: jax.Array, carry: tuple) -> tuple:
            state, estimator, window = carry
            state, estimator, value, log_weight = moved(state, estimator)
            key_state = jax.random.fold_in(key_back, i)
            window = window.add(key_state, True, log_weight, value, _reversed(state))
            return state, estimator, window

        def ahead(i: jax.Array, carry: tuple) -> tuple:
            state, estimator, rejected, accepted = carry
            state, estimator, value, log_weight = moved(state, estimator)
            keys = jax.random.split(jax.random.fold_in(key_ahead, i))
            place = offset + i + 1  # among the L + 1 states of the trajectory
            rejected = rejected.add(keys[0], place < width, log_weight, value, state)
            accepted = accepted.add(keys[1], place > length - width, log_weight, value, state)
            return state, estimator, rejected, accepted

        carry = (_reversed(start), estimator, first)
        _, estimator, rejected = lax.fori_loop(0, offset, back, carry)
        _, estimator, rejected, accepted = lax.fori_loop(
            0, length - offset, ahead, (start, estimator, rejected, none)
        )

        log_accept = jnp.minimum(accepted.log_weight - rejected.log_weight, 0.0)
        accept = jnp.log(jax.random.uniform(key_accept, dtype=log_accept.dtype)) < log_accept
        stay = rejected._replace(state=_reversed(rejected.state))
        chosen: _Window = jax.tree.map(lambda a, b: jnp.where(accept, a, b), accepted, stay)
        after = chosen.state._replace(work=jnp.zeros_like(state.work))
        # The gradient in the chosen state is always that of the new position.
        known = jnp.ones((), bool)
        return Decision(
            after, estimator, chosen.energy, after.gradient, jnp.exp(log_accept), known, length
        )
