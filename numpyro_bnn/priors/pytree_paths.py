"""Dotted paths of the arrays in a callable pytree, such as an Equinox module, and what its shapes mean.

The last axis of a Flax kernel counts the outputs; in Equinox the first does: (out, in). So shapes of such
modules say over which axes an output sums (:class:`LaidOut`); nothing is guessed. Flax layers of another
layout, such as stacked ones, have such shapes too.
"""

from typing import Any, NamedTuple

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

    # The summed axes, the one over units first; () for a bias or an embedding; None where unknown.
    summed: tuple[int, ...] | None
    owner: str  # Name of the class that holds the array, for messages
    # The axes over source units, None where they are not known; by default the first of `summed`.
    units: tuple[UnitAxis, ...] | None
    problem: str | None  # Why something is not known and what to do, for messages
    guessed: bool  # Whether `summed` is a guess, which priors warn of

    def __new__(
        cls,
        shape: tuple[int, ...],
        summed: tuple[int, ...] | None,
        owner: str,
        units: tuple[UnitAxis, ...] | None = None,
        problem: str | None = None,
        guessed: bool = False,
    ) -> "LaidOut":
        made = super().__new__(cls, shape)
        made.summed, made.owner, made.problem = summed, owner, problem
        made.units, made.guessed = units, guessed
        if units is None and problem is None and summed is not None:
            made.units = tuple(UnitAxis(axis) for axis in summed[:1])
        return made

    def summed_axes(self, path: str) -> tuple[int, ...]:
        """The axes over which one output sums, one over units first; () where it sums none."""
        if self.summed is None:
            raise self._unknown(path)
        return self.summed

    def unit_axes(self, path: str) -> tuple[UnitAxis, ...]:
        """The axes over the units that weights come from; () where they come from none."""
        if self.units is None:
            raise self._unknown(path)
        return self.units

    def _unknown(self, path: str) -> ValueError:
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

    def new(keys: tuple[Any, ...], leaf: Any) -> Any:
        return values[path_of(keys)] if is_array(leaf) else leaf

    return jax.tree_util.tree_map_with_path(new, module)
