"""Paths and shapes of the parameters of a network, as priors read them.

A path is dotted (``"Dense_0.kernel"``); a sample site is the name of the network, a slash and the path. In
files axes of weights have names (:func:`dims_of`): inputs, outputs, heads, positions of a window. They are
named within their layer (``"net.Dense_0.unit_in"``), since layers differ in width and a dataset of xarray has
one size for each name.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple
from unicodedata import normalize

import jax
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from numpyro_bnn._types import PyTree


class UnitAxis(NamedTuple):
    """An axis of a kernel that runs over the units that its weights come from."""

    axis: int
    repeats: int = 1  # How many consecutive entries belong to one unit


class LaidOut(tuple[int, ...]):
    """A shape that knows over which of its axes one output of the layer sums."""

    # The last axis of a Flax kernel counts the outputs; in Equinox the first does. Flax layers of an unusual
    # layout, such as stacked ones, have such shapes too.

    # The summed axes, the one over units first; () for a bias or an embedding; None where unknown.
    summed: tuple[int, ...] | None
    owner: str  # Name of the class that holds the array, for messages
    # The axes over source units, None where they are not known; by default the first of `summed`.
    units: tuple[UnitAxis, ...] | None
    problem: str | None  # Why something is not known and what to do, for messages

    def __new__(
        cls,
        shape: tuple[int, ...],
        summed: tuple[int, ...] | None,
        owner: str,
        units: tuple[UnitAxis, ...] | None = None,
        problem: str | None = None,
    ) -> "LaidOut":
        made = super().__new__(cls, shape)
        made.summed, made.owner, made.problem = summed, owner, problem
        made.units = units
        if units is None and problem is None and summed is not None:
            made.units = tuple(UnitAxis(axis) for axis in summed[:1])
        return made

    def unknown(self, path: str) -> ValueError:
        """The error for an array whose axes are not known."""
        name = path.rpartition(".")[2]
        problem = self.problem or (
            f"{self.owner} does not say over which axis of the shape {tuple(self)} an output sums. Say it in "
            f"the class, `input_axes: ClassVar = {{'{name}': 0}}` (() for none), or use a prior that needs "
            "no fan-in"
        )
        return ValueError(f"The prior of '{path}' goes by fan-in or source units, and {problem}.")


def is_module(value: object) -> bool:
    """Whether a value is a callable pytree: an Equinox module, or a registered class of arrays."""
    if not callable(value) or isinstance(value, type):
        return False
    # Modules of NNX are pytrees too, but Flax itself takes their parameters out.
    of_flax = any(base.__module__.split(".")[0] == "flax" for base in type(value).__mro__)
    return not of_flax and not jax.tree_util.all_leaves([value])


def is_array(leaf: object) -> bool:
    """Whether a leaf can be a parameter: an array, or the shape of one."""
    return isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))


def path_of(keys: tuple[Any, ...]) -> str:
    """Dotted path (``"layers.0.weight"``) of a leaf with this key path; refuses ambiguous names."""
    return ".".join(map(_part, keys))


def _part(key: Any) -> str:
    if isinstance(key, GetAttrKey):
        return key.name
    if isinstance(key, (SequenceKey, FlattenedIndexKey)):
        return str(key.idx if isinstance(key, SequenceKey) else key.key)
    part = str(key.key if isinstance(key, DictKey) else key)
    if not part or "." in part or "/" in part or part.isdigit():
        raise ValueError(
            f"A part of the module is named {part!r}. Dots, slashes and whole numbers have a meaning in site "
            "names; use another name."
        )
    return part


def arrays_of(module: PyTree) -> dict[str, PyTree]:
    """All arrays of a pytree by dotted path."""
    keyed, _ = jax.tree_util.tree_flatten_with_path(module)
    return {path_of(keys): leaf for keys, leaf in keyed if is_array(leaf)}


def with_arrays(module: PyTree, values: dict[str, PyTree]) -> PyTree:
    """A copy of a pytree with other arrays, which are given by dotted path."""
    return jax.tree_util.tree_map_with_path(
        lambda keys, leaf: values[path_of(keys)] if is_array(leaf) else leaf, module
    )


Shape = tuple[int, ...]
Shapes = dict[str, Shape]


class CallOrder(NamedTuple):
    """The layers of a network in the order in which they are called."""

    # Paths of the modules that own parameters, by their first call; the network itself is `""`.
    layers: tuple[str, ...]
    # Those whose input depends on no other parameter: it is the data.
    from_data: frozenset[str]
    not_called: tuple[str, ...]  # Modules whose parameters the network did not use


class NetworkShapes(dict[str, Shape]):
    """Shapes of the parameters of a network by path; `find` returns the order of calls, or None."""

    def __init__(self, shapes: Shapes, find: Callable[[], CallOrder] | None = None) -> None:
        super().__init__(shapes)
        self.find = find


def layer_of(path: str) -> str:
    """Path of the module that owns a parameter: ``"Dense_0"`` of ``"Dense_0.kernel"``."""
    return path.rpartition(".")[0]


# Last components of the names of sites that belong to a parameter, such as its precision.
AUXILIARY = (
    "precision",
    "unit_precision",
    "output_precision",
    "base",
    "global_scale",
    "local_scale",
    "slab_variance",
)

# Projections of attention layers whose kernels are (in, heads, head_dim): one input axis only.
_SPLIT_PROJECTIONS = ("query", "key", "value")


# Arrays whose names end so enter an output once, without a sum.
ENTER_ONCE = ("bias", "embedding", "scale")


def is_auxiliary(site: str) -> bool:
    """Whether a site belongs to a parameter (its precision, its standardised value, …)."""
    owner, _, leaf = site.rpartition(".")
    return bool(owner) and leaf in AUXILIARY


def parameter_tree(shapes: Shapes) -> str:
    """The parameters of a network and their shapes, one a line, for error messages."""
    width = max((len(path) for path in shapes), default=0)
    return "\n".join(f"  {path:<{width}}  {shape}" for path, shape in shapes.items())


def fan_in(path: str, shape: Shape) -> int:
    """Number of terms that one output of a layer sums through the array at a dotted path."""
    return prod(shape[axis] for axis in summed_axes(path, shape))


def source_axis(path: str, shape: Shape) -> int | None:
    """The last of the axes over the units that weights come from; None where there is none."""
    return next((unit.axis for unit in reversed(unit_axes(path, shape))), None)


def unit_axes(path: str, shape: Shape) -> tuple[UnitAxis, ...]:
    """The axes of a kernel that run over the units that its weights come from."""
    # Rows of a dense kernel, all input axes of a layer with several, input channels of a convolution (and
    # of the query, key and value projections of attention), groups and their input channels of one in
    # groups; () for biases, scales and embeddings. Where no layer is known it is one axis.
    laid_out = _laid_out(path, shape)
    if laid_out.units is None:
        raise laid_out.unknown(path)
    return laid_out.units


def summed_axes(path: str, shape: Shape) -> tuple[int, ...]:
    """The axes over which one output of a layer sums, the one that runs over units first."""
    laid_out = _laid_out(path, shape)
    if laid_out.summed is None:
        raise laid_out.unknown(path)
    return laid_out.summed


def _laid_out(path: str, shape: Shape) -> LaidOut:
    """A shape with its layout: its own, or what name and shape say."""
    if isinstance(shape, LaidOut):
        return shape
    return LaidOut(shape, usual_axes(path, shape), "the module")


def usual_axes(path: str, shape: Shape) -> tuple[int, ...] | None:
    """The axes that an output sums over by name and shape alone; None where these do not say."""
    # Dense and convolution kernels end in an output axis, so these are all axes but the last; query,
    # key and value projections of attention are (in, heads, head_dim), so it is the first
    # axis. Embeddings, biases and scales, and names that end so (`pos_embedding`): none.
    *layers, leaf = path.split(".")
    if len(shape) < 2 or leaf.endswith(ENTER_ONCE):
        return ()
    if len(shape) > 2 and leaf != "kernel":
        return None
    if len(shape) == 3 and layers and layers[-1] in _SPLIT_PROJECTIONS:
        return (0,)
    last = len(shape) - 2
    return (last, *range(last))


def flatten_params(params: Any) -> dict[str, Any]:
    """Flatten a tree of parameters (of linen, NNX, Equinox or another pytree) to ``{dotted path: array}``."""
    if isinstance(params, Mapping) and isinstance(params.get("params"), Mapping):
        params = params["params"]
    if not isinstance(params, Mapping) and is_module(params):
        return arrays_of(params)
    if not isinstance(params, Mapping):
        raise TypeError(
            f"Parameters must be nested dicts of arrays (or an nnx.State, or a pytree with a call), got "
            f"{type(params).__name__}. Pass `variables['params']` or "
            "`nnx.state(module, nnx.Param)`."
        )
    flat: dict[str, Any] = {}

    def visit(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, Mapping):
            for key, child in node.items():
                visit(child, (*path, str(key)))
            return
        arrays = jax.tree.leaves(node)  # one leaf: the array, or the value of an nnx.Variable
        if len(arrays) != 1:
            raise TypeError(
                f"Parameters must be nested dicts of arrays, but '{'.'.join(path)}' holds {node!r}."
            )
        flat[".".join(path)] = arrays[0]

    visit(params, ())
    return flat


def nest(values: Mapping[str, PyTree]) -> dict:
    """Nested dicts from dotted paths; numbered parts (NNX lists) become integers."""
    tree: dict[Any, Any] = {}
    for path, value in values.items():
        *parents, leaf = (int(part) if part.isdigit() else part for part in path.split("."))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def site_name(name: str, path: str) -> str:
    """Name of the sample site of a parameter."""
    return f"{name}/{path}"


def variable_name(site: str) -> str:
    """Name in files: dots for slashes, which ``DataTree`` reads as paths; letters as netCDF composes them."""
    return normalize("NFC", site.replace("/", "."))


def layer_of_site(site: str) -> str | None:
    """The layer of a weight, or of the weight whose precision or base value a site is; None for others."""
    return _place(site)[0] if "/" in site else None


def _place(site: str) -> tuple[str, str]:
    """The layer (``"net/Dense_0"``) and the parameter (``"kernel"``) that a site of a network belongs to."""
    weight = site.rsplit(".", 1)[0] if is_auxiliary(site) else site
    network, _, path = weight.partition("/")
    *parents, parameter = path.split(".")
    return "/".join([network, ".".join(parents)]) if parents else network, parameter


def dims_of(shapes: Mapping[str, Shape]) -> dict[str, list[str]]:
    """Name every axis of every site."""
    # Kernels are (unit_in, unit_out), with ``window_i`` in front for convolutions; attention projections add
    # ``head``; embeddings are (entry, unit_out). A precision or base value of a weight has its axes.
    sizes: dict[str, int] = {}
    dims: dict[str, list[str]] = {}
    for site, shape in shapes.items():
        if "/" in site:
            layer = variable_name(_place(site)[0])
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
