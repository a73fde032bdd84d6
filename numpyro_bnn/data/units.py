"""Standardises data on the host in double precision, and refuses data that float32 cannot represent.

JAX computes in float32 by default. Near today's unix time neighbouring float32 numbers are 128 s apart, and a
sum of 10⁶ years (numbers like 2025) is wrong in its first digits. So data are centred and scaled here, before
they reach the device, and a column whose values would become equal is refused by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from numpyro_bnn._checks import warn
from numpyro_bnn._types import Array, PyTree

# Numbers in one block of rows: 32 MiB in double precision.
BLOCK_SIZE = 1 << 22
# Number of rows whose distinct values are counted before and after standardisation.
_COUNTED = 1000
# The least standard deviation of a column, in spacings of neighbouring numbers of its dtype.
_STEPS = 20
# Range of standard deviations whose squares neither underflow nor overflow in float32.
_SMALLEST, _LARGEST = 1e-15, 1e15


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prepared:
    """Rows in the units of a ready model, which are never standardised again."""

    rows: Array  # standardised inputs, or the target with its mean taken off
    # Standard deviation of the training targets, 1 for classes; a tuple of several: an array would be rows
    y_scale: ArrayLike = 1.0
    known: Array | None = None  # which entries of `rows` are known targets; None where all are
    prior_scales: tuple[ArrayLike, ...] = ()  # beside inputs; see `Prior.shared_scales`


def taken(data: PyTree, rows: slice | Array, size: int | None = None) -> PyTree:
    """Some rows of a pytree of arrays and tables; scalars, and others of another length than `size`, stay."""

    def of(leaf: Any) -> Any:
        shape = np.shape(leaf)
        if not shape or size not in (None, shape[0]):
            return leaf
        return getattr(leaf, "iloc", leaf)[rows]

    return jax.tree.map(of, data)


class Column:
    """Names the columns of an array in error messages, by the table that it was made from."""

    def __init__(self, label: str, given: object = None) -> None:
        self.label = label
        self.names = list(getattr(given, "columns", ()))
        self._kinds = list(getattr(given, "dtypes", ())) if self.names else []

    def epsilon(self, dtype: DTypeLike) -> float | np.ndarray:
        """Relative spacing of the numbers as they were given, by column where dtypes differ."""
        if not self._kinds or not all(isinstance(kind, np.dtype) for kind in self._kinds):
            return _epsilon(dtype)
        return np.array([_epsilon(kind) for kind in self._kinds])

    def at(self, index: tuple[int, ...]) -> str:
        """The name of the column at an index of one row, for an error message."""
        if not index:
            return self.label
        if len(index) > 1:
            return f"{self.label}[:, {', '.join(map(str, index))}]"
        if index[0] < len(self.names):
            return f"column {self.names[index[0]]!r} of {self.label}"
        return f"column {index[0]} of {self.label}"


def row_blocks(num_rows: int, size_of_row: int) -> Iterator[slice]:
    """Slices over rows that hold about `BLOCK_SIZE` numbers each."""
    step = max(1, BLOCK_SIZE // max(1, size_of_row))
    for begin in range(0, num_rows, step):
        yield slice(begin, min(begin + step, num_rows))


def blocks(values: np.ndarray) -> Iterator[slice]:
    """Slices over rows of an array."""
    return row_blocks(len(values), int(np.prod(values.shape[1:])))


def moments(
    owner: str, column: Column, values: np.ndarray, weights: Any = None, known: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over rows in float64, weighted if asked; a constant column has scale 1."""
    if known is not None and known.ndim > 1:
        of_columns = zip(values.T, [weights] * len(known.T), known.T)
        mean, scale = np.transpose([moments(owner, column, *each) for each in of_columns])
        return mean, scale
    if known is not None:
        values, weights = values[known], None if weights is None else weights[known]
    if weights is not None:
        # Rows of weight 0 may hold any values.
        values, weights = values[weights > 0], weights[weights > 0]
    mean, scale, constant = _spread(values, weights)
    scale = np.where(constant, 1.0, scale)
    check_resolution(owner, column, values.dtype, mean, scale)
    wild = ~((scale >= _SMALLEST) & (scale <= _LARGEST))
    if wild.any():
        index = _first(wild)
        raise ValueError(
            f"{owner}: {column.at(index)} has a standard deviation of {scale[index]:.3g}, beyond "
            f"what float32 can square ({_SMALLEST:g} to {_LARGEST:g}). Give it in other units."
        )
    rows = np.unique(np.linspace(0, len(values) - 1, min(len(values), _COUNTED)).astype(int))
    some = np.asarray(values[rows], np.float64)
    _check_told_apart(owner, column, some, (some - mean) / scale)
    return mean, scale


