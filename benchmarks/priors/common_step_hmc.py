"""Full-batch HMC of several chains that share one step size, as one program for all priors and temperatures.

NumPyro's HMC gives every chain a step of its own, and chains that run side by side wait for the one with the
smallest. Here warm-up follows the mean acceptance of all chains, which eight chains know better than one. The
energy may depend on arguments of the compiled program. The mass is the unit matrix, so that a quarter turn of
a prior with variance 1 is a trajectory of length π/2.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

ACCEPT = 0.8
QUARTER = math.pi / 2
# Leapfrogs of the first trajectories, which look for the step size alone.
SHORT = 8
# Lengths are uniform within this share of a quarter turn, so that no direction always returns to its start.
JITTER = 0.2


class Found(NamedTuple):
    """What a run gives."""

    draws: Any  # by site, (draw, chain, …), unconstrained
    accept: jax.Array  # mean acceptance after warm-up
    step_size: jax.Array  # of all trajectories after warm-up
    leapfrogs: jax.Array  # of a trajectory after warm-up, mean
    spent: jax.Array  # gradients a chain, warm-up included


def trajectory(
    energy: Callable, z: Any, key: jax.Array, step: jax.Array, leapfrogs: jax.Array
) -> tuple[Any, jax.Array]:
    """One trajectory of every chain with fresh momenta: leaves (chain, …), and the acceptance of each."""
    value, slope = jax.vmap(energy), jax.vmap(jax.grad(energy))
    for_momenta, for_decision = jax.random.split(key)
    leaves, tree = jax.tree.flatten(z)
    keys = jax.random.split(for_momenta, len(leaves))
    p = tree.unflatten([jax.random.normal(k, v.shape) for k, v in zip(keys, leaves)])

    def leapfrog(_, state):
        z, p, g = state
        p = jax.tree.map(lambda p, g: p - step / 2 * g, p, g)
        z = jax.tree.map(lambda z, p: z + step * p, z, p)
        g = slope(z)
        return z, jax.tree.map(lambda p, g: p - step / 2 * g, p, g), g

    def total(z, p):
        return value(z) + sum(jnp.sum(v**2, range(1, v.ndim)) / 2 for v in jax.tree.leaves(p))

    end, last, _ = lax.fori_loop(0, leapfrogs, leapfrog, (z, p, slope(z)))
    change = total(end, last) - total(z, p)
    accept = jnp.where(jnp.isfinite(change), jnp.exp(jnp.minimum(0.0, -change)), 0.0)
    taken = jax.random.uniform(for_decision, accept.shape) < accept
    moved = jax.tree.map(
        lambda a, b: jnp.where(taken.reshape(taken.shape + (1,) * (a.ndim - 1)), a, b), end, z
    )
    return moved, accept


def sample(
    energy: Callable, key: jax.Array, z: Any, short: int, warmup: int, draws: int, first: float
) -> Found:
    """Short trajectories that look for the step size, full ones that go on with it, and draws.

    Chains begin at `z`, leaves (chain, …), with the step size `first`. The `short` trajectories have
    :data:`SHORT` leapfrogs; `warmup` and `draws` count quarter turns.
    """

    def one(state, inputs, full: bool, rate: float):
        z, log_step, spent = state
        key, count = inputs
        for_length, for_rest = jax.random.split(key)
        step = jnp.exp(log_step)
        length = QUARTER * jax.random.uniform(for_length, minval=1 - JITTER, maxval=1 + JITTER)
        leapfrogs = jnp.ceil(length / step).astype(int) if full else jnp.asarray(SHORT)
        z, accept = trajectory(energy, z, for_rest, step, leapfrogs)
        log_step = log_step + rate * (jnp.mean(accept) - ACCEPT) / jnp.sqrt(1.0 + count)
        kept = z if rate == 0 else None
        return (z, log_step, spent + leapfrogs), (kept, jnp.mean(accept), leapfrogs)

    state = (z, jnp.log(jnp.float32(first)), jnp.asarray(0))
    parts = ((short, False, 2.0), (warmup, True, 0.5), (draws, True, 0.0))
    for part, (num, full, rate) in zip(jax.random.split(key, len(parts)), parts):
        inputs = jax.random.split(part, num), jnp.arange(num)
        state, (kept, accept, leapfrogs) = lax.scan(
            partial(one, full=full, rate=rate), state, inputs
        )
    return Found(kept, accept.mean(), jnp.exp(state[1]), leapfrogs.mean(), state[2])
