"""Tuning of step size and friction in warm-up.

A tuning is an ingredient of a kernel. It gives first values (:meth:`Tuning.begin`), is called with every
gradient (:meth:`Tuning.at_gradient`) and after every step (:meth:`Tuning.after_step`), and changes nothing
once warm-up is over. There are three:
:class:`AcceptanceTuning` for Metropolis methods, :class:`CurvatureTuning` for all others, and
:class:`EnergyErrorTuning` for microcanonical dynamics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.branches import chosen, where_needed
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics
from numpyro_bnn.samplers.sgmcmc.energy_error_tuning import Decoherence
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState
from numpyro_bnn.samplers.sgmcmc.step_size import (
    ChainStart,
    StepTuning,
    begin_tuning,
    follow_acceptance,
    follow_curvature,
)

# First friction of microcanonical dynamics, until warm-up has tuned it: momenta last for about a standard
# deviation of every parameter. With much more friction a chain would only diffuse to the typical set.
_FIRST_FRICTION = 1.0


class TuningContext(NamedTuple):
    """The user's choices and the other ingredients, on which a tuning depends."""

    auto: bool  # Whether the step size is tuned
    friction: float | None  # Friction per unit time as given; None where it is tuned
    all_rows: bool  # Whether gradients are computed on all rows
    num_warmup: int  # Steps of warm-up
    dynamics: Dynamics
    preconditioner: Preconditioner


