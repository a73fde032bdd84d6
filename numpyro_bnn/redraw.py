"""Hierarchical precisions drawn anew, exactly, whatever power the likelihood is raised to.

The likelihood knows a precision only through the weights that it scales. With the weights held
fixed its law is therefore that of the prior on every rung, and no gradient is needed.
In non-centred coordinates, where the standardised weights follow the new precision, that is a
step along the ridge that HMC has to creep along (interweaving, Yu and Meng 2011).
"""

from collections.abc import Callable

import jax

from numpyro_bnn.potential import Potential, Values
from numpyro_bnn.start import centered, own_coordinates


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

    def redraw(rng_key: jax.Array, z: Values) -> Values:
        values = potential.constrain(z, deterministic=True)
        keys = jax.random.split(rng_key, len(levels))
        for key, (name, level) in zip(keys, levels.items()):
            values[name] = level.draw(key, values).reshape(values[name].shape)
        # What is standardised in the model's own coordinates follows from these.
        return own_coordinates(potential, {name: values[name] for name in structure.latent})

    return redraw
