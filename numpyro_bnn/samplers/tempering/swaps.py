"""Swaps of neighbours on the ladder of parallel tempering, and the round trips that states make by them.

Swaps are proposed for all even pairs of neighbours in one sweep and for all odd ones in the next (Syed,
Bouchard-Côté, Deligiannidis and Doucet 2022, *Non-reversible parallel tempering*), so that a state whose
swaps are accepted keeps its direction.
"""

import jax
import jax.numpy as jnp


def swap_probabilities(powers: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Probability that the states of each pair of neighbours change places.

    min(1, exp((b_{k+1} - b_k) (E_{k+1} - E_k))), where E_k is the energy of the likelihood of the state on
    rung k, over the powers between the two rungs.

    :param powers: likelihood powers (rung,).
    :param up: E of each state between its rung and the next, in nats; infinite where the likelihood is 0.
    :param down: E of each state between the rung before and its own.
    """
    gain = jnp.diff(powers) * (down[1:] - up[:-1])
    # Two states of likelihood 0 are not swapped.
    return jnp.where(jnp.isnan(gain), 0.0, jnp.exp(jnp.minimum(gain, 0.0)))


def swap_order(probabilities: jax.Array, key: jax.Array, sweep: jax.Array) -> jax.Array:
    """The index of the state that each rung has after the swaps of a sweep.

    :param probabilities: acceptance probability of each pair's swap.
    :param key: random key.
    :param sweep: number of the sweep; even pairs in even sweeps, odd pairs in odd ones.
    :return: index into the rungs before, (rung,).
    """
    pairs = probabilities.size
    proposed = jnp.arange(pairs) % 2 == sweep % 2
    swapped = proposed & (jax.random.uniform(key, (pairs,)) < probabilities)
    up, down = jnp.append(swapped, False), jnp.append(False, swapped)
    return jnp.arange(pairs + 1) + up - down


def round_trips(heading: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which end of the ladder each state visited last, and how many round trips were completed.

    :param heading: 0: at neither end yet, 1: last at the prior, 2: at the posterior since then,
        by rung.
    :return: `heading` after the states at the two ends were marked, and round trips (0 or 1).
    """
    trips = (heading[0] == 2).astype(jnp.int32)
    heading = heading.at[0].set(1)
    return heading.at[-1].set(jnp.where(heading[-1] == 1, 2, heading[-1])), trips
