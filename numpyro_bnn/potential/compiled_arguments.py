"""Splits the arguments of a model into arrays, which are inputs of a compiled program, and constants."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from numpyro_bnn._types import Array


class Arguments(NamedTuple):
    """Arguments of a model, split into the arrays that a program takes and the rest."""

    arrays: list[Array]  # Array leaves, in order
    static: tuple  # Hashable description of everything else, including the tree structure

    @classmethod
    def split(cls, args: tuple, kwargs: dict[str, object]) -> "Arguments":
        """Split the arguments of a model."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        is_array = tuple(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)
        arrays = [leaf for leaf, a in zip(leaves, is_array) if a]
        rest = tuple(None if a else leaf for leaf, a in zip(leaves, is_array))
        return cls(arrays, (structure, is_array, rest))

    @staticmethod
    def join(arrays: Sequence[object], static: tuple) -> tuple[tuple, dict[str, object]]:
        """Positional and keyword arguments from (other) arrays and the static part of :func:`split`."""
        structure, is_array, rest = static
        remaining = iter(arrays)
        leaves = [next(remaining) if a else leaf for a, leaf in zip(is_array, rest)]
        return jax.tree.unflatten(structure, leaves)
