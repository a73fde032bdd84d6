"""Distributions whose log densities keep their digits in single precision, where NumPyro's lose them.

Those subtract large numbers: with 1e8 degrees of freedom two values of log Γ are 8e8, in steps of 64. Here
powers are taken by how far a value is from the mode (Loader 2000), and log Γ by Stirling's series.
"""

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from numpyro.distributions.util import validate_sample

from numpyro_bnn._types import Array

# The series, to its third term, has all digits of double precision times 1e-3 from here on.
_LARGE = 10.0
# Below it log(1 + t) - t comes from its power series: the rounding of t would be as large.
_CLOSE = 0.01


class Poisson(dist.Poisson):
    """As NumPyro's, which is wrong by a nat at a rate of 1e6, and by 140 at 1e8."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        m, k = (jnp.asarray(v, jnp.result_type(float)) for v in (self.rate, value))
        some = jnp.maximum(k, 1.0)
        found = power(some, m - some, jnp.log(m / some)) - rest(some)
        return jnp.where(k > 0, found - 0.5 * jnp.log(2 * math.pi * some), -m)


class NegativeBinomial(dist.NegativeBinomial2):
    """By mean and concentration, as NumPyro's, which is wrong by 3 nats at a concentration of 1e8."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        given = self.concentration, self.mean, value
        a, m, k = (jnp.asarray(v, jnp.result_type(float)) for v in given)
        some = jnp.maximum(k, 1.0)
        apart, ratio = a * (some - m) / (a + m), (a + some) / (a + m)
        logs = jnp.log(ratio), jnp.log(m / some * ratio)
        powers = power(a, apart, logs[0]) + power(some, -apart, logs[1])
        series = rest(a + some) - rest(a) - rest(some)
        found = powers + series - 0.5 * jnp.log(2 * math.pi * some * (1 + some / a))
        return jnp.where(k > 0, found, -a * jnp.log1p(m / a))


class StudentT(dist.StudentT):
    """As NumPyro's, with any number of degrees of freedom."""

    @validate_sample
    def log_prob(self, value: Array) -> jax.Array:
        df, y = jnp.asarray(self.df, jnp.result_type(float)), (value - self.loc) / self.scale
        normaliser = rising(df / 2, 0.5) - 0.5 * math.log(2 * math.pi) - jnp.log(self.scale)
        return normaliser - 0.5 * (df + 1) * jnp.log1p(y**2 / df)


def power(k: ArrayLike, apart: jax.Array, log_ratio: jax.Array) -> jax.Array:
    """k log(m / k) - (m - k), where m is `apart` from k."""
    t = apart / k
    is_near, is_close = jnp.abs(t) < 0.5, jnp.abs(t) < _CLOSE
    # Arguments of other branches have a finite derivative.
    close, near = jnp.where(is_close, t, 0.0), jnp.where(is_near, t, 0.0)
    series = -(close**2) * (1 / 2 - close * (1 / 3 - close * (1 / 4 - close * (1 / 5 - close / 6))))
    nearby = jnp.where(is_close, series, jnp.log1p(near) - near)
    return jnp.where(is_near, k * nearby, k * log_ratio - apart)


def rising(a: jax.Array, count: ArrayLike) -> jax.Array:
    """log Γ(a + count) - log Γ(a) - count log a."""
    return (a + count - 0.5) * jnp.log1p(count / a) - count + rest(a + count) - rest(a)


def rest(z: jax.Array) -> jax.Array:
    """log Γ(z) - (z - 1/2) log z + z - log(2π) / 2; Abramowitz and Stegun (1964), 6.1.41."""
    large, small = jnp.where(z > _LARGE, z, _LARGE), jnp.where(z > _LARGE, 1.0, z)
    exact = gammaln(small) - (small - 0.5) * jnp.log(small) + small - 0.5 * math.log(2 * math.pi)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / large**2) / large**2) / large
    return jnp.where(z > _LARGE, series, exact)
