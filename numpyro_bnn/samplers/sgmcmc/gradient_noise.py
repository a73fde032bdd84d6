r"""The variance that minibatches give to the gradient, estimated in warm-up.

The gradient of a minibatch is that of all rows plus noise of variance V. Each kick by it adds momentum of
variance :math:`h^2 V`, which heats a chain although no temperature was asked for. Methods that know V take it
off the noise that they add themselves (Ahn, Korattikara and Welling 2012, *Bayesian posterior sampling via
stochastic gradient Fisher scoring*, section 3; Chen, Fox and Guestrin 2014, eq. 13).

Two independent minibatches at the same position give gradients :math:`g, g'`, and :math:`(g - g')^2 / 2` has
the mean V, entry by entry, however far the chain is from a mode. Differences of gradients of successive steps
would count the curvature along the path as noise.

Noise that many weights share, as those of a wide layer do, is not taken off: its covariance has a few large
eigenvalues, along the directions in which predictions move, and V is only its diagonal. Means over weights,
such as the kinetic temperature, do not show that heat (``benchmarks/mixing/bias_by_dimension.py``); the
kinetic temperature along gradients does. Estimators with little noise, such as
:func:`~numpyro_bnn.samplers.sgmcmc.gradients.svrg`, leave little to take off.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_bnn._types import Number, PyTree
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.branches import where_needed
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import map_like, size, spread, total
from numpyro_bnn.samplers.sgmcmc.gradients import Estimate, Estimator

# The running mean spans this share of warm-up, because noise is larger where a chain begins.
_SHARE = 0.25
# The fewest anchors in warm-up, if gradients have any: that share of it then sees anchors of all ages.
ANCHORS = 4
# Mean variance that one kick of an automatic step may add, in units of T M. The correction is exact for
# positions; recorded momenta are colder than T by half of this.
_QUIET = 0.08


class NoiseEstimate(NamedTuple):
    """The estimate of V."""

    variance: PyTree  # Like the position
    pairs: jax.Array  # Pairs of gradients used so far


def anchored_in_warmup(
    estimator: Estimator, gradient_noise: Any, num_warmup: int | jax.Array
) -> Estimator:
    """The estimator, with anchors so close together that warm-up sees several where noise is estimated."""
    # The noise of an anchored gradient grows with the distance from the anchor. If the first new anchor
    # came after warm-up, the noise would be estimated near the first one only, and the chain heat up.
    follows = isinstance(gradient_noise, str) and estimator.follows_chain
    if not follows or getattr(estimator, "period", 0) is not None:
        return estimator
    longest = jnp.maximum(1, num_warmup // ANCHORS)
    return dataclasses.replace(estimator, longest_period=longest)  # type: ignore[type-var]


def begin_noise(position: PyTree) -> NoiseEstimate:
    """No estimate yet: variance 0, which takes nothing off."""
    return NoiseEstimate(jax.tree.map(jnp.zeros_like, position), jnp.zeros((), jnp.int32))


def learned_noise(
    known: NoiseEstimate,
    estimator: Estimator,
    rows: Rows,
    position: PyTree,
    first: Estimate,
    count: jax.Array,
    num_warmup: jax.Array,
) -> NoiseEstimate:
    """Update the estimate by a second minibatch at the position of the first; unchanged after warm-up."""
    horizon = jnp.maximum(1.0, _SHARE * num_warmup)

    def learn() -> NoiseEstimate:
        second = estimator.again(rows, position, first.state).gradient
        weight = 1 / jnp.minimum(known.pairs + 1.0, horizon)
        variance = map_like(
            lambda v, g, k: v + weight * (0.5 * (g - k) ** 2 - v),
            known.variance,
            first.gradient,
            second,
        )
        return NoiseEstimate(variance, known.pairs + 1)

    return where_needed(count < num_warmup, learn, known)


def quiet_step(
    known: NoiseEstimate, inverse_mass_matrix: PyTree, temperature: Number, has_momentum: bool
) -> jax.Array:
    """The step size at which gradient noise is 8 % of the proper noise, on average over parameters."""
    # With momenta h² V = 0.08 T M, the part of the energy of a momentum that a kick adds; without, ¼ ε² V /
    # M² = 0.08 ε T / M, the part of the noise of a step. Infinite without noise and at T = 0.
    variance = known.variance
    inverse_mass = spread(inverse_mass_matrix, variance, "inverse_mass_matrix")
    mean = total(lambda v, w: v * w, variance, inverse_mass) / size(variance)
    compared = (mean > 0) & (jnp.asarray(temperature) > 0)
    ratio = _QUIET * temperature / jnp.where(compared, mean, 1.0)
    return jnp.where(compared, jnp.sqrt(ratio) if has_momentum else 4 * ratio, jnp.inf)
