"""Distributions whose log densities keep their digits in single precision, where NumPyro's lose them.

Those take the difference of two values of log Γ: with 1e8 degrees of freedom both are 8e8, in steps of 64.
"""

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions.util import validate_sample

from numpyro_bnn._types import Array

# Stirling's series, to its third term, has all digits of double precision times 1e-3 from here on.
_LARGE = 10.0


class NegativeBinomial(dist.NegativeBinomial2):
    """By mean and concentration, as NumPyro's, which is wrong by 3 nats at a concentration of 1e8."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        a, rate, k = (
            jnp.asarray(v, jnp.result_type(float)) for v in (self.concentration, self.rate, value)
        )
        rising = _rising(a, k) + k * jnp.log(a / (1 + rate))
        return rising - gammaln(k + 1) - a * jnp.log1p(1 / rate)


class StudentT(dist.StudentT):
    """As NumPyro's, with any number of degrees of freedom."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        df, y = jnp.asarray(self.df, jnp.result_type(float)), (value - self.loc) / self.scale
        normaliser = _rising(df / 2, jnp.asarray(0.5, df.dtype)) - 0.5 * math.log(2 * math.pi)
        return normaliser - jnp.log(self.scale) - 0.5 * (df + 1) * jnp.log1p(y**2 / df)


def _rising(a: jax.Array, k: jax.Array) -> jax.Array:
    """log Γ(a + k) - log Γ(a) - k log a, without differences of large numbers."""
    # Abramowitz and Stegun (1964), 6.1.41. Each branch has arguments at which its derivative is finite.
    large, small = jnp.where(a > _LARGE, a, _LARGE), jnp.where(a > _LARGE, 1.0, a)
    by_series = (large + k - 0.5) * jnp.log1p(k / large) - k + _rest(large + k) - _rest(large)
    return jnp.where(
        a > _LARGE, by_series, gammaln(small + k) - gammaln(small) - k * jnp.log(small)
    )


def _rest(z: jax.Array) -> jax.Array:
    return (1 / 12 - (1 / 360 - 1 / 1260 / z**2) / z**2) / z
