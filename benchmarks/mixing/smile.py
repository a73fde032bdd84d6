"""SMILE's metric and its tuner, as ingredients of the kernels here: what minibatch MCLMC is tried with.

Sommer, Diao, Robnik, Seljak and Rügamer, *Can Microcanonical Langevin Dynamics Leverage Mini-Batch
Gradient Noise?* (2026, arXiv 2602.06500) give minibatch microcanonical dynamics two things: a metric in
which the noise of minibatches is the same in every direction, and a tuner that holds the energy error of a
step against those of the steps before it. :func:`smile` puts both on our isokinetic dynamics. As published
there is no friction: the noise of minibatches alone turns momenta. Three things differ: a step here is one
leapfrog step with one gradient (theirs has two gradients of one minibatch), the first step size is that of
the curvature at the start (theirs is given by hand), and the metric is frozen after warm-up, because a
metric that goes on changing with the state has no invariant law.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.branches import chosen, where_needed
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    Settings,
    map_like,
    size,
    total,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic, on_sphere
from numpyro_bnn.samplers.sgmcmc.preconditioners import identity
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState
from numpyro_bnn.samplers.sgmcmc.step_size import ChainStart, StepTuning, begin_tuning
from numpyro_bnn.samplers.sgmcmc.tuning import TuningContext

# Steps before which nothing is tuned or taken back.
_FIRST = 10


class NoiseMoments(NamedTuple):
    """State of :class:`NoiseMetric`: decaying mean and mean squared deviation of the gradient, by weight."""

    mean: PyTree
    variance: PyTree
    seen: jax.Array


@dataclass(frozen=True)
class NoiseMetric:
    """The inverse mass of a weight is one over the variance of its gradient over the last steps.

    Scaled so that the variances have mean 1; no weight's is below a ten-thousandth of that mean. Of minibatch
    gradients that are mostly noise it is the variance of the noise, so that noise is the same in every
    direction in units of the metric.

    :param smoothing: weight of the newest gradient.
    """

    smoothing: float = 0.01

    varies = False
    needs_warmup = True

    def init(self, position: PyTree) -> NoiseMoments:
        zeros = jax.tree.map(jnp.zeros_like, position)
        return NoiseMoments(zeros, zeros, jnp.asarray(0))

    def update(
        self,
        state: NoiseMoments,
        gradient: PyTree,
        position: PyTree,
        adapting: jax.Array,
        hessian_diagonal: PyTree = None,
    ) -> NoiseMoments:
        # Weights of the first steps are those of a plain mean, so that the start at 0 is forgotten at once.
        share = jnp.maximum(self.smoothing, 1.0 / (state.seen + 1.0))

        def averaged() -> NoiseMoments:
            mean = map_like(lambda m, g: m + share * (g - m), state.mean, gradient)
            variance = map_like(
                lambda v, g, old, new: v + share * ((g - old) * (g - new) - v),
                state.variance,
                gradient,
                state.mean,
                mean,
            )
            return NoiseMoments(mean, variance, state.seen + 1)

        return where_needed(adapting, averaged, state)

    def inverse_mass_matrix(self, state: NoiseMoments) -> PyTree:
        overall = total(lambda v: v, state.variance) / size(state.variance)
        known = (state.seen >= 2) & (overall > 0)
        least = 1e-4
        return map_like(
            lambda v: jnp.where(known, 1 / jnp.maximum(v / overall, least), 1.0), state.variance
        )

    def divergence(self, state: NoiseMoments) -> PyTree:
        return 0.0


class EnergyErrors(NamedTuple):
    """State of :class:`QuantileTuning`: decaying mean and variance of |ΔE|, and steps so far."""

    mean: jax.Array
    variance: jax.Array
    seen: jax.Array


def gamma_quantile(probability: float, mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Quantile of the Gamma law with this mean and variance, by Wilson and Hilferty (1931)."""
    shape = mean**2 / variance
    z = norm.ppf(probability)
    return mean * (1 - 1 / (9 * shape) + z / (3 * jnp.sqrt(shape))) ** 3


