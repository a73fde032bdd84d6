"""Draws hierarchical precisions exactly given the weights, for any power of the likelihood.

The likelihood depends on a precision only through the weights that it scales. With the weights held
fixed, its conditional distribution is therefore the same on every rung, and no gradient is needed. In
non-centred coordinates, where the standardised weights change with the new precision, this is a step along
the ridge between weights and precision on which HMC is slow (interweaving, Yu and Meng 2011).
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn.distributions.gamma import Gamma
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.starts import centered, own_coordinates
from numpyro_bnn.priors.precision_conditionals import Level


def redrawn(key: jax.Array, levels: dict[str, Level], values: Values) -> Values:
    """Constrained values with every precision of `levels` drawn from its conditional.

    Those with a Gamma distributed conditional govern weights alone, and are independent given all else.
    One call draws them together: a loop of proposals for each takes half a second to compile.
    """
    values = dict(values)
    key_gammas, key = jax.random.split(key)
    gammas = {n: level.conditional(values) for n, level in levels.items() if level.conjugate}
    if gammas:
        values |= _together(key_gammas, gammas, {name: jnp.shape(values[name]) for name in gammas})
    # Levels above them, the lowest first.
    others = {name: level for name, level in levels.items() if name not in gammas}
    for i, (name, level) in enumerate(others.items()):
        drawn = level.draw(jax.random.fold_in(key, i), values)
        values[name] = drawn.reshape(values[name].shape)
    return values


def top_precisions(key: jax.Array, potential: Potential) -> Values:
    """Draws of the precisions at the top of every hierarchy from their priors, in one call."""
    structure = potential.structure
    tops = {
        name: Gamma(level.concentration, jnp.broadcast_to(level.rate, structure.shapes[name]))
        for name, level in structure.levels.items()
        if level.parent is None and level.rate is not None and name in structure.latent
    }
    return _together(key, tops, structure.shapes) if tops else {}


def _together(key: jax.Array, laws: Mapping[str, Gamma], shapes: Mapping[str, Any]) -> Values:
    """Independent Gamma draws in one call."""

    def flat(part: str) -> jax.Array:
        every = (jnp.broadcast_to(getattr(law, part), law.batch_shape) for law in laws.values())
        return jnp.concatenate([one.reshape(-1) for one in every])

    drawn = Gamma(flat("concentration"), flat("rate")).sample(key)
    ends = np.cumsum([prod(law.batch_shape) for law in laws.values()])[:-1]
    parts = zip(laws, jnp.split(drawn, ends))
    return {name: part.reshape(shapes[name]) for name, part in parts}


def precision_redraw(potential: Potential) -> Callable[[jax.Array, Values], Values] | None:
    """A function of key and unconstrained values that draws every precision given the weights.

    :param potential: potential energy of a model in any coordinates.
    :return: None for a model without hierarchical precisions.
    """
    structure = centered(potential.model, potential.args, potential.kwargs).structure
    # Only precisions of weights are drawn: those of the noise depend on the power of the likelihood.
    levels = structure.levels
    if not levels:
        return None

    def redraw(key: jax.Array, z: Values) -> Values:
        values = redrawn(key, levels, potential.constrain(z, deterministic=True))
        # The weights keep their values; standardised weights in the model's own coordinates follow from them.
        return own_coordinates(potential, {name: values[name] for name in structure.latent})

    return redraw
