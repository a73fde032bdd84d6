"""Names for the axes of weights in files: inputs, outputs, heads, positions of a convolution's window.

Axes are named within their layer (``"net.Dense_0.unit_in"``), since layers differ in width and a dataset
of xarray has one size for each name.
"""

from collections.abc import Mapping
from typing import NamedTuple
from unicodedata import normalize

from numpyro_bnn.priors.paths import Shape, is_auxiliary


class _Place(NamedTuple):
    """The layer (``"net/Dense_0"``) and the parameter (``"kernel"``) that a site of a network belongs to."""

    layer: str
    parameter: str


def variable_name(site: str) -> str:
    """Name in files: dots for slashes, which ``DataTree`` reads as paths; letters as netCDF composes them."""
    return normalize("NFC", site.replace("/", "."))


def layer_of(site: str) -> str | None:
    """The layer of a weight, or of the weight whose precision or base value a site is; None for others."""
    if "/" not in site:
        return None
    return _place(site).layer


def _place(site: str) -> _Place:
    weight = site.rsplit(".", 1)[0] if is_auxiliary(site) else site
    network, _, path = weight.partition("/")
    *parents, parameter = path.split(".")
    return _Place("/".join([network, ".".join(parents)]) if parents else network, parameter)


def dims_of(shapes: Mapping[str, Shape]) -> dict[str, list[str]]:
    """Name every axis of every site."""
    # Kernels are (unit_in, unit_out), with ``window_i`` in front for convolutions; attention projections add
    # ``head``; embeddings are (entry, unit_out). A precision or base value of a weight has its axes.
    sizes: dict[str, int] = {}
    dims: dict[str, list[str]] = {}
    for site, shape in shapes.items():
        if "/" in site:
            layer = variable_name(_place(site).layer)
            names = [f"{layer}.{end}" for end in _weight_axes(site, shapes)]
        else:
            names = [f"{variable_name(site)}.axis_{i}" for i in range(len(shape))]
        # Parameters of one layer may have different numbers of units: each of those gets axes of its own.
        dims[site] = [
            name
            if sizes.setdefault(name, size) == size and name not in names[:i]
            else f"{variable_name(site)}.axis_{i}"
            for i, (name, size) in enumerate(zip(names, shape))
        ]
    return dims


def _weight_axes(site: str, shapes: Mapping[str, Shape]) -> list[str]:
    shape = shapes[site]
    layer, parameter = _place(site)
    if is_auxiliary(site):
        weight = site.rsplit(".", 1)[0]
        names = _weight_axes(weight, shapes) if weight in shapes else []
        if names and shape == shapes[weight]:
            return names
        if len(shape) == 1 and "unit_in" in names:
            return ["unit_in"]
        return [f"{parameter}.{site.rsplit('.', 1)[-1]}.axis_{i}" for i in range(len(shape))]
    parent, _, role = layer.rpartition(".") if "." in layer else layer.rpartition("/")
    separator = layer[len(parent) : len(layer) - len(role)]
    if any(f"{parent}{separator}query.{leaf}" in shapes for leaf in ("kernel", "bias")):
        attention = {
            ("query", 3): ["unit_in", "head", "unit_out"],
            ("query", 2): ["head", "unit_out"],
            ("out", 3): ["head", "unit_in", "unit_out"],
        }
        role = "query" if role in ("key", "value") else role
        if (role, len(shape)) in attention:
            return attention[role, len(shape)]
    if parameter == "embedding" and len(shape) == 2:
        return ["entry", "unit_out"]
    if parameter == "kernel" and len(shape) >= 2:
        return [*(f"window_{i}" for i in range(len(shape) - 2)), "unit_in", "unit_out"]
    if len(shape) == 1:
        return ["unit_out"]
    return [f"{parameter}.axis_{i}" for i in range(len(shape))]