def known_targets(y: np.ndarray) -> np.ndarray | None:
    """Which targets are not NaN, of the shape of y; None where all are known."""
    missing = jnp.issubdtype(y.dtype, jnp.floating) and np.isnan(y)
    return ~np.asarray(missing) if np.any(missing) else None


def rows_with_targets(owner: str, known: np.ndarray) -> np.ndarray:
    """Which rows have any target, (row,); warns of others, and refuses targets that all rows lack."""
    by_target = known.reshape(len(known), -1)
    if not (found := by_target.any(0)).all():
        where = f"{owner}: y has no value but NaN or another missing value in column {np.argmin(found)}."
        raise ValueError(f"{where} Leave that target out, or give it where it is known.")
    rows = by_target.any(1)
    if not rows.all():
        warn(f"{owner}: {np.sum(~rows)} of {len(rows)} rows have no target and are left out.")
    return rows


def with_targets(owner: str, y: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray]:
    """Which rows have any target, (row,), and their targets, of which labels are whole numbers again."""
    if (known := known_targets(y)) is None:
        return slice(None), y
    rows = rows_with_targets(owner, known)
    with np.errstate(invalid="ignore"):
        labels = y[rows].astype(np.int32)
    return rows, labels if np.array_equal(labels, y[rows]) else y[rows]


