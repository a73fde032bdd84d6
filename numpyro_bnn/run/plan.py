"""The length of a run, and the segments that the compiled program takes one after another."""

from collections.abc import Iterator
from typing import NamedTuple


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
        """The plan of a run that is judged at growing numbers of draws, the first of them `draws`.

        All chunks have one size, at most half of `draws`.
        """
        every = -(-self.draws // 2) * self.thinning
        every = every if self.every is None else min(every, self.every)
        return self._replace(every=every, rate=min(self.rate, every))

    def looks(self) -> Iterator[int]:
        """Numbers of draws at which the run is judged: whole chunks, each time half as many more."""
        chunk = self.chunk
        count = -(-self.draws // chunk) * chunk
        while True:
            yield count
            count = -(-3 * count // (2 * chunk)) * chunk

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
