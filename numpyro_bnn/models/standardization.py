"""Means and scales of the training data, and data that are standardised with them."""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpyro.util import not_jax_tracer

from numpyro_bnn.data.units import Prepared


class Standardization(NamedTuple):
    """Means and scales of the training data, in the user's units, in double precision.

    - **x_mean**, **x_scale** - mean and scale by column of the inputs; a constant column has scale 1
    - **y_mean**, **y_scale** - mean and scale of the target, of each where there are several; 0 and 1 for
      classes
    - **checksum** - checksum of the data that they come from
    - **columns** - names of the columns of the inputs, where these were a table
    """

    x_mean: np.ndarray
    x_scale: np.ndarray
    y_mean: np.ndarray
    y_scale: np.ndarray
    checksum: np.ndarray
    columns: np.ndarray = np.empty(0, np.str_)


def is_given(values: Any) -> bool:
    """Whether values come from the user: not None, traced, or standardised before."""
    return values is not None and not isinstance(values, Prepared) and bool(not_jax_tracer(values))


def checksum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """In one precision, so that NumPy and JAX copies of the same data have the same checksum."""
    found = 0
    with np.errstate(over="ignore"):
        for values in arrays:
            found = zlib.crc32(values.astype(np.float32).tobytes(), found)
    return np.asarray(found, np.uint32)


def prepared_rows(rows: np.ndarray, units: Standardization) -> Prepared:
    """Rows that are in the units of the fit already, with the scale of the target beside them."""
    scale = np.asarray(units.y_scale, rows.dtype)
    return Prepared(rows, tuple(scale) if scale.ndim else scale)
