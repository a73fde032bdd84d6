"""Exact Pólya-Gamma draws: given such variables, a logistic likelihood is Gaussian in its logits.

PG(b, c) is the distribution of a weighted sum of Gamma variables g_k ~ Gamma(b, 1),

    ω = 1/(2π²) Σ_k g_k / ((k - 1/2)² + c²/(4π²)),      k = 1, 2, …

and for every logit ψ and κ = y - b/2

    e^(yψ) / (1 + e^ψ)^b = 2^(-b) e^(κψ) E exp(-ω ψ²/2),    ω ~ PG(b, 0),

so that ω given ψ is PG(b, ψ), and given ω the likelihood is that of a Gaussian observation κ/ω of ψ with
precision ω. NumPyro's distribution of this name cuts the sum off after its first terms, so that its draws are
too small. The draws here have no such error.

Source: N. G. Polson, J. G. Scott and J. Windle, *Bayesian inference for logistic models using Pólya-Gamma
latent variables*, JASA 108 (2013), §2 to 4 and the supplement; the series is Devroye's (2009) for the
Jacobi distribution J*(1, z), with ω = J*(1, c/2) / 4.
"""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import ndtri
from jax.typing import ArrayLike

# Where the two series of the Jacobi density meet: each alternates, with falling terms, on its side of it.
_MEET = 0.64
# P(Z < -1/√t) of a standard normal Z: half the mass that the Lévy distribution 1/Z² has below t = _MEET.
_TAIL = 0.5 * math.erfc(1 / math.sqrt(2 * _MEET))
# A key, the draws accepted so far, and which entries have none yet.
_State: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]


def _sum_over_first(x: jax.Array) -> jax.Array:
    """The Jacobi density at `x` over the first term of its series."""
    # Terms are (2n+1) e^(-2n(n+1)/x) below the meeting point and (2n+1) e^(-n(n+1) π² x/2)
    # above. The term n = 4 is below 1e-26, the rounding error of double precision is larger.
    exponent = jnp.where(x <= _MEET, 2 / x, math.pi**2 / 2 * x)
    signed = ((-1) ** (n + 1) * (2 * n + 1) * jnp.exp(-n * (n + 1) * exponent) for n in (1, 2, 3))
    return 1 - sum(signed)


def _propose(numbers: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One proposal for J*(1, z) an entry, and whether it is accepted, from uniform numbers (4, …)."""
    # The density is e^(-z²x/2) Σ (-1)^n a_n(x) up to a constant, and a_0 bounds its series. Above t = _MEET
    # the bound is exponential. Below it is 2 e^(-z) times the inverse Gaussian density of mean 1/z; for z <
    # 1/t, where that density has much mass above t, it is twice the Lévy density, and the test of
    # acceptance applies the factor e^(-z²x/2). Parts are chosen by the mass of their bound.
    for_part, for_value, for_root, for_test = numbers
    rate = math.pi**2 / 8 + z**2 / 2
    levy = z < 1 / _MEET
    log_right = jnp.log(math.pi / (2 * rate)) - rate * _MEET
    log_left = jnp.where(levy, math.log(4 * _TAIL), math.log(2) - z)
    in_right = for_part < jax.nn.sigmoid(log_right - log_left)
    right = _MEET - jnp.log(for_value) / rate
    # One normal number: of the lower tail for the Lévy distribution, whole for the inverse Gaussian.
    square = ndtri(jnp.where(levy, _TAIL, 1.0) * for_value * (1 - jnp.finfo(z.dtype).epsneg)) ** 2
    # The two roots of Michael, Schucany and Haas (1976), in a form without a difference of near numbers.
    mean = 1 / jnp.where(levy, 1.0, z)
    half = mean * square / 2
    growth = 1 + half + jnp.sqrt(half * (2 + half))
    small_root = for_root * (1 + 1 / growth) <= 1
    inverse_gaussian = mean * jnp.where(small_root, 1 / growth, growth)
    left = jnp.where(levy, 1 / jnp.maximum(square, 1e-6), inverse_gaussian)
    x = jnp.where(in_right, right, left)
    kept = jnp.where(levy & ~in_right, jnp.exp(-(z**2) * x / 2), 1.0)
    inside = in_right | (x <= _MEET)
    return x, inside & (for_test <= kept * _sum_over_first(x))


def jacobi(key: jax.Array, z: ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """Exact draws from the Jacobi distribution J*(1, z), by rejection; NaN where z is not finite."""
    dtype = jnp.result_type(float)
    given = jnp.broadcast_to(jnp.abs(jnp.asarray(z, dtype)), shape)
    proper = jnp.isfinite(given)
    tilt = jnp.where(proper, given, 0.0)

    def propose(state: _State) -> _State:
        key, found, waiting = state
        key, key_now = jax.random.split(key)
        numbers = 1 - jax.random.uniform(key_now, (4, *shape), dtype)
        x, accepted = _propose(numbers, tilt)
        return key, jnp.where(waiting & accepted, x, found), waiting & ~accepted

    start = (key, jnp.where(proper, jnp.zeros((), dtype), jnp.nan), proper)
    return lax.while_loop(lambda state: state[2].any(), propose, start)[1]


def draw(key: jax.Array, count: ArrayLike, tilt: ArrayLike) -> jax.Array:
    """Exact draws from PG(count, tilt): for each, a sum of as many draws for one trial, at their cost."""
    shape = jnp.broadcast_shapes(jnp.shape(count), jnp.shape(tilt))

    def add(i: jax.Array, total: jax.Array) -> jax.Array:
        one = jacobi(jax.random.fold_in(key, i), jnp.asarray(tilt) / 2, shape) / 4
        return total + jnp.where(i < count, one, 0.0)

    most = jnp.max(count).astype(int)
    return lax.fori_loop(0, most, add, jnp.zeros(shape, jnp.result_type(float)))