@dataclass(frozen=True)
class QuantileTuning:
    """A step shrinks after a large energy error and grows after a small one; the largest errors are undone.

    Large and small are quantiles of a Gamma law with the moments of |ΔE| over the last steps: there is no
    target for the error itself. It is at work after warm-up too. Numbers are those of the published
    experiments.

    :param share: probability of an error that changes the step: two thirds of it above, a third below.
    :param factor: by how much a step grows or shrinks.
    :param undone: quantile above which the chain goes back to where it was, with a momentum downhill.
    :param smoothing: weight of the newest error.
    """

    share: float = 0.1
    factor: float = 0.02
    undone: float = 0.98
    smoothing: float = 0.01

    def begin(self, context: TuningContext, start: ChainStart) -> StepTuning:
        tuned = begin_tuning(start, 0.0)
        zero = jnp.zeros((), jnp.result_type(float))
        return tuned._replace(averaging=EnergyErrors(zero, zero, jnp.asarray(0)))

    def at_gradient(
        self,
        context: TuningContext,
        tuned: StepTuning,
        product: Callable[[PyTree], PyTree],
        inverse_mass_matrix: PyTree,
        warming: jax.Array,
    ) -> StepTuning:
        return tuned

    def after_step(
        self, context: TuningContext, before: SGMCMCState, after: SGMCMCState
    ) -> SGMCMCState:
        tuned, errors = after.adaptation, after.adaptation.averaging
        error = jnp.abs(after.energy_error) / before.temperature
        finite = jnp.isfinite(error)
        ready = errors.seen >= _FIRST

        def beyond(probability: float) -> jax.Array:
            return gamma_quantile(probability, errors.mean, errors.variance)

        large = ready & (~finite | (error > beyond(1 - 2 * self.share / 3)))
        small = ready & finite & (error < beyond(self.share / 3))
        lost = (ready & (error > beyond(self.undone))) | ~finite
        change = jnp.where(large, 1 - self.factor, jnp.where(small, 1 + self.factor, 1.0))
        step_size = (tuned.step_size * change).astype(tuned.step_size.dtype)
        tuned = tuned._replace(step_size=step_size, averaging=self._with(errors, error, finite))
        return chosen(~lost, after, self._downhill(context, before, after))._replace(
            adaptation=tuned,
            i=after.i,
            count=after.count,
            estimator=after.estimator,
            preconditioner=after.preconditioner,
        )

    def _with(self, errors: EnergyErrors, error: jax.Array, finite: jax.Array) -> EnergyErrors:
        share = jnp.maximum(self.smoothing, 1.0 / (errors.seen + 1.0))
        mean = errors.mean + share * (error - errors.mean)
        variance = errors.variance + share * (
            (error - errors.mean) * (error - mean) - errors.variance
        )
        new = EnergyErrors(mean, variance, errors.seen + 1)
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o).astype(o.dtype), new, errors)

    @staticmethod
    def _downhill(context: TuningContext, before: SGMCMCState, after: SGMCMCState) -> SGMCMCState:
        """The state before the step, with the metric after it and a momentum against the gradient."""
        metric = context.preconditioner.inverse_mass_matrix(after.preconditioner)
        dynamics = before.dynamics
        settings = Settings(before.step_size, before.temperature, metric)
        momentum = on_sphere(jax.tree.map(jnp.negative, dynamics.gradient), settings)
        return before._replace(dynamics=dynamics._replace(momentum=momentum))


def smile(noise_metric: bool) -> dict[str, Any]:
    """What :class:`~numpyro_bnn.SGMCMC` takes for the published sampler, but for the rows of a minibatch.

    :param noise_metric: whether noise has the same size in every direction in the metric (pSMILE), or all
        masses are 1 (SMILE).
    """
    return {
        "dynamics": Isokinetic(friction=False),
        "preconditioner": NoiseMetric() if noise_metric else identity(),
        "tuning": QuantileTuning(),
    }
