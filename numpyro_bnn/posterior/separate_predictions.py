"""Tells whether predictions of a row depend on the others, so that rows cannot be predicted in blocks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._types import Array
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.units import taken
from numpyro_bnn.distributions.unwrap import family_of
from numpyro_bnn.posterior.draws import group_by_chain, one_draw
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.rows_in_parts import same_in_parts
from numpyro_bnn.potential.sites import Structure

# As many blocks of one draw take no more memory than a block of a vector of draws.
_BLOCKS = 32


def rows_depend(
    model: Callable,
    structure: Structure,
    target: str,
    samples: Mapping[str, Array],
    arguments: tuple[tuple, dict[str, Any]],
    part: int,
) -> bool:
    """Whether the distribution of a target at a row is another among other rows, under the first draw."""
    size = len(jax.tree.leaves(arguments[0][0])[0])
    shapes = {n: s for n, s in structure.shapes.items() if n in samples and n != target}
    grouped = group_by_chain({name: samples[name] for name in shapes}, shapes)
    arrays, static = Arguments.split(*arguments)
    # Draws from the prior of single rows, and dropout masks.
    drawn = structure.takes_keys or any(
        structure.sites[name].plates for name in structure.latent if name not in {target, *shapes}
    )

    def parameters(draw: dict[str, jax.Array], arrays: Sequence[jax.Array]) -> list[jax.Array]:
        args, kwargs = Arguments.join(arrays, static)
        given = substitute(seed(model, jax.random.key(0)), data=draw)
        return _parameters(trace(given).get_trace(*args, **kwargs)[target])

    def given(rows: np.ndarray) -> tuple[dict[str, Any], Any]:
        return one_draw(grouped, 0, 0), taken(arrays, rows, size)

    return not same_in_parts(Program(parameters), given, size, part, _BLOCKS * part, drawn)


def _parameters(site: dict[str, Any]) -> list[jax.Array]:
    """Parameters of the distribution of a site, or its value where it is computed."""
    if site["type"] == "deterministic":
        return [jnp.asarray(site["value"])]
    distribution = site["fn"]
    found = [
        leaf for leaf in jax.tree.leaves(distribution) if isinstance(leaf, (jax.Array, np.ndarray))
    ]
    shape = distribution.shape()
    if shape and len(shape) == family_of(distribution).event_dim:
        # One joint distribution of all rows: this array by pairs of rows makes them dependent.
        found.append(jnp.zeros((shape[0], shape[0])))
    return [jnp.asarray(leaf) for leaf in found]


def dependent_rows_message(size: int, batch_size: int, others: Sequence[Place]) -> str:
    """The error for blocks of rows that depend on one another."""
    named = ", ".join(
        f"'{place}'" if isinstance(place, str) else f"number {place + 1}" for place in others
    )
    table = (
        f" Or the argument {named} of the model is cut with the rows, since it has as many entries, and is "
        "not by row, but for example a table in which rows are looked up: give it another length (an entry "
        "more)."
        if named
        else ""
    )
    return (
        f"predict: among {batch_size} rows a row has other predictions than among more: the model relates "
        "rows, as one does that standardises its inputs by their own mean, or has lags or a recurrent "
        "network along the rows. Blocks of them would be predicted wrongly. Predict all together, "
        f"`batch_size={size}`, or leave it out.{table}"
    )
