"""Converts numbers to a type that JAX can hold.

JAX takes numbers in the byte order of the machine, of at most 64 bits. Files of FITS, IDX and netCDF-3 hold
them in the other order, and ``np.longdouble`` has 80 or 128 bits.
"""

from typing import Any

import numpy as np


def native_type(dtype: Any) -> np.dtype:
    """The type of numbers in the byte order of the machine, and float64 for wider floats."""
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
