"""SMILE's metric and its tuner, as ingredients of the kernels here: what minibatch MCLMC is tried with.

Sommer, Diao, Robnik, Seljak and Rügamer, *Can Microcanonical Langevin Dynamics Leverage Mini-Batch
Gradient Noise?* (2026, arXiv 2602.06500) give minibatch microcanonical dynamics two things: a metric in
which the noise of minibatches is the same in every direction, and a tuner that holds the energy error of a
step against those of the steps before it. :func:`smile` puts both on our isokinetic dynamics. As published
there is no friction: the noise of minibatches alone turns momenta. Three things differ: a step here is one
leapfrog step with one gradient (theirs has two gradients of one minibatch), the first step size is that of
the curvature at the start (theirs is given by hand), and the metric is frozen after warm-up, because a
metric that goes on changing with the state has no invariant distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    Settings,
    chosen,
    map_like,
    size,
    total,
    where_needed,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic, on_sphere
from numpyro_bnn.samplers.sgmcmc.preconditioners import identity
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState
from numpyro_bnn.samplers.sgmcmc.step_size import ChainStart, StepTuning, begin_tuning
from numpyro_bnn.samplers.sgmcmc.tuning import Ingredients

# Steps before which nothing is tuned or taken back.
_FIRST = 10
# The least variance of the gradient of a weight, in units of the mean over weights.
_LEAST = 1e-4


class DecayingMoments(NamedTuple):
    """Decaying mean and mean squared deviation, leaf by leaf, and how many values they have seen."""

    mean: PyTree
    variance: PyTree
    seen: jax.Array

    @classmethod
    def none(cls, like: PyTree) -> "DecayingMoments":
        """Moments of no value yet."""
        zeros = jax.tree.map(jnp.zeros_like, like)
        return cls(zeros, zeros, jnp.asarray(0))

    def add(self, value: PyTree, smoothing: float) -> "DecayingMoments":
        """The moments with one more value.

        :param smoothing: its weight; at first that of a plain mean, which forgets the start at 0 at once.
        """
        share = jnp.maximum(smoothing, 1.0 / (self.seen + 1.0))
        mean = map_like(lambda m, x: m + share * (x - m), self.mean, value)
        variance = map_like(
            lambda v, x, old, new: v + share * ((x - old) * (x - new) - v),
            self.variance,
            value,
            self.mean,
            mean,
        )
        return DecayingMoments(mean, variance, self.seen + 1)


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

    def init(self, position: PyTree) -> DecayingMoments:
        return DecayingMoments.none(position)

    def update(
        self,
        state: DecayingMoments,
        gradient: PyTree,
        position: PyTree,
        adapting: jax.Array,
        hessian_diagonal: PyTree = None,
    ) -> DecayingMoments:
        return where_needed(adapting, lambda: state.add(gradient, self.smoothing), state)

    def inverse_mass_matrix(self, state: DecayingMoments) -> PyTree:
        overall = total(lambda v: v, state.variance) / size(state.variance)
        known = (state.seen >= 2) & (overall > 0)
        return map_like(
            lambda v: jnp.where(known, 1 / jnp.maximum(v / overall, _LEAST), 1.0), state.variance
        )

    def divergence(self, state: DecayingMoments) -> PyTree:
        return 0.0


def gamma_quantile(probability: float, mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Quantile of the Gamma distribution with this mean and variance, by Wilson and Hilferty (1931)."""
    shape = mean**2 / variance
    z = norm.ppf(probability)
    return mean * (1 - 1 / (9 * shape) + z / (3 * jnp.sqrt(shape))) ** 3


@dataclass(frozen=True)
class QuantileTuning:
    """A step shrinks after a large energy error and grows after a small one; the largest errors are undone.

    Large and small are quantiles of a Gamma distribution with the moments of |ΔE| over the last steps: there
    is no target for the error itself. It is at work after warm-up too. Numbers are those of the published
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

    def begin(self, context: Ingredients, start: ChainStart) -> StepTuning:
        tuned = begin_tuning(start, 0.0)
        zero = jnp.zeros((), jnp.result_type(float))
        return tuned._replace(averaging=DecayingMoments.none(zero))

    def at_gradient(
        self,
        context: Ingredients,
        tuned: StepTuning,
        product: Callable[[PyTree], PyTree],
        inverse_mass_matrix: PyTree,
        warming: jax.Array,
    ) -> StepTuning:
        return tuned

    def after_step(
        self, context: Ingredients, before: SGMCMCState, after: SGMCMCState
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
        known = chosen(finite, errors.add(error.astype(errors.mean.dtype), self.smoothing), errors)
        tuned = tuned._replace(step_size=step_size, averaging=known)
        return chosen(~lost, after, self._downhill(context, before, after))._replace(
            adaptation=tuned,
            i=after.i,
            count=after.count,
            estimator=after.estimator,
            preconditioner=after.preconditioner,
        )

    @staticmethod
    def _downhill(context: Ingredients, before: SGMCMCState, after: SGMCMCState) -> SGMCMCState:
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
