"""Swaps of neighbours on the ladder of parallel tempering, and the round trips that states make by them.

Swaps are proposed for all even pairs of neighbours in one sweep and for all odd ones in the next (Syed,
Bouchard-Côté, Deligiannidis and Doucet 2022, *Non-reversible parallel tempering*), so that a state whose
swaps are accepted keeps its direction.
"""

import jax
import jax.numpy as jnp


def swap_probabilities(powers: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Probability that neighbours change places: min(1, exp((b_{k+1} - b_k) (E_{k+1} - E_k)))."""
    # E_k is the energy of the likelihood of the state on rung k over the powers between the
    # two rungs, in nats; infinite where the likelihood is 0.
    gain = jnp.diff(powers) * (down[1:] - up[:-1])
    # Two states of likelihood 0 are not swapped.
    return jnp.where(jnp.isnan(gain), 0.0, jnp.exp(jnp.minimum(gain, 0.0)))


def swap_order(probabilities: jax.Array, key: jax.Array, sweep: jax.Array) -> jax.Array:
    """The index of the state that each rung has after the swaps; even pairs swap in even sweeps."""
    pairs = probabilities.size
    proposed = jnp.arange(pairs) % 2 == sweep % 2
    swapped = proposed & (jax.random.uniform(key, (pairs,)) < probabilities)
    up, down = jnp.append(swapped, False), jnp.append(False, swapped)
    return jnp.arange(pairs + 1) + up - down


def round_trips(heading: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The ends that states visited last (0 neither, 1 prior, 2 posterior), and completed round trips."""
    trips = (heading[0] == 2).astype(jnp.int32)
    heading = heading.at[0].set(1)
    return heading.at[-1].set(jnp.where(heading[-1] == 1, 2, heading[-1])), trips
