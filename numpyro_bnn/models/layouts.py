"""Over which axes of its arrays a network of Flax sums, where their shape and name do not say.

A shape alone cannot tell a convolution from dense layers that ``nn.scan`` or ``vmap`` stacked along an axis,
nor several output axes from several inputs. An interceptor notes the arrays of linen modules where these are
called, and follows them to where they are stored; layers of NNX know their own sizes. Priors that need a
layout which stays unknown refuse it.
"""

from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from numpyro_bnn.models.layer_kernels import Single, Summed, kernels_of_nnx, single_array
from numpyro_bnn.models.stored_axes import Followed, marked
from numpyro_bnn.priors.paths import Shape, Shapes, is_guessed, summed_axes
from numpyro_bnn.priors.pytree_paths import LaidOut, UnitAxis

_AS_STORED = (
    "Store it as the layer has it, or with its axes in another order; or give it a prior that needs neither, "
    "such as Normal"
)


class SeenLayers:
    """An interceptor that notes the arrays of linen layers inside of ``nn.scan`` and ``nn.vmap``."""

    def __init__(self) -> None:
        # By path, as the first layer has it that uses the array.
        self.found: dict[str, Single] = {}

    def __call__(self, call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        """Call the method, and mark the parameters that it made."""
        layer: linen.Module = context.module
        before = set(_parameters(layer))
        output = call(*args, **kwargs)
        # An Einsum may get its equation in its call.
        equation = next((value for value in args[1:] if isinstance(value, str)), None)
        equation = kwargs.get("einsum_str", equation)
        for name, value in _parameters(layer).items():
            # An array with named axes is in a box with one leaf.
            leaves = [] if isinstance(value, Mapping) else jax.tree.leaves(value)
            if name in before or len(leaves) != 1 or not _is_real(leaves[0]):
                continue
            single = single_array(layer, name, tuple(leaves[0].shape), equation)
            self.found[".".join((*layer.path, name))] = single
            if layer.scope is not None and layer.scope.is_mutable_collection("params"):
                noted = jax.tree.map(partial(marked, note=_note(single)), value)
                layer.scope.put_variable("params", name, noted)
        return output

    def laid_out(self, shapes: Shapes, followed: Mapping[str, Followed | None]) -> Shapes:
        """Shapes by path, with their layouts where these are unusual; `followed` has the marked arrays."""
        return {path: self._laid_out(path, s, followed.get(path)) for path, s in shapes.items()}

    def _laid_out(self, path: str, shape: Shape, followed: Followed | None) -> Shape:
        stored = None
        if followed is not None:
            single, stored = _noted(followed), followed.stored()
        elif path in self.found:
            single = self.found[path]
        else:
            return shape
        problem = (
            f"the layer has it as {single.shape} and the network stores it as {tuple(shape)} in a way that "
            f"cannot be followed. {_AS_STORED}"
        )
        return _as_stored(path, shape, single, [] if stored is None else [stored], problem)


def _parameters(layer: linen.Module) -> Mapping[str, Any]:
    return {} if layer.scope is None else layer.scope.variables().get("params", {})


def _is_real(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _note(single: Single) -> str:
    """The text of an array's mark, which programs keep where the layer is not called again."""
    summed = single.summed
    plain = None if summed is None else (summed.axes, tuple(map(tuple, summed.units)))
    return repr((plain, single.problem))


def _noted(followed: Followed) -> Single:
    plain, problem = literal_eval(followed.note)
    if plain is None:
        return Single(followed.shape, None, problem)
    return Single(followed.shape, Summed(plain[0], tuple(UnitAxis(*unit) for unit in plain[1])))


def _as_stored(
    path: str, shape: Shape, single: Single, embeddings: list[tuple[int, ...]], problem: str
) -> Shape:
    """The shape of a stored array, which knows its layout where that is unusual."""
    # `embeddings`: for each axis of the single array that of the stored one, in all ways that fit.
    if single.problem is not None:
        return LaidOut(shape, None, "the layer", problem=single.problem)
    axes = summed_axes(path, single.shape)
    axes, units = single.summed or Summed(axes, tuple(UnitAxis(axis) for axis in axes[:1]))
    # The usual layout follows from the name of the array.
    usual = summed_axes(path, shape)
    if not axes and not usual:
        return shape
    if not axes:
        return LaidOut(shape, (), "the layer")
    found = {
        Summed(tuple(own[a] for a in axes), tuple(UnitAxis(own[a], n) for a, n in units))
        for own in embeddings
    }
    if len(found) != 1:
        # All ways have the same sizes, and so the same fan-in.
        some = min(found).axes if found else None
        return LaidOut(shape, some, "the layer", problem=problem)
    ((axes, units),) = found
    if single.summed is None and is_guessed(path, single.shape):
        return shape if axes == usual else LaidOut(shape, axes, "the layer", units, guessed=True)
    as_usual = (axes, units) == (usual, tuple(UnitAxis(axis) for axis in usual[:1]))
    known_so = as_usual and not is_guessed(path, shape)
    return shape if known_so else LaidOut(shape, axes, "the layer", units)


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
            embeddings = _embeddings(shapes[path], single.shape)
            laid_out[path] = _as_stored(
                path, shapes[path], single, embeddings, _in_several_ways(single.shape, shapes[path])
            )
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


def _embeddings(shape: Shape, single: Shape) -> list[tuple[int, ...]]:
    """All ways to place the axes of a single layer, in order, among those of a stack."""
    ways = combinations(range(len(shape)), len(single))
    return [own for own in ways if tuple(shape[axis] for axis in own) == tuple(single)]


def _in_several_ways(single: Shape, shape: Shape) -> str:
    return (
        f"the layer alone has the shape {tuple(single)}, which the stored shape {tuple(shape)} does not hold "
        "in exactly one way, so that it is not known which axes are those of the layer. Stack another number "
        "of layers than there are units; or use a prior without a level of units (`unit=`)"
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
    if not summed_axes(path, shape):
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
