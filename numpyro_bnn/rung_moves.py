"""How a state moves on its rung: NumPyro's HMC or NUTS, by the functions that those are made of.

A move takes an energy function of a flat vector, so that all rungs of all chains go through one
``jax.vmap``, each with its own step size and diagonal metric. Where trajectories differ in their number
of steps, the longest would keep all others waiting; a processor without lanes to fill takes the rungs in
turn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer import HMC, NUTS
from numpyro.infer.hmc_util import build_tree, euclidean_kinetic_energy, velocity_verlet

# The step of each trajectory is spread around its size, so that none returns to where it began time
# after time, and that where the posterior bends more than elsewhere some are short enough.
_LOW, _HIGH = 0.3, 1.2
# Steps for the stiffest part of a posterior, which few states are in at any time.
_TARGET = 0.9
_LARGEST_ERROR = 1000.0
# In units of the adapted metric, where a quarter of a turn is 1.6.
_LENGTH = 2.0
_MOST_STEPS = 1024


class Moved(NamedTuple):
    """Where a state went.

    - **position** - flat vector
    - **accept_prob** - of the trajectory, for the step size to follow
    - **diverging** - whether the energy error was beyond all bounds
    - **num_steps** - gradients
    """

    position: jax.Array
    accept_prob: jax.Array
    diverging: jax.Array
    num_steps: jax.Array


class Inner(NamedTuple):
    """What is taken from the kernel that moves each rung.

    - **doubling** - whether trajectories end at a U-turn (NUTS)
    - **num_steps** - steps of a trajectory; None where its length is given
    - **trajectory_length** - step size times number of steps
    - **max_tree_depth** - of NUTS
    - **target_accept_prob** - that step sizes are adapted to
    """

    doubling: bool
    num_steps: int | None
    trajectory_length: float | None
    max_tree_depth: int
    target_accept_prob: float

    @classmethod
    def of(cls, kernel: Any, model: Callable) -> "Inner":
        """The settings of a kernel over `model`; of the classes HMC and NUTS, our own.

        :raises TypeError: for other kernels.
        :raises ValueError: for a kernel over another model, or a dense metric.
        """
        if kernel is HMC:
            kernel = HMC(model, trajectory_length=_LENGTH, target_accept_prob=_TARGET)
        elif kernel is NUTS:
            kernel = NUTS(model, max_tree_depth=7, target_accept_prob=_TARGET)
        if not isinstance(kernel, HMC):
            raise TypeError(
                f"ParallelTempering: kernel must be HMC or NUTS, or one of them over the same model "
                f"with settings of its own, got {kernel!r}. Give for example "
                "`kernel=HMC(model, num_steps=100, trajectory_length=None)`."
            )
        if kernel.model is not model:
            raise ValueError(
                "ParallelTempering: kernel is over another model than the one that is tempered. Give "
                "both the same function."
            )
        if kernel._dense_mass:
            raise ValueError(
                "ParallelTempering: the metric of every rung is diagonal, got dense_mass="
                f"{kernel._dense_mass!r}. Leave it out."
            )
        depth = kernel._max_tree_depth
        return cls(
            isinstance(kernel, NUTS),
            kernel._num_steps,
            kernel._trajectory_length,
            max(depth) if isinstance(depth, tuple) else depth,
            kernel._target_accept_prob,
        )

    def steps(self, step_size: jax.Array) -> Any:
        """Leapfrog steps of a trajectory of HMC: a number where it is fixed, else like the step size."""
        if self.num_steps is not None:
            return self.num_steps
        wanted = jnp.asarray(self.trajectory_length) / step_size
        return jnp.clip(wanted, 1, _MOST_STEPS).astype(jnp.int32)

    def move_all(
        self,
        potential_of: Callable[[jax.Array], Callable[[jax.Array], jax.Array]],
        powers: jax.Array,
        *given: jax.Array,
    ) -> Moved:
        """One trajectory on every rung.

        :param potential_of: U of a rung, from its likelihood power.
        :param powers: of the rungs.
        :param given: what :meth:`move` takes besides, rung by rung.
        """

        def one(power: jax.Array, *own: jax.Array) -> Moved:
            return self.move(potential_of(power), *own)

        alike = self.num_steps is not None and not self.doubling
        if alike or jax.default_backend() != "cpu":
            return jax.vmap(one)(powers, *given)
        return lax.map(lambda rung: one(*rung), (powers, *given))

    def move(
        self,
        potential_fn: Callable[[jax.Array], jax.Array],
        position: jax.Array,
        rng_key: jax.Array,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> Moved:
        """One trajectory; it leaves exp(-U) as it is.

        :param potential_fn: U, of a flat vector.
        :param position: where it begins.
        :param rng_key: for momentum and decisions.
        :param step_size: in units of the metric.
        :param inverse_mass: diagonal, like the position.
        """
        begin, update = velocity_verlet(potential_fn, euclidean_kinetic_energy)
        key_momentum, key_step, key_choice = jax.random.split(rng_key, 3)
        noise = jax.random.normal(key_momentum, position.shape, position.dtype)
        start = begin(position, noise / jnp.sqrt(inverse_mass))
        if self.doubling:
            tree = build_tree(
                update,
                euclidean_kinetic_energy,
                start,
                inverse_mass,
                step_size,
                key_choice,
                _LARGEST_ERROR,
                self.max_tree_depth,
            )
            accept_prob = tree.sum_accept_probs / tree.num_proposals
            return Moved(tree.z_proposal, accept_prob, tree.diverging, tree.num_proposals)
        steps = self.steps(step_size)
        # What spreads the step spreads the length too: no rung comes back to where it was.
        step = step_size * jax.random.uniform(key_step, minval=_LOW, maxval=_HIGH)
        end = lax.fori_loop(0, steps, lambda _, s: update(step, inverse_mass, s), start)
        before, after = (
            s.potential_energy + euclidean_kinetic_energy(inverse_mass, s.r) for s in (start, end)
        )
        error = after - before
        error = jnp.where(jnp.isnan(error), jnp.inf, error)
        accept_prob = jnp.exp(jnp.minimum(-error, 0.0))
        accepted = jax.random.uniform(key_choice) < accept_prob
        return Moved(
            jnp.where(accepted, end.z, position),
            accept_prob,
            error > _LARGEST_ERROR,
            jnp.asarray(steps, jnp.int32),
        )
