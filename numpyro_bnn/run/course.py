"""The loop of a run: chains advance segment by segment, draws are kept, and a stopping rule may end it.

A run of fixed length takes all segments of its plan. A run in stages is evaluated at growing numbers of
draws (half as many more each time: Glynn and Whitt 1992, Flegal and Gong 2015 on fixed-width stopping
rules), and a :class:`Judge` decides whether it ends. The rule itself comes from
the caller.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.not_finite import first_bad_draws
from numpyro_bnn.run.chain_states import ChainStates, library_of
from numpyro_bnn.run.plan import Plan, Segment
from numpyro_bnn.run.progress import ProgressBars
from numpyro_bnn.run.recorder import Recorder
from numpyro_bnn.storage.checkpoints import Progress
from numpyro_bnn.storage.processes import Processes


class DrawsSoFar(NamedTuple):
    """The draws and chain states of a run so far, as a stopping rule gets them.

    - **between** - ``between(begin, end)`` gives draws `begin` to `end` by field: leaves (chain, draw, …)
      on the host
    - **num_draws** - draws of each chain so far
    - **seconds_a_draw** - time that sampling takes; NaN before this process has sampled any
    - **chunk** - draws of a chunk: predictions of blocks of this size need no new compilation
    - **states** - gives the complete states of all chains
    - **step** - number of steps taken, warm-up included
    """

    between: Callable[[int, int], dict[str, PyTree]]
    num_draws: int
    seconds_a_draw: float
    chunk: int
    states: PyTree
    step: int


class Judge(Protocol):
    """The stopping rule of a run in stages.

    - **reason** - why the run should stop; None while it should continue
    - **dropped** - number of draws at the beginning that do not count
    - **line** - how far the run is, in words
    - **settings**, **at** - what an equal rule is made from when the run is resumed
    """

    reason: str | None
    dropped: int
    line: str
    at: tuple[PyTree, ArrayLike | None]

    @property
    def settings(self) -> dict[str, object]: ...

    def prepare(self, like: dict[str, PyTree], chunk: int) -> None:
        """Check and compile for draws of these shapes (chain, draw, …), before any step is taken."""

    def is_late(self) -> bool:
        """Whether the time limit of the run is over."""

    def evaluate(self, drawn: DrawsSoFar) -> None:
        """Judge all draws so far."""

    def stopped(self, draws: int) -> Any:
        """How the run ended, after so many draws of each chain."""


class InMemory:
    """Keeps chunks of draws on the host."""

    takes_parts = True

    def __init__(self) -> None:
        self._chunks: list[dict[str, Any]] = []
        self._begins = [0]

    def take(self, chain_states: ChainStates, segment: Segment, progress: Progress) -> None:
        """Copy the draws out of the buffer, which the next segment overwrites."""
        if not segment.warmup:
            self._chunks.append(chain_states.copied(segment.slot + segment.draws))
            self._begins.append(progress.draws)

    def wait(self) -> None:
        """Return at once: draws in memory are kept as soon as they are taken."""

    def between(self, begin: int, end: int) -> dict[str, PyTree]:
        """Draws `begin` to `end` of each chain, by field."""
        parts = [
            jax.tree.map(lambda leaf, at=at: leaf[:, max(0, begin - at) : end - at], chunk)
            for at, chunk in zip(self._begins, self._chunks)
            if at < end and begin < at + jax.tree.leaves(chunk)[0].shape[1]
        ]
        if len(parts) == 1:
            return parts[0]
        return jax.tree.map(lambda *leaves: _concatenated(leaves), *parts)

    def first_bad(self, field: str) -> dict[int, int]:
        """Index of the first draw with NaN or infinities, by chain that has one."""
        found: dict[int, int] = {}
        for begin, chunk in zip(self._begins, self._chunks):
            for chain, draw in first_bad_draws(chunk[field]).items():
                found.setdefault(chain, begin + draw)
        return found

    def on_device(self, begin: int) -> dict[str, PyTree]:
        """All draws from `begin` on, as JAX arrays; none is kept here."""
        flat, form = zip(*(jax.tree.flatten(chunk) for chunk in self._chunks))
        self._chunks.clear()
        joined = []
        for _ in range(form[0].num_leaves):
            # Leaf by leaf, so that no more than one is held twice.
            leaves = [chunk.pop(0) for chunk in flat]
            joined.append(jnp.asarray(_concatenated(leaves)[:, begin:]))
        return jax.tree.unflatten(form[0], joined)


def _concatenated(leaves: Sequence[Any]) -> Any:
    return library_of(leaves[0]).concatenate(leaves, 1)


class Course(NamedTuple):
    """Advances the chains of a run by the segments of its plan.

    - **chain_states** - states and draw buffers of the chains
    - **plan** - the segments of the run
    - **kept** - receives finished chunks of draws
    - **processes** - the processes that share the run
    """

    chain_states: ChainStates
    plan: Plan
    kept: Recorder | InMemory
    processes: Processes

    def advance(
        self,
        done: Progress,
        bars: ProgressBars,
        ends: Callable[[int], bool],
        draws: int | None = None,
    ) -> Progress:
        """Take the remaining steps, or the steps up to an interruption.

        :param done: steps and draws taken before.
        :param bars: progress bars.
        :param ends: called after every segment with the number of draws so far; true ends the run there.
        :param draws: draws a chain to reach; default: those of the plan.
        :return: steps and draws taken in all.
        """
        steps, count = done
        plan = self.plan if draws is None else self.plan._replace(draws=draws)
        for segment in plan.segments(steps):
            self.chain_states.advance(segment, bars.update)
            steps += segment.total
            count += 0 if segment.warmup else segment.draws
            over = self.processes.agreed(ends(count))
            may_end = segment.whole or self.kept.takes_parts
            if segment.whole or (over and may_end):
                self.kept.take(self.chain_states, segment, Progress(steps, count))
            if over and may_end:
                break
        self.kept.wait()
        return Progress(steps, count)

    def in_stages(
        self, done: Progress, bars: ProgressBars, interrupted: Callable[[], bool], judge: Judge
    ) -> Progress:
        """Advance until the stopping rule is met, time is over or the user interrupts.

        A resumed run repeats the evaluations of the earlier process: they depend on nothing but draws.
        """
        seconds_a_draw = float("nan")

        def ends(count: int) -> bool:
            # Fewer draws than a chunk are too few to judge.
            return interrupted() or (count >= self.plan.chunk and judge.is_late())

        bars.say(judge.line)
        for count in self.plan.looks():
            if count > done.draws:
                bars.extend(self.plan._replace(draws=count).total)
                segments_began, before = time.monotonic(), done.steps
                done = self.advance(done, bars, ends, count)
                seconds = time.monotonic() - segments_began
                seconds_a_draw = seconds * self.plan.thinning / max(1, done.steps - before)
            stopped = self.processes.agreed(interrupted())
            over = self.processes.agreed(judge.is_late()) and count >= done.draws
            if stopped or not done.draws:
                judge.reason = "interrupted"
                break
            self._evaluate(judge, min(count, done.draws), seconds_a_draw)
            bars.say(judge.line)
            if judge.reason is not None:
                break
            if over:
                judge.reason = "max_minutes"
                break
        return done

    def _evaluate(self, judge: Judge, count: int, seconds_a_draw: float) -> None:
        """Evaluate the stopping rule in the first process, and send its decision to the others."""
        step = self.plan.warmup + count * self.plan.thinning
        drawn = DrawsSoFar(
            self.kept.between,
            count,
            seconds_a_draw,
            self.plan.chunk,
            self.chain_states.stacked,
            step,
        )

        def evaluate() -> list[Any]:
            judge.evaluate(drawn)
            return [judge.reason, judge.dropped, judge.line]

        judge.reason, judge.dropped, judge.line = self.processes.first(evaluate)
