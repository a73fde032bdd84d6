"""Means and scales of the training data, data that are standardised with them, and checks of their shapes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.util import not_jax_tracer

from numpyro_bnn.data.units import Prepared


class Standardization(NamedTuple):
    """Means and scales of the training data, in the user's units, in double precision."""

    # Mean and scale by column of the inputs; a constant column has scale 1.
    x_mean: np.ndarray
    x_scale: np.ndarray
    # Mean and scale of the target, of each where there are several; 0 and 1 for classes.
    y_mean: np.ndarray
    y_scale: np.ndarray
    checksum: np.ndarray  # Checksum of the data that they come from
    # Names of the columns of the inputs, where these were a table.
    columns: np.ndarray = np.empty(0, np.str_)


def is_given(values: Any) -> bool:
    """Whether values come from the user: not None, traced, or standardised before."""
    return values is not None and not isinstance(values, Prepared) and bool(not_jax_tracer(values))


def prepared_rows(rows: np.ndarray, units: Standardization) -> Prepared:
    """Standardised rows, with the scale of the target."""
    scale = np.asarray(units.y_scale, rows.dtype)
    return Prepared(rows, tuple(scale) if scale.ndim else scale)


def number_or_array(values: Any) -> Any:
    """A number for one target, an array for several."""
    if isinstance(values, tuple):
        return jnp.stack(values)
    return float(values) if isinstance(values, np.ndarray) and values.ndim == 0 else values


def check_target(y: Any) -> None:
    """Refuse targets of regression that are neither (N,) nor (N, several)."""
    shape = jnp.shape(y)
    if len(shape) == 2 and shape[1] == 1:
        raise ValueError(f"regression: y has shape {shape}, expected (N,). Use `y.squeeze(-1)`.")
    if len(shape) not in (1, 2):
        raise ValueError(
            f"regression: y has shape {shape}, expected (N,), or (N, outputs) for several targets. Put what "
            "belongs to one row into one axis."
        )


def check_units(owner: str, f: jax.Array, rows: Any, wanted: int) -> None:
    """Refuse a network whose outputs are not (rows, wanted)."""
    if jnp.ndim(f) != 2 or jnp.shape(f)[-1] != wanted:
        raise ValueError(units_needed(owner, jnp.shape(f), rows, f"{wanted} output unit(s)"))


def units_needed(owner: str, shape: tuple[int, ...], rows: Any, wanted: str) -> str:
    """The message for a network of other output units."""
    hint = " Return a column, without `.squeeze(-1)`." if len(shape) < 2 else ""
    return (
        f"{owner}: the network gives shape {shape} for {jnp.shape(rows)[0]} rows; this likelihood "
        f"needs {wanted} a row, as (rows, units).{hint}"
    )
