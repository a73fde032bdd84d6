"""How much of the log likelihood the moves of each rung leave as it was.

A state travels along the ladder only if its likelihood changes on the way: swaps are accepted between states
whose likelihoods are close. With moves that draw a new state each time a ladder of many rungs makes
1 / (2 + 2Λ) round trips a sweep, Λ its barrier (Syed et al. 2022, *JRSS B* 84(2)); where the log likelihood
after a move is nearly that before it, far fewer. Its correlation says on which rungs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class MoveMoments(NamedTuple):
    """Running moments of pairs of numbers, of each rung that moves (rung - 1,)."""

    pairs: jax.Array  # Number of pairs so far
    # Means.
    mean_before: jax.Array
    mean_after: jax.Array
    # Summed squared deviations from them.
    squares_before: jax.Array
    squares_after: jax.Array
    products: jax.Array  # Summed products of the deviations

    @classmethod
    def empty(cls, rungs: int) -> "MoveMoments":
        """No pairs yet, for so many rungs."""
        return cls(jnp.zeros(rungs, jnp.int32), *(jnp.zeros(rungs) for _ in range(5)))

    def add(self, before: jax.Array, after: jax.Array) -> "MoveMoments":
        """The moments with one more pair for each rung; pairs that are not finite do not count."""
        # Source: B. P. Welford, *Technometrics* 4 (1962), 419.
        finite = jnp.isfinite(before) & jnp.isfinite(after)
        pairs = self.pairs + finite
        weight = finite / jnp.maximum(pairs, 1)
        from_before, from_after = (
            jnp.where(finite, value - mean, 0.0)
            for value, mean in ((before, self.mean_before), (after, self.mean_after))
        )
        # Of what a pair adds to the sums, a deviation from the old mean and one from the new.
        left = finite * (1 - weight)
        return MoveMoments(
            pairs,
            self.mean_before + weight * from_before,
            self.mean_after + weight * from_after,
            self.squares_before + left * from_before**2,
            self.squares_after + left * from_after**2,
            self.products + left * from_before * from_after,
        )

    @property
    def correlation(self) -> jax.Array:
        """The correlation of the numbers of a pair (rung - 1,); NaN where one of them is constant."""
        return self.products / jnp.sqrt(self.squares_before * self.squares_after)
