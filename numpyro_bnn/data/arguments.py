"""Converts the arguments of a model for the device: tables and lists to arrays, data to a model's units.

Runs, fits, predictions and scores all call these functions, so that they accept and refuse the same kinds of
data. A ready model gets its data standardised on the host and marked as such
(:class:`~numpyro_bnn.data.units.Prepared`); any other model gets arrays whose values are unchanged.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from numpyro.util import not_jax_tracer

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.host_rows import OnHost, in_memory, is_of_rows
from numpyro_bnn.data.units import check_fits, native

_NUMBERS = (bool, int, float, np.number, np.bool_)


def innermost(model: Callable | None) -> Any:
    """The model without the handlers that wrap it."""
    inner: Any = model
    while getattr(inner, "fn", None) is not None:
        inner = inner.fn
    return inner


def units_of(model: Callable | None) -> Any:
    """The units that a ready model keeps of its data; None before its first fit, and of other models."""
    return getattr(innermost(model), "standardization", None)


def stored_units(model: Callable | None) -> dict[str, Any]:
    """The units of a ready model in a form that JSON has, to keep with its draws; none of other models."""
    if (units := units_of(model)) is None:
        return {}
    return {name: (value.tolist(), str(value.dtype)) for name, value in units._asdict().items()}


def restore_units(model: Callable | None, stored: Mapping[str, Any]) -> None:
    """Give a ready model the units that :func:`stored_units` told."""
    ready = innermost(model)
    if stored and hasattr(ready, "restore"):
        ready.restore({name: np.asarray(value, kind) for name, (value, kind) in stored.items()})


def is_ready(model: Callable | None) -> bool:
    """Whether a model standardises its data itself, as those of ``regression`` and ``classification``."""
    return hasattr(innermost(model), "standardization")


def num_rows(what: str, arrays: PyTree, advice: str = "") -> int:
    """The number of rows that arrays share; ValueError where they have none, or different ones."""
    sizes = {(np.shape(leaf) or (0,))[0] for leaf in jax.tree.leaves(arrays)}
    if len(sizes) != 1 or sizes & {0}:
        raise ValueError(
            f"{what} must hold arrays with the same positive number of rows, got {sorted(sizes)}.{advice}"
        )
    return int(sizes.pop())


def bound_by_row(model: Callable | None, size: int | None) -> dict[Any, PyTree]:
    """Keyword arguments by row (None: all of them) that ``functools.partial`` binds, also in handlers."""
    found: dict[str, Any] = {}
    inner: Any = model
    while inner is not None:
        found = getattr(inner, "keywords", {}) | found if isinstance(inner, partial) else found
        inner = inner.func if isinstance(inner, partial) else getattr(inner, "fn", None)
    return {name: value for name, value in found.items() if size is None or is_by_row(value, size)}


def is_by_row(value: PyTree, size: int) -> bool:
    """Whether an argument has an array as long as there are rows."""
    leaves = (leaf for leaf in jax.tree.leaves(value) if not isinstance(leaf, type))
    return any(np.shape(leaf)[:1] == (size,) for leaf in leaves)


def about_numbers(model: Callable | None, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of single numbers beside x and y that a model was fitted with, such as a known noise."""
    names = names_of(model)
    named = dict(zip(names, args)) | dict(kwargs)
    kinds = (int, float, np.number, np.ndarray, jax.Array)
    single = {n: v for n, v in named.items() if isinstance(v, kinds) and np.ndim(v) == 0}
    numbers = {
        name: np.asarray(value).item()
        for name, value in single.items()
        if name not in names[:2] and jnp.issubdtype(jnp.result_type(value), jnp.number)
    }
    return {"numbers": numbers} if numbers else {}


def names_of(model: Callable | None) -> list[str]:
    """Names of the parameters of a model; none of a callable that does not say what it takes."""
    try:
        parameters = inspect.signature(innermost(model)).parameters
    except (TypeError, ValueError):
        return []
    any_number = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [name for name, parameter in parameters.items() if parameter.kind not in any_number]


