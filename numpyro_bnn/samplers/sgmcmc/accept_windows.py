"""A Metropolis rule that compares windows of states in place of the end points of a trajectory.

A trajectory of L leapfrog steps is placed so that its start is one of its first W states, each
equally likely. The first W states are the *reject window* and the last W the *accept window*; a
window weighs the sum of exp(-H/T) over its states. The accept window is chosen with probability
min(1, ratio of the weights), and from the chosen window a state in proportion to its own weight.
So a single bad state at the end no longer rejects the whole trajectory.

Source: R. M. Neal, *An improved acceptance procedure for the hybrid Monte Carlo algorithm*, J. Comp.
Phys. 111 (1994).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_bnn.samplers.sgmcmc.accept import Decision, Metropolis, ProposalInputs
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import DynamicsState


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

    The dynamics must take no noise of their own. Costs `num_steps` gradients on all rows. A
    rejection reverses the momentum.

    :param window: states at either end; 1 is plain HMC.
    """

    needs_all_rows: bool = True
    window: int = 1

    def decide(self, begin: ProposalInputs) -> Decision:
        """Run a trajectory, and draw the next state from the window at one of its ends."""
        return _windowed(self, begin)


def _windowed(rule: WindowedMetropolis, begin: ProposalInputs) -> Decision:
    """Run the trajectory and decide; the gradient returned is that of the new position."""
    method, gradient, rows, state, energy, estimator, settings, key = begin
    key_offset, key_back, key_ahead, key_accept = jax.random.split(key, 4)
    length, width = rule.num_steps, rule.window
    offset = jax.random.randint(key_offset, (), 0, width)
    start = state._replace(work=jnp.zeros_like(state.work))
    first = _Window(jnp.zeros_like(energy), energy, start)
    none = first._replace(log_weight=jnp.full_like(energy, -jnp.inf))

    def moved(state: DynamicsState, estimator: Any) -> tuple:
        state = method.advance(state, (), settings)
        estimate = gradient.estimate(rows, state.position, estimator)
        state = method.complete(state, estimate.gradient, (), settings)
        value = jnp.asarray(estimate.value, energy.dtype)
        return state, estimate.state, value, -(value - energy + state.work) / settings.temperature

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
