"""Tuning of step size and friction in warm-up.

A tuning is an ingredient of a kernel. It gives first values (:meth:`Tuning.begin`), is called with every
gradient (:meth:`Tuning.at_gradient`) and after every step (:meth:`Tuning.after_step`), and changes nothing
once warm-up is over. The first step size of ``"auto"`` is a share of the largest stable one at the start.
:class:`AcceptanceTuning` tunes that of Metropolis methods to an acceptance probability.
:class:`CurvatureTuning`, of all others, follows the curvature, which grows as a network begins to fit and
changes with the metric; :class:`EnergyErrorTuning` is for microcanonical dynamics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer.hmc_util import dual_averaging

from numpyro_bnn._types import Number, PyTree
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.checks import GradientNoise
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    Settings,
    chosen,
    map_like,
    size,
    spread,
    total,
    where_needed,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import (
    Dynamics,
    MomentumRefresh,
    RandomWalkProposal,
)
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator, NoiseEstimate, quiet_step
from numpyro_bnn.samplers.sgmcmc.preconditioners import Moments, Preconditioner
from numpyro_bnn.samplers.sgmcmc.schedules import Schedule
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState, StepTuning

# The first step size as a share of the largest stable leapfrog step, 2/√λ.
_STABLE = 0.25
_POWER_STEPS = 20
# Weight of the past curvature after one step with a smaller curvature.
_CURVATURE_MEMORY = 0.98


def _norm(vector: PyTree) -> jax.Array:
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(vector)))


def _power_step(
    product: Callable[[PyTree], PyTree], inverse_mass_matrix: PyTree, vector: PyTree
) -> tuple[PyTree, jax.Array]:
    """One power iteration with √M⁻¹ ∇²U √M⁻¹: the unit vector, and its growth factor."""
    root = jax.tree.map(jnp.sqrt, spread(inverse_mass_matrix, vector, "inverse_mass_matrix"))
    scaled = map_like(jnp.multiply, vector, root)
    image = map_like(jnp.multiply, product(scaled), root)
    grown = _norm(image)
    # With a flat potential the product is 0, and the vector is kept.
    safe = jnp.where(grown > 0, grown, 1.0)
    unit = map_like(lambda v, x: jnp.where(grown > 0, x / safe, v), vector, image)
    return unit, grown


def largest_curvature(
    rows: Rows, position: PyTree, inverse_mass_matrix: PyTree, start: PyTree
) -> tuple[jax.Array, PyTree]:
    """Largest eigenvalue, in size, of M⁻¹∇²U (1 where U is flat) and its vector, by power iteration."""
    # Costs 20 Hessian-vector products on all rows, once; `start` are standard normals.

    def product(vector: PyTree) -> PyTree:
        return jax.jvp(jax.grad(rows.energy), (position,), (vector,))[1]

    norm = _norm(start)
    carry = (map_like(lambda x: x / norm, start), norm)
    vector, grown = lax.fori_loop(
        0, _POWER_STEPS, lambda _, c: _power_step(product, inverse_mass_matrix, c[0]), carry
    )
    return jnp.where(grown > 0, grown, 1.0), vector


def _stable_step(dynamics: Dynamics, curvature: jax.Array, position: PyTree) -> jax.Array:
    h = _STABLE * 2 / jnp.sqrt(curvature)
    if isinstance(dynamics, RandomWalkProposal):
        return h / jnp.sqrt(size(position))
    # A drift of epsilon/2 (SGLD) moves as far as h²/2 (momentum methods).
    return h if dynamics.has_momentum else h**2


class ChainStart(NamedTuple):
    """The start of a chain, from which the first step size is computed."""

    rows: Rows  # The potential energy
    position: PyTree  # Unconstrained
    inverse_mass_matrix: PyTree  # Diagonal, a scalar or like the position
    direction: PyTree  # Standard normals, where a power iteration begins
    step_size: Number | None  # As given; None for "auto"
    dynamics: Dynamics  # The method


def begin_tuning(
    start: ChainStart, friction: float | None, follow: bool = False, lasting: bool = False
) -> StepTuning:
    """The first step size and friction of a chain; no friction given is 0.1 / step_size."""
    # That keeps nine tenths of a momentum in each step; with `lasting` at least a unit of time.
    step_size = start.step_size
    real = jnp.result_type(float)
    curvature, direction = jnp.full((), jnp.nan, real), None
    if step_size is None:
        curvature, vector = largest_curvature(
            start.rows, start.position, start.inverse_mass_matrix, start.direction
        )
        direction = vector if follow else None
        step_size = _stable_step(start.dynamics, curvature, start.position)
    step_size = jnp.asarray(step_size, real)
    init, _ = dual_averaging()
    averaging = init(jnp.log(10 * step_size))
    by_step = 0.1 / step_size
    first = jnp.minimum(by_step, 1.0) if lasting else by_step
    return StepTuning(
        step_size,
        jnp.asarray(first if friction is None else friction, real),
        averaging,
        jnp.asarray(curvature, real),
        direction,
    )


def follow_curvature(
    tuned: StepTuning,
    product: Callable[[PyTree], PyTree],
    inverse_mass_matrix: PyTree,
    dynamics: Dynamics,
    by_step: bool,
) -> StepTuning:
    """Update the step size by a new estimate of the curvature, in the current metric."""
    # A larger curvature takes effect at once, a smaller one over some fifty steps. With
    # `by_step` the friction is kept at 0.1 / step_size.
    direction, grown = _power_step(product, inverse_mass_matrix, tuned.direction)
    fading = _CURVATURE_MEMORY * tuned.curvature + (1 - _CURVATURE_MEMORY) * grown
    curvature = jnp.maximum(grown, fading).astype(tuned.curvature.dtype)
    step_size = _stable_step(dynamics, curvature, direction).astype(tuned.step_size.dtype)
    new = tuned._replace(
        step_size=step_size,
        friction=0.1 / step_size if by_step else tuned.friction,
        curvature=curvature,
        direction=direction,
    )
    # A curvature that is not finite is not used.
    known = jnp.isfinite(curvature) & (curvature > 0)
    return jax.tree.map(lambda a, b: jnp.where(known, a, b), new, tuned)


# Decay of the running mean of energy errors, over about n = 150 steps: (n - 1)/(n + 1).
_MEMORY = 149 / 151
# Width, in log step size, of the weight of an energy error by its distance from the target.
_TRUST = 1.5
# Energy errors below this number of rounding errors of U are ignored.
_ROUNDINGS = 4
# The step size may at most double, or halve, from one step to the next.
_LARGEST_CHANGE = 2.0
# Decoherence time by integrated autocorrelation time.
_SHARE = 0.4
_BLOCKS = 10
# An autocorrelation time above this share of a block cannot be estimated.
_RESOLVED = 0.5


class WarmupStatistics(NamedTuple):
    """Statistics of warm-up."""

    # Decaying sums of weights, and of weighted squared energy errors in units of the target
    # and at the present step size.
    weight: jax.Array
    error: jax.Array
    block: PyTree  # Sum of the positions of the block being filled
    blocks: Moments  # Moments of the means of complete blocks
    draws: Moments  # Moments of the positions of the present third


@dataclass(frozen=True)
class Decoherence:
    r"""Step size from the energy error, friction from the autocorrelation.

    The variance of the energy error of a step grows as :math:`h^6`, so each squared error
    suggests a step size. The suggestions are averaged with weights that fall with the distance from the
    target (Robnik et al. 2023, section 4.1). When the metric changes, the step size changes by the mean
    change of its units. Errors of the size of the rounding of U are ignored: far from the typical set, where
    U is a million and more in single precision, they would shrink the step for ever.

    After the second third of warm-up :math:`1/\gamma` is the typical standard deviation in the
    metric; over the last, ten block means give the integrated autocorrelation time of every
    parameter, and :math:`1/\gamma = 0.4\, h\, \bar\tau` in the end (section 4.2). If the blocks are too short
    for an estimate, :math:`1/\gamma` is at least its earlier value.

    :param energy_variance: target of Var[ΔE]/D; None for a step size that is not tuned.
    :param finds_friction: whether the friction is set.
    """

    energy_variance: float | None
    finds_friction: bool

    @property
    def learns(self) -> bool:
        """Whether step size or friction is tuned in warm-up."""
        return self.energy_variance is not None or self.finds_friction

    def begin(self, tuned: StepTuning, position: PyTree) -> StepTuning:
        """The tuning before the first step, with empty statistics of warm-up if it uses any."""
        if not self.learns:
            return tuned
        zero = jnp.zeros((), jnp.result_type(float))
        zeros = jax.tree.map(jnp.zeros_like, position)
        none = Moments.none(position)
        return tuned._replace(averaging=WarmupStatistics(zero, zero, zeros, none, none))

    def after_step(
        self, context: "Ingredients", before: SGMCMCState, after: SGMCMCState, error: jax.Array
    ) -> SGMCMCState:
        """The state with its tuning updated by a step of warm-up; `error` is over the temperature."""
        if not self.learns:
            return after
        learn = partial(self._learned, context, before, after, error)
        warming = before.i < before.num_warmup
        return after._replace(adaptation=where_needed(warming, learn, after.adaptation))

    def _learned(
        self, context: "Ingredients", before: SGMCMCState, after: SGMCMCState, error: jax.Array
    ) -> StepTuning:
        """Step size, friction and statistics after a step of warm-up."""
        tuned, position, num_warmup = after.adaptation, after.dynamics.position, before.num_warmup
        metric = context.preconditioner.inverse_mass_matrix
        metrics = [metric(before.preconditioner), metric(after.preconditioner)]
        if self.energy_variance is not None:
            energy = after.potential_energy / before.temperature
            rounding = _ROUNDINGS * jnp.finfo(energy.dtype).eps * jnp.abs(energy)
            target = size(position) * self.energy_variance + rounding**2
            excess = error**2 / target + 1e-8
            tuned = self._resized(tuned, excess, position, metrics)
        third = num_warmup // 3
        blocks = third // _BLOCKS
        if not self.finds_friction:
            return tuned
        length = jnp.maximum(blocks, 1)
        at = before.i - (num_warmup - third)
        learned = _with_draw(tuned.averaging, position, at, third, length)
        inverse_mass = spread(metrics[1], position, "inverse_mass_matrix")
        variance = total(lambda w, v: v / w, inverse_mass, learned.draws.variance)
        seen = learned.draws.size > 1
        scale = jnp.sqrt(jnp.where(seen, variance, 1.0) / size(position))
        chosen = jnp.where((at == -1) & seen, 1 / scale, tuned.friction)
        steps = _autocorrelation_time(learned, length)
        found = 1 / (_SHARE * tuned.step_size * steps)
        # A chain slower than its blocks gets an estimate of about one block.
        found = jnp.where(steps > _RESOLVED * length, jnp.minimum(found, chosen), found)
        chosen = jnp.where(at + 1 == third, found, chosen)
        # Blocks of one step say nothing.
        friction = jnp.where(blocks < 2, tuned.friction, chosen).astype(tuned.friction.dtype)
        return tuned._replace(averaging=learned, friction=friction)

    def _resized(
        self, tuned: StepTuning, excess: jax.Array, position: PyTree, metrics: list[PyTree]
    ) -> StepTuning:
        """The step size at which the mean squared energy error would equal the target."""
        learned, step_size = tuned.averaging, tuned.step_size
        weight = jnp.exp(-0.5 * (jnp.log(excess) / (6 * _TRUST)) ** 2)
        finite = jnp.isfinite(excess)
        all_weights = _MEMORY * learned.weight + jnp.where(finite, weight, 0.0)
        errors = _MEMORY * learned.error + jnp.where(finite, weight * excess, 0.0)
        known = all_weights > 0
        mean = jnp.where(known, errors, 1.0) / jnp.where(known, all_weights, 1.0)
        change = jnp.clip(mean ** (-1 / 6), 1 / _LARGEST_CHANGE, _LARGEST_CHANGE)
        change = jnp.where(finite, change, 1 / _LARGEST_CHANGE)
        before, after = (spread(m, position, "inverse_mass_matrix") for m in metrics)
        units = total(lambda x, w, v: jnp.zeros_like(x) + jnp.log(v / w), position, before, after)
        new = learned._replace(weight=all_weights, error=errors * change**6)
        factor = change * jnp.exp(-0.5 * units / size(position))
        return tuned._replace(step_size=step_size * factor, averaging=new)


def _with_draw(
    learned: WarmupStatistics, position: PyTree, at: jax.Array, third: jax.Array, length: jax.Array
) -> WarmupStatistics:
    """Statistics with one more position; `at`, its place in the last third, is negative in the second."""
    empty = jax.tree.map(jnp.zeros_like, learned.draws)
    draws = jax.tree.map(lambda zero, old: jnp.where(at == 0, zero, old), empty, learned.draws)
    block = jax.tree.map(jnp.add, learned.block, position)
    full = (at + 1) % length == 0
    mean = jax.tree.map(lambda x: x / length, block)
    blocks = jax.tree.map(partial(jnp.where, full), learned.blocks.add(mean), learned.blocks)
    block = jax.tree.map(lambda x: jnp.where(full, 0, x), block)
    before = learned.block, learned.blocks
    block, blocks = jax.tree.map(partial(jnp.where, at >= 0), (block, blocks), before)
    added = draws.add(position)
    draws = jax.tree.map(lambda new, old: jnp.where(at >= -third, new, old), added, draws)
    return learned._replace(block=block, blocks=blocks, draws=draws)


def _autocorrelation_time(learned: WarmupStatistics, length: jax.Array) -> jax.Array:
    """Integrated autocorrelation time in steps, at least 1, the mean over parameters."""
    # A parameter that does not move counts as 1.

    def time(between: jax.Array, overall: jax.Array) -> jax.Array:
        moves = overall > 0
        return jnp.maximum(length * between / jnp.where(moves, overall, 1.0), 1.0)

    times = map_like(time, learned.blocks.variance, learned.draws.variance)
    return total(lambda t: t, times) / size(times)


# First friction of microcanonical dynamics, until warm-up has tuned it: momenta last for about a standard
# deviation of every parameter. With much more friction a chain would only diffuse to the typical set.
_FIRST_FRICTION = 1.0


class Ingredients:
    """The ingredients of a kernel, which inherits from this class, and what a step does with them."""

    dynamics: Dynamics
    gradient: Estimator
    preconditioner: Preconditioner
    tuning: "Tuning"
    # The rules for acceptance and for new momenta, or None.
    metropolis: Metropolis | None
    resample_momentum: MomentumRefresh | None
    # Schedules of the step count.
    step_size: Schedule
    temperature: Schedule
    friction: float | None  # Per unit time, as given, or None
    gradient_noise: GradientNoise  # Known variance of the gradient, or "auto"
    tunes_step_size: bool  # Whether the step size is tuned, not scheduled
    # Whether others change position or potential between two steps.
    is_part: bool

    @property
    def completes_kicks(self) -> bool:
        """Whether a step ends with its pending half kick, at the cost of a second gradient."""
        is_changed = self.is_part or self.resample_momentum is not None
        return is_changed and self.dynamics.pending_kick > 0

    @property
    def all_rows(self) -> bool:
        """Whether gradients are computed on all rows."""
        return self.gradient.batch_size is None

    @property
    def judges_all_rows(self) -> bool:
        """Whether proposals are accepted by the energy on all rows."""
        return self.metropolis is not None and self.metropolis.exact

    @property
    def estimates_noise(self) -> bool:
        """Whether the variance of minibatch gradients is estimated in warm-up."""
        return isinstance(self.gradient_noise, str) and self.gradient.batch_size is not None

    def settings(self, count: jax.Array, tuned: StepTuning, metric: PyTree) -> Settings:
        """Step size, temperature, metric and friction of the next step, `count` steps after warm-up."""
        settings = Settings(
            step_size=tuned.step_size if self.tunes_step_size else self.step_size(count),
            temperature=self.temperature(count),
            inverse_mass_matrix=self.preconditioner.inverse_mass_matrix(metric),
            friction=tuned.friction,
            gradient_noise=0.0 if isinstance(self.gradient_noise, str) else self.gradient_noise,
            divergence=self.preconditioner.divergence(metric),
        )
        return settings if tuned.noise is None else self._less_noise(settings, tuned.noise)

    def _less_noise(self, settings: Settings, noise: NoiseEstimate) -> Settings:
        """Settings with the estimated noise, and an automatic step at which its kicks are small."""
        settings = settings._replace(gradient_noise=noise.variance)
        if not self.tunes_step_size:
            return settings
        most = quiet_step(
            noise, settings.inverse_mass_matrix, settings.temperature, self.dynamics.has_momentum
        )
        step_size = jnp.minimum(settings.step_size, most)
        friction = settings.friction
        if self.friction is None:
            # The friction stays 0.1 / step_size.
            friction = friction * settings.step_size / step_size
        return settings._replace(step_size=step_size, friction=friction)

    def evaluate(
        self, rows: Rows, z: PyTree, estimator: PyTree
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """U, ∇U and the state of the estimator at a position for which no step has computed them."""
        # The gradient at the beginning is an estimate like all others: if it were exact,
        # the reversed trajectory would not be equally likely.
        if not self.dynamics.uses_gradient:
            return rows.energy(z), None, estimator
        value, gradient, after = self.gradient.estimate(rows, z, estimator)
        if self.gradient.batch_size is not None and self.judges_all_rows:
            value = rows.energy(z)
        return value, gradient, after if self.dynamics.reuses_gradient else estimator


class Tuning:
    """The interface of a tuning; its functions run inside compiled programs.

    The step size follows the curvature in warm-up, where the chain tracks it.
    """

    def begin(self, context: Ingredients, start: ChainStart) -> StepTuning:
        """Step size and friction of the first step, with empty statistics."""
        return begin_tuning(start, context.friction)

    def _friction_by_step(self, context: Ingredients) -> bool:
        """Whether the friction stays 0.1 / step_size."""
        return False

    def at_gradient(
        self,
        context: Ingredients,
        tuned: StepTuning,
        product: Callable[[PyTree], PyTree],
        inverse_mass_matrix: PyTree,
        warming: jax.Array,
    ) -> StepTuning:
        """Update by the gradient of an unadjusted step, before it ends; `product` is with the Hessian."""
        if tuned.direction is None:
            return tuned
        by_step = self._friction_by_step(context)

        def follow() -> StepTuning:
            return follow_curvature(tuned, product, inverse_mass_matrix, context.dynamics, by_step)

        return where_needed(warming, follow, tuned)

    def after_step(
        self, context: Ingredients, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Update by a step or Metropolis decision; returns the state from which the chain continues."""
        return after