def prepared(
    model: Callable, args: tuple, kwargs: Mapping[str, object]
) -> tuple[tuple, dict[str, object]]:
    """The arguments to call a model with: as arrays, and standardised where the model is a ready one."""
    # Data that are prepared already, or traced, stay as they are.
    ready = innermost(model)
    refuse_network(ready)
    if hasattr(ready, "prepare"):
        return ready.prepare(args, kwargs)
    args, kwargs = as_arrays(model, args, kwargs)
    owner = _owner(model)
    for label, leaf in named_leaves(model, args, kwargs):
        if isinstance(leaf, np.ndarray):
            check_fits(owner, label, leaf)
        elif isinstance(leaf, OnHost):
            leaf.check_fits(owner, label)
    return args, kwargs


def refuse_network(model: Callable | None) -> None:
    """Refuse a Flax module where a model is expected: it has no prior and no likelihood."""
    # Flax is recognised by name, because only `models` imports it.
    given = innermost(model)
    if any(base.__module__.startswith("flax.") for base in type(given).__mro__):
        name = type(given).__name__
        raise TypeError(
            f"Expected a NumPyro model, got the network {name}, which has no prior and no "
            f"likelihood. Give `bnn.regression({name}(…), prior)` or `bnn.classification(…)`, or a "
            "model of your own that calls `bnn.random_module`."
        )


def as_arrays(
    model: Callable | None, args: tuple, kwargs: Mapping[str, object]
) -> tuple[tuple, dict[str, object]]:
    """Tables, series, tensors and lists among the arguments of a model, as arrays."""
    # A list is data where it is the first argument, or has an entry for every row of the first argument; any
    # other list is a constant of the model.
    owner, named = _owner(model), _parameters(model, args, kwargs)
    num_rows = None
    made: dict[str, Any] = {}
    for position, (label, value) in enumerate(named.items()):
        if isinstance(value, list) and _is_of_numbers(value):
            if position == 0 or len(value) == num_rows:
                value = as_array(owner, label, value)
        else:
            value = jax.tree.map(lambda leaf, label=label: _leaf(owner, label, leaf), value)
        if position == 0:
            shape = getattr(next(iter(jax.tree.leaves(value)), None), "shape", ())
            num_rows = shape[0] if shape else None
        made[label] = value
    names = iter(made.values())
    return tuple(next(names) for _ in args), {name: made[name] for name in kwargs}


def _leaf(owner: str, label: str, leaf: Any) -> Any:
    if isinstance(leaf, np.generic):
        return native(owner, label, leaf)
    of_numbers = ("__array__", "__dlpack__", "toarray")
    if isinstance(leaf, (jax.Array, OnHost)) or not any(hasattr(leaf, n) for n in of_numbers):
        return leaf
    return as_array(owner, label, leaf)


def check_labels(what: str, y: Any, num_classes: int, kinds: str = "biu") -> None:
    """Refuse all but one label a row: a whole number from 0, of one of the `kinds` of NumPy's types."""
    if np.ndim(y) != 1:
        raise ValueError(
            f"{what} has shape {np.shape(y)}, expected (N,), one class a row. Take `y.argmax(-1)` of "
            "one-hot classes, and `y.squeeze(-1)` of a column."
        )
    expected = f"whole numbers from 0 to {num_classes - 1}, as there are {num_classes} classes"
    if not_jax_tracer(y) and y.dtype.kind == "f" and np.isnan(y).any():
        raise ValueError(f"{what} has {np.isnan(y).sum()} NaN. Leave out rows without a class.")
    if y.dtype.kind not in kinds:
        raise TypeError(
            f"{what} has dtype {y.dtype}, expected {expected}. Convert whole numbers with `y.astype(int)`, "
            "number other labels by `np.searchsorted(classes, y)`, with all classes of the fit in order; a "
            "quantity is no class."
        )
    # In NumPy, because inside a trace JAX does not compute with known values.
    labels: np.ndarray = np.asarray(y, float) if not_jax_tracer(y) else np.zeros(0)
    if not ((labels >= 0) & (labels < num_classes) & (labels == np.round(labels))).all():
        raise ValueError(
            f"{what} has values from {labels.min():g} to {labels.max():g}, expected {expected}. Number them "
            "by `np.searchsorted(classes, y)`, with all classes of the fit in order."
        )


