"""Moves the state of each rung: the first is drawn from the prior, all others move by HMC, NUTS or MAMS.

A move takes an energy function of a flat vector, so that all rungs of all chains run in one ``jax.vmap``,
each with its own step size and diagonal metric. Where trajectories differ in their number of steps, all
would wait for the longest; on a CPU rungs therefore run one after another.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.distributions import Normal
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import HMC, NUTS, init_to_uniform
from numpyro.infer.hmc_util import (
    IntegratorState,
    build_tree,
    euclidean_kinetic_energy,
    velocity_verlet,
)

from numpyro_bnn.distributions.stable_densities import standard_gamma
from numpyro_bnn.potential.flat_position import normal, normal_like
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.sites import Structure, altered
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import DynamicsState, Settings
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic
from numpyro_bnn.samplers.sgmcmc.named import MAMS

# Range of the jitter of step sizes: trajectories are not periodic, and some steps are small enough for large
# curvatures.
LOWEST, HIGHEST = 0.3, 1.2
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


class Rung(NamedTuple):
    """A rung to be moved, or all of them along a leading axis."""

    position: jax.Array  # Flat vector
    key: jax.Array  # For its trajectories
    step_size: jax.Array
    inverse_mass_matrix: jax.Array  # Diagonal, like the position


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
        rungs: Rung,
    ) -> Moved:
        """One trajectory on every rung, or several (:meth:`trajectories_per_sweep`)."""
        # `potential_of` gives U of a rung by its power.

        def one(power: jax.Array, repeats: jax.Array, rung: Rung) -> Moved:
            return self._move_on(potential_of(power), repeats, rung)

        by_rung = (powers, self.trajectories_per_sweep(rungs.step_size), rungs)
        if self.num_steps is not None or jax.default_backend() != "cpu":
            return jax.vmap(one)(*by_rung)
        return lax.map(lambda rung: one(*rung), by_rung)

    def _move_on(self, potential_fn: Callable, repeats: jax.Array, rung: Rung) -> Moved:
        """As many trajectories as `repeats`, one after the other."""
        if not self.has_fixed_length:
            return self.move(potential_fn, rung)

        def more(i: int, so_far: Moved) -> Moved:
            now = rung._replace(position=so_far.position, key=jax.random.fold_in(rung.key, i))
            # Under vmap, a rung without trajectories left still takes part, at the cost of one gradient.
            new = self.move(potential_fn, now, is_moving=i < repeats)
            return Moved(
                new.position,
                so_far.accept_prob + new.accept_prob / repeats,
                so_far.diverging | new.diverging,
                so_far.num_steps + new.num_steps,
            )

        none = (jnp.zeros((), rung.position.dtype), jnp.zeros((), bool), jnp.zeros((), jnp.int32))
        return lax.fori_loop(0, repeats, more, Moved(rung.position, *none))

    def move(
        self,
        potential_fn: Callable[[jax.Array], jax.Array],
        rung: Rung,
        is_moving: jax.Array | bool = True,
    ) -> Moved:
        """One trajectory, which leaves the density exp(-U) invariant; U is a function of a flat vector."""
        position, key, step_size, inverse_mass_matrix = rung
        key_momentum, key_step, key_choice = jax.random.split(key, 3)
        noise = normal(key_momentum, position.shape, position.dtype)
        if self.random_length is not None:
            settings = Settings(step_size, inverse_mass_matrix=inverse_mass_matrix)
            steps = is_moving * self.random_length.draw_num_steps(key_step, step_size)
            end, error = _isokinetic(potential_fn, position, noise, settings, steps)
            return accept_or_stay(position, end, error, steps, jax.random.uniform(key_choice))
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
        step = step_size * jax.random.uniform(key_step, minval=LOWEST, maxval=HIGHEST)
        end, error = leapfrog(potential_fn, position, momentum, step, inverse_mass_matrix, steps)
        return accept_or_stay(position, end.z, error, steps, jax.random.uniform(key_choice))


def leapfrog(
    potential_fn: Callable,
    position: jax.Array,
    momentum: jax.Array,
    step_size: jax.Array,
    inverse_mass_matrix: jax.Array,
    steps: Any,
) -> tuple[IntegratorState, jax.Array]:
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
    return end, end.potential_energy + after - (energy + before)


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


def accept_or_stay(
    position: jax.Array, end: jax.Array, error: jax.Array, steps: Any, uniform: jax.Array
) -> Moved:
    """Accept the end of a trajectory, or keep its start."""
    error = jnp.where(jnp.isnan(error), jnp.inf, error)
    accept_prob = jnp.exp(jnp.minimum(-error, 0.0))
    accepted = uniform < accept_prob
    return Moved(
        jnp.where(accepted, end, position),
        accept_prob,
        error > _LARGEST_ERROR,
        jnp.asarray(steps, jnp.int32),
    )


# Number of prior draws for each rung, the best of which are starts.
_DRAWS_A_RUNG = 16
_NONE = np.zeros(0)


def prior_noise(
    structure: Structure, key: jax.Array, count: tuple[int, ...] = (), more: np.ndarray = _NONE
) -> tuple[Values, jax.Array]:
    """Standard noise for Gaussian and Gamma sites of `count` prior draws, and draws of Gamma(`more`, 1)."""
    # One call draws all normals, another one all Gamma variates: a loop of proposals for each
    # site would take half a second to compile. Leaves are (*count, …).
    key_normals, key_gammas = jax.random.split(key)
    sites = {name: structure.sites[name] for name in structure.latent}
    real = jnp.result_type(float)
    shapes = {name: (*count, *site.shape) for name, site in sites.items()}
    normals = [name for name, site in sites.items() if site.distribution is Normal]
    like = {name: jax.ShapeDtypeStruct(shapes[name], real) for name in normals}
    noise: Values = normal_like(key_normals, like)
    gammas = {n: site.concentration for n, site in sites.items() if site.concentration is not None}
    known = [np.full(prod(shapes[name]), number) for name, number in gammas.items()]
    flat = np.concatenate([*known, more.reshape(-1)])
    if not flat.size:
        return noise, jnp.zeros(more.shape, real)
    # The barrier keeps the compiler from repeating the work for each part.
    drawn = lax.optimization_barrier(standard_gamma(key_gammas, flat, flat.shape))
    *parts, rest = jnp.split(drawn, np.cumsum([len(one) for one in known]))
    by_site = {name: part.reshape(shapes[name]) for name, part in zip(gammas, parts)}
    return noise | by_site, rest.reshape(more.shape)


def prior_draw(potential: Potential, key: jax.Array, noise: Values | None = None) -> Values:
    """A draw from the prior, unconstrained; `noise` is that of :func:`prior_noise`."""
    if noise is None:
        key_noise, key = jax.random.split(key)
        noise, _ = prior_noise(potential.structure, key_noise)
    return potential.unconstrain(potential.prior_draw(key, noise=noise))


def finite_or_before(drawn: Values, before: Values) -> Values:
    """The drawn values; the values before where a drawn one is not finite."""
    fine = jnp.isfinite(ravel_pytree(drawn)[0]).all()
    return jax.tree.map(lambda new, old: jnp.where(fine, new, old), drawn, before)


def best_draws(potential: Potential, key: jax.Array, num_rungs: int) -> Values:
    """Prior draws of the highest likelihood, the highest for the posterior's rung."""
    count = _DRAWS_A_RUNG * num_rungs
    key_noise, key = jax.random.split(key)
    noise, _ = prior_noise(potential.structure, key_noise, (count,))
    # One after another: draws for a vector of keys take several times as long to compile.
    given = jax.random.split(key, count), noise
    draws = lax.map(lambda one: prior_draw(potential, *one), given)
    prior, likelihood = jax.vmap(potential.energies)(draws)
    likelihood = jnp.where(jnp.isnan(likelihood), jnp.inf, likelihood)
    best = jnp.argsort(jnp.where(jnp.isfinite(prior), likelihood, jnp.inf))[:num_rungs][::-1]
    return jax.tree.map(lambda leaf: leaf[best], draws)


def refuse_improper(potential: Potential) -> None:
    """Refuse latent sites whose prior density is not that of draws from their distribution."""
    faults: dict[str, str] = {}

    def value(site: dict[str, Any]) -> Any:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        name = site["name"]
        if (fault := altered(site)) is not None:
            faults[name] = fault
        try:
            return site["fn"](**site["kwargs"])
        except NotImplementedError:
            faults[name] = "improper"
            return init_to_uniform(site)

    def trace_model(key: jax.Array) -> jax.Array:
        model = substitute(seed(potential.bound, key), substitute_fn=value)
        trace(model).get_trace(*potential.args, **potential.kwargs)
        return key

    jax.eval_shape(trace_model, jax.random.key(0))
    if faults:
        named = ", ".join(f"'{name}' ({fault})" for name, fault in faults.items())
        raise ValueError(
            f"ParallelTempering begins at the prior, and there is none to draw from at {named}. Give "
            "these sites a proper distribution, without `mask` or `scale` around it."
        )
