"""Keeps names of columns, shapes and ranges of the training inputs, and refuses inputs with other columns.

Columns of a table in another order would otherwise be mistaken for each other without any error; they are
compared by name. Arrays have no names, and their number of columns is compared. A file of draws has no
training rows: what a model predicts at inputs made of these ranges tells whether it is the one of the fit.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.fingerprints import fingerprint
from numpyro_bnn.data.host_rows import OnHost

# Names of the columns of a table; of several tables by their path in a pytree, such as "['images'][0]".
Columns: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]


def column_names(values: PyTree) -> Columns:
    """Names of the columns of a table, or of each table in a pytree by its path; empty for anything else."""
    if names := _names_of(values):
        return names
    leaves = jax.tree_util.tree_flatten_with_path(values)[0]
    tables = {jax.tree_util.keystr(path): _names_of(leaf) for path, leaf in leaves}
    return {path: names for path, names in tables.items() if names} or []


def _names_of(table: Any) -> list[str]:
    names = getattr(table, "column_names", getattr(table, "columns", None))
    return [] if names is None or not hasattr(table, "shape") else [str(name) for name in names]


def with_tables(given: PyTree, arrays: PyTree) -> PyTree:
    """Arrays as tables of pandas where names of columns were given with them."""

    def named(made: Any, own: Any) -> Any:
        return pd.DataFrame(np.asarray(made), columns=n) if (n := _names_of(own)) else made

    return jax.tree.map(named, arrays, given)


def check_columns(owner: str, label: str, trained: Columns, values: PyTree) -> None:
    """Refuse tables whose columns are not those of the training data, in their order."""
    known, given = (
        names if isinstance(names, Mapping) else {"": names}
        for names in (trained, column_names(values))
    )
    for path in known:
        if len(known[path]) and len(given.get(path, ())):
            _check_names(owner, label + path, list(known[path]), list(given[path]))


def _check_names(owner: str, label: str, trained: list[str], given: list[str]) -> None:
    """Refuse columns of one table that are not those of the training data."""
    if given == trained:
        return
    missing = [name for name in trained if name not in given]
    unknown = [name for name in given if name not in trained]
    if missing or unknown:
        parts = [("lacks", missing), ("has the unknown", unknown)]
        said = [f"{what} column(s) {_some(names)}" for what, names in parts if names]
        difference = " and ".join(said)
    else:
        at = next(i for i, pair in enumerate(zip(given, trained)) if len(set(pair)) > 1)
        difference = f"has {given[at]!r} where the training data had {trained[at]!r}"
    raise ValueError(
        f"{owner}: {label} {difference}. Expected the columns of the training data, in their order: "
        f"`{label}[{_some(trained)}]`."
    )


def about_inputs(
    x: PyTree, columns: Columns = (), draws: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What is kept of the training inputs with the draws: columns, shape of a row, ranges, fingerprint."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x) if np.shape(leaf)]
    if not shapes:
        return {}
    known = {
        "columns": columns or column_names(x),
        "row_shapes": [list(shape[1:]) for shape in shapes],
        "input_ranges": noted_inputs(x),
    }
    sizes = {shape[0] for shape in shapes}
    by_row = any(sizes & set(np.shape(value)[2:]) for value in (draws or {}).values())
    # Data on the host get no fingerprint: that would need a pass over all of them.
    if by_row and not any(isinstance(leaf, OnHost) for leaf in jax.tree.leaves(x)):
        known["fitted_rows"] = fingerprint(x)
    return {name: value for name, value in known.items() if value}


def check_row_shapes(owner: str, label: str, about: Mapping[str, Any], values: PyTree) -> None:
    """Refuse arrays with another number of columns, or of axes, than the training inputs had."""
    # Images of another size pass: they may be meant. A model may do without one of several arrays.
    noted = json.loads(about.get("input_ranges", "{}"))
    if noted and ("row" in noted) != jax.tree_util.all_leaves([values]):
        keys = ", ".join(f"{key!r}: …" for key in noted.get("dict", ()))
        kind = "one array" if "row" in noted else f"{{{keys}}}" if keys else "several arrays"
        kind_given = type(values).__name__
        raise TypeError(f"{owner}: {label} is of type {kind_given}, and the fit had {kind}.")
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
    """Raise ValueError: an array does not have rows of the shape that the training inputs had."""
    raise ValueError(
        f"{owner}: {label} has shape {shape}, and a row of the fit had the shape {row}. Give the columns of "
        f"the training data, in their order; a single row is `{label}[None]`, a column `{label}[:, None]`."
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:6]))
    return f"[{shown}]" if len(names) <= 6 else f"[{shown}, … {len(names) - 6} more]"


# Rows whose ranges are noted, and rows that are made.
_LOOKED_AT, _MADE = 100, 8
# Most columns with a range of their own; more columns share one.
_MOST_COLUMNS = 64


def noted_inputs(x: PyTree) -> str | None:
    """What :func:`probe_inputs` needs of inputs, as JSON: ranges of their first rows; None if unknown."""
    noted = _noted(x)
    return None if noted is None else json.dumps(noted)


def _noted(x: Any) -> dict[str, Any] | None:
    kind = type(x)
    if isinstance(x, (dict, list, tuple)):
        parts: dict[Any, Any] = x if isinstance(x, dict) else dict(enumerate(x))
        inside = {key: _noted(part) for key, part in parts.items()}
        # JSON has no other keys, and other containers cannot be built again.
        plain = kind in (list, tuple) or (kind is dict and all(isinstance(k, str) for k in x))
        return {kind.__name__: inside} if plain and inside and None not in inside.values() else None
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return None
    shape = x.shape if isinstance(x, OnHost) else np.shape(x)
    if not shape or not shape[0]:
        return None
    first = slice(0, _LOOKED_AT)
    rows = x.rows(first) if isinstance(x, OnHost) else np.asarray(x[first])
    if rows.dtype.kind not in "biuf" and rows.dtype != jnp.bfloat16:
        return None
    numbers = rows.astype(np.float64)
    columns = rows.ndim > 1 and 0 < rows.shape[-1] <= _MOST_COLUMNS
    numbers = numbers.reshape(-1, rows.shape[-1] if columns else 1)
    finite = np.isfinite(numbers)
    low, high = (
        np.where(finite.any(0), f(np.where(finite, numbers, -s * np.inf), 0), 0.0)
        for f, s in ((np.min, -1), (np.max, 1))
    )
    return {
        "row": list(rows.shape[1:]),
        "type": rows.dtype.name,
        "low": low.tolist(),
        "high": high.tolist(),
    }


def probe_inputs(noted: str) -> PyTree:
    """Eight rows, uniform between least and largest number of each column, equal in every process."""
    return _made_up(json.loads(noted), np.random.default_rng(0))


def _made_up(noted: dict[str, Any], rng: np.random.Generator) -> Any:
    for kind in (dict, list, tuple):
        if kind.__name__ in noted:
            inside = {k: _made_up(v, rng) for k, v in noted[kind.__name__].items()}
            return inside if kind is dict else kind(inside.values())
    low, high = (np.asarray(noted[name]) for name in ("low", "high"))
    shape, kind = (_MADE, *noted["row"]), jnp.dtype(noted["type"])
    at = rng.random(shape)
    # Both ends of whole numbers are among them.
    values = low + (high - low) * at if kind.kind not in "biu" else np.rint(low + (high - low) * at)
    return values.astype(kind)
