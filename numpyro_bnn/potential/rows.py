"""Energies and gradients on some rows, on all rows a chunk at a time, and on rows that devices share.

While a program is traced for a mesh with the axis ``"data"``, :func:`rows_are_shared` is true, and
:func:`taken_by_all` gives each device an equal part of a minibatch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.flat_position import by_site


class Rows(NamedTuple):
    """A potential and the rows that minibatches come from."""

    # Energy on all rows: a :class:`~numpyro_bnn.potential.potential.Potential` or a function
    potential: Any
    plate: str = ""  # Name of the data plate; empty where rows are not taken by number
    size: int = 0  # Number of rows N; 0 where it is not known

    def energy(self, position: PyTree) -> jax.Array:
        """U on all rows, in nats, at values by name or at a flat position."""
        return self.potential(by_site(position))

    def full(self, position: PyTree) -> tuple[jax.Array, PyTree]:
        """U and its gradient on all rows."""
        # The barrier keeps the compiler from putting all of a prior's arithmetic into each loop after it.
        return lax.optimization_barrier(jax.value_and_grad(self.energy)(position))

    def some(
        self,
        position: PyTree,
        indices: jax.Array,
        contiguous: bool = False,
        ahead: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        """U(θ; I) and its gradient; `ahead` are the row numbers of the next step, for host data."""

        def energy(position: PyTree) -> jax.Array:
            values = by_site(position)
            return self.potential.minibatch(values, indices, self.plate, contiguous, ahead)

        return lax.optimization_barrier(jax.value_and_grad(energy)(position))


def in_chunks(potential: Any, position: PyTree, chunk_size: int) -> tuple[jax.Array, PyTree]:
    """U and its gradient on all rows, `chunk_size` at a time, of a `potential` like :class:`Rows`."""
    # A chunk of C rows counts the prior once and its rows N/C times, so the sum weighted by C/N is U(θ).
    size = potential.size
    whole, rest = divmod(size, min(chunk_size, size))
    chunk = (size - rest) // whole

    def weighted(start: Any, count: int) -> Any:
        result = potential.some(position, start + jnp.arange(count), contiguous=True)
        return jax.tree.map(lambda leaf: leaf * (count / size), result)

    def add(total: Any, start: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, weighted(start, chunk)), None

    # From zeros: a first chunk outside of the loop would be compiled as a second program.
    kinds = jax.eval_shape(lambda: weighted(0, chunk))
    total = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds)
    total, _ = lax.scan(add, total, chunk * jnp.arange(whole))
    if rest:
        total = jax.tree.map(jnp.add, total, weighted(whole * chunk, rest))
    return total


def summed(rows: Any, chunk_size: int) -> Callable[[PyTree], jax.Array]:
    """The sum over all rows, with a derivative that is computed together with the value."""

    @jax.custom_jvp
    def total(position: PyTree) -> jax.Array:
        return in_chunks(rows, position, chunk_size)[0]

    @total.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
        value, gradient = in_chunks(rows, primals[0], chunk_size)
        slopes = jax.tree.map(jnp.vdot, gradient, tangents[0])
        # With float32 positions and float64 rows the value has a wider type than the gradient.
        return value, jnp.asarray(sum(jax.tree.leaves(slopes)), value.dtype)

    return total


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
        return lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*axes)))

    # Every device gets all row numbers: distributing them would cost another exchange.
    rows = jnp.take(values, on_devices(indices), axis)
    return on_devices(rows, *[None] * (axis % rows.ndim), DATA)
