"""The segments of a run, the states of its chains, and the buffers that their draws go to.

Chains run together in one program, or each by itself in a program for one chain, as many at once as there are
cores. Callers need not know which: they advance all chains by a segment of the run.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn._checks import is_typed_key, num_cpus
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.run.programs import Programs

# Bytes of a draw of a large network.
_LARGE = 2**17
# Seconds of steps from which the time of one is known.
_ENOUGH_TO_MEASURE = 0.2
GROWTH = 1.25  # Draws when a run is judged, over those of the judgement before.


class Segment(NamedTuple):
    """Steps that the compiled program takes in one call."""

    slot: int  # Index in the draw buffer where its first draw goes
    draws: int  # Number of draws; in warm-up 1, which the next segment overwrites
    steps: int  # Steps a draw
    warmup: bool  # Whether its draws are discarded
    whole: bool  # Whether it is the last segment of a chunk, which goes to disk

    @property
    def total(self) -> int:
        """Number of steps of this segment."""
        return self.draws * self.steps


class Plan(NamedTuple):
    """The length of a run, and the lengths of its segments and chunks."""

    warmup: int  # Steps of warm-up
    draws: int  # Draws to collect of each chain
    thinning: int  # Steps a draw
    rate: int  # Steps of a segment: after each, progress is shown and Ctrl-C takes effect
    every: int | None = None  # Steps a chunk; None for a run in memory, which is one chunk

    @classmethod
    def of_phase(
        cls, bounds: tuple[int, int], thinning: int, rate: int | None, every: int | None
    ) -> "Plan":
        """The plan of warm-up, of sampling, or of both."""
        lower, upper = bounds
        draws, more = divmod(upper - lower, thinning)
        warmup = lower + more
        rate = rate or max(1, (warmup + draws * thinning) // 20)
        return cls(warmup, draws, thinning, min(rate, every or rate), every)

    @property
    def total(self) -> int:
        """Number of steps of the whole run, warm-up included."""
        return self.warmup + self.draws * self.thinning

    @property
    def chunk(self) -> int:
        """Draws of a full chunk."""
        if self.every is None:
            return self.draws
        return max(1, min(self.draws, self.every // self.thinning))

    def in_chunks(self, size: int) -> "Plan":
        """The plan of a run whose draw buffer holds `size` draws; chunks that are smaller stay."""
        return self if self.every is not None else self._replace(every=size * self.thinning)

    def in_stages(self) -> "Plan":
        """The plan of a run that is judged at growing numbers of draws, in chunks of half the first."""
        every = -(-self.draws // 2) * self.thinning
        every = every if self.every is None else min(every, self.every)
        return self._replace(every=every, rate=min(self.rate, every))

    def looks(self) -> Iterator[int]:
        """Numbers of draws at which the run is judged: whole chunks, each time a quarter more."""
        count = -(-self.draws // self.chunk) * self.chunk
        while True:
            yield count
            count = int(np.ceil(GROWTH * count / self.chunk)) * self.chunk

    def segments(self, done: int = 0) -> Iterator[Segment]:
        """The segments after the first `done` steps; these are whole chunks."""
        every = self.every or max(1, self.warmup)
        for begin in range(0, self.warmup, every):
            end = min(begin + every, self.warmup)
            if end <= done:
                continue
            for at in range(begin, end, self.rate):
                steps = min(self.rate, end - at)
                yield Segment(0, 1, steps, True, at + steps == end)
        draws = max(1, self.rate // self.thinning)
        for first in range(0, self.draws, self.chunk or 1):
            last = min(first + self.chunk, self.draws)
            if self.warmup + last * self.thinning <= done:
                continue
            for at in range(first, last, draws):
                count = min(draws, last - at)
                yield Segment(at - first, count, self.thinning, False, at + count == last)


class ChainStates:
    """States and draw buffers of all chains, in groups that one call advances: one of all, or one each."""

    def __init__(
        self,
        programs: Programs,
        num_chains: int,
        one_by_one: bool,
        keys: jax.Array,
        starts: PyTree | None,
        arrays: Sequence[Array],
        sizes: Collection[int] = (),
    ) -> None:
        self.programs = programs
        self.placement = programs.placement
        self.num_chains = num_chains
        self.one_by_one = one_by_one
        self.arrays = self.placement.rows(arrays, sizes)
        self._keys = self._split(keys)
        self._starts = self._split(starts)
        self.states: list[Any] = []
        self._draws: list[Any] = []
        self._taken: list[list[Any]] = []

    def _split(self, tree: Any) -> list[Any]:
        if not self.one_by_one:
            return [self.placement.chains(tree, self.num_chains)]
        return [_on_host(lambda leaf, i=i: leaf[i], tree) for i in range(self.num_chains)]

    def start(self) -> None:
        """Initialise the chains."""
        start = self.programs.start
        self.states = [start(k, s, self.arrays) for k, s in zip(self._keys, self._starts)]

    def continue_from(self, states: PyTree) -> None:
        """Continue from complete states, stacked over chains."""
        self.states = self._split(states)

    def refresh(self) -> None:
        """Compute again what the states keep of data, at the same positions."""
        refresh = self.programs.refresh
        self.states = [refresh(x, s, self.arrays) for x, s in zip(self.states, self._starts)]

    def abstract(self) -> PyTree:
        """Shapes and types of the states that `start` gives, stacked over chains."""
        if not self.one_by_one:
            return self._state
        more = self.num_chains
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((more, *x.shape), x.dtype), self._state)

    @cached_property
    def _state(self) -> PyTree:
        """Shapes and types of the states of the first group."""
        one = jax.eval_shape(self.programs.start, self._keys[0], self._starts[0], self.arrays)
        return self.placement.abstract(one, self.programs.num_chains)

    @cached_property
    def _buffer(self) -> PyTree:
        """Shapes and types of a buffer of the first group."""
        buffer = jax.eval_shape(self.programs.zeros, self._state, self._starts[0], self.arrays)
        return self.placement.abstract(buffer, self.programs.num_chains)

    def text(self) -> str:
        """The text that start and steps of the first group lower to."""
        start, arrays = self._starts[0], self.arrays
        steps = (self._state, self._buffer, start, 0, 1, 1, arrays)
        begin = self.programs.start.text(self._keys[0], start, arrays)
        return f"{begin}\n{self.programs.advance.text(*steps)}"

    @property
    def stacked(self) -> PyTree:
        """Complete states of all chains, stacked, gathered on this process."""
        if not self.one_by_one:
            return self.placement.gathered(self.states[0])
        return _on_host(lambda *leaves: library_of(leaves[0]).stack(leaves), *self.states)

    def fresh_buffers(self) -> None:
        """Switch to a draw buffer whose draws are no longer needed: two buffers are used in turn."""
        if len(self._taken) == 2:
            self._draws = self._taken.pop(0)
            return
        zeros = self.programs.zeros
        self._draws = [zeros(x, s, self.arrays) for x, s in zip(self.states, self._starts)]

    def abstract_draws(self) -> PyTree:
        """Shapes and types of a buffer, (chain, draw, …)."""
        lead = () if not self.one_by_one and self.num_chains > 1 else (self.num_chains,)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), self._buffer
        )

    def compile(self) -> None:
        """Compile the steps; all groups have the same program."""
        self.programs.advance.bound(*self._arguments(0, Segment(0, 1, 1, True, True)))

    def seconds_a_step(self, most: int) -> float:
        """How long all chains take for a step of warm-up, measured by at most so many."""
        steps, seconds = 1, 0.0
        # The first step loads the program, and a few take less time than the call.
        while steps == 1 or (seconds < _ENOUGH_TO_MEASURE and steps <= most):
            began = time.monotonic()
            self.advance(Segment(0, 1, steps, True, True), lambda *_: None)
            seconds, taken, steps = time.monotonic() - began, steps, 4 * steps
        return seconds / taken

    def advance(self, segment: Segment, update: Callable) -> None:
        """Take the steps of a segment with every group, several at once where each leaves cores idle."""
        groups = range(len(self.states))
        calls = [self.programs.advance.bound(*self._arguments(i, segment)) for i in groups]

        def run(group: int) -> None:
            self.states[group], self._draws[group] = jax.block_until_ready(calls[group]())

        with ThreadPoolExecutor(threads := self._threads) as pool:
            for i, _ in enumerate((map if threads == 1 else pool.map)(run, groups)):
                chains = range(i, i + 1) if self.one_by_one else range(self.num_chains)
                update(chains, segment.total, self.states[i])

    @property
    def _threads(self) -> int:
        """Groups that run at once: one a core, but a large network alone, whose products XLA shares."""
        is_large = self.bytes_of_a_draw > _LARGE * self.num_chains
        alone = is_large or jax.default_backend() != "cpu" or self.programs.advance.calls_host
        return 1 if alone else min(len(self.states), num_cpus())

    def _arguments(self, group: int, segment: Segment) -> tuple:
        """Arguments of the compiled steps."""
        # Arrays, because another thread may read Python numbers as another type.
        counts = map(jnp.asarray, (segment.slot, segment.draws, segment.steps))
        states, draws, start = self.states[group], self._draws[group], self._starts[group]
        return states, draws, start, *counts, self.arrays

    @property
    def buffer_size(self) -> int:
        """Number of draws that the buffer holds, the least where nothing is kept of a draw."""
        lead = 0 if self.one_by_one or self.num_chains == 1 else 1
        buffers = jax.tree.leaves(self._draws[0])
        return int(buffers[0].shape[lead]) if buffers else self.programs.least

    @property
    def bytes_of_a_draw(self) -> int:
        """Memory that a draw of all chains takes."""
        sizes = (leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self._draws))
        return sum(sizes) // self.buffer_size

    def copied(self, count: int) -> PyTree:
        """A copy of the first `count` draws on the host, (chain, draw, …)."""

        def copy(leaf: jax.Array) -> Array:
            # A host array may be the buffer itself.
            return leaf.copy() if is_typed_key(leaf) else np.array(leaf)

        buffers = jax.tree.map(copy, self.placement.gathered(self._draws))
        return _joined(buffers, count, self.num_chains)

    def take(self, count: int) -> Callable[[], PyTree]:
        """A function that copies draws to the host; the second `fresh_buffers` after it reuses the buffer."""
        buffers = self.placement.gathered(self._draws)
        self._taken.append(self._draws)
        return lambda: _joined(jax.tree.map(np.asarray, buffers), count, self.num_chains)


def _joined(buffers: list[Any], count: int, num_chains: int) -> Any:
    """The first `count` draws of all chains, (chain, draw, …), from one buffer or one a chain."""
    if len(buffers) == num_chains:
        return jax.tree.map(
            lambda *leaves: library_of(leaves[0]).stack([x[:count] for x in leaves]), *buffers
        )
    return jax.tree.map(lambda x: x[:, :count], buffers[0])


def library_of(leaf: Array) -> Any:
    """The library that joins such arrays: random keys are no numbers that NumPy could hold."""
    return jnp if isinstance(leaf, jax.Array) else np


def chain_of(tree: PyTree, chain: int) -> PyTree:
    """One chain of arrays with a leading axis of chains."""
    return jax.tree.map(lambda leaf: leaf[chain], tree)


def _on_host(function: Callable, *trees: Any) -> Any:
    """A function of the leaves, computed by NumPy: JAX would compile it for each shape."""

    def one(*leaves: Any) -> jax.Array:
        if is_typed_key(leaves[0]):
            return function(*leaves)
        return jax.device_put(function(*map(np.asarray, leaves)))

    return jax.tree.map(one, *trees)
