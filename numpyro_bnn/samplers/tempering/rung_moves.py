"""Moves of :mod:`numpyro_bnn.samplers.gibbs.moves` on the rungs of a ladder, after their trajectories."""

from collections.abc import Callable, Sequence

import jax

from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.starts import own_coordinates
from numpyro_bnn.samplers.gibbs.moves import Bound, Move
from numpyro_bnn.samplers.tempering.prior_draws import finite_or_before


def with_moves(
    potential: Potential, moves: Sequence[Move]
) -> Callable[[jax.Array, jax.Array, Values], Values]:
    """A function of key, power and unconstrained values that makes all moves in order."""
    # Each move leaves p(θ) p(y | θ)^b invariant, where its `bound` has the power b.

    def moved(key: jax.Array, power: jax.Array, z: Values) -> Values:
        bound = Bound(potential.model, potential.args, potential.kwargs, power)
        values = potential.constrain(z, deterministic=True)
        values = {name: values[name] for name in bound.latent}
        for key_move, move in zip(jax.random.split(key, len(moves)), moves):
            values = move(key_move, values, bound)
        return finite_or_before(own_coordinates(potential, values), z)

    return moved
