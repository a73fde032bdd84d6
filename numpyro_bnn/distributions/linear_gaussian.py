"""A target that is linear in Gaussian weights, with the weights integrated out, and drawn given the target.

    y = m + B u + e,   u ~ Normal(0, I),   e ~ Normal(0, I),

in units of the noise, so that y ~ Normal(m, I + B Bᵀ). Nothing of size n × n is ever made. With
[B; I] = Q R (n + p rows) the determinant of I + Bᵀ B is that of R squared, and

    (y - m)ᵀ (I + B Bᵀ)⁻¹ (y - m) = min over u of ‖y - m - B u‖² + ‖u‖²,

a sum of squares: no cancellation, and an error in u counts only to second order. A Cholesky factor
of Bᵀ B would square the condition number, which single precision does not survive.

Source: C. E. Rasmussen and C. K. I. Williams, *Gaussian Processes for Machine Learning* (2006),
§2.1 and eq. A.9 to A.11, with the orthogonal factorisation of G. H. Golub and C. F. Van Loan,
*Matrix Computations* (2013), §5.3.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from numpyro.distributions import constraints


class LinearGaussian(dist.Distribution):
    """Distribution of y = mean + Σ_j features[:, j] u_j + scale e, with u and e standard normal.

    :param mean: mean of y, of any shape; all of its axes are event axes.
    :param features: (*shape of mean, p), the weights' scales multiplied in.
    :param scale: standard deviation of the noise, broadcast to the shape of `mean`.
    """

    arg_constraints: ClassVar = {"mean": constraints.real, "scale": constraints.positive}
    pytree_data_fields = ("_mean", "features", "scale")

    def __init__(
        self,
        mean: ArrayLike,
        features: ArrayLike,
        scale: ArrayLike,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._mean = jnp.asarray(mean)
        self.features = jnp.asarray(features)
        self.scale = jnp.broadcast_to(scale, self._mean.shape)
        super().__init__(batch_shape=(), event_shape=self._mean.shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """All real arrays of the shape of the mean."""
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def mean(self) -> jax.Array:
        """The mean of y, of the shape of y."""
        return self._mean

    @property
    def variance(self) -> jax.Array:
        """The variance of each entry of y: that of its features, and of the noise."""
        return jnp.sum(self.features**2, -1) + self.scale**2

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws of y, (*sample_shape, *shape of y)."""
        key_weights, key_noise = jax.random.split(key)
        weights = jax.random.normal(key_weights, (*sample_shape, self.features.shape[-1]))
        noise = jax.random.normal(key_noise, (*sample_shape, *self.event_shape))
        return (
            self._mean
            + jnp.tensordot(weights, self.features, (-1, -1), precision="highest")
            + self.scale * noise
        )

    def log_prob(self, value: jax.Array) -> jax.Array:
        """The joint log density of all entries of y, in nats, with the weights integrated out."""
        return self.tempered_log_prob(value, 1.0)

    def tempered_log_prob(self, value: jax.Array, power: jax.Array | float) -> jax.Array:
        """log ∫ Normal(u | 0, I) p(y | u)^b du in nats, b the power: 0 at b = 0, the log density at b = 1."""
        # p(y | u)^b is a Gaussian with standard deviations s / √b, times Π (2π s²)^((1-b)/2) b^(-1/2),
        # where s is that of the noise. In units of s / √b the factors b^(-1/2) cancel, which leaves Π (2π
        # s²)^(-b/2) times the integral of two squares.
        residuals, features = (jnp.sqrt(power) * v for v in self._in_units_of_noise(value))
        log_scale = jnp.sum(jnp.log(self.scale)) + residuals.size / 2 * jnp.log(2 * jnp.pi)
        return -_solved(residuals, features).energy - power * log_scale

    def weights_given(self, key: jax.Array, value: jax.Array) -> jax.Array:
        """An exact draw of u, (p,), given y."""
        return weights_given(key, *self._in_units_of_noise(value))

    def _in_units_of_noise(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(y - m) / scale, (n,), and the features over scale, (n, p)."""
        residuals = ((value - self._mean) / self.scale).reshape(-1)
        return residuals, (self.features / self.scale[..., None]).reshape(residuals.size, -1)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """The matrix product in full precision; GPUs by default round single precision to three digits."""
    return jnp.matmul(a, b, precision="highest")


def weights_given(key: jax.Array, residuals: jax.Array, features: jax.Array) -> jax.Array:
    """An exact draw of u ~ Normal(0, I), (p,), given r = B u + e with e ~ Normal(0, I)."""
    factor = _factor(features)
    noise = jax.random.normal(key, features.shape[1:], features.dtype)
    return _most_likely(factor, features, residuals) + solve_triangular(factor, noise)


class _Solution(NamedTuple):
    """What integrating u out of exp(-½ ‖r - B u‖² - ½ ‖u‖²) gives."""

    energy: jax.Array  # Minus the log of (2π)^(-p/2) times that integral, in nats
    weights: jax.Array  # The most likely u, (p,)
    covariance: jax.Array  # Of u, (I + Bᵀ B)⁻¹, (p, p)


@jax.custom_jvp
def _solved(residuals: jax.Array, features: jax.Array) -> _Solution:
    """The solution for r, (n,), and B, (n, p), by one orthogonal factorisation."""
    # Its derivatives are given in terms of itself: differentiating the factorisation costs
    # several times as much.
    factor = _factor(features)
    weights = _most_likely(factor, features, residuals)
    squares = jnp.sum((residuals - product(features, weights)) ** 2) + jnp.sum(weights**2)
    half_log_determinant = jnp.sum(jnp.log(jnp.abs(jnp.diagonal(factor))))
    inverse = solve_triangular(factor, jnp.eye(len(factor), dtype=factor.dtype))
    return _Solution(squares / 2 + half_log_determinant, weights, product(inverse, inverse.T))


@_solved.defjvp
def _derivative(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[_Solution, _Solution]:
    """Partial derivatives of the energy, since u minimises it; the rest from (I + Bᵀ B) u = Bᵀ r."""
    (residuals, features), (by_residuals, by_features) = primals, tangents
    solution = _solved(residuals, features)
    _, weights, covariance = solution
    left = residuals - product(features, weights)
    slope = product(features, covariance) - left[:, None] * weights
    change = by_residuals - product(by_features, weights)
    pull = product(by_features.T, left) + product(features.T, change)
    cross = product(features.T, by_features)
    return solution, _Solution(
        jnp.sum(left * by_residuals) + jnp.sum(slope * by_features),
        product(covariance, pull),
        -product(product(covariance, cross + cross.T), covariance),
    )


def _factor(features: jax.Array) -> jax.Array:
    """R, upper triangular (p, p), with Rᵀ R = I + Bᵀ B."""
    identity = jnp.eye(features.shape[1], dtype=features.dtype)
    return jnp.linalg.qr(jnp.concatenate([features, identity]), mode="r")


def _most_likely(factor: jax.Array, features: jax.Array, residuals: jax.Array) -> jax.Array:
    """u that minimises ‖r - B u‖² + ‖u‖², (p,), with one step of refinement against rounding."""

    def solved(right: jax.Array) -> jax.Array:
        return solve_triangular(factor, solve_triangular(factor, right, trans=1))

    first = solved(product(features.T, residuals))
    return first + solved(product(features.T, residuals - product(features, first)) - first)
