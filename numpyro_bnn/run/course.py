"""A run on its way: chains take steps, draws are kept, and somebody may say when it is enough.

A run of fixed length takes all segments of its plan. A run in stages stops for a look at growing numbers
of draws (half as many more each time: Glynn and Whitt 1992, Flegal and Gong 2015 on rules of fixed
width), and a :class:`Judge` decides. How it decides is not known here.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from numpyro_bnn.run.chain_states import ChainStates
from numpyro_bnn.run.plan import Plan, Segment
from numpyro_bnn.run.progress import ProgressBars
from numpyro_bnn.run.recorder import Recorder
from numpyro_bnn.storage.checkpoints import Progress
from numpyro_bnn.storage.processes import Processes


class DrawsSoFar(NamedTuple):
    """What there is to look at.

    - **between** - draws from one number to another, by field: leaves (chain, draw, …) on the host
    - **num_draws** - of each chain so far
    - **seconds_a_draw** - that sampling takes; NaN before this process has sampled any
    - **chunk** - draws that are taken at a time: blocks of this size need no new program
    - **states** - of the chains
    - **step** - number of the step after the last of these draws
    """

    between: Callable[[int, int], dict[str, Any]]
    num_draws: int
    seconds_a_draw: float
    chunk: int
    states: Any
    step: int


class Judge(Protocol):
    """Says when a run in stages is long enough.

    - **reason** - why to stop; None while the run should go on
    - **dropped** - draws at the beginning that do not count
    - **max_seconds** - time allowed; None for any
    - **line** - where the run stands, in words
    """

    reason: str | None
    dropped: int
    max_seconds: float | None
    line: str

    def prepare(self, like: dict[str, Any], chunk: int) -> None:
        """Get ready for draws of these shapes (chain, draw, …), before there are any."""

    def evaluate(self, drawn: DrawsSoFar) -> None:
        """Judge all draws so far."""


class InMemory:
    """Keeps chunks of draws on the host."""

    takes_parts = True

    def __init__(self) -> None:
        self._chunks: list[dict[str, Any]] = []
        self._begins = [0]

    def take(self, chain_states: ChainStates, segment: Segment, progress: Progress) -> None:
        """Keep the draws that the buffer holds, which the next ones overwrite."""
        if segment.warmup:
            return
        # A host array may be the buffer itself.
        self._chunks.append(
            jax.tree.map(np.array, chain_states.take(segment.slot + segment.draws)())
        )
        self._begins.append(progress.draws)
        chain_states.fresh_buffers()

    def wait(self) -> None:
        """Everything is there at once."""

    def between(self, begin: int, end: int) -> dict[str, Any]:
        """Draws from one number to another, by field."""
        parts = [
            jax.tree.map(lambda leaf, at=at: leaf[:, max(0, begin - at) : end - at], chunk)
            for at, chunk in zip(self._begins, self._chunks)
            if at < end and begin < at + jax.tree.leaves(chunk)[0].shape[1]
        ]
        if len(parts) == 1:
            return parts[0]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *parts)


class Course(NamedTuple):
    """What it takes to go on with a run.

    - **chain_states** - the chains
    - **plan** - how the run is cut
    - **kept** - takes chunks of draws; None where one buffer holds all of them
    - **processes** - that share the run
    """

    chain_states: ChainStates
    plan: Plan
    kept: Recorder | InMemory | None
    processes: Processes

    def advance(
        self,
        done: Progress,
        bars: ProgressBars,
        ends: Callable[[int], bool],
        draws: int | None = None,
    ) -> Progress:
        """Take the steps that are left, or those up to an interruption.

        :param done: what was taken before.
        :param bars: show it.
        :param ends: asked after every segment whether to end there; told the number of draws so far.
        :param draws: up to so many of each chain; default: those of the plan.
        """
        steps, count = done
        plan = self.plan if draws is None else self.plan._replace(draws=draws)
        for segment in plan.segments(steps):
            self.chain_states.advance(segment, bars.update)
            steps += segment.total
            count += 0 if segment.warmup else segment.draws
            over = self.processes.agreed(ends(count))
            may_end = self.kept is None or segment.whole or self.kept.takes_parts
            if self.kept is not None and (segment.whole or (over and may_end)):
                self.kept.take(self.chain_states, segment, Progress(steps, count))
            if over and may_end:
                break
        if self.kept is not None:
            self.kept.wait()
        return Progress(steps, count)

    def in_stages(
        self, done: Progress, bars: ProgressBars, interrupted: Callable[[], bool], judge: Judge
    ) -> Progress:
        """Go on until the judge says enough, time is over or somebody interrupts.

        Looks that an earlier process made are made again: they depend on nothing but draws.
        """
        began, seconds_a_draw = time.monotonic(), float("nan")

        def late() -> bool:
            return judge.max_seconds is not None and time.monotonic() - began > judge.max_seconds

        def ends(count: int) -> bool:
            # Fewer draws than a chunk would say nothing.
            return interrupted() or (count >= self.plan.chunk and late())

        bars.say(judge.line)
        for count in self.plan.looks():
            if count > done.draws:
                bars.extend(self.plan._replace(draws=count).total)
                segments_began, before = time.monotonic(), done.steps
                done = self.advance(done, bars, ends, count)
                seconds = time.monotonic() - segments_began
                seconds_a_draw = seconds * self.plan.thinning / max(1, done.steps - before)
            stopped = self.processes.agreed(interrupted())
            over = self.processes.agreed(late()) and count >= done.draws
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
        """Let the first process look, and tell the others."""
        assert self.kept is not None
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
