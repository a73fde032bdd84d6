"""The distribution of weights whose common Gamma precision is integrated out.

For n weights w ~ Normal(0, 1 / (factor t)) and t ~ Gamma(a, b),

    p(w) = Γ(a + n/2) / Γ(a) · b^a (factor / 2π)^(n/2) / (b + factor ‖w‖²/2)^(a + n/2),

a multivariate Student t. The precision is drawn afterwards from Gamma(a + n/2, b + factor
‖w‖²/2). Post-processing of draws must depend on their values alone, and NumPyro gives it the same random key
for every draw; so the key is made from the bits of the weights: different weights give different random
numbers.
"""

import zlib
from math import prod

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from numpyro_bnn.distributions.gamma import Gamma
from numpyro_bnn.priors.precision_conditionals import Array


class GammaScaleMixture(dist.Distribution):
    """Normal weights whose common precision, or one for each slice, is Gamma distributed.

    :param concentration: shape parameter a of the Gamma distribution, a number.
    :param rate: rate b, of shape () or one for each unit of `array`.
    :param shape: shape of the weights; all of its axes are event axes.
    :param array: the units that have their own precisions, and the factor of the precisions.
    """

    arg_constraints = {  # noqa: RUF012
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    pytree_data_fields = ("concentration", "rate")
    pytree_aux_fields = ("array",)

    def __init__(
        self,
        concentration: ArrayLike,
        rate: ArrayLike,
        shape: tuple[int, ...],
        array: Array,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration = jnp.asarray(concentration)
        self.array = array
        self.rate = jnp.broadcast_to(rate, array.unit_shape(shape))
        super().__init__(batch_shape=(), event_shape=shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """All real arrays of the shape of the weights."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws of the weights, each with its own precisions."""
        key_precision, key = jax.random.split(key)
        shape = (*sample_shape, *self.event_shape)
        precision = Gamma(self.concentration, self.rate).sample(key_precision, sample_shape)
        if not self.array.units:
            precision = precision.reshape((*sample_shape, *[1] * len(self.event_shape)))
        spread = self.array.spread(precision, len(self.event_shape))
        return jax.random.normal(key, shape) / jnp.sqrt(self.array.factor * spread)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log density of the weights in nats, with their precisions integrated out."""
        count = prod(self.event_shape) // self.rate.size
        square = self.array.total(value**2, len(self.event_shape))
        a, factor = self.concentration, self.array.factor
        each = (
            gammaln(a + count / 2)
            - gammaln(a)
            + count / 2 * (jnp.log(factor) - jnp.log(2 * jnp.pi) - jnp.log(self.rate))
            - (a + count / 2) * jnp.log1p(factor * square / (2 * self.rate))
        )
        return each.sum(tuple(range(-self.rate.ndim, 0)))


def drawn_back(site: str, distribution: Gamma, weights: list[jax.Array]) -> jax.Array:
    """A draw of a precision from its conditional given the weights, with a key made from their bits."""
    key = key_of(site, weights)
    return Gamma(*lax.stop_gradient((distribution.concentration, distribution.rate))).sample(key)


def key_of(site: str, values: list[jax.Array]) -> jax.Array:
    """A random key made from the bits of sampled values; other sites get other keys."""
    key = jax.random.key(zlib.crc32(site.encode()))
    words = [word for array in values for word in _hash(lax.stop_gradient(array))]
    if not words:
        return key
    # A loop, because each call of the generator takes a tenth of a second to compile.
    return lax.scan(lambda key, word: (jax.random.fold_in(key, word), None), key, jnp.stack(words))[
        0
    ]


def _hash(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two sums of the bits of an array, of 32 bits each, with odd multipliers as in a hash function."""
    words = lax.bitcast_convert_type(array, jnp.uint32).reshape(-1)
    place = jnp.arange(words.size, dtype=jnp.uint32)
    sums = []
    for odd in (0x9E3779B1, 0x85EBCA77):
        mixed = (place + 1) * jnp.uint32(odd)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x2C1B3C6D)
        sums.append(jnp.sum(words * (mixed | 1), dtype=jnp.uint32))
    return sums[0], sums[1]
