"""Arguments of a model, split into arrays (inputs of a compiled program) and constants."""

from typing import Any, NamedTuple

import jax
import numpy as np


class Arguments(NamedTuple):
    """Arguments of a model, split into the arrays that a program takes and the rest.

    - **arrays** - array leaves, in order
    - **static** - hashable description of everything else, including the tree structure
    """

    arrays: list[Any]
    static: tuple

    @classmethod
    def split(cls, args: tuple, kwargs: dict[str, Any]) -> "Arguments":
        leaves, structure = jax.tree.flatten((args, kwargs))
        is_array = tuple(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)
        arrays = [leaf for leaf, a in zip(leaves, is_array) if a]
        rest = tuple(None if a else leaf for leaf, a in zip(leaves, is_array))
        return cls(arrays, (structure, is_array, rest))

    @staticmethod
    def join(arrays: list[Any], static: tuple) -> tuple[tuple, dict[str, Any]]:
        structure, is_array, rest = static
        remaining = iter(arrays)
        leaves = [next(remaining) if a else leaf for a, leaf in zip(is_array, rest)]
        return jax.tree.unflatten(structure, leaves)
