"""The state of a ladder: what parallel tempering keeps from sweep to sweep."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_bnn.potential.potential import Values
from numpyro_bnn.samplers.tempering.move_statistics import MoveMoments
from numpyro_bnn.samplers.tempering.warmup import RungTuning


class TemperingState(NamedTuple):
    """State of one replica of the ladder.

    - **i** - sweeps so far, warm-up included
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
      :func:`~numpyro_bnn.samplers.tempering.swaps.round_trips`
    - **adaptation** - step sizes and metrics, with the statistics that tune them
    - **rng_key** - for the next sweep
    """

    i: jax.Array
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
            round_trips=trips,
            move_correlations=jnp.full_like(self.move_correlations, jnp.nan),
            move_moments=moments,
            heading=heading,
        )
