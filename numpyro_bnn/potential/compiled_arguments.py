"""What a compiled program takes: arrays, constants, blocks of entries, and fixed parameters of a model.

Fixed parameters are neither sampled nor data: sites of ``numpyro.param``. ``flax_module`` makes them, as do
networks of ``random_flax_module`` with priors for some parameters only. NumPyro initialises them in each
call of the model. Here a fit initialises them once, with one key.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.data.host_rows import WithStandIns


class Arguments(NamedTuple):
    """Arguments of a model, split into the arrays that a program takes and the rest."""

    arrays: list[Array]  # Array leaves, in order
    static: tuple  # Hashable description of everything else, including the tree structure

    @classmethod
    def split(cls, args: tuple, kwargs: dict[str, object]) -> "Arguments":
        """Split the arguments of a model."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        is_array = tuple(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)
        arrays = [leaf for leaf, a in zip(leaves, is_array) if a]
        rest = tuple(None if a else leaf for leaf, a in zip(leaves, is_array))
        return cls(arrays, (structure, is_array, rest))

    @staticmethod
    def join(arrays: Sequence[object], static: tuple) -> tuple[tuple, dict[str, object]]:
        """Positional and keyword arguments from (other) arrays and the static part of :func:`split`."""
        structure, is_array, rest = static
        remaining = iter(arrays)
        leaves = [next(remaining) if a else leaf for a, leaf in zip(is_array, rest)]
        return jax.tree.unflatten(structure, leaves)


def map_in_blocks(function: Callable, entries: PyTree, most: int) -> Any:
    """A function of each entry of a leading axis, at most so many in one vector; it is traced once."""
    count = len(jax.tree.leaves(entries)[0])
    parts = -(-count // most)
    if parts < 2:
        return jax.vmap(function)(entries)
    # The last of the blocks begins earlier: `lax.map` would compile the function again for what is left.
    size = -(-count // parts)
    starts = jnp.minimum(size * jnp.arange(parts), count - size)
    found = lax.map(
        lambda i: jax.vmap(function)(
            jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, i, size), entries)
        ),
        starts,
    )

    def joined(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x[:-1].reshape(-1, *x.shape[2:])[: count - size], x[-1]])

    return jax.tree.map(joined, found)


KINDS = ("param", "mutable")


class Fixed(substitute):
    """A model whose fixed parameters have values."""


def fixed_in(model: Any) -> dict[str, Any]:
    """Values of the fixed parameters that a model was given; empty where it has none."""
    while model is not None and not isinstance(model, Fixed):
        model = getattr(model, "func", None) or getattr(model, "fn", None)
    return {} if model is None else model.data


def with_first_values(
    model: Callable, args: tuple, kwargs: Mapping[str, Any], *, is_lost: bool = False
) -> "Fixed":
    """A model with values of its fixed parameters, the same for equal arguments."""
    arguments = Arguments.split(args, dict(kwargs))

    @jax.jit
    def first(arrays: list[Any], key: Array) -> dict[str, Any]:
        args, kwargs = Arguments.join(arrays, arguments.static)
        sites = trace(seed(WithStandIns(model), key)).get_trace(*args, **kwargs)
        return {name: site["value"] for name, site in sites.items() if site["type"] in KINDS}

    values = first(arguments.arrays, jax.random.key(0))
    if is_lost:
        other = first(arguments.arrays, jax.random.key(1))
        if not jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), values, other)):
            raise ValueError(
                f"predict: NumPyro's MCMC gives the parameters {sorted(values)}, which are not sampled, "
                "other random values in each chain, and keeps none. Run `bnn.MCMC`."
            )
    return Fixed(model, data=values)


def with_values(model: Callable, args: tuple, values: list[Any]) -> Callable:
    """A model with values of its fixed parameters, in their order, as they were stored."""
    first = fixed_in(with_first_values(model, args, {}))
    return Fixed(model, data=jax.tree.unflatten(jax.tree.structure(first), values))


def like(model: Callable | None, other: Callable | None) -> Callable | None:
    """A model with the fixed parameters that another one has, unless it has its own."""
    values = fixed_in(other)
    if not values or model is None or fixed_in(model):
        return model
    return Fixed(model, data=values)