class Tuning(Protocol):
    """The interface of a tuning; all three functions run inside compiled programs."""

    def begin(self, context: TuningContext, start: ChainStart) -> StepTuning:
        """Step size and friction of the first step, with empty statistics."""

    def at_gradient(
        self,
        context: TuningContext,
        tuned: StepTuning,
        product: Callable[[PyTree], PyTree],
        inverse_mass_matrix: PyTree,
        warming: jax.Array,
    ) -> StepTuning:
        """Update by the gradient of an unadjusted step, before the step is completed.

        :param product: the product of a vector with the Hessian of U, on all rows or a minibatch.
        :param inverse_mass_matrix: the current metric.
        :param warming: whether this is warm-up.
        """

    def after_step(
        self, context: TuningContext, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Update by a step or Metropolis decision; returns the state from which the chain continues."""


@dataclass(frozen=True)
class AcceptanceTuning:
    """Tunes the step size to a mean acceptance probability, by dual averaging.

    :param target_accept_prob: mean acceptance probability, between 0 and 1.
    """

    target_accept_prob: float = 0.65

    def begin(self, context: TuningContext, start: ChainStart) -> StepTuning:
        """Step size and friction of the first step, with an empty average of acceptance."""
        return begin_tuning(start, context.friction)

    def at_gradient(
        self,
        context: TuningContext,
        tuned: StepTuning,
        product: Callable[[PyTree], PyTree],
        inverse_mass_matrix: PyTree,
        warming: jax.Array,
    ) -> StepTuning:
        """Change nothing: the acceptance is known only after a step."""
        return tuned

    def after_step(
        self, context: TuningContext, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Follow the acceptance probability of this step, in warm-up."""
        if not context.auto:
            return after
        warming = before.i < context.num_warmup
        last = before.i + 1 >= context.num_warmup
        target = self.target_accept_prob
        tuned = follow_acceptance(after.adaptation, after.accept_prob, target, warming, last)
        return after._replace(adaptation=tuned)


@dataclass(frozen=True)
class CurvatureTuning:
    """Tunes the step size to the largest curvature, at one Hessian-vector product a step.

    :param finds_friction: whether the friction is tuned too, from the autocorrelation over the last third of
        warm-up, where none is given, the step size is tuned and gradients are on all rows. The default
        0.1 / step_size, with which momenta last ten steps, makes a chain diffuse. That is right with
        minibatches, whose noise would heat momenta that last longer, and wastes gradients on all rows.
    """

    finds_friction: bool = False

    def begin(self, context: TuningContext, start: ChainStart) -> StepTuning:
        """Step size and friction of the first step, with empty statistics of curvature and mixing."""
        friction = self._friction(context)
        tuned = begin_tuning(start, context.friction, follow=True, lasting=friction.finds_friction)
        return _with_statistics(friction, tuned, start.position)

    def at_gradient(
        self,
        context: TuningContext,
        tuned: StepTuning,
        product: Callable[[PyTree], PyTree],
        inverse_mass_matrix: PyTree,
        warming: jax.Array,
    ) -> StepTuning:
        """Update the estimate of the largest curvature by one Hessian-vector product."""
        by_step = context.friction is None and not self._friction(context).finds_friction
        return _at_curvature(context, tuned, product, inverse_mass_matrix, warming, by_step)

    def after_step(
        self, context: TuningContext, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Update the autocorrelation from which the friction is tuned."""
        return _learned(self._friction(context), context, before, after, jnp.zeros(()))

    def _friction(self, context: TuningContext) -> Decoherence:
        is_open = context.friction is None and context.auto and context.all_rows
        return Decoherence(energy_variance=None, finds_friction=self.finds_friction and is_open)


@dataclass(frozen=True)
class EnergyErrorTuning:
    """Tunes the step size to a variance of the energy error, and the friction to the autocorrelation.

    For dynamics that track their work. With minibatches, whose noise hides the error of the dynamics, the
    step size follows the curvature. Steps of warm-up whose energy is NaN are undone: the first step size
    may be too large.

    :param energy_variance: target of Var[ΔE]/D for a step, at temperature 1.
    """

    energy_variance: float

    def begin(self, context: TuningContext, start: ChainStart) -> StepTuning:
        """Step size and friction of the first step, with empty statistics of energy error and mixing."""
        friction = context.friction
        if friction is None and context.auto:
            friction = _FIRST_FRICTION
        tuned = begin_tuning(start, friction, follow=not context.all_rows)
        return _with_statistics(self._decoherence(context), tuned, start.position)

    def at_gradient(
        self,
        context: TuningContext,
        tuned: StepTuning,
        product: Callable[[PyTree], PyTree],
        inverse_mass_matrix: PyTree,
        warming: jax.Array,
    ) -> StepTuning:
        """Update the estimate of the largest curvature, which the step size follows with minibatches."""
        return _at_curvature(context, tuned, product, inverse_mass_matrix, warming, by_step=False)

    def after_step(
        self, context: TuningContext, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        """Follow the energy error of this step; a warm-up step whose energy is not finite is undone."""
        decoherence, error = self._decoherence(context), after.energy_error
        if decoherence.learns:
            lost = (before.i < context.num_warmup) & ~jnp.isfinite(error)
            after = chosen(~lost, after, before._replace(adaptation=after.adaptation))
        return _learned(decoherence, context, before, after, error / before.temperature)

    def _decoherence(self, context: TuningContext) -> Decoherence:
        by_error = context.auto and context.all_rows
        return Decoherence(
            energy_variance=self.energy_variance if by_error else None,
            finds_friction=context.friction is None,
        )


def _with_statistics(rule: Decoherence, tuned: StepTuning, position: PyTree) -> StepTuning:
    """Add empty statistics of warm-up, if the tuning uses any."""
    return tuned._replace(averaging=rule.init(position)) if rule.learns else tuned


def _at_curvature(
    context: TuningContext,
    tuned: StepTuning,
    product: Callable[[PyTree], PyTree],
    inverse_mass_matrix: PyTree,
    warming: jax.Array,
    by_step: bool,
) -> StepTuning:
    """Update the step size by the curvature in warm-up, if the chain tracks the curvature."""
    if tuned.direction is None:
        return tuned

    def follow() -> StepTuning:
        return follow_curvature(tuned, product, inverse_mass_matrix, context.dynamics, by_step)

    return where_needed(warming, follow, tuned)


def _learned(
    rule: Decoherence,
    context: TuningContext,
    before: SGMCMCState,
    after: SGMCMCState,
    energy_error: jax.Array,
) -> SGMCMCState:
    """The state with its tuning updated by a step of warm-up; `energy_error` is over the temperature."""
    if not rule.learns:
        return after

    def learn() -> StepTuning:
        metric = context.preconditioner.inverse_mass_matrix
        metrics = [metric(before.preconditioner), metric(after.preconditioner)]
        energy = after.potential_energy / before.temperature
        return rule.update(
            after.adaptation,
            energy_error,
            energy,
            after.dynamics.position,
            metrics,
            before.i,
            context.num_warmup,
        )

    warming = before.i < context.num_warmup
    return after._replace(adaptation=where_needed(warming, learn, after.adaptation))
