"""Random vectors shaped like a position."""

from typing import Any

import jax

PyTree = Any


def normal_like(rng_key: jax.Array, tree: PyTree) -> PyTree:
    """Standard normals like a pytree, with an independent key for each leaf."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(rng_key, len(leaves))
    noise = [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves)]
    return jax.tree.unflatten(structure, noise)


def normals_like(rng_key: jax.Array, count: int, tree: PyTree) -> tuple[PyTree, ...]:
    """Several independent vectors of standard normals."""
    return tuple(normal_like(key, tree) for key in jax.random.split(rng_key, count))
