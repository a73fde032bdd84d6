"""Weights and targets drawn from the prior of a model."""

from collections.abc import Callable

import jax
import numpy as np
from numpyro.infer import Predictive

from numpyro_bnn._checks import check_whole
from numpyro_bnn._types import PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import innermost, prepared
from numpyro_bnn.posterior.prediction_sites import structure_at
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.structure import as_jax
from numpyro_bnn.potential.targets import check_arguments


def prior_predictive(
    model: Callable, key: jax.Array, x: PyTree, num_samples: int
) -> dict[str, jax.Array]:
    """Draw weights and targets from the prior.

    :param model: the model, called as ``model(x)``.
    :param key: random key.
    :param x: inputs.
    :param num_samples: number of draws.
    :return: values of every site, with a leading axis of `num_samples`.
    :raises ValueError: if `num_samples` is not positive or x has no rows.
    :raises TypeError: if the model needs more than x.
    """
    num_samples = check_whole("prior_predictive", "num_samples", num_samples)
    check_arguments((x,), {})
    (x,), _ = prepared(model, (x,), {})
    structure = structure_at(model, x)
    arguments = Arguments.split(as_jax((x,)), {})

    def draw(key: jax.Array, arrays: list[jax.Array]) -> dict[str, jax.Array]:
        (x,), _ = Arguments.join(arrays, arguments.static)
        return Predictive(model, num_samples=num_samples)(key, x)

    drawn = Program(draw)(key, arguments.arrays)
    shift = getattr(innermost(model), "shift", None)
    if shift is None:
        return drawn
    # The target of a ready model is its last site, whatever `handlers.scope` calls it.
    target = list(structure.sites)[-1]
    return drawn | {target: np.asarray(drawn[target], np.float64) + shift}
