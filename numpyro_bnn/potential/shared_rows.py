"""Rows of data that several devices share, inside a compiled program.

While a program is traced for a mesh with the axis ``"data"``, :func:`rows_are_shared` is true, and
:func:`taken_by_all` gives each device an equal part of a minibatch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CHAIN, DATA = "chain", "data"
# The mesh whose axis "data" shares the rows of the program that is being traced.
_SHARING: ContextVar[Any] = ContextVar("sharing", default=None)


@contextmanager
def _shared_by(mesh: Mesh | None) -> Iterator[None]:
    before = _SHARING.set(mesh)
    try:
        yield
    finally:
        _SHARING.reset(before)


def rows_are_shared() -> bool:
    """Whether the program that is being traced has its rows on several devices."""
    return _SHARING.get() is not None


def taken_by_all(values: jax.Array, indices: jax.Array, axis: int) -> jax.Array:
    """Rows of a minibatch, (B,) row numbers, an equal part of them on each device that shares the data."""
    # The following computation runs on each device for its part, and the results are summed.
    # Inside a map over groups of chains, the mesh of that map must be used.
    inside = jax.sharding.get_abstract_mesh()
    mesh = _SHARING.get() if inside.empty else inside

    def on_devices(array: jax.Array, *axes: str | None) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return lax.with_sharding_constraint(array, sharding)

    # Every device gets all row numbers: distributing them would cost another exchange.
    rows = jnp.take(values, on_devices(indices), axis)
    return on_devices(rows, *[None] * (axis % rows.ndim), DATA)
