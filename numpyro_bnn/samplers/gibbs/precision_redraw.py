"""Draws hierarchical precisions exactly given the weights, for any power of the likelihood.

The likelihood depends on a precision only through the weights that it scales. With the weights held
fixed, its conditional distribution is therefore the same on every rung, and no gradient is needed. In
non-centred coordinates, where the standardised weights change with the new precision, this is a step along
the ridge between weights and precision on which HMC is slow (interweaving, Yu and Meng 2011).
"""

from collections.abc import Callable
from math import prod

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
    conjugate = {name: level for name, level in levels.items() if level.conjugate}
    if conjugate:
        values |= _drawn_together(key_gammas, conjugate, values)
    # Levels above them, the lowest first.
    others = {name: level for name, level in levels.items() if name not in conjugate}
    for i, (name, level) in enumerate(others.items()):
        drawn = level.draw(jax.random.fold_in(key, i), values)
        values[name] = drawn.reshape(values[name].shape)
    return values


def _drawn_together(key: jax.Array, levels: dict[str, Level], values: Values) -> Values:
    """Draws of conjugate levels, in one call."""
    shapes = {name: jnp.shape(values[name]) for name in levels}
    laws = {name: level.conditional(values) for name, level in levels.items()}

    def flat(part: str) -> jax.Array:
        every = (jnp.broadcast_to(getattr(law, part), law.batch_shape) for law in laws.values())
        return jnp.concatenate([one.reshape(-1) for one in every])

    drawn = Gamma(flat("concentration"), flat("rate")).sample(key)
    ends = np.cumsum([prod(shape) for shape in shapes.values()])[:-1]
    return {name: part.reshape(shapes[name]) for name, part in zip(levels, jnp.split(drawn, ends))}


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
