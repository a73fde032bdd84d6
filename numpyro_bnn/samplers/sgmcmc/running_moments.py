"""Running mean and variance of positions, in one pass and without keeping them (Welford)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import map_like


class Moments(NamedTuple):
    """Welford's running mean and scatter of positions."""

    size: jax.Array
    mean: PyTree
    scatter: PyTree  # sum of squared deviations from the mean

    @classmethod
    def none(cls, position: PyTree) -> "Moments":
        """Moments of no position."""
        zeros = jax.tree.map(lambda x: jnp.zeros_like(jnp.asarray(x)), position)
        return cls(jnp.asarray(0), zeros, zeros)

    @property
    def variance(self) -> PyTree:
        """Variance by parameter; 0 for fewer than two positions."""
        return map_like(lambda s: s / jnp.maximum(self.size - 1, 1), self.scatter)

    def add(self, position: PyTree) -> "Moments":
        """Moments with one more position."""
        count = self.size + 1
        change = jax.tree.map(jnp.subtract, position, self.mean)
        mean = map_like(lambda m, d: m + d / count, self.mean, change)
        scatter = map_like(lambda s, d, x, m: s + d * (x - m), self.scatter, change, position, mean)
        return Moments(count, mean, scatter)

    def variance_with(self, other: "Moments") -> PyTree:
        """Variance by parameter of the positions of both sets together."""
        n, m = self.size, other.size
        both = jnp.maximum(n + m, 1)
        # The quotient is computed first, because n m of a long warm-up is too large for 32 bits.
        weight = n * (m / both)
        return map_like(
            lambda s, t, a, b: (s + t + (a - b) ** 2 * weight) / jnp.maximum(both - 1, 1),
            self.scatter,
            other.scatter,
            self.mean,
            other.mean,
        )
