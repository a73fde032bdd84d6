"""What predictions keep of the distribution of a target under one draw."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from numpyro_bnn.distributions.unwrap import family_of


def parameters_of(fn: dist.Distribution) -> dict[str, jax.Array]:
    """The parameters of a target's distribution that predictions hold: probabilities, or mean and scale."""
    base = family_of(fn)
    if isinstance(base, (dist.CategoricalProbs, dist.CategoricalLogits)):
        shape = (*fn.batch_shape, *fn.event_shape, base.probs.shape[-1])
        return {"probs": jnp.broadcast_to(base.probs, shape)}
    if isinstance(base, (dist.BernoulliProbs, dist.BernoulliLogits)):
        p = jnp.broadcast_to(base.probs, fn.batch_shape + fn.event_shape)
        return {"probs": jnp.stack([1 - p, p], -1)}
    shape = fn.batch_shape + fn.event_shape
    try:
        mean, scale = fn.mean, _scale_of(fn)
    except NotImplementedError:
        raise NotImplementedError(
            f"predict: the distribution of the target, {type(base).__name__}, has no mean or no variance in "
            "NumPyro. Use one that has both, such as dist.Normal(loc + scale * f, …) for a transformed one, "
            "or a subclass with the properties `mean` and `variance`."
        ) from None
    return {"mean": jnp.broadcast_to(mean, shape), "scale": jnp.broadcast_to(scale, shape)}


def _scale_of(fn: dist.Distribution) -> jax.Array:
    """The standard deviation, also where NumPyro's variance overflows or subtracts large numbers."""
    base = family_of(fn)
    if isinstance(base, dist.LogNormal):
        return base.mean * jnp.sqrt(jnp.expm1(base.scale**2))
    if isinstance(base, dist.Weibull):
        first, second = (gammaln(1 + n / base.concentration) for n in (1, 2))
        return base.mean * jnp.sqrt(jnp.expm1(second - 2 * first))
    if isinstance(base, (dist.ZeroInflatedProbs, dist.HurdleProbs)):
        part, missing = base.base_dist, jnp.zeros(())
        if isinstance(base, dist.HurdleProbs) and base.support.is_discrete:
            missing = jnp.exp(part.log_prob(jnp.zeros((), int)))
        share = (1 - base.gate) / (1 - missing)
        return jnp.sqrt(share * (_scale_of(part) ** 2 + (1 - share) * part.mean**2))
    return jnp.sqrt(fn.variance)
