"""The arrays of a store of draws: their names, axes and types."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.priors.axis_names import dims_of, variable_name
from numpyro_bnn.storage.stored_names import refuse_names

# The two groups of a store, named as ArviZ names them.
POSTERIOR, STATS = "posterior", "sample_stats"


class Variable(NamedTuple):
    """One array of the store.

    - **group** - ``"posterior"`` or ``"sample_stats"``
    - **name** - its name in the file
    - **source** - name of the site or state field; for a pytree, with the path of the leaf
    - **shape** - shape of one draw
    - **dtype** - dtype of the draws as they were sampled
    """

    group: str
    name: str
    source: str
    shape: tuple[int, ...]
    dtype: np.dtype


def variables_of(draws: Mapping[str, PyTree], sample_field: str, lead: int) -> list[Variable]:
    """The variables to store for the fields that a run collects, in the order of the leaves.

    :param draws: abstract or real arrays by state field.
    :param sample_field: the field that holds the sites.
    :param lead: number of leading axes (chain, draw) of each array.
    """
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(draws))[0]:
        field, *rest = [named_part(part) for part in path]
        own = field == sample_field
        source = ".".join(rest or ["x"]) if own else ".".join([field, *rest])
        group = POSTERIOR if own else STATS
        shape = tuple(leaf.shape[lead:])
        found.append(Variable(group, variable_name(source), source, shape, leaf.dtype))
    for group in (POSTERIOR, STATS):
        alike = [v for v in found if v.group == group]
        axes = [axis for names in axes_of(alike) for axis in names]
        refuse_names("MCMC", {v.source: v.name for v in alike}, axes, on_disk=True)
    return found


def axes_of(variables: list[Variable]) -> list[list[str]]:
    """Names of the axes of each variable of one group, beside (chain, draw)."""
    named = dims_of({v.source: v.shape for v in variables if v.group == POSTERIOR})
    return [
        (named[v.source] if v.group == POSTERIOR else [])
        or [f"{v.name}.axis_{i}" for i in range(len(v.shape))]
        for v in variables
    ]


def named_part(part: object) -> str:
    """One part of a pytree path, as text."""
    return str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part))))
