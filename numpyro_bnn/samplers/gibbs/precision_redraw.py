"""Draws hierarchical precisions exactly given the weights, for any power of the likelihood.

The likelihood depends on a precision only through the weights that it scales. With the weights held
fixed, its conditional distribution is therefore the same on every rung, and no gradient is needed. In
non-centred coordinates, where the standardised weights change with the new precision, this is a step along
the ridge between weights and precision on which HMC is slow (interweaving, Yu and Meng 2011).
"""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn.distributions.gamma import scaled, standard_gamma
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.sites import Structure
from numpyro_bnn.potential.starts import centered, own_coordinates
from numpyro_bnn.priors.precision_conditionals import Level


def redrawn(
    key: jax.Array, levels: dict[str, Level], values: Values, gammas: jax.Array | None = None
) -> Values:
    """Constrained values with every precision of `levels` drawn from its conditional."""
    # Gamma distributed conditionals depend on weights alone, and are independent given all else. One call
    # draws them together: a loop of proposals for each takes half a second to compile.
    values = dict(values)
    key_gammas, key = jax.random.split(key)
    shapes = {name: jnp.shape(value) for name, value in values.items()}
    together = conjugate(levels)
    if together:
        if gammas is None:
            known = concentrations(levels, shapes)
            gammas = standard_gamma(key_gammas, known, known.shape)
        ends = np.cumsum([prod(shapes[name]) for name in together])[:-1]
        parts = zip(together.items(), jnp.split(gammas, ends))
        values |= {
            name: scaled(part, level.conditional(values).rate.reshape(-1)).reshape(shapes[name])
            for (name, level), part in parts
        }
    # Levels above them, the lowest first.
    others = {name: level for name, level in levels.items() if name not in together}
    for i, (name, level) in enumerate(others.items()):
        drawn = level.draw(jax.random.fold_in(key, i), values)
        values[name] = drawn.reshape(values[name].shape)
    return values


def conjugate(levels: dict[str, Level]) -> dict[str, Level]:
    """The levels with a Gamma distributed conditional."""
    return {name: level for name, level in levels.items() if level.conjugate}


def concentrations(levels: dict[str, Level], shapes: dict[str, tuple[int, ...]]) -> np.ndarray:
    """Shape parameters of the Gamma distributed conditionals, one for each precision in order."""
    # They depend on no value, so the draws of a whole ladder can be made before its states are known.
    each = [
        np.full(prod(shapes[name]), level.shape_given(shapes))
        for name, level in conjugate(levels).items()
    ]
    return np.concatenate(each) if each else np.zeros(0)


class LadderRedraw:
    """Draws every precision given the weights, from unconstrained values of a model in any coordinates."""

    def __init__(self, potential: Potential, structure: Structure) -> None:
        self.potential = potential
        self.structure = structure

    @property
    def concentrations(self) -> np.ndarray:
        """Shape parameters of the standard Gamma draws that a call takes, (precision,)."""
        return concentrations(self.structure.levels, self.structure.shapes)

    def __call__(self, key: jax.Array, z: Values, gammas: jax.Array | None = None) -> Values:
        """Unconstrained values with new precisions; `gammas` ~ Gamma(:attr:`concentrations`, 1)."""
        values = self.potential.constrain(z, deterministic=True)
        values = redrawn(key, self.structure.levels, values, gammas)
        # Weights are kept; standardised weights in the model's own coordinates follow from them.
        return own_coordinates(
            self.potential, {name: values[name] for name in self.structure.latent}
        )


def precision_redraw(potential: Potential) -> LadderRedraw | None:
    """The redraw of the precisions of a model; None for a model without hierarchical precisions."""
    structure = centered(potential.model, potential.args, potential.kwargs).structure
    # Only precisions of weights are drawn: those of the noise depend on the power of the likelihood.
    return LadderRedraw(potential, structure) if structure.levels else None