def as_array(owner: str, label: str, values: Any) -> Any:
    """One argument as an array of numbers: tables and lists converted, arrays and None as they are."""
    if values is None or isinstance(values, jax.Array):
        return values
    if isinstance(values, OnHost):
        raise TypeError(
            f"{owner}: {label} is {values!r}, data on the host, and is needed as an array. Read it, "
            f"`{label}[:]`. To fit a ready model a minibatch at a time, standardise in the file and use "
            "a model of your own."
        )
    values = plain(owner, label, values)
    kinds = np.atleast_1d(getattr(values, "dtypes", None))
    own_kinds = hasattr(values, "isna") and any(not isinstance(k, np.dtype) for k in kinds)
    if own_kinds and (missing := int(np.sum(np.asarray(values.isna())))):
        advice = "Fill them in, or drop those rows."
        raise ValueError(f"{owner}: {label} has {missing} missing values. {advice}")
    refuse_text_columns(owner, label, values)
    try:
        array = np.asarray(values)
        if array.dtype == object and not isinstance(values, np.ndarray):
            # A table with mixed or nullable types of columns.
            array = np.array(array.tolist())
        types = {type(value) for value in array.flat} if array.dtype == object else set()
        if Decimal in types and all(issubclass(kind, (Decimal, *_NUMBERS)) for kind in types):
            array = array.astype(np.float64)
    except (TypeError, ValueError):  # rows of different lengths
        array = np.empty(0, object)
    is_bfloat = array.dtype.kind == "V" and jax.numpy.issubdtype(array.dtype, jax.numpy.floating)
    if array.dtype.kind not in "biuf" and not is_bfloat:
        of = f" of {array.dtype}" if array.size else ""
        raise TypeError(
            f"{owner}: {label} is of type {type(values).__name__}{of}, expected numbers: an array, a "
            f"table of numeric columns, or a list with rows of one length. {_advice(label, values)}"
        )
    return native(owner, label, array)


