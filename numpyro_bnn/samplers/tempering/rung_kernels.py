"""Moves the state of each rung by HMC, NUTS or MAMS, from the functions that these kernels are made of.

A move takes an energy function of a flat vector, so that all rungs of all chains run in one ``jax.vmap``,
each with its own step size and diagonal metric. Where trajectories differ in their number of steps, all
would wait for the longest; on a CPU rungs therefore run one after another.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer import HMC, NUTS
from numpyro.infer.hmc_util import (
    IntegratorState,
    build_tree,
    euclidean_kinetic_energy,
    velocity_verlet,
)

from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import DynamicsState, Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic
from numpyro_bnn.samplers.sgmcmc.named.microcanonical import MAMS
from numpyro_bnn.samplers.sgmcmc.noise import normal

# Range of the jitter of step sizes: trajectories are not periodic, and some steps are small enough for large
# curvatures.
_LOW, _HIGH = 0.3, 1.2
# A high acceptance, for steps that suit regions of high curvature too.
_TARGET = 0.9
_LARGEST_ERROR = 1000.0
# Trajectory length in units of the adapted metric, where a quarter of a period is 1.6; more sweeps are worth
# more than longer trajectories.
_LENGTH = 1.0
_MOST_STEPS = 512
# The most trajectories of a rung in a sweep, where they take few steps: near the prior, where states forget
# their modes, this is cheap compared with the longest trajectory.
_MOST_TRAJECTORIES = 8
_SHARE = 4


class Moved(NamedTuple):
    """The state of a rung after its trajectories."""

    position: jax.Array  # Flat vector
    # Mean acceptance probability of its trajectories, which tunes the step size.
    accept_prob: jax.Array
    diverging: jax.Array  # Whether a trajectory diverged
    num_steps: jax.Array  # Number of gradients


class RungKernel(NamedTuple):
    """The settings of the kernel that moves each rung."""

    target_accept_prob: float  # Acceptance probability that step sizes are adapted to
    num_steps: int | None = None  # For HMC, steps of a trajectory; None where its length is given
    trajectory_length: float | None = None  # Step size times number of steps, of MAMS their mean
    max_tree_depth: int | None = None  # For NUTS, the largest depth of a tree
    # Whether the number of steps is drawn for each trajectory, as in MAMS.
    random_length: Metropolis | None = None

    @classmethod
    def of(cls, kernel: Any, model: Callable) -> "RungKernel":
        """The settings of a kernel over `model`; defaults for the classes HMC, NUTS and MAMS themselves."""
        if kernel is HMC:
            kernel = HMC(model, trajectory_length=_LENGTH, target_accept_prob=_TARGET)
        elif kernel is NUTS:
            kernel = NUTS(model, max_tree_depth=7, target_accept_prob=_TARGET)
        elif kernel is MAMS:
            # The number of steps of MAMS is random, up to twice its mean.
            kernel = MAMS(model, max_num_steps=2 * _MOST_STEPS, target_accept_prob=_TARGET)
        if not isinstance(kernel, (HMC, MAMS)):
            raise TypeError(
                "ParallelTempering: kernel must be HMC, NUTS or MAMS, or one of them over the same "
                f"model with settings of its own, got {kernel!r}. Give for example "
                "`kernel=HMC(model, num_steps=100, trajectory_length=None)`."
            )
        if kernel.model is not model:
            raise ValueError(
                "ParallelTempering: kernel is over another model than the one that is tempered. Give "
                "both the same function."
            )
        if isinstance(kernel, MAMS):
            rule = kernel.metropolis
            assert rule is not None
            target = kernel.target_accept_prob
            return cls(target, trajectory_length=rule.trajectory_length, random_length=rule)
        if kernel._dense_mass:
            raise ValueError(
                "ParallelTempering: the metric of every rung is diagonal, got dense_mass="
                f"{kernel._dense_mass!r}. Leave it out."
            )
        target = kernel._target_accept_prob
        if isinstance(kernel, NUTS):
            depth = kernel._max_tree_depth
            return cls(target, max_tree_depth=max(depth) if isinstance(depth, tuple) else depth)
        return cls(target, kernel._num_steps, kernel._trajectory_length)

    @property
    def has_fixed_length(self) -> bool:
        """Whether a trajectory has a length, and takes the steps that a rung needs for it."""
        return self.num_steps is None and self.max_tree_depth is None

    def steps(self, step_size: jax.Array) -> Any:
        """Number of steps of a trajectory of HMC; for MAMS the mean number."""
        if self.num_steps is not None:
            return self.num_steps
        wanted = jnp.asarray(self.trajectory_length) / step_size
        most = _MOST_STEPS if self.random_length is None else self.random_length.num_steps
        return jnp.clip(wanted, 1, most).astype(jnp.int32)

    def trajectories_per_sweep(self, step_size: jax.Array) -> jax.Array:
        """Number of trajectories of each rung in a sweep (…, rung): several where they are short."""
        if not self.has_fixed_length:
            return jnp.ones(step_size.shape, jnp.int32)
        steps = self.steps(step_size)
        return jnp.clip(steps.max(-1, keepdims=True) // (_SHARE * steps), 1, _MOST_TRAJECTORIES)

    def move_all(
        self,
        potential_of: Callable[[jax.Array], Callable[[jax.Array], jax.Array]],
        powers: jax.Array,
        positions: jax.Array,
        keys: jax.Array,
        step_size: jax.Array,
        inverse_mass_matrix: jax.Array,
    ) -> Moved:
        """One trajectory on every rung, or several (:meth:`trajectories_per_sweep`)."""
        # `potential_of` gives U of a rung by its power; positions and metrics are (rung, parameter).
        repeats = self.trajectories_per_sweep(step_size)

        def one(power: jax.Array, repeats: jax.Array, *own: jax.Array) -> Moved:
            return self._move_on(potential_of(power), repeats, *own)

        by_rung = (powers, repeats, positions, keys, step_size, inverse_mass_matrix)
        if self.num_steps is not None or jax.default_backend() != "cpu":
            return jax.vmap(one)(*by_rung)
        return lax.map(lambda rung: one(*rung), by_rung)

    def _move_on(
        self,
        potential_fn: Callable,
        repeats: jax.Array,
        position: jax.Array,
        key: jax.Array,
        step_size: jax.Array,
        inverse_mass_matrix: jax.Array,
    ) -> Moved:
        """As many trajectories as `repeats`, one after the other."""
        if not self.has_fixed_length:
            return self.move(potential_fn, position, key, step_size, inverse_mass_matrix)

        def more(i: int, so_far: Moved) -> Moved:
            key_i = jax.random.fold_in(key, i)
            # Under vmap, a rung without trajectories left still takes part, at the cost of one gradient.
            new = self.move(
                potential_fn,
                so_far.position,
                key_i,
                step_size,
                inverse_mass_matrix,
                is_moving=i < repeats,
            )
            return Moved(
                new.position,
                so_far.accept_prob + new.accept_prob / repeats,
                so_far.diverging | new.diverging,
                so_far.num_steps + new.num_steps,
            )

        none = (jnp.zeros((), position.dtype), jnp.zeros((), bool), jnp.zeros((), jnp.int32))
        return lax.fori_loop(0, repeats, more, Moved(position, *none))

    def move(
        self,
        potential_fn: Callable[[jax.Array], jax.Array],
        position: jax.Array,
        key: jax.Array,
        step_size: jax.Array,
        inverse_mass_matrix: jax.Array,
        is_moving: jax.Array | bool = True,
    ) -> Moved:
        """One trajectory, which leaves the density exp(-U) invariant; U is a function of a flat vector."""
        key_momentum, key_step, key_choice = jax.random.split(key, 3)
        noise = normal(key_momentum, position.shape, position.dtype)
        if self.random_length is not None:
            settings = Settings(step_size, inverse_mass_matrix=inverse_mass_matrix)
            steps = is_moving * self.random_length.draw_num_steps(key_step, step_size)
            end, error = _isokinetic(potential_fn, position, noise, settings, steps)
            return _judged(position, end, error, steps, key_choice)
        momentum = noise / jnp.sqrt(inverse_mass_matrix)
        if self.max_tree_depth is not None:
            begin, update = velocity_verlet(potential_fn, euclidean_kinetic_energy)
            tree = build_tree(
                update,
                euclidean_kinetic_energy,
                begin(position, momentum),
                inverse_mass_matrix,
                step_size,
                key_choice,
                _LARGEST_ERROR,
                self.max_tree_depth,
            )
            accept_prob = tree.sum_accept_probs / tree.num_proposals
            return Moved(tree.z_proposal, accept_prob, tree.diverging, tree.num_proposals)
        steps = is_moving * self.steps(step_size)
        # Jitter of the step size varies the trajectory length too, which avoids periodic trajectories.
        step = step_size * jax.random.uniform(key_step, minval=_LOW, maxval=_HIGH)
        end, error = _leapfrog(potential_fn, position, momentum, step, inverse_mass_matrix, steps)
        return _judged(position, end, error, steps, key_choice)


def _leapfrog(
    potential_fn: Callable,
    position: jax.Array,
    momentum: jax.Array,
    step_size: jax.Array,
    inverse_mass_matrix: jax.Array,
    steps: Any,
) -> tuple[jax.Array, jax.Array]:
    """The end of a trajectory of HMC, and its energy error."""
    # The loop begins with a step of size 0, which only computes the gradient there: so the
    # gradient is compiled once, not also before the loop.
    _, update = velocity_verlet(potential_fn, euclidean_kinetic_energy)
    none = jnp.zeros((), position.dtype)

    def step(i: jax.Array, carry: tuple[IntegratorState, jax.Array]) -> tuple:
        state, energy = carry
        state = update(jnp.where(i == 0, none, step_size), inverse_mass_matrix, state)
        return state, jnp.where(i == 0, state.potential_energy, energy)

    start = IntegratorState(position, momentum, none, jnp.zeros_like(position))
    end, energy = lax.fori_loop(0, steps + 1, step, (start, none))
    before, after = (euclidean_kinetic_energy(inverse_mass_matrix, r) for r in (momentum, end.r))
    return end.z, end.potential_energy + after - (energy + before)


def _isokinetic(
    potential_fn: Callable, position: jax.Array, noise: jax.Array, settings: Settings, steps: Any
) -> tuple[jax.Array, jax.Array]:
    """The end of a trajectory of isokinetic dynamics (MAMS), and its energy error."""
    method, evaluate = Isokinetic(friction=False), jax.value_and_grad(potential_fn)
    energy, gradient = evaluate(position)
    start = method.init(position, noise, settings, gradient)._replace(gradient=gradient)

    def step(_: int, carry: tuple[DynamicsState, jax.Array]) -> tuple[DynamicsState, jax.Array]:
        state = method.advance(carry[0], (), settings)
        value, gradient = evaluate(state.position)
        return method.complete(state, gradient, (), settings), value

    end, value = lax.fori_loop(0, steps, step, (start, energy))
    return end.position, value - energy + end.work


def _judged(
    position: jax.Array, end: jax.Array, error: jax.Array, steps: Any, key: jax.Array
) -> Moved:
    """Accept the end of a trajectory, or keep its start."""
    error = jnp.where(jnp.isnan(error), jnp.inf, error)
    accept_prob = jnp.exp(jnp.minimum(-error, 0.0))
    accepted = jax.random.uniform(key) < accept_prob
    return Moved(
        jnp.where(accepted, end, position),
        accept_prob,
        error > _LARGEST_ERROR,
        jnp.asarray(steps, jnp.int32),
    )
