"""Draws hierarchical precisions exactly given the weights, for any power of the likelihood.

The likelihood depends on a precision only through the weights that it scales. With the weights held
fixed, its conditional distribution is therefore the same on every rung, and no gradient is needed. In
non-centred coordinates, where the standardised weights change with the new precision, this is a step along
the ridge between weights and precision on which HMC is slow (interweaving, Yu and Meng 2011).
"""

from collections.abc import Callable

import jax

from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.starts import centered, own_coordinates
from numpyro_bnn.priors.precision_conditionals import Level


def redrawn(key: jax.Array, levels: dict[str, Level], values: Values) -> Values:
    """Constrained values with every precision of `levels` drawn from its conditional, lowest level first."""
    values = dict(values)
    for key_level, (name, level) in zip(jax.random.split(key, len(levels)), levels.items()):
        values[name] = level.draw(key_level, values).reshape(values[name].shape)
    return values


def precision_redraw(potential: Potential) -> Callable[[jax.Array, Values], Values] | None:
    """A function of key and unconstrained values that draws every precision given the weights.

    :param potential: potential energy of a model in any coordinates.
    :return: None for a model without hierarchical precisions.
    """
    structure = centered(potential).structure
    # Only precisions of weights are drawn: those of the noise depend on the power of the likelihood.
    levels = structure.levels
    if not levels:
        return None

    def redraw(key: jax.Array, z: Values) -> Values:
        values = redrawn(key, levels, potential.constrain(z, deterministic=True))
        # The weights keep their values; standardised weights in the model's own coordinates follow from them.
        return own_coordinates(potential, {name: values[name] for name in structure.latent})

    return redraw
