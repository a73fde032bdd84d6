"""Conditionals that skip a computation when no chain needs it, under ``jax.vmap`` too."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from numpyro_bnn._types import PyTree


@custom_vmap
def any_chain(flag: jax.Array) -> jax.Array:
    """Whether a flag is true in any of the chains that ``jax.vmap`` runs together."""
    return flag


@any_chain.def_vmap
def _any_chain(axis_size: int, batched: list[bool], flag: jax.Array) -> tuple[jax.Array, bool]:
    return any_chain(jnp.any(flag)), False


def where_needed(flag: jax.Array, new: Callable[[], PyTree], old: PyTree) -> PyTree:
    """``new()`` where a flag is true and `old` elsewhere; `new` is run only if some chain needs it.

    Under ``jax.vmap`` a ``lax.cond`` computes both branches at every step. Here `new` is skipped in steps in
    which no chain needs it, which are most steps for a rare computation that chains do at the same time.

    :param flag: boolean scalar.
    :param new: makes a pytree like `old`.
    """

    def selected() -> Any:
        return jax.tree.map(lambda a, b: jnp.where(flag, a, b), new(), old)

    return lax.cond(any_chain(jnp.asarray(flag)), selected, lambda: old)


def chosen(flag: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    """Leaves of `new` where a flag is true and of `old` elsewhere; random keys always of `new`."""
    # A step has used its key even if its result is dropped.

    def choose(one: jax.Array, other: jax.Array) -> jax.Array:
        is_key = jnp.issubdtype(one.dtype, jax.dtypes.prng_key)
        return one if is_key else jnp.where(flag, one, other)

    return jax.tree.map(choose, new, old)
