"""The state of a ladder: what parallel tempering keeps from sweep to sweep."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_bnn.potential.potential import Values
from numpyro_bnn.samplers.tempering.ladder import RungTuning


class MoveMoments(NamedTuple):
    """Running moments of pairs of numbers, of each rung that moves (rung - 1,)."""

    # A state travels only if its likelihood changes on the way. Where its log likelihood after a move is
    # nearly that before it, a ladder makes far fewer round trips than 1 / (2 + 2Λ) a sweep (Syed et al.
    # 2022).

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


class TemperingState(NamedTuple):
    """State of one replica of the ladder.

    - **i** - sweeps so far, warm-up included
    - **num_warmup** - sweeps that are warm-up
    - **z** - position on the posterior's rung, unconstrained, by site
    - **potential_energy** - U there, in nats
    - **accept_prob**, **diverging**, **num_steps** - mean acceptance probability, whether any trajectory
      diverged, and gradients, of the last sweep on that rung
    - **rungs** - positions on all rungs, the prior's first: leaves (rung, …)
    - **log_likelihoods** - log p(y | θ) on each rung before the last swaps (rung,); with integrated weights
      its mean over them, between the power of the rung and of the next
    - **likelihood_powers** - power of the likelihood on each rung, 0 to 1 (rung,)
    - **swap_probs** - acceptance probability of each pair's swap (rung - 1,)
    - **round_trips** - round trips from the prior to the posterior and back, since warm-up or since the run
      began
    - **move_correlations** - correlation of the log likelihood before and after a move, since then, of each
      rung but the first (rung - 1,)
    - **move_moments** - the running moments that it is computed from
    - **heading** - which end of the ladder the state on each rung visited last, see
      :func:`~numpyro_bnn.samplers.tempering.ladder.round_trips`
    - **adaptation** - step sizes and metrics, with the statistics that tune them
    - **rng_key** - for the next sweep
    """

    i: jax.Array
    num_warmup: jax.Array
    z: Values
    potential_energy: jax.Array
    accept_prob: jax.Array
    diverging: jax.Array
    num_steps: jax.Array
    rungs: Values
    log_likelihoods: jax.Array
    likelihood_powers: jax.Array
    swap_probs: jax.Array
    round_trips: jax.Array
    move_correlations: jax.Array
    move_moments: MoveMoments
    heading: jax.Array
    adaptation: RungTuning
    rng_key: jax.Array

    def without_counts(self) -> "TemperingState":
        """The state at the start of another run, to which round trips and moves so far do not belong."""
        empty = jax.tree.map(jnp.zeros_like, (self.round_trips, self.move_moments, self.heading))
        trips, moments, heading = empty
        return self._replace(
            num_warmup=jnp.minimum(self.num_warmup, self.i),
            round_trips=trips,
            move_correlations=jnp.full_like(self.move_correlations, jnp.nan),
            move_moments=moments,
            heading=heading,
        )