def _spread(
    values: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard deviation and whether all are equal, by column."""

    def summed(terms: np.ndarray, rows: slice) -> np.ndarray:
        return terms.sum(0) if weights is None else np.tensordot(weights[rows], terms, 1)

    count = len(values) if weights is None else float(weights.sum())
    # Sums of differences from the first row keep the digits that a large offset takes.
    first = np.asarray(values[0], np.float64)
    total, squares = np.zeros_like(first), np.zeros_like(first)
    constant = np.ones(first.shape, bool)
    with np.errstate(all="ignore"):
        for block in blocks(values):
            constant &= (values[block] == values[0]).all(0)
            total += summed(np.asarray(values[block], np.float64) - first, block)
        mean = np.where(constant, first, first + total / count)
        for block in blocks(values):
            squares += summed(np.square(np.asarray(values[block], np.float64) - mean), block)
        return mean, np.sqrt(squares / count), constant


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])


_FLOATS = [(n, float(jnp.finfo(n).eps)) for n in ("float32", "float16", "bfloat16")]


def _epsilon(dtype: Any) -> float:
    """Relative spacing of the numbers of a dtype; integers count as float64."""
    return float(jnp.finfo(dtype if jnp.issubdtype(dtype, jnp.floating) else np.float64).eps)


def check_resolution(
    owner: str, column: Column, dtype: DTypeLike, mean: np.ndarray, scale: np.ndarray
) -> None:
    """Refuse values whose dtype has a spacing as large as the variation of the values."""
    epsilon = column.epsilon(dtype) + np.zeros_like(mean)
    step = epsilon * np.abs(mean)
    # A constant column has no variation to lose, but in float32 1e9 and 1e9 + 1 are the same number.
    lost = step > np.where(scale == 1, 1.0, scale / _STEPS)
    if not lost.any():
        return
    index = _first(lost)
    varies = "is constant there" if scale[index] == 1 else f"varies by {scale[index]:.3g}"
    is_double = epsilon[index] <= _epsilon(np.float64)
    name = "float64" if is_double else next(n for n, eps in _FLOATS if eps == epsilon[index])
    raise ValueError(
        f"{owner}: {column.at(index)} lies around {mean[index]:.10g}, where the steps of {name} are "
        f"{step[index]:.3g}, and {varies}: its values are lost to rounding. "
        + (
            "Subtract an offset before it is rounded, or leave the column out."
            if is_double
            else "Give it as a NumPy array of float64, which is centred before JAX rounds it, or "
            "subtract an offset first."
        )
    )


def _check_told_apart(owner: str, column: Column, before: np.ndarray, after: np.ndarray) -> None:
    """Refuse columns most of whose distinct values become equal in the device's number type."""
    kind = jax.dtypes.canonicalize_dtype(np.float64)
    with np.errstate(over="ignore"):
        lost = 2 * _distinct(after.astype(kind)) < _distinct(before)
    if lost.any():
        index = _first(lost)
        largest = float(np.abs(before).max(0)[index])
        raise ValueError(
            f"{owner}: most values of {column.at(index)} become the same number in {kind.name}, beside the "
            f"largest of {largest:.3g}. Remove what stands for a missing value, or take logarithms."
        )


def _distinct(values: np.ndarray) -> np.ndarray:
    return 1 + (np.diff(np.sort(values, axis=0), axis=0) != 0).sum(0)


def standardized(
    owner: str, column: Column, values: np.ndarray, mean: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """(values - mean) / scale in float64, then in the float type of the device."""
    made = np.empty(values.shape, jax.dtypes.canonicalize_dtype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(values):
            made[block] = (np.asarray(values[block], np.float64) - mean) / scale
            over = np.isinf(made[block]) & np.isfinite(values[block])
            if over.any():
                row, *index = _first(over)
                raise ValueError(
                    f"{owner}: {column.at(tuple(index))} has the value "
                    f"{np.asarray(values[block])[(row, *index)]:.6g} in row {block.start + row}, which is "
                    f"beyond {made.dtype.name} in units of the training data (mean {mean[tuple(index)]:.6g}, "
                    f"scale {scale[tuple(index)]:.6g}). Correct or remove it."
                )
    return made


def check_fits(owner: str, label: str, values: np.ndarray) -> None:
    """Refuse numbers that would overflow, become infinite or become equal in the device's number type."""
    check_range(owner, label, values)
    check_offset(owner, label, values)


def check_range(owner: str, label: str, values: np.ndarray, first: int = 0) -> None:
    """Refuse numbers that would become infinite in the device's number type; rows count from `first`."""
    kind = jax.dtypes.canonicalize_dtype(values.dtype)
    if kind == values.dtype or not values.size:
        return
    if values.dtype.kind in "iu":
        low, high = int(values.min()), int(values.max())
        limits = np.iinfo(kind)
        if low < limits.min or high > limits.max:
            raise ValueError(
                f"{owner}: {label} holds whole numbers from {low} to {high}, which do not fit "
                f"JAX's {kind.name} and would wrap round. Subtract an offset and convert to float, "
                "or call `jax.config.update('jax_enable_x64', True)` first."
            )
        return
    if values.dtype.kind != "f":
        return
    with np.errstate(all="ignore"):
        over = np.isfinite(values) & np.isinf(values.astype(kind))
    if over.any():
        where = _first(over)
        shown = (where[0] + first, *where[1:]) if where else where
        raise ValueError(
            f"{owner}: {label} has the finite value {values[where]:.6g} at index {shown}, which "
            f"{kind.name} turns into infinity. Give it in other units."
        )


def check_offset(owner: str, label: str, values: np.ndarray) -> None:
    """Refuse numbers that would become equal in the device's number type, beside a large offset."""
    # A network takes whole numbers, such as seconds since 1970, as floats: exact up to steps of 1.
    whole = values.dtype.kind in "iu" and values.dtype.itemsize > 2
    kind = jax.dtypes.canonicalize_dtype(float if whole else values.dtype)
    if kind == values.dtype or not values.size or kind.kind != "f" or not values.ndim:
        return
    mean, scale, constant = _spread(values, None)
    size = np.abs(mean)
    seen = ~constant & (scale > 64 * _epsilon(values.dtype) * size)
    lost = seen & (_epsilon(kind) * size > np.maximum(scale / _STEPS, whole))
    if lost.any():
        index = _first(lost)
        raise ValueError(
            f"{owner}: {Column(label).at(index)} lies around {mean[index]:.10g} and varies by "
            f"{scale[index]:.3g}, which {kind.name} rounds away (its steps there are "
            f"{_epsilon(kind) * size[index]:.3g}). Subtract its mean with NumPy before you pass it."
        )


def native_type(dtype: Any) -> np.dtype:
    """The type of numbers in the byte order of the machine, and float64 for wider floats."""
    # Files of FITS, IDX and netCDF-3 have the other byte order, and ``np.longdouble`` has 80 or 128 bits.
    kind = np.dtype(dtype)
    if kind.kind == "f" and kind.itemsize > np.dtype(np.float64).itemsize:
        return np.dtype(np.float64)
    return kind if kind.isnative else kind.newbyteorder("=")


def native(owner: str, label: str, values: Any) -> Any:
    """An array in a type that JAX takes; ValueError for a finite number that float64 turns into infinity."""
    if not isinstance(values, (np.ndarray, np.generic)):
        return values
    kind = native_type(values.dtype)
    if kind == values.dtype:
        return values
    with np.errstate(over="ignore"):
        made = values.astype(kind)
    if kind.itemsize < values.dtype.itemsize:
        given = np.asarray(values)
        over = np.argwhere(np.isinf(made) & np.isfinite(given))
        if len(over):
            where = tuple(int(i) for i in over[0])
            at = f" at index {where[0] if len(where) == 1 else where}" if where else ""
            raise ValueError(
                f"{owner}: {label} has the finite value {given[where]!s}{at}, which float64 turns into "
                "infinity. Give it in other units."
            )
    return made
