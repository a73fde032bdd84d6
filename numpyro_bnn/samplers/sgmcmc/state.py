"""The state of an SGMCMC chain: position, momentum, states of the ingredients, and statistics of the step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.flat_position import by_site
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Settings,
    chosen,
    inverse_mass_like,
    mean_over,
    means,
    products,
    total,
)
from numpyro_bnn.samplers.sgmcmc.gradients import NoiseEstimate


class StepTuning(NamedTuple):
    """Step size and friction of a chain."""

    step_size: jax.Array  # The step size in use, with "auto" the tuned one
    friction: jax.Array  # Friction per unit time
    # Statistics that the tuning in warm-up needs: the state of dual averaging of the log step
    # size, or `WarmupStatistics`.
    averaging: PyTree
    # Recent estimate of the largest eigenvalue of M⁻¹∇²U; NaN where it is not used.
    curvature: jax.Array
    direction: PyTree  # Estimate of its eigenvector in units of √M⁻¹; None where it is not used
    # Estimated variance of the gradient; None where it is not estimated.
    noise: NoiseEstimate | None = None


class SGMCMCState(NamedTuple):
    """State of an :class:`SGMCMC` chain."""

    i: jax.Array  # Number of calls of `sample` so far, warm-up included
    num_warmup: jax.Array  # Calls of `sample` that are warm-up
    # Steps since the end of warm-up, the argument of schedules
    count: jax.Array  # type: ignore[assignment]
    dynamics: DynamicsState  # Position, momentum, …
    estimator: PyTree  # State of its gradients; those of other ingredients follow
    preconditioner: PyTree
    adaptation: StepTuning
    # U where the last gradient was taken, in nats: an estimate under minibatches, exact at the position
    # for Metropolis methods
    potential_energy: jax.Array
    step_size: jax.Array  # That of the last step, as the temperature
    temperature: jax.Array
    # Acceptance probability of the last Metropolis decision, and its mean over this phase; 1 for
    # methods without
    accept_prob: jax.Array
    mean_accept_prob: jax.Array
    # Steps of the last trajectory, each with one gradient; 1 without a trajectory
    num_steps: jax.Array
    # Change of the total energy in the last step of unadjusted dynamics that keep account of it, in
    # nats; exact dynamics would conserve the energy. An estimate under minibatches; NaN for all other
    # methods
    energy_error: jax.Array
    # p ⊙ M⁻¹p and θ ⊙ ∇U, entry by entry of a flat position, else their means by site; NaN without momentum
    # or gradient
    kinetic: PyTree
    configurational: PyTree
    # Kinetic temperature along the last gradient, see `temperature_along`, which should average to the
    # temperature; NaN without momentum or minibatches, and for Metropolis methods
    gradient_temperature: jax.Array
    # Call of `sample` at which the chain became non-finite, or a schedule gave a negative or non-finite
    # value, and the chain was frozen; -1 for a sound chain
    exploded_at: jax.Array
    rng_key: jax.Array  # Random key of the next step

    @property
    def z(self) -> PyTree:
        """Unconstrained position, by site where a model has several."""
        return by_site(self.dynamics.position)

    @property
    def kinetic_temperatures(self) -> PyTree:
        """pᵀM⁻¹p / D by site, which should average to the temperature; NaN without momentum."""
        return means(self.kinetic)

    @property
    def configurational_temperatures(self) -> PyTree:
        """θᵀ∇U / D by site, which should average to the temperature too; NaN without a gradient."""
        return means(self.configurational)

    @property
    def kinetic_temperature(self) -> jax.Array:
        """The kinetic temperature over all sites."""
        return mean_over(self.kinetic_temperatures, self.dynamics.position)

    @property
    def configurational_temperature(self) -> jax.Array:
        """The configurational temperature over all sites."""
        return mean_over(self.configurational_temperatures, self.dynamics.position)

    def without_counts(self) -> "SGMCMCState":
        """The state at the start of another run, which has no warm-up of its own."""
        return self._replace(num_warmup=jnp.minimum(self.num_warmup, self.i))


def initial_state(
    num_warmup: int | jax.Array,
    dynamics: DynamicsState,
    estimator: PyTree,
    preconditioner: PyTree,
    adaptation: StepTuning,
    rng_key: jax.Array,
) -> SGMCMCState:
    """The state before the first step; :func:`record` fills in the statistics."""
    real = jnp.result_type(float)
    zero, one = (jnp.full((), i, jnp.int32) for i in (0, 1))
    nan = jnp.full((), jnp.nan, real)
    unknown = ("potential_energy", "step_size", "temperature", "energy_error")
    nans = products(lambda x: jnp.full_like(x, jnp.nan), dynamics.position)
    return SGMCMCState(
        i=zero,
        num_warmup=jnp.asarray(num_warmup, jnp.int32),
        count=zero,
        dynamics=dynamics,
        estimator=estimator,
        preconditioner=preconditioner,
        adaptation=adaptation,
        accept_prob=jnp.ones((), real),
        mean_accept_prob=jnp.ones((), real),
        num_steps=one,
        kinetic=nans,
        configurational=nans,
        gradient_temperature=nan,
        exploded_at=-one,
        rng_key=rng_key,
        **dict.fromkeys(unknown, nan),
    )


def record(
    state: SGMCMCState,
    dynamics: DynamicsState,
    energy: jax.Array,
    gradient: PyTree,
    at: PyTree,
    settings: Settings,
) -> SGMCMCState:
    """The state after a step of the dynamics, with its statistics; `gradient` was computed at `at`."""
    real = jnp.result_type(float)
    new = state._replace(
        dynamics=dynamics,
        potential_energy=jnp.asarray(energy, real),
        step_size=jnp.asarray(settings.step_size, real),
        temperature=jnp.asarray(settings.temperature, real),
    )
    if gradient is not None:
        new = new._replace(configurational=products(jnp.multiply, at, gradient))
    if dynamics.momentum is not None:
        inverse_mass = inverse_mass_like(settings, dynamics.momentum)
        squares = products(lambda p, w: w * p * p, dynamics.momentum, inverse_mass)
        new = new._replace(kinetic=squares)
    return new


def freeze(before: SGMCMCState, after: SGMCMCState) -> SGMCMCState:
    """Keep the last finite state of a chain that explodes, and record the step at which it did."""
    # A step size or temperature that is negative or not finite counts as an explosion too; it
    # stays in the state, so that the message of the run can give the reason.
    scheduled = jnp.stack([after.step_size, after.temperature])
    possible = (jnp.isfinite(scheduled) & (scheduled >= 0)).all()
    square = total(jnp.square, after.dynamics.position)
    finite = jnp.isfinite(after.potential_energy) & jnp.isfinite(square)
    is_moving = before.exploded_at < 0
    kept = chosen(possible & finite & is_moving, after, before)
    shown = is_moving & ~possible
    return kept._replace(
        i=after.i,
        step_size=jnp.where(shown, after.step_size, kept.step_size),
        temperature=jnp.where(shown, after.temperature, kept.temperature),
        exploded_at=jnp.where(is_moving & ~(possible & finite), before.i, before.exploded_at),
    )
