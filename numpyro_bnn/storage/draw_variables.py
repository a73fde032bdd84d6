"""The arrays of a store of draws: their names, axes and types; names that files cannot hold are refused.

A site becomes a folder of a zarr store, a variable of an xarray dataset, whose axes have names too, and a
variable of a netCDF file. Each of these accepts most names, and fails at some of them late.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.priors.axis_names import dims_of, variable_name

# The two groups of a store, named as ArviZ names them.
POSTERIOR, STATS = "posterior", "sample_stats"
# Bytes of the name of a folder, on the file systems in use.
_LONGEST = 255


class Variable(NamedTuple):
    """One array of the store."""

    group: str  # ``"posterior"`` or ``"sample_stats"``
    name: str  # Its name in the file
    source: str  # Name of the site or state field; for a pytree, with the path of the leaf
    shape: tuple[int, ...]  # Shape of one draw
    dtype: np.dtype  # Dtype of the draws as they were sampled


def variables_of(draws: Mapping[str, PyTree], sample_field: str, lead: int) -> list[Variable]:
    """The variables to store for the fields that a run collects, in the order of the leaves."""
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


def refuse_names(
    owner: str, names: Mapping[str, str], axes: Iterable[str], on_disk: bool = False
) -> None:
    """Refuse names under which a site cannot be written, or not be read again; by site."""
    sites: dict[str, str] = {}
    axes = {"chain", "draw", *axes}
    for site, name in names.items():
        why = _fault(name, axes) or (_fault_on_disk(name) if on_disk else "")
        if why:
            raise ValueError(
                f"{owner}: the site {site!r} cannot be stored under {name!r}, {why}. Rename it in the "
                "model."
            )
        if name in sites:
            raise ValueError(
                f"{owner}: the sites {sites[name]!r} and {site!r} would be stored under one name, "
                f"{name!r}. Rename one in the model."
            )
        sites[name] = site


def _fault(name: str, axes: set[str]) -> str:
    """The reason why ArviZ or netCDF cannot hold a name; empty where they can."""
    if name in ("", ".", ".."):
        return "which is no name to a file system"
    if name in axes:
        return "which is the name of an axis of the draws"
    if "\0" in name:
        return "because names in files end at a null character"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "which is no valid Unicode"
    return ""


def _fault_on_disk(name: str) -> str:
    if name == "zarr.json":
        return "which is the name of a file of zarr"
    if "\\" in name:
        return "because a backslash means a subfolder"
    if len(name.encode()) > _LONGEST:
        return f"because it has {len(name.encode())} bytes, and the limit is {_LONGEST}"
    return ""
