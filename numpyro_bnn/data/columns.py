"""Compares inputs with those of the training data, and refuses other columns.

Columns of a table in another order would otherwise be mistaken for each other without any error; they are
compared by name. Arrays have no names, and their number of columns is compared.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NoReturn

import jax
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.made_up_inputs import noted_inputs


def column_names(values: object) -> list[str]:
    """Names of the columns of a table (of pandas, polars, …), in its order; empty for anything else."""
    names = getattr(values, "columns", None)
    return [] if names is None or not hasattr(values, "shape") else [str(name) for name in names]


def check_columns(owner: str, label: str, trained: Sequence[str], values: object) -> None:
    """Refuse a table whose columns are not those of the training data, in their order.

    :param owner: the function that was called, for the error.
    :param label: name of the argument.
    :param trained: names of the columns in training; empty where they had none.
    :param values: the table or array that is given now.
    :raises ValueError: naming the columns that are missing, unknown or in another position.
    """
    given = column_names(values)
    if not len(trained) or not given or given == list(trained):
        return
    missing = [name for name in trained if name not in given]
    unknown = [name for name in given if name not in trained]
    if missing or unknown:
        parts = [("lacks", missing), ("has the unknown", unknown)]
        difference = " and ".join(
            f"{what} column(s) {_some(names)}" for what, names in parts if names
        )
    else:
        at = next(i for i, pair in enumerate(zip(given, trained)) if len(set(pair)) > 1)
        difference = f"has {given[at]!r} where the training data had {trained[at]!r}"
    raise ValueError(
        f"{owner}: {label} {difference}. Expected the columns of the training data, in their order: "
        f"`{label}[{_some(trained)}]`."
    )


def about_inputs(args: Sequence[PyTree]) -> dict[str, Any]:
    """What is kept of the training inputs with the draws: ``columns``, where they were a table,
    ``row_shapes``, the shape of one row of each array, and ``input_ranges``, what inputs like them are made
    up of (:mod:`numpyro_bnn.data.made_up_inputs`).

    :param args: arguments of the model, the inputs first.
    """
    if not args:
        return {}
    names = column_names(args[0])
    shapes = [list(np.shape(leaf)[1:]) for leaf in jax.tree.leaves(args[0]) if np.shape(leaf)]
    known = {"columns": names, "row_shapes": shapes, "input_ranges": noted_inputs(args[0])}
    return {name: value for name, value in known.items() if value}


def fingerprint(values: PyTree) -> str:
    """A short text that is the same for the same rows in the same order, and another for others.

    :param values: inputs, an array or a pytree of arrays.
    """
    found = blake2b(digest_size=16)
    for leaf in map(np.asarray, jax.tree.leaves(values)):
        # In one precision, so that NumPy and JAX copies of the same data have the same text.
        kind = np.int64 if leaf.dtype.kind in "biu" else np.float32
        # Zero has two signs.
        found.update(repr(leaf.shape).encode() + (leaf.astype(kind) + 0).tobytes())
    return found.hexdigest()


def check_row_shapes(owner: str, label: str, about: Mapping[str, list], values: PyTree) -> None:
    """Refuse arrays with another number of columns, or of axes, than the training inputs had.

    Images of another size pass, because they may be meant; inputs of another structure are left to the model.

    :param owner: the function that was called, for the error.
    :param label: name of the argument.
    :param about: what :func:`about_inputs` kept; nothing is compared where it has no ``row_shapes``.
    :param values: the inputs that are given now, arrays.
    :raises ValueError: naming both numbers.
    """
    rows = [tuple(shape) for shape in about.get("row_shapes", [])]
    leaves = jax.tree_util.tree_flatten_with_path(values)[0]
    given = [(jax.tree_util.keystr(path), np.shape(leaf)) for path, leaf in leaves]
    given = [(path, shape) for path, shape in given if shape]
    if len(given) != len(rows):
        return
    for (path, shape), row in zip(given, rows):
        if len(shape) != len(row) + 1 or (len(row) == 1 and shape[1:] != row):
            refuse_row_shape(owner, f"{label}{path}", shape, row)


def refuse_row_shape(
    owner: str, label: str, shape: tuple[int, ...], row: tuple[int, ...]
) -> NoReturn:
    """Say that an array does not have rows of the shape that the training inputs had.

    :param owner: the function that was called.
    :param label: name of the array.
    :param shape: shape of the array.
    :param row: shape of a row of the training inputs.
    :raises ValueError: always.
    """
    raise ValueError(
        f"{owner}: {label} has {_told(shape)}, and the fit had {_told((None, *row))}. "
        f"{_advice(label, shape, row)}"
    )


def _told(shape: tuple[int | None, ...]) -> str:
    """A shape in words: the columns where there is an axis of them."""
    if len(shape) == 2:
        return f"{shape[1]} column{'s' * (shape[1] != 1)}"
    if len(shape) == 1:
        return "one number a row" if shape[0] is None else f"a single axis, of {shape[0]} numbers"
    return f"rows of shape {shape[1:]}"


def _advice(label: str, shape: tuple[int, ...], row: tuple[int, ...]) -> str:
    """How to make rows of the shape that was expected."""
    if shape == row:
        return f"If it is a single row, write `{label}[None]`, or of a table `table.iloc[[0]]`."
    if len(shape) == 2 and shape[1] == 1 and not row:
        return f"Write `{label}[:, 0]`."
    if len(shape) == 1 and row == (1,):
        return f"Write `{label}[:, None]`."
    return "Give the columns of the training data, in their order."


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:6]))
    return f"[{shown}]" if len(names) <= 6 else f"[{shown}, … {len(names) - 6} more]"