def plain(owner: str, label: str, values: Any) -> Any:
    """A variable of a file as an array, anything else as it is; masked and raw packed numbers are refused."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise TypeError(
            f"{owner}: {label} is a masked array with {int(np.ma.getmaskarray(values).sum())} masked "
            "values, which JAX would take for values. Fill or remove them."
        )
    known = isinstance(values, (np.ndarray, jax.Array, OnHost)) or hasattr(values, "iloc")
    return values if known or not is_of_rows(values) else in_memory(f"{owner}: {label}", values)


def _advice(label: str, values: Any) -> str:
    """Advice for an error: how to make an array of plain numbers from these values."""
    if hasattr(values, "toarray"):
        return f"A sparse matrix becomes an array by `{label}.toarray()`."
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":
        return f"Give real and imaginary parts as columns: `{label}.real`, `{label}.imag`."
    return (
        f"Number the classes of a target by `np.searchsorted(classes, {label})`, with all of them in order, "
        "and turn dates and other text into numbers first."
    )


def refuse_text_columns(owner: str, label: str, table: Any, convertible: bool = False) -> None:
    """Refuse a table with columns of texts, categories or dates; Python objects pass if all are numbers."""
    kinds = getattr(table, "dtypes", None)
    if not hasattr(table, "columns") or kinds is None or np.ndim(kinds) != 1:
        return
    bad = [
        f"{name!r} ({kind})"
        for k, (name, kind) in enumerate(zip(table.columns, kinds))
        if not (
            _is_number(kind) or (kind == np.dtype(object) and _holds_numbers(table, k, convertible))
        )
    ]
    if bad:
        more = f" and {len(bad) - 8} more" if len(bad) > 8 else ""
        raise TypeError(
            f"{owner}: {label} is a {type(table).__name__} whose columns {', '.join(bad[:8])}{more} "
            "hold no numbers. Make them numeric: `pandas.get_dummies` does so for texts, and the page "
            '"Mixed tables" has a pipeline for texts, dates and missing values.'
        )


def _is_number(kind: Any) -> bool:
    if hasattr(kind, "is_numeric"):  # polars
        return bool(kind.is_numeric()) or str(kind) == "Boolean"
    # Types of NumPy and of pandas ("Int64", "boolean") both have a letter for their kind.
    return getattr(kind, "kind", "O") in "biuf"


def _holds_numbers(table: Any, column: int, convertible: bool) -> bool:
    """Whether all objects in one column of a pandas table are decimals or, if `convertible`, numbers."""
    kinds: tuple = (*_NUMBERS, Decimal, type(None)) if convertible else (Decimal,)
    return all(isinstance(value, kinds) for value in table.iloc[:, column])


def _is_of_numbers(values: Any) -> bool:
    """Whether a list holds only numbers, lists of numbers, or rows as arrays."""
    if isinstance(values, (list, tuple)):
        return bool(values) and all(_is_of_numbers(value) for value in values)
    return isinstance(values, _NUMBERS)


def _owner(model: Callable | None) -> str:
    inside = innermost(model)
    return str(getattr(inside, "kind", getattr(inside, "__name__", type(inside).__name__)))


def _parameters(
    model: Callable | None, args: tuple, kwargs: Mapping[str, object]
) -> dict[str, Any]:
    """All arguments by name, the positional ones first."""
    known = names_of(model)
    names = [
        known[i] if i < len(known) and known[i] not in kwargs else f"argument {i + 1}"
        for i in range(len(args))
    ]
    return dict(zip(names, args)) | dict(kwargs)


def by_place(
    model: Callable | None, args: tuple, kwargs: Mapping[str, PyTree]
) -> dict[int | str, PyTree]:
    """Arguments of a call by their number or name; inputs that were given by name have the number 0 too."""
    given: dict[int | str, PyTree] = dict(enumerate(args)) | dict(kwargs)
    if model is None or args or not kwargs:
        return given
    first = next(iter(names_of(model)), None)
    if first in given:
        given[0] = given.pop(first)
    return given


def by_name(model: Callable | None, others: Mapping[int | str, PyTree]) -> dict[str, PyTree]:
    """Arguments by name; none of a ready model, which predicts from its inputs alone."""
    names: dict[int | str, str] = dict(enumerate(names_of(model)))
    return {} if is_ready(model) else {names.get(p, str(p)): v for p, v in others.items()}


def inputs_of_call(model: Callable | None, args: tuple, kwargs: Mapping[str, PyTree]) -> PyTree:
    """The inputs of a call of a model: its first argument, given by position or by name; None without."""
    return by_place(model, args, kwargs).get(0)


def named_leaves(
    model: Callable | None, args: tuple, kwargs: Mapping[str, object]
) -> Iterator[tuple[str, Any]]:
    """All arrays and constants among the arguments of a model, with the names of its signature."""
    for name, value in _parameters(model, args, kwargs).items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            yield name + jax.tree_util.keystr(path), leaf


def targets_of(fitted: object, y: ArrayLike, owner: str) -> np.ndarray:
    """Targets as the model has them: for the labels of an estimator numbers, NaN if missing."""
    classes = getattr(fitted, "classes_", None)
    if classes is None:
        return np.asarray(as_array(owner, "y", y))
    y = np.asarray(y)
    missing = np.asarray(pd.isna(y))
    labels = y[~missing]
    if not (known := np.isin(labels, classes)).all():
        raise ValueError(
            f"{owner}: y has the label {labels[~known].tolist()[0]!r}, and the training labels are "
            f"{classes.tolist()}. Leave out rows of other classes."
        )
    found = np.full(y.shape, np.nan) if missing.any() else np.zeros(y.shape, int)
    found[~missing] = np.searchsorted(classes, labels)
    return found
