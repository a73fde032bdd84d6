"""Distributions whose log densities keep their digits in single precision, where NumPyro's lose them.

Those subtract large numbers: with 1e8 degrees of freedom two values of log Γ are 8e8, in steps of 64. Here
powers are taken by `log1p` of what is apart from the mode (Loader 2000), and log Γ by Stirling's series.
"""

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.distributions.util import validate_sample

from numpyro_bnn._types import Array

# The series, to its third term, has all digits of double precision times 1e-3 from here on.
_LARGE = 10.0


class Poisson(dist.Poisson):
    """As NumPyro's, which is wrong by a nat at a rate of 1e6, and by 140 at 1e8."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        m, k = (jnp.asarray(v, jnp.result_type(float)) for v in (self.rate, value))
        some = jnp.maximum(k, 1.0)
        power = some * _log((m - some) / some, m / some) - (m - some)
        return jnp.where(k > 0, power - 0.5 * jnp.log(2 * math.pi * some) - _rest(some), -m)


class NegativeBinomial(dist.NegativeBinomial2):
    """By mean and concentration, as NumPyro's, which is wrong by 3 nats at a concentration of 1e8."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        given = self.concentration, self.mean, value
        a, m, k = (jnp.asarray(v, jnp.result_type(float)) for v in given)
        some = jnp.maximum(k, 1.0)
        apart = (some - m) / (a + m)
        ratio = (a + some) / (a + m)
        powers = a * _log(apart, ratio) + some * _log(-apart * a / some, m / some * ratio)
        rest = _rest(a + some) - _rest(a) - _rest(some)
        found = powers + rest - 0.5 * jnp.log(2 * math.pi * some * (1 + some / a))
        return jnp.where(k > 0, found, -a * jnp.log1p(m / a))


class StudentT(dist.StudentT):
    """As NumPyro's, with any number of degrees of freedom."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        df, y = jnp.asarray(self.df, jnp.result_type(float)), (value - self.loc) / self.scale
        # log Γ((df + 1) / 2) - log Γ(df / 2) - log(df / 2) / 2
        ratio = df / 2 * jnp.log1p(1 / df) - 0.5 + _rest((df + 1) / 2) - _rest(df / 2)
        normaliser = ratio - 0.5 * math.log(2 * math.pi) - jnp.log(self.scale)
        return normaliser - 0.5 * (df + 1) * jnp.log1p(y**2 / df)


def _log(apart: jax.Array, ratio: jax.Array) -> jax.Array:
    """The logarithm of a ratio that is 1 + `apart`."""
    is_near = jnp.abs(apart) < 0.5
    near, far = jnp.where(is_near, apart, 0.0), jnp.where(is_near, 1.0, ratio)
    return jnp.where(is_near, jnp.log1p(near), jnp.log(far))


def _rest(z: jax.Array) -> jax.Array:
    """log Γ(z) - (z - 1/2) log z + z - log(2π) / 2; Abramowitz and Stegun (1964), 6.1.41."""
    # Each branch has arguments at which its derivative is finite.
    large, small = jnp.where(z > _LARGE, z, _LARGE), jnp.where(z > _LARGE, 1.0, z)
    exact = gammaln(small) - (small - 0.5) * jnp.log(small) + small - 0.5 * math.log(2 * math.pi)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / large**2) / large**2) / large
    return jnp.where(z > _LARGE, series, exact)
