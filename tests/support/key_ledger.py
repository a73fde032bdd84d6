"""Follows random keys through programs that run eagerly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives


class Ledger:
    """Every key that JAX draws from, splits or folds a number into, of those made from one key.

    In programs that run eagerly keys are known, so that equal ones are found however they came to be:
    by the same number folded in twice, or by one key for a whole row of chains.
    """

    def __init__(self, key):
        self.ours = {self.name(key)}
        self.used = {}
        # The order of an epoch is drawn from its number in every step, always the same.
        self.orders = set()
        self.faults = []

    @staticmethod
    def name(key):
        return np.asarray(jax.random.key_data(key)).tobytes()

    @staticmethod
    def names(keys):
        rows = np.asarray(jax.random.key_data(keys)).reshape(-1, 2)
        return [row.tobytes() for row in rows]

    def use(self, keys, how, numbers=None):
        """Note a use of keys; say which of them are ours and may be followed."""
        names = self.names(keys)
        whats = [how] * len(names) if numbers is None else [(how, n) for n in np.ravel(numbers)]
        for name, what in zip(names, whats):
            if name not in self.ours:
                continue
            before = self.used.setdefault(name, [])
            repeated = what in before or how != "fold" or any(w[0] != "fold" for w in before)
            if before and repeated and not (what in before and name in self.orders):
                self.faults.append(f"{what} after {before[-1]}")
            before.append(what)
        return names

    def made(self, parents, children, each):
        """Note the keys made of others, `each` of every one."""
        for i, child in enumerate(self.names(children)):
            if parents[i // each] in self.ours:
                self.ours.add(child)
            if parents[i // each] in self.orders:
                self.orders.add(child)

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        names = ("bits", "split", "fold_in")
        bits, split, fold = (getattr(primitives, f"random_{name}_p").impl for name in names)

        # Inside a primitive there is no key to follow: it may be one program again.
        def draw(keys, **options):
            self.use(keys, "draw")
            with jax.disable_jit(False):
                return bits(keys, **options)

        def divide(keys, *, shape):
            names = self.use(keys, "split")
            with jax.disable_jit(False):
                made = split(keys, shape=shape)
            self.made(names, made, int(np.prod(shape)))
            return made

        def number(keys, numbers):
            shape = np.broadcast_shapes(keys.shape, np.shape(numbers))
            names = self.use(jnp.broadcast_to(keys, shape), "fold", np.broadcast_to(numbers, shape))
            with jax.disable_jit(False):
                made = fold(keys, numbers)
            self.made(names, made, 1)
            return made

        for primitive, impl in (("bits", draw), ("split", divide), ("fold_in", number)):
            self.patch.setattr(getattr(primitives, f"random_{primitive}_p"), "impl", impl)
        return self

    def __exit__(self, *error):
        self.patch.undo()
