"""Over which axes of its arrays a network of Flax sums, where their shape and name do not say.

A shape alone cannot tell a convolution from dense layers that ``nn.scan`` or ``vmap`` stacked along an axis,
nor several output axes from several inputs; nor is ``query`` always a projection of attention. The class of a
layer decides, where it is known. Linen's ``nn.scan`` and ``nn.vmap`` stack arrays: an interceptor puts a
companion beside each where its layer makes it, which has an axis of a size of its own for each axis of the
array, so that its shape after an abstract `init` shows where they went. Arrays under ``nn.map_variables`` are
found by their sizes. Layers of NNX know their own sizes. Priors that need a layout which stays unknown refuse
it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, permutations
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from numpyro_bnn._types import Array
from numpyro_bnn.priors.paths import LaidOut, Shape, Shapes, UnitAxis, usual_axes


class Summed(NamedTuple):
    """What an output of a layer sums of its kernel."""

    axes: tuple[int, ...]  # The summed axes, the one over units first
    units: tuple[UnitAxis, ...]  # The axes over the units that weights come from


class Single(NamedTuple):
    """An array of one layer, as it is without a stack."""

    shape: Shape
    summed: Summed | None = None  # None: as its name and shape imply
    problem: str | None = None  # Why that is not known, for the error of priors that ask for it


def single_array(layer: Any, name: str, shape: Shape, equation: str | None = None) -> Single:
    """An array of an unstacked layer; `equation` is that of an ``Einsum`` which gets it in its call."""
    if (axes := declared_axes(layer, name, len(shape))) is not None:
        return Single(shape, Summed(axes, _first_unit(axes)))
    if name != "kernel":
        return Single(shape)
    if isinstance(layer, (linen.Einsum, nnx.Einsum)):
        equation = layer.einsum_str or equation
        summed = _of_equation(equation, shape)
        why = f"the equation {equation!r} of the layer does not say over which axes an output sums"
        return Single(shape, summed, why if summed is None else None)
    return Single(shape, _summed(layer, shape))


def declared_axes(owner: Any, name: str, ndim: int) -> tuple[int, ...] | None:
    """The axes that outputs sum over, as a class says in ``input_axes``; None where it does not."""
    declared = getattr(type(owner), "input_axes", {})
    if name not in declared:
        return None
    axes = declared[name]
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if not all(isinstance(axis, int) and -ndim <= axis < ndim for axis in axes):
        raise ValueError(
            f"random_module: {type(owner).__name__}.input_axes says {declared[name]!r} for '{name}', "
            f"which has {ndim} axes. Give the number of an axis, several, or () for none."
        )
    return tuple(axis % ndim for axis in axes)


def _summed(layer: Any, shape: Shape) -> Summed | None:
    last = len(shape) - 1
    taps = tuple(range(last - 1))
    if isinstance(layer, linen.ConvLocal):
        # (*positions, inputs x taps, outputs): every position has weights of its own, so none is summed over.
        # The taps of one channel stand together.
        return Summed((last - 1,), (UnitAxis(last - 1, prod(_sequence(layer.kernel_size))),))
    if isinstance(layer, (linen.Conv, nnx.Conv)):
        groups, channels = layer.feature_group_count, UnitAxis(last - 1)
        # Each group of outputs has its own inputs, so both axes identify an input.
        grouped = (UnitAxis(last, shape[last] // groups), channels)
        return Summed((last - 1, *taps), grouped if groups > 1 else (channels,))
    if isinstance(layer, (linen.ConvTranspose, nnx.ConvTranspose)):
        inputs = last if layer.transpose_kernel else last - 1
        return Summed((inputs, *taps), (UnitAxis(inputs),))
    if isinstance(layer, (linen.Dense, nnx.Linear)):
        return Summed((0,), (UnitAxis(0),))
    if isinstance(layer, nnx.LinearGeneral):
        batch, outputs = len(layer.batch_axis), len(layer.out_features)
    elif isinstance(layer, linen.DenseGeneral):
        batch, outputs = len(_sequence(layer.batch_dims)), len(_sequence(layer.features))
    else:
        return None
    *others, first = range(batch, len(shape) - outputs)
    # Every entry of the input is a unit: those along batch axes, too.
    return Summed((first, *others), tuple(UnitAxis(axis) for axis in range(len(shape) - outputs)))


def _of_equation(equation: str | None, shape: Shape) -> Summed | None:
    """The axes of its second operand that an equation sums over; None where this is unclear."""
    terms, arrow, output = (equation or "").replace(" ", "").partition("->")
    inputs, _, kernel = terms.partition(",")
    if len(kernel) != len(shape) or "." in kernel:
        return None
    if not arrow:
        output = "".join(letter for letter in terms if terms.count(letter) == 1)
    summed = [axis for axis, letter in enumerate(kernel) if letter not in output]
    units = [UnitAxis(axis) for axis, letter in enumerate(kernel) if letter in inputs]
    return Summed((*summed[-1:], *summed[:-1]), tuple(units) if summed else ())


def _sequence(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def kernels_of_nnx(layer: nnx.Module) -> Iterator[tuple[str, Shape]]:
    """Shapes of the kernels of an unstacked layer of NNX, which knows its own sizes."""
    if isinstance(layer, nnx.LinearGeneral):
        sizes = (*layer.batch_axis.values(), *layer.in_features, *layer.out_features)
        yield "kernel", tuple(sizes)
    elif isinstance(layer, nnx.Linear):
        yield "kernel", (layer.in_features, layer.out_features)
    elif isinstance(layer, (nnx.Conv, nnx.ConvTranspose, nnx.Einsum)):
        yield "kernel", tuple(layer.kernel_shape)
    elif isinstance(layer, nnx.LoRA):
        yield "lora_a", tuple(layer.lora_a.shape[-2:])
        yield "lora_b", tuple(layer.lora_b.shape[-2:])


# The end of the names of companions, and the second of their sizes.
_COMPANION, _SECOND_SIZE = " of numpyro_bnn", 1009


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Companion:
    """An array that goes with a parameter through scans and vmaps, with other sizes of its axes."""

    array: Array
    single: Single = field(metadata={"static": True})  # The parameter as its layer has it

    @classmethod
    def of(cls, single: Single) -> "Companion":
        return cls(np.zeros(_sizes(single), np.float32), single)

    def stored(self) -> tuple[int, ...]:
        """For each axis of the layer's array that of the stored one."""
        return tuple(self.array.shape.index(size) for size in _sizes(self.single))


