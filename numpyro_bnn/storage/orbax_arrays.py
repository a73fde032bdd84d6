"""Converts chain states to what orbax stores, and silences its warnings."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn._checks import is_typed_key
from numpyro_bnn._types import Array


def alone() -> Any:
    """Options of orbax for one process that writes, or reads, without waiting for the others."""
    import orbax.checkpoint as ocp

    here = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )


def named(leaves: Sequence[Array]) -> dict[str, Array]:
    """Leaves by their position as text: orbax stores mappings with text keys, and no empty arrays."""
    return {str(i): leaf for i, leaf in enumerate(leaves) if leaf.size}


def in_order(found: Mapping[str, Array], like: Sequence[Array]) -> list[Array]:
    """The leaves that `named` was given, from what orbax restored; empty ones as in `like`."""
    return [found[str(i)] if leaf.size else leaf for i, leaf in enumerate(like)]


def shapes_of(leaves: list[np.ndarray]) -> list[tuple[list[int], str]]:
    """Shape and dtype of each leaf, in a form that JSON keeps."""
    return [(list(leaf.shape), str(leaf.dtype)) for leaf in leaves]


def to_plain(leaves: Sequence[Array]) -> tuple[list[np.ndarray], list[str | None]]:
    """Leaves as NumPy arrays, and for each that was a typed random key the kind of the key."""
    kinds = [str(jax.random.key_impl(x)) if is_typed_key(x) else None for x in leaves]
    plain = [jax.random.key_data(x) if kind else x for x, kind in zip(leaves, kinds)]
    return [np.asarray(x) for x in plain], kinds


def zeros_like(leaves: Sequence[Array]) -> list[np.ndarray]:
    """Zeros of the shapes and dtypes that `to_plain` gives, from abstract leaves."""
    shapes = [jax.eval_shape(jax.random.key_data, x) if is_typed_key(x) else x for x in leaves]
    return [np.zeros(x.shape, x.dtype) for x in shapes]


def from_plain(leaves: Sequence[Array], kinds: list[str | None]) -> list[jax.Array]:
    """The leaves that `to_plain` was given: arrays of JAX, and keys of their own kinds."""
    return [
        jnp.asarray(x) if kind is None else jax.random.wrap_key_data(jnp.asarray(x), impl=kind)
        for x, kind in zip(leaves, kinds)
    ]


@contextmanager
def quiet_orbax() -> Iterator[None]:
    """Silence the warnings that orbax logs about its own waiting."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
