"""NumPyro's distributions with densities that keep their digits in single precision; fast Gamma draws.

NumPyro's densities subtract large numbers: with 1e8 degrees of freedom two values of log Γ are 8e8, in steps
of 64. Powers are taken by how far a value is from the mode (Loader 2000), and log Γ by Stirling's series.
"""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.scipy.special import erfinv, gammaln
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


# For |t| below it, log(1 + t) is taken from its power series to t⁶ (see `series`), because the exact
# form subtracts numbers that are nearly equal; above it, rounding of the exact form is as small.
_SMALL = 0.03
_SMALL_CONCENTRATION = 30
# A key, the draws accepted so far, and which entries have none yet.
_State: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


def standard_gamma(key: jax.Array, concentration: ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """Exact draws from Gamma(concentration, 1); NaN where the concentration is not positive and finite."""
    # Gibbs steps of hierarchical precisions need them for each group and level. JAX's sampler takes eight
    # times as long for a hundred precisions or more, and one to three seconds longer to compile wherever it
    # is used.
    # Marsaglia and Tsang (2000), *A simple method for generating gamma variables*; below a concentration of
    # 1 with the boost of section 6. The first round of proposals serves 95 % of the entries.
    dtype = jnp.result_type(float)
    given = jnp.broadcast_to(jnp.asarray(concentration, dtype), shape)
    d = jnp.where(given < 1, given + 1, given) - 1 / 3

    def propose(state: _State) -> _State:
        key, found, waiting = state
        key, key_now = jax.random.split(key)
        # One flat call for all, because the generator is slow to compile.
        numbers = 1 - jax.random.uniform(key_now, (3 * math.prod(shape),), dtype)
        for_normal, for_test, for_boost = numbers.reshape(3, *shape)
        x = -math.sqrt(2) * erfinv(2 * for_normal - 1)
        t = x / jnp.sqrt(9 * d)
        # x²/2 + d - dv + d log v with v = (1 + t)³, where d t² = x²/9.
        exact = x**2 / 2 + d * (3 * (jnp.log1p(t) - t - t**2) - t**3)
        series = -3 * d * t**4 * (1 / 4 - t / 5 + t**2 / 6)
        bound = jnp.where(jnp.abs(t) < _SMALL, series, exact)
        accepted = waiting & (t > -1) & (jnp.log(for_test) < bound)
        boost = jnp.where(given < 1, jnp.exp(jnp.log(for_boost) / given), 1)
        return key, jnp.where(accepted, d * (1 + t) ** 3 * boost, found), waiting & ~accepted

    proper = (given > 0) & jnp.isfinite(given)
    start = (key, jnp.where(proper, jnp.zeros((), dtype), jnp.nan), proper)
    _, draws, _ = lax.while_loop(lambda state: state[2].any(), propose, start)
    return jnp.maximum(draws, jnp.finfo(dtype).tiny)


def scaled(standard: jax.Array, rate: ArrayLike) -> jax.Array:
    """Draws from Gamma(concentration, rate) made of draws from Gamma(concentration, 1)."""
    draws = standard / rate
    # A rate above 1 could underflow the smallest draws.
    return jnp.maximum(draws, jnp.finfo(draws.dtype).tiny)


class Gamma(dist.Gamma):
    """``dist.Gamma`` sampled by :func:`standard_gamma`; its density compiles faster and keeps its digits."""

    @validate_sample
    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Log density, in nats."""
        k, rate, log_value = self.concentration, self.rate, jnp.log(value)
        # JAX would compile the log Gamma function of a constant: half a second for seven precisions, wherever
        # the density is used. A small one loses no digits in the plain form, which is a third of the program.
        at_mode: float | jax.Array
        if not (isinstance(k, (int, float)) and k > 0):
            at_mode = 0.5 * jnp.log(k / (2 * math.pi)) - rest(k)
        elif k < _SMALL_CONCENTRATION:
            return k * (log_value + jnp.log(rate)) - rate * value - log_value - math.lgamma(k)
        else:
            at_mode = k * math.log(k) - k - math.lgamma(k)
        log_ratio = log_value + jnp.log(rate) - jnp.log(k)
        return power(k, rate * value - k, log_ratio) + at_mode - log_value

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws of shape ``sample_shape + batch_shape``."""
        shape = (*sample_shape, *self.batch_shape)
        return scaled(standard_gamma(key, self.concentration, shape), self.rate)