@dataclass(frozen=True)
class AcceptanceTuning(Tuning):
    """Tunes the step size to a mean acceptance probability, by dual averaging.

    :param target_accept_prob: mean acceptance probability, between 0 and 1.
    """

    target_accept_prob: float = 0.65

    def after_step(
        self, context: Ingredients, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Follow the acceptance probability of this step, in warm-up; its last step takes the average."""
        # Source: Hoffman and Gelman, *The No-U-Turn Sampler* (2014), section 3.2.
        if not context.tunes_step_size:
            return after
        _, update = dual_averaging()
        tuned = after.adaptation
        averaging = update(self.target_accept_prob - after.accept_prob, tuned.averaging)
        last = before.i + 1 >= before.num_warmup
        step_size = jnp.exp(jnp.where(last, averaging[1], averaging[0]))
        new = tuned._replace(step_size=step_size, averaging=averaging)
        warming = before.i < before.num_warmup
        return after._replace(adaptation=jax.tree.map(partial(jnp.where, warming), new, tuned))


@dataclass(frozen=True)
class CurvatureTuning(Tuning):
    """Tunes the step size to the largest curvature, at one Hessian-vector product a step.

    :param finds_friction: whether the friction is tuned too, from the autocorrelation over the last third of
        warm-up, where none is given, the step size is tuned and gradients are on all rows. The default
        0.1 / step_size, with which momenta last ten steps, makes a chain diffuse. That is right with
        minibatches, whose noise would heat momenta that last longer, and wastes gradients on all rows.
    """

    finds_friction: bool = False

    def begin(self, context: Ingredients, start: ChainStart) -> StepTuning:
        """Step size and friction of the first step, with empty statistics of curvature and mixing."""
        friction = self._friction(context)
        tuned = begin_tuning(start, context.friction, follow=True, lasting=friction.finds_friction)
        return friction.begin(tuned, start.position)

    def after_step(
        self, context: Ingredients, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Update the autocorrelation from which the friction is tuned."""
        return self._friction(context).after_step(context, before, after, jnp.zeros(()))

    def _friction_by_step(self, context: Ingredients) -> bool:
        return context.friction is None and not self._friction(context).finds_friction

    def _friction(self, context: Ingredients) -> Decoherence:
        is_open = context.friction is None and context.tunes_step_size and context.all_rows
        return Decoherence(energy_variance=None, finds_friction=self.finds_friction and is_open)


@dataclass(frozen=True)
class EnergyErrorTuning(Tuning):
    """Tunes the step size to a variance of the energy error, and the friction to the autocorrelation.

    For dynamics that track their work. With minibatches, whose noise hides the error of the dynamics, the
    step size follows the curvature. Steps of warm-up whose energy is NaN are undone: the first step size
    may be too large.

    :param energy_variance: target of Var[ΔE]/D for a step, at temperature 1.
    """

    energy_variance: float

    def begin(self, context: Ingredients, start: ChainStart) -> StepTuning:
        """Step size and friction of the first step, with empty statistics of energy error and mixing."""
        friction = context.friction
        if friction is None and context.tunes_step_size:
            friction = _FIRST_FRICTION
        tuned = begin_tuning(start, friction, follow=not context.all_rows)
        return self._decoherence(context).begin(tuned, start.position)

    def after_step(
        self, context: Ingredients, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Follow the energy error of this step; a warm-up step whose energy is not finite is undone."""
        decoherence, error = self._decoherence(context), after.energy_error
        if decoherence.learns:
            lost = (before.i < before.num_warmup) & ~jnp.isfinite(error)
            after = chosen(~lost, after, before._replace(adaptation=after.adaptation))
        return decoherence.after_step(context, before, after, error / before.temperature)

    def _decoherence(self, context: Ingredients) -> Decoherence:
        by_error = context.tunes_step_size and context.all_rows
        return Decoherence(
            energy_variance=self.energy_variance if by_error else None,
            finds_friction=context.friction is None,
        )
