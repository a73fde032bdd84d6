"""Stopping rules of an optimisation: energies that no longer fall, held-out rows that no longer improve."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from numpyro_bnn.data.arguments import innermost, inputs_of_call
from numpyro_bnn.distributions.unwrap import blanks
from numpyro_bnn.potential.potential import Potential

# Steps between two looks at the energy from outside of the program, and at held-out rows inside of it: those
# of a network that can interpolate its data are often likeliest after a hundred steps.
BLOCK, LOOK = 100, 10
# Share of the rows that a member holds out, and their largest number.
SHARE, MOST = 0.2, 2000


class Settling:
    """Decides whether energies still fall by more than a fraction, from noisy means over blocks of steps."""

    # The mean over the last w blocks is compared with the mean over the w before, for w = 1, 2, 4, …, each
    # side at least an epoch of minibatches. Members have settled when for some w the fall in 100 steps, plus
    # two standard errors of it, is below the fraction for each: noise can delay the end, but not cause it.

    def __init__(self, tolerance: float, epoch: int = 1) -> None:
        self.tolerance = tolerance
        self.epoch = epoch
        self._means: list[np.ndarray] = []
        self._variances: list[np.ndarray] = []

    def add_block(self, mean: np.ndarray, variance: np.ndarray) -> bool:
        """Take the next block's means and variances into account; whether all members have settled."""
        self._means.append(mean)
        self._variances.append(variance)
        if self.tolerance <= 0:
            return False
        width = 1
        while 2 * width <= len(self._means):
            if width * BLOCK >= self.epoch and self._settled_over(width):
                return True
            width *= 2
        return False

    def _settled_over(self, width: int) -> bool:
        last = np.mean(self._means[-width:], 0)
        fall = np.mean(self._means[-2 * width : -width], 0) - last
        error = np.sqrt(np.sum(self._variances[-2 * width :], 0)) / width
        # Members that are no longer finite do not delay the others.
        still = (fall + 2 * error) / width >= self.tolerance * np.abs(last)
        return not still.any()


def held_out_call(
    owner: str, model: Callable, args: tuple, kwargs: dict[str, Any], validation: tuple
) -> tuple[tuple, dict[str, Any]]:
    """The arguments of training with held-out ones, in the order of the signature, in their place."""
    validation = tuple(validation)
    try:
        names = list(inspect.signature(innermost(model)).parameters)
    except (TypeError, ValueError):  # a callable that does not say what it takes
        names = []
    others = {n: value for n, value in kwargs.items() if n not in names[: len(validation)]}
    beyond = args[len(validation) :]
    places = range(len(validation), len(args))
    labels = [names[i] if i < len(names) else f"argument {i + 1}" for i in places]
    inputs = jax.tree.leaves(inputs_of_call(model, args, kwargs))
    rows = {leaf.shape[0] for leaf in inputs if getattr(leaf, "shape", ())}
    missing = [
        name
        for name, value in [*zip(labels, beyond), *others.items()]
        if any(getattr(v, "shape", ())[:1] in {(n,) for n in rows} for v in jax.tree.leaves(value))
    ]
    if missing:
        order = [*names[: len(validation)], *missing]
        raise ValueError(
            f"{owner}: {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} a value for every "
            f"training row, and validation, {len(validation)} arguments, has none of held-out rows. Give "
            "all arguments of the model in their order, "
            f"validation=({', '.join(f'{n}_val' for n in order)}), with None for one that the model can do "
            "without; one that it takes by keyword alone it has to take by position too."
        )
    return (*validation, *beyond), others


class held_out(Messenger):
    """Handler that leaves the rows `rows[str(N)]`, (N,), out of the likelihood, or all `others`."""

    # Rows lie along the largest plate around an observed site, or else along the first axis of its values.

    def __init__(
        self,
        fn: Callable | None,
        rows: dict[str, jax.Array],
        sites: frozenset[str],
        others: bool = False,
    ) -> None:
        self.held, self.sites, self.others = rows, sites, others
        self.plates: dict[str, tuple[int, jax.Array]] = {}
        self.sizes: set[int] = set()
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Mask the distribution of an observed site."""
        if msg["type"] != "sample" or msg["name"] not in self.sites:
            return
        frames = [f for f in msg["cond_indep_stack"] if f.name in self.plates]
        if frames:
            frame = max(frames, key=lambda f: self.plates[f.name][0])
            msg["fn"] = self._masked(msg["fn"], frame.dim, *self.plates[frame.name])
        else:
            msg["fn"] = self._masked(msg["fn"])

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Note the rows that each plate selected."""
        if msg["type"] == "plate":
            self.plates[msg["name"]] = msg["args"][0], msg["value"]

    def _masked(
        self, distribution: Any, axis: int | None = None, size: int = 0, rows: Any = slice(None)
    ) -> Any:
        if not distribution.batch_shape:
            # Rows that ``to_event`` put into one event have a distribution each inside of it.
            if isinstance(distribution, dist.Independent):
                inside = self._masked(distribution.base_dist)
                return inside.to_event(distribution.reinterpreted_batch_ndims)
            return distribution
        if axis is None:
            axis, size = -len(distribution.batch_shape), distribution.batch_shape[0]
        self.sizes.add(size)
        if (held := self.held.get(str(size))) is None:
            return distribution
        counts = held if self.others else ~held
        return distribution.mask(jnp.reshape(counts[rows], (-1, *(1,) * (-axis - 1))))


def row_numbers(potential: Potential) -> list[int]:
    """Numbers of rows that can be held out of a model; empty where all are in one distribution."""
    handler = held_out(potential.bound, {}, frozenset(potential.structure.data))

    def visit(key: jax.Array, blank: jax.Array) -> jax.Array:
        shaped = seed(substitute(handler, substitute_fn=blanks(blank)), key)
        trace(shaped).get_trace(*potential.args, **potential.kwargs)
        return key

    jax.eval_shape(visit, jax.random.key(0), 0.0)
    return sorted(size for size in handler.sizes if size > 1)


def rows_by_member(
    key: jax.Array, sizes: list[int], num_members: int, padding: int = 0
) -> dict[str, np.ndarray]:
    """For each member the rows that it holds out, as :class:`held_out` takes them: folds of a permutation."""
    found = {}
    for size in sizes:
        real = size - padding
        count = num_held(real)
        # On the host: on the device each number of rows would be compiled.
        rng = np.random.default_rng([*np.asarray(jax.random.key_data(key)), size])
        place = rng.permutation(real)
        held = (place - count * np.arange(num_members)[:, None]) % real < count
        found[str(size)] = np.pad(held, [(0, 0), (0, padding)])
    return found


def num_held(size: int) -> int:
    """How many of so many rows a member holds out."""
    return min(max(1, round(SHARE * size)), MOST)