def _sizes(single: Single) -> tuple[int, ...]:
    # The first is 0, so that none takes memory where JAX computes constants at once.
    return (0, *range(_SECOND_SIZE, _SECOND_SIZE + len(single.shape)))[: len(single.shape)]


def without_companions(params: Any, prefix: str = "") -> tuple[dict, dict[str, Companion]]:
    """A tree of parameters, and the companions that stood in it by the paths of their parameters."""
    found: dict[str, Companion] = {}
    rest = {}
    for name, value in params.items():
        if isinstance(value, Companion):
            found[prefix + name.removesuffix(_COMPANION)] = value
        elif isinstance(value, Mapping):
            rest[name], inner = without_companions(value, f"{prefix}{name}.")
            found |= inner
        else:
            rest[name] = value
    return rest, found


def shapes_of(function: Callable, *arguments: Any) -> Any:
    """Shapes of what a function returns that puts companions beside parameters."""
    # Modules under ``nn.jit`` keep their programs. An unused precision of products gives these programs a
    # context of their own, so that they are not confused with those without companions; no value is computed.
    in_use = jax.config.jax_default_matmul_precision
    with jax.default_matmul_precision("bfloat16" if in_use != "bfloat16" else "tensorfloat32"):
        return jax.eval_shape(function, *arguments)


_AS_STORED = (
    "Store it as the layer has it, or with its axes in another order; or give it a prior that needs neither, "
    "such as Normal"
)


