"""Fast standard normal vectors shaped like a position; drawing them is most of the work of an SGLD step.

At 80,000 parameters on a CPU half of the time of ``jax.random.normal`` is spent on random bits of
cryptographic quality. Here JAX draws two random words for every vector and step, and the bits of an entry
are a hash of these words and its index, at three multiplications each, so that vectors of single precision
cost less than half. Bits, resolution and the inverse error function
are otherwise those of ``jax.random.normal``; other precisions use that.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.flat_position import FlatPosition

# Number of entries up to which all leaves are drawn together.
_SMALL = 1 << 16


def normal_like(key: jax.Array, tree: PyTree) -> PyTree:
    """Standard normals like a pytree; for a flat position those of its sites, where they are small."""
    if isinstance(tree, FlatPosition):
        _, key = jax.random.split(key)
        vector = normal(key, tree.vector.shape, tree.vector.dtype)
        return FlatPosition(lax.optimization_barrier(vector), tree.shapes)
    leaves, structure = jax.tree.flatten(tree)
    small = [k for k, x in enumerate(leaves) if x.dtype == jnp.float32 and x.size <= _SMALL]
    noise = {}
    if len(small) > 1:
        # One vector for all leaves compiles once; the barrier keeps the compiler from repeating it for each
        # part.
        key, key_small = jax.random.split(key)
        sizes = [leaves[k].size for k in small]
        joint = lax.optimization_barrier(normal(key_small, (sum(sizes),), jnp.float32))
        parts = jnp.split(joint, np.cumsum(sizes)[:-1])
        noise = {k: part.reshape(leaves[k].shape) for k, part in zip(small, parts)}
    keys = jax.random.split(key, len(leaves))
    each = [
        noise[k] if k in noise else normal(keys[k], leaf.shape, leaf.dtype)
        for k, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, each)


def normals_like(key: jax.Array, count: int, tree: PyTree) -> tuple[PyTree, ...]:
    """Several independent vectors of standard normals."""
    return tuple(normal_like(k, tree) for k in jax.random.split(key, count))


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
    size = 1
    for axis in shape:
        size *= axis
    value = lax.iota(jnp.uint32, size).reshape(shape) + first
    value = (value ^ (value >> 17)) * jnp.uint32(0xED5AD4BB)
    value = ((value ^ (value >> 11)) + second) * jnp.uint32(0xAC4C1B51)
    value = (value ^ (value >> 15)) * jnp.uint32(0x31848BAB)
    return value ^ (value >> 14)
