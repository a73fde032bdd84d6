"""Energies of the states of a ladder, on their own rungs and from there to the neighbours."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_bnn.potential.potential import Potential, Values


class RungEnergies(NamedTuple):
    """Energies of the state of each rung, in nats, (rung,)."""

    # `up` and `down` are -log p(y | θ), for integrated weights see `TemperedLikelihood.between`.

    posterior: jax.Array  # U on the posterior's rung
    # The energy of the likelihood between a rung and the next; of the last rung, as `down`.
    up: jax.Array
    down: jax.Array  # That between the rung before and a rung; of the first rung, as `up`


def rung_energies(potential: Potential, powers: jax.Array, rungs: Values) -> RungEnergies:
    """Energies of the states of a ladder; a likelihood without a value is 0."""
    below = jnp.concatenate([powers[:1], powers[:-1]])
    above = jnp.concatenate([powers[1:], powers[-1:]])
    first, last = jnp.arange(powers.size) == 0, jnp.arange(powers.size) == powers.size - 1

    def of_state(
        z: Values,
        low: jax.Array,
        own: jax.Array,
        high: jax.Array,
        first: jax.Array,
        last: jax.Array,
    ) -> RungEnergies:
        prior, likelihood = potential.tempered(z)
        lows = jnp.stack([jnp.where(last, low, own), low])
        highs = jnp.stack([high, jnp.where(first, high, own)])
        up, down = likelihood.between(lows, highs)
        return RungEnergies(prior + likelihood(1.0), up, down)

    found = jax.vmap(of_state)(rungs, below, powers, above, first, last)
    return RungEnergies(*(jnp.where(jnp.isnan(energy), jnp.inf, energy) for energy in found))
