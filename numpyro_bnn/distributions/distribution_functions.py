"""The distribution function of a target's law, where NumPyro has one and where it has none."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.typing import ArrayLike

from numpyro_bnn.distributions.unwrap import family_of

_ZERO_INFLATED = (dist.ZeroInflatedProbs, dist.ZeroInflatedLogits)


def distribution_function(law: dist.Distribution, y: jax.Array) -> jax.Array:
    """F(y) of every entry of a target by itself, also of one whose entries are one event.

    What NumPyro has is taken. Laws of whole numbers that have none there, such as the binomial, are summed
    from their first number up to y: the cost grows with y.

    :param law: distribution of the target.
    :param y: one value for each entry, of any size: below the support F is 0, above it 1.
    :return: the shape of the target, between 0 and 1.
    :raises NotImplementedError: for a law without one, naming it.
    """
    base = family_of(law)
    if isinstance(base, (dist.MultivariateNormal, dist.LowRankMultivariateNormal)):
        # Of each output by itself.
        return dist.Normal(base.mean, jnp.sqrt(base.variance)).cdf(y)
    if isinstance(base, dist.Delta):
        return jnp.where(y >= base.v, 1.0, 0.0)
    if isinstance(base, _ZERO_INFLATED):
        return base.gate * (y >= 0) + (1 - base.gate) * distribution_function(base.base_dist, y)
    if (parts := _of_components(base, y)) is not None:
        return jnp.sum(base.mixing_distribution.probs * parts, -1)
    # Outside of the support, and between whole numbers, NumPyro's functions are NaN or something in between.
    low = getattr(base.support, "lower_bound", -jnp.inf)
    high = getattr(base.support, "upper_bound", jnp.inf)
    at = jnp.floor(y) if base.support.is_discrete else y
    inside = jnp.clip(at, low, high)
    try:
        found = base.cdf(inside)
    except NotImplementedError:
        has_first = base.support.is_discrete and hasattr(base.support, "lower_bound")
        if not has_first or base.event_shape:
            raise NotImplementedError(
                f"The law of the target, {type(base).__name__}, has no distribution function in NumPyro, so "
                "that quantiles, and distances between distribution functions, cannot be computed. Draw "
                "targets by `predictions.sample(key)`, or use a law that has one."
            ) from None
        found = _summed(base, low, inside)
    return jnp.where(at < low, 0.0, jnp.where(at >= high, 1.0, found))


def _of_components(law: dist.Distribution, y: jax.Array) -> jax.Array | None:
    """Distribution functions of the components of a mixture of numbers, the last axis; None of other laws.

    NumPyro's own takes every component at numbers outside of its support too.
    """
    if law.event_shape:
        return None
    if isinstance(law, dist.MixtureSameFamily):
        return distribution_function(law.component_distribution, jnp.expand_dims(y, -1))
    if isinstance(law, dist.MixtureGeneral):
        return jnp.stack([distribution_function(c, y) for c in law.component_distributions], -1)
    return None


def _summed(law: dist.Distribution, low: ArrayLike, y: jax.Array) -> jax.Array:
    """The probabilities of the whole numbers from `low` to y, added up."""

    def more(i: int, total: jax.Array) -> jax.Array:
        value = jnp.minimum(low + i, y)
        return total + jnp.where(low + i <= y, jnp.exp(law.log_prob(value)), 0.0)

    shape = jnp.broadcast_shapes(jnp.shape(y), law.batch_shape)
    count = jnp.max(y - low).astype(int) + 1
    return jnp.minimum(lax.fori_loop(0, count, more, jnp.zeros(shape)), 1.0)
