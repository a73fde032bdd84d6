"""The position of a chain as one vector, so that a step works on one array and not on every site.

A network has many small sites. On a CPU an operation on an array of a few hundred numbers costs about as
much to start as to compute, and each is compiled separately: a sampler that handles ten sites one by one
spends most of a step, and of its compile time, on that. :func:`normal_like` draws standard normals of the
shape of a position, which is most of the work of an SGLD step.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

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
    both = isinstance(position, FlatPosition) and isinstance(values, dict)
    return position.like(values) if both and set(values) == set(position) else values


# At 80,000 parameters on a CPU half of the time of ``jax.random.normal`` is spent on random bits of
# cryptographic quality. Here JAX draws two random words for all vectors of a step, and the bits of an entry
# are a hash of these words and its index: single precision costs less than half. Resolution and the inverse
# error function are those of ``jax.random.normal``, which other precisions use.

# Number of entries up to which all leaves are drawn together.
_SMALL = 1 << 16


def normal_like(key: jax.Array, tree: PyTree) -> PyTree:
    """Standard normals like a pytree; for a flat position those of its sites, where they are small."""
    return normals_like(key, 1, tree)[0]


def normals_like(key: jax.Array, count: int, tree: PyTree) -> tuple[PyTree, ...]:
    """Several independent pytrees of standard normals."""
    leaves, structure = jax.tree.flatten(tree)
    small = [k for k, x in enumerate(leaves) if x.dtype == jnp.float32 and x.size <= _SMALL]
    large = [k for k in range(len(leaves)) if k not in small]
    # Each loop that makes keys or random words compiles for a tenth of a second.
    key, *keys = jax.random.split(key, 1 + len(large)) if large else [key]
    drawn = [normal(own, (count, *leaves[k].shape), leaves[k].dtype) for k, own in zip(large, keys)]
    # One array for all small leaves compiles once; the barrier keeps the compiler from repeating it.
    sizes = [leaves[k].size for k in small]
    joint = lax.optimization_barrier(normal(key, (count, sum(sizes)), jnp.float32))
    parts = jnp.split(joint, np.cumsum(sizes)[:-1], 1) if small else []
    noise = dict(zip(large, drawn)) | dict(zip(small, parts))
    each = [noise[k].reshape(count, *leaf.shape) for k, leaf in enumerate(leaves)]
    return tuple(jax.tree.unflatten(structure, [x[i] for x in each]) for i in range(count))


def normal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """An array of independent standard normals; single precision is fast."""
    if dtype != jnp.float32:
        return jax.random.normal(key, shape, dtype)
    bits = hashed_bits(jax.random.bits(key, (2,), jnp.uint32), shape)
    # 23 bits give midpoints of cells, never ±1, where the inverse error function is infinite.
    uniform = (bits >> 9).astype(jnp.float32) * 2.0**-22 + (2.0**-23 - 1)
    return jnp.float32(2**0.5) * lax.erf_inv(uniform)


def hashed_bits(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """32 random bits for every entry: an integer hash of its index and of two random words."""
    # The mixing rounds and their constants are Wellons' ``triple32``, whose bias is the
    # smallest found for three multiplications (*Hash Function Prospector*, 2018); the two
    # words enter before the first and the second.
    first, second = words
    value = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + first
    value = (value ^ (value >> 17)) * jnp.uint32(0xED5AD4BB)
    value = ((value ^ (value >> 11)) + second) * jnp.uint32(0xAC4C1B51)
    value = (value ^ (value >> 15)) * jnp.uint32(0x31848BAB)
    return value ^ (value >> 14)
