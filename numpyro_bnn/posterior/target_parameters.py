"""What predictions keep of the distribution of a target under one draw."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

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
        mean, variance = fn.mean, fn.variance
    except NotImplementedError:
        raise NotImplementedError(
            f"predict: the law of the target, {type(base).__name__}, has no mean or no variance in NumPyro. "
            "Use a law that has both: dist.Normal(loc + scale * f, …) in place of a transformed one, for "
            "example, or a subclass with the properties `mean` and `variance`."
        ) from None
    scale = jnp.sqrt(jnp.broadcast_to(variance, shape))
    return {"mean": jnp.broadcast_to(mean, shape), "scale": scale}
