"""The position of a chain as one vector, so that a step works on one array and not on every site.

A network has many small sites. On a CPU an operation on an array of a few hundred numbers costs about as
much to start as to compute, and each is compiled separately: a sampler that handles ten sites one by one
spends most of a step, and of its compile time, on that.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_bnn._types import PyTree

# Above so many numbers an operation on a site costs more than its start, and the compiler shares sites among
# the cores, but not the parts of one vector: with minibatches of 100 rows a step of SGHMC on two cores takes
# .85 times as long as on sites apart at 2·10³ numbers, .98 at 10⁴, 1.04 at 2·10⁴ and 1.16 at 8·10⁴.
_MOST = 1 << 14

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class FlatPosition(Mapping[str, jax.Array]):
    """Values of several sites of one dtype in one vector: a mapping by name, and a pytree with one leaf."""

    vector: jax.Array  # (…, D), site after site; leading axes are chains
    shapes: Shapes = field(metadata={"static": True})

    def __repr__(self) -> str:
        return f"FlatPosition({dict(self.shapes)})"

    def __getitem__(self, name: str) -> jax.Array:
        return self.sites()[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def sites(self) -> dict[str, jax.Array]:
        """The values by name, each of the shape of its site behind the leading axes."""
        lead = jnp.shape(self.vector)[:-1]
        # One split and not a slice for each site: its derivative puts the vector together in one pass.
        parts = lax.split(self.vector, [math.prod(shape) for _, shape in self.shapes], len(lead))
        return {
            name: part.reshape(*lead, *shape)
            for (name, shape), part in zip(self.shapes, parts, strict=True)
        }

    def like(self, values: Mapping[str, jax.Array]) -> "FlatPosition":
        """Other values of the same sites, which broadcast to their shapes, in one vector."""
        dtype = jnp.result_type(*values.values())
        lead = jnp.shape(self.vector)[:-1]
        parts = [
            jnp.broadcast_to(jnp.asarray(values[name], dtype), (*lead, *shape)).reshape(*lead, -1)
            for name, shape in self.shapes
        ]
        return FlatPosition(jnp.concatenate(parts, len(lead)), self.shapes)


def flattened(position: PyTree) -> PyTree:
    """Values by name as one vector, where they are several small ones of one dtype; others as they are."""
    if not isinstance(position, dict) or len(position) < 2:
        return position
    leaves = position.values()
    if not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return position
    (dtype, *others) = {leaf.dtype for leaf in leaves}
    small = sum(leaf.size for leaf in leaves) <= _MOST
    if others or not small or not jnp.issubdtype(dtype, jnp.floating):
        return position
    # In the order in which JAX takes the entries of a mapping.
    shapes = tuple((name, jnp.shape(position[name])) for name in sorted(position))
    return FlatPosition(jnp.concatenate([position[n].reshape(-1) for n, _ in shapes]), shapes)


def by_site(position: PyTree) -> PyTree:
    """The values by name of a position that may be one vector; others as they are."""
    return position.sites() if isinstance(position, FlatPosition) else position


def flat_like(position: PyTree, values: PyTree) -> PyTree:
    """Values of the sites of a position in its form, which may be one vector; others as they are."""
    if (
        isinstance(position, FlatPosition)
        and isinstance(values, dict)
        and set(values) == set(position)
    ):
        return position.like(values)
    return values