class SeenLayers:
    """An interceptor that gives arrays of linen layers their companions."""

    def __init__(self) -> None:
        # Arrays by path that a function maps (``nn.map_variables``), as their layer has them.
        self.mapped: dict[str, Single] = {}

    def __call__(self, call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        """Call the method, and note the parameters that it made."""
        layer: linen.Module = context.module
        before = _parameters(layer)
        output = call(*args, **kwargs)
        # An Einsum may get its equation in its call.
        equation = next((value for value in args[1:] if isinstance(value, str)), None)
        equation = kwargs.get("einsum_str", equation)
        after = _parameters(layer)
        for name in [name for name in after if name not in before]:
            path, companion = ".".join((*layer.path, name)), name + _COMPANION
            # An array with named axes is in a box with one leaf.
            leaves = jax.tree.leaves(after[name])
            is_one = len(leaves) == 1 and not isinstance(after[name], (Mapping, Companion))
            if path in self.mapped or companion in after or not is_one or not _is_real(leaves[0]):
                continue
            single = single_array(layer, name, tuple(leaves[0].shape), equation)
            scope: Any = layer.scope
            lifted = "".join(scope.debug_path)
            if "map_variables(" in lifted:
                # Of programs under `nn.jit` only the first is seen here.
                self.mapped |= {} if "jit(" in lifted else {path: single}
            elif scope.is_mutable_collection("params"):
                scope.put_variable("params", companion, Companion.of(single))
        return output

    def laid_out(self, shapes: Shapes, companions: Mapping[str, Companion]) -> Shapes:
        """Shapes by path, with their layouts where these are unusual."""
        return {path: self._laid_out(path, s, companions.get(path)) for path, s in shapes.items()}

    def _laid_out(self, path: str, shape: Shape, companion: Companion | None) -> Shape:
        if companion is not None:
            return _as_stored(path, shape, companion.single, [companion.stored()], "")
        single = self.mapped.get(path, Single(shape))
        # Where a function maps parameters, sizes alone can tell.
        ways = permutations(range(len(shape)), len(single.shape)) if path in self.mapped else ()
        fits = [way for way in ways if tuple(shape[axis] for axis in way) == single.shape]
        problem = (
            f"the layer has it as {single.shape} and `nn.map_variables` stores it as {tuple(shape)} in a way "
            f"that cannot be followed. {_AS_STORED}"
        )
        return _as_stored(path, shape, single, fits, problem)


def _parameters(layer: linen.Module) -> dict[str, Any]:
    return {} if layer.scope is None else dict(layer.scope.variables().get("params", {}))


def _is_real(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _as_stored(
    path: str, shape: Shape, single: Single, embeddings: list[tuple[int, ...]], problem: str
) -> Shape:
    """The shape of a stored array, which knows its layout where that is unusual."""
    # `embeddings`: for each axis of the single array that of the stored one, in all ways that fit.
    if single.problem is not None:
        return LaidOut(shape, None, "the layer", problem=single.problem)
    # The usual layout follows from the name of the array.
    own, usual = usual_axes(path, single.shape), usual_axes(path, shape)
    if single.summed is None and own is None:
        return LaidOut(shape, None, "the layer")
    axes, units = single.summed or Summed(own or (), _first_unit(own))
    if not axes:
        return shape if usual == () else LaidOut(shape, (), "the layer")
    found = {
        Summed(tuple(at[a] for a in axes), tuple(UnitAxis(at[a], n) for a, n in units))
        for at in embeddings
    }
    if len(found) != 1:
        # All ways have the same sizes, and so the same fan-in.
        return LaidOut(shape, min(found).axes if found else None, "the layer", problem=problem)
    ((axes, units),) = found
    as_usual = (axes, units) == (usual, _first_unit(usual))
    return shape if as_usual else LaidOut(shape, axes, "the layer", units)


def _first_unit(axes: tuple[int, ...] | None) -> tuple[UnitAxis, ...]:
    return tuple(UnitAxis(axis) for axis in (axes or ())[:1])


def layouts_of_nnx(module: nnx.Module, shapes: Shapes) -> Shapes:
    """Shapes of the arrays of an NNX module, with their layouts where these are unusual."""
    # Layers know their own sizes; other arrays are stacked as the layers beside them are.
    layers = [(path, node) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)]
    found = {
        ".".join(map(str, (*path, name))): single_array(layer, name, shape)
        for path, layer in layers
        for name, shape in kernels_of_nnx(layer)
    }
    # By module: the axes along which its known arrays may be stacked.
    stacks: dict[str, list[set[tuple[int, ...]]]] = {}
    laid_out: dict[str, Shape] = {}
    for path, single in found.items():
        if path in shapes:
            # All ways to place the axes of a single layer, in order, among those of a stack.
            ways = combinations(range(len(shapes[path])), len(single.shape))
            embeddings = [w for w in ways if tuple(shapes[path][a] for a in w) == single.shape]
            why = _IN_SEVERAL_WAYS.format(tuple(single.shape), tuple(shapes[path]))
            laid_out[path] = _as_stored(path, shapes[path], single, embeddings, why)
            every = range(len(shapes[path]))
            stacked = {tuple(a for a in every if a not in own) for own in embeddings}
            for owner in _owners(path):
                stacks.setdefault(owner, []).append(stacked)
    owners = {".".join(map(str, path)): layer for path, layer in layers}
    for path in shapes.keys() - found.keys():
        none: list[set[tuple[int, ...]]] = [{()}]
        beside = next((stacks[owner] for owner in _owners(path) if owner in stacks), none)
        layer = owners.get(path.rpartition(".")[0])
        laid_out[path] = _beside_others(path, shapes[path], beside, layer)
    return {path: laid_out[path] for path in shapes}


_IN_SEVERAL_WAYS = (
    "the layer alone has the shape {}, which the stored shape {} does not hold in exactly one way. Stack "
    "another number of layers than there are units; or use a prior without a level of units (`unit=`)"
)


def _beside_others(
    path: str, shape: Shape, stacks: list[set[tuple[int, ...]]], owner: Any
) -> Shape:
    """The layout of an array that no layer knows, which is stacked as the layers beside it are."""

    def own(axes: range) -> Shape:
        name = path.rpartition(".")[2]
        single = single_array(owner, name, tuple(shape[axis] for axis in axes))
        return _as_stored(path, shape, single, [tuple(axes)], "")

    common = set.intersection(*stacks)
    counts = {len(axes) for stacked in stacks for axes in stacked}
    if len(counts) != 1 or counts == {0}:
        # Stacked layers and others: the array belongs to the module that holds them all.
        return own(range(len(shape)))
    (more,) = counts
    leading = tuple(range(more))
    if common == {leading} or len(shape) - more < 2:
        return own(range(more, len(shape)))
    if usual_axes(path, shape) == ():
        return shape
    problem = (
        f"it is no array of a layer that is known, and along which of the axes of {tuple(shape)} it is "
        "stacked is not known either. Stack along the first axis (`out_axes=0`), another number of layers "
        "than there are units, or give it a prior that needs neither, such as Normal"
    )
    return LaidOut(shape, None, "the module", problem=problem)


def _owners(path: str) -> Iterator[str]:
    """Paths of the modules that an array is in, the innermost first, without the network itself."""
    while path := path.rpartition(".")[0]:
        yield path
