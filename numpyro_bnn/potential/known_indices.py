"""Refuses data with indices beyond a table of the model, such as a group that was never seen.

JAX takes the last entry for an index beyond the end, counts a negative one from the end, or gives NaN. The
traced program shows which numbers are indices: a large count is none.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import checkify
from numpyro.handlers import seed, substitute
from numpyro.infer import init_to_uniform

from numpyro_bnn._calls import result_or_error
from numpyro_bnn.data.arguments import named_leaves
from numpyro_bnn.data.host_rows import sources_in
from numpyro_bnn.data.units import Column
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.sites import Structure

# An index beyond any table, exact in single precision with all that is added to it; what that may be; and the
# number of rows that are checked first.
_FAR, _MOST_ADDED, _FEW = 2**23, 2**16, 100
_FOUND = re.compile(r"index (-?\d+) is out of bounds for axis \d+ with size (\d+)")


def refuse_unknown_indices(
    owner: str,
    model: Callable,
    structure: Structure,
    args: tuple,
    kwargs: Mapping[str, Any],
    advice: str = "",
) -> None:
    """Refuse concrete arguments of a model, prepared for the device, that index beyond a table of it."""
    if structure.looks_up and (found := unknown_index(model, args, kwargs)) is not None:
        raise ValueError(_message(owner, _arrays(model, args, kwargs), *found) + advice)


def unknown_index(
    model: Callable, args: tuple, kwargs: Mapping[str, Any]
) -> tuple[int, int] | None:
    """An index of the data that is beyond a table of the model, and the size of the table."""
    if sources_in((args, kwargs)) or not _arrays(model, args, kwargs):
        return None
    arrays, static = Arguments.split(args, dict(kwargs))

    def program(arrays: list[Any]) -> Any:
        args, kwargs = Arguments.join(arrays, static)
        seeded = seed(model, jax.random.key(0))
        return substitute(seeded, substitute_fn=init_to_uniform(radius=0.1))(*args, **kwargs)

    def found() -> tuple[int, int] | None:
        check = jax.jit(lambda arrays: checkify.checkify(program, checkify.index_checks)(arrays)[0])
        if (beyond := _index(check, arrays)) is not None:
            # Else no index of the data: JAX 0.7 has one in the transform of a Cholesky factor.
            zeros = [np.zeros_like(v) if _is_array(v) else v for v in arrays]
            return beyond if beyond != _index(check, zeros) else None
        return _negative_index(check, arrays)

    # Where the model raises, its own checks say why.
    beyond = result_or_error(found)
    return None if isinstance(beyond, Exception) else beyond


def largest_beside(index: int, model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> int:
    """The largest whole number of the columns that hold an index, or the index itself."""
    found = [index]
    for _, values in _arrays(model, args, kwargs):
        columns = np.reshape(values, (len(values), -1))
        holding = (columns == index).any(0) & _whole(values).ravel()
        found += [int(columns[:, holding].max())] if holding.any() else []
    return max(found)


def _arrays(model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The concrete arrays of a call with their names."""
    return [(n, v) for n, v in named_leaves(model, args, kwargs) if _is_array(v)]


def _is_array(value: Any) -> bool:
    numbers = isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer)
    return numbers and value.ndim > 0 and getattr(value.dtype, "kind", "") in "iuf"


def _whole(values: Any) -> np.ndarray:
    """Which columns of an array hold only whole numbers."""
    if values.dtype.kind in "iu":
        return np.ones(values.shape[1:], bool)
    few = np.asarray(values[:_FEW])
    whole = (few == np.round(few)).all(0)
    if whole.any() and len(values) > _FEW:
        every = np.asarray(values)
        whole &= (every == np.round(every)).all(0)
    return np.asarray(whole)


def _negative_index(check: Callable, arrays: list[Any]) -> tuple[int, int] | None:
    """A negative index, which JAX counts from the end of a table, and the size of that."""
    # A far number in place of the least one of a column shows whether that is an index, and what the model
    # adds to it: hours may begin at -12, and groups at 1.
    places = [
        (k, (int(np.argmin(values[(..., *column)])), *column))
        for k, values in enumerate(arrays)
        if _is_array(values)
        for column in map(tuple, np.argwhere(_whole(values)).tolist())
    ]

    def look(places: list[tuple[int, tuple[int, ...]]]) -> tuple[int, int] | None:
        changed = list(arrays)
        for k, at in places:
            if changed[k] is arrays[k]:
                changed[k] = np.array(arrays[k], np.result_type(arrays[k].dtype, np.int32))
            changed[k][at] = _FAR
        if (found := _index(check, changed)) is None:
            return None
        if middle := len(places) // 2:
            return look(places[:middle]) or look(places[middle:])
        (k, at), (index, size) = places[0], found
        least, added = int(arrays[k][at]), index - _FAR
        own = least + added if abs(added) < _MOST_ADDED else least
        return (min(least, own), size) if own < 0 < index else None

    return look(places) if places else None


def _index(check: Callable, arrays: list[Any]) -> tuple[int, int] | None:
    """An index beyond its table, and the size of that; None where all are inside."""
    found = _FOUND.search(check(arrays).get() or "")
    return None if found is None else (int(found[1]), int(found[2]))


def _message(owner: str, named: list[tuple[str, Any]], index: int, size: int) -> str:
    where = f"an index that is computed from the data is {index}"
    for label, values in named:
        at = np.argwhere((np.asarray(values) == index) & _whole(values))
        if len(at):
            row, *column = at[0].tolist()
            where = f"{Column(label).at(tuple(column))} has the value {index} in row {row}"
            break
    return (
        f"{owner}: {where}, and the model looks it up in a table of {size} entries, 0 to {size - 1}. JAX "
        "would take another entry, or NaN, without an error. Leave these rows out, number groups from 0, or "
        "give the model a table that has an entry for each."
    )
