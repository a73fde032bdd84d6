"""Hierarchical precisions drawn anew, exactly, whatever power the likelihood is raised to.

The likelihood knows a precision only through the weights that it scales. With the weights held
fixed its law is therefore that of the prior on every rung, and no gradient is needed.
In non-centred coordinates, where the standardised weights follow the new precision, that is a
step along the ridge that HMC has to creep along (interweaving, Yu and Meng 2011).
"""

from collections.abc import Callable

import jax

from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.starts import centered, own_coordinates
from numpyro_bnn.priors.precision_levels import Level


def redrawn(key: jax.Array, levels: dict[str, Level], values: Values) -> Values:
    """Constrained values with every precision of `levels` drawn given all else, lowest first."""
    values = dict(values)
    for key_level, (name, level) in zip(jax.random.split(key, len(levels)), levels.items()):
        values[name] = level.draw(key_level, values).reshape(values[name].shape)
    return values


def precision_redraw(potential: Potential) -> Callable[[jax.Array, Values], Values] | None:
    """A function of key and unconstrained values that draws every precision given the weights.

    :param potential: of a model in whatever coordinates.
    :return: None for a model without hierarchical precisions.
    """
    structure = centered(potential).structure
    # Those of weights: the noise belongs to the likelihood, whose power is not 1 on most rungs.
    levels = structure.levels
    if not levels:
        return None

    def redraw(key: jax.Array, z: Values) -> Values:
        values = redrawn(key, levels, potential.constrain(z, deterministic=True))
        # What is standardised in the model's own coordinates follows from these.
        return own_coordinates(potential, {name: values[name] for name in structure.latent})

    return redraw
