"""Which rows a minibatch takes: independent ones, a new permutation each epoch, or blocks of neighbours."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Order = Literal["permutation", "replacement", "blocks"]
ORDERS = ("permutation", "replacement", "blocks")


class BatchState(NamedTuple):
    """The state of a sequence of minibatches.

    - **rng_key** - decides the order of every epoch
    - **count** - minibatches taken so far
    - **epoch** - epochs finished
    - **place** - rows (or blocks) taken in this epoch
    """

    rng_key: jax.Array
    count: jax.Array  # type: ignore[assignment]
    epoch: jax.Array
    place: jax.Array


def next_rows(
    state: BatchState, size: int, batch_size: int, order: Order
) -> tuple[jax.Array, BatchState]:
    """Row numbers of the next minibatch.

    :param state: state of the sequence.
    :param size: number of rows N.
    :param batch_size: rows to take, B.
    :param order: see :func:`~numpyro_bnn.samplers.sgmcmc.gradients.minibatch`.
    :return: (B,) integers, for ``"blocks"`` consecutive ones, and the state after them.
    """
    key, count, epoch, place = state
    if order == "replacement":
        rows = jax.random.randint(jax.random.fold_in(key, count), (batch_size,), 0, size)
        return rows, state._replace(count=count + 1)
    units, taken = (size // batch_size, 1) if order == "blocks" else (size, batch_size)
    places = place + jnp.arange(taken)
    unit = shuffled(jax.random.fold_in(key, epoch), places % units, units)
    if units % taken:
        # A minibatch may begin in one epoch and end in the next, which has another order.
        then = shuffled(jax.random.fold_in(key, epoch + 1), places % units, units)
        unit = jnp.where(places < units, unit, then)
    end = place + taken
    over = (end >= units).astype(end.dtype)
    after = BatchState(key, count + 1, epoch + over, end - over * units)
    return unit[0] * batch_size + jnp.arange(batch_size) if order == "blocks" else unit, after


def shuffled(key: jax.Array, place: jax.Array, size: int) -> jax.Array:
    """A keyed pseudo-random permutation of 0 … size - 1 (size < 2³⁰), evaluated at some places only."""
    # A four-round Feistel network over the next power of four, applied until its value is below `size`
    # (Black and Rogaway, *Ciphers with arbitrary finite domains*, 2002), then rotated by a uniform offset,
    # so that each place holds every row with equal probability. A permutation of all rows would need memory
    # for N numbers and a sort in every epoch, and under ``jax.vmap`` in every step.
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = jnp.uint32((1 << half) - 1)
    bits = jax.random.bits(key, (5,), jnp.uint32)

    def rounds(value: jax.Array) -> jax.Array:
        left, right = value >> half, value & mask
        for i in range(4):
            mixed = (right + bits[i]) * jnp.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return (left << half) | right

    def walk(value: jax.Array) -> jax.Array:
        return jnp.where(value < size, value, rounds(value))

    value = lax.while_loop(
        lambda v: jnp.any(v >= size), walk, rounds(jnp.asarray(place, jnp.uint32))
    )
    return ((value + bits[4] % jnp.uint32(size)) % jnp.uint32(size)).astype(jnp.int32)
