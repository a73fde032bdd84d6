"""The loop of a run: chains advance segment by segment, from their start or a checkpoint to the end.

A run of fixed length takes all segments of its plan. A run in stages is evaluated at growing numbers of
draws (a quarter more each time: Glynn and Whitt 1992, Flegal and Gong 2015 on fixed-width stopping
rules), and a :class:`Judge` decides whether it ends. The rule itself comes from the caller.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel
from tqdm.auto import tqdm

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import stored_units
from numpyro_bnn.data.not_finite import first_bad_draws
from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.run.chain_states import ChainStates, Plan, Segment, chain_of, library_of
from numpyro_bnn.run.kernel_protocol import without_counts
from numpyro_bnn.run.recorder import Disk, Recorder
from numpyro_bnn.run.refusals import check_energy
from numpyro_bnn.storage.checkpoints import Progress, Start
from numpyro_bnn.storage.processes import Processes

# Array by array the state of a chain takes a millisecond a leaf, at each of twenty updates.
_in_one_program = jax.jit(chain_of)


@contextmanager
def explain_memory() -> Iterator[None]:
    """Add advice to the error when memory runs out: settings that make the run smaller."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        # With several devices JAX reports the lack of memory as an internal error.
        lacking = "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
        if lacking or isinstance(error, MemoryError):
            error.add_note(
                "numpyro_bnn: not enough memory. If the draws are too many, stream them to disk "
                "with `MCMC(…, draws='run.zarr')`; if the gradient over all rows is too large, "
                "give `chunk_size=` to MCMC (or to `gradients.full` in a kernel of this package)."
            )
        raise


class ProgressBars:
    """Progress bars, one a chain, and a line of text below them."""

    def __init__(self, kernel: MCMCKernel, num_chains: int, total: int, done: int) -> None:
        self._kernel = kernel
        self._bars = [
            tqdm(total=total, initial=done, desc=f"chain {c}", position=c)
            for c in range(num_chains)
        ]
        for bar in self._bars:
            bar.set_postfix_str("starting, a first run compiles")
        self._text: Any = None

    def update(self, chains: range, steps: int, state: PyTree) -> None:
        """Move the bars of some chains on by `steps`."""
        for c in chains if self._bars else ():
            own = state if len(chains) == 1 else _in_one_program(state, c)
            self._bars[c].set_postfix_str(self._kernel.get_diagnostics_str(own), refresh=False)
            self._bars[c].update(steps)

    def extend(self, total: int) -> None:
        """Make the bars longer: the run takes more steps than announced."""
        for bar in self._bars:
            bar.total = total
            bar.refresh()

    def say(self, text: str) -> None:
        """Show a line of text below the bars, in place of the last one."""
        if not self._bars:
            return
        if self._text is None:
            self._text = tqdm(bar_format="{desc}", position=len(self._bars))
        self._text.set_description_str(text)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, *error: object) -> None:
        for bar in (*self._bars, *([] if self._text is None else [self._text])):
            bar.close()


class DrawsSoFar(NamedTuple):
    """The draws and chain states of a run so far, as a stopping rule gets them."""

    # ``between(begin, end)`` gives draws `begin` to `end` by field: leaves (chain, draw, …) on the host
    between: Callable[[int, int], dict[str, PyTree]]
    num_draws: int  # Draws of each chain so far
    seconds_a_draw: float  # Time that sampling takes; NaN before this process has sampled any
    chunk: int  # Draws of a chunk: predictions of blocks of this size need no new compilation
    states: PyTree  # The complete states of all chains
    step: int  # Number of steps taken, warm-up included


class Judge(Protocol):
    """The stopping rule of a run in stages."""

    reason: str | None  # Why the run should stop; None while it should continue
    dropped: int  # Number of draws at the beginning that do not count
    line: str  # How far the run is, in words
    at: tuple[PyTree, ...]

    @property
    def settings(self) -> dict[str, object]:
        """What an equal rule is made from, with `at`, when the run is resumed."""

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
        """Return at once: draws in memory are kept when they are taken."""

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


@dataclass
class Sampling:
    """A run, with everything that it needs; :meth:`run` samples."""

    kernel: MCMCKernel
    sample_field: str
    start: Start
    fit: BoundModel | None
    chain_states: ChainStates
    plan: Plan
    disk: Disk | None
    processes: Processes
    num_bars: int
    warmed_up: PyTree
    stale: bool
    judge: Judge | None
    kept: Recorder | InMemory = field(default_factory=InMemory)

    def run(self, resumed: bool) -> tuple[dict[str, PyTree], dict[int, int], int]:
        """Draws by field, the first draw that is not finite by chain, and how many were sampled of each."""
        if self.disk is not None:
            return self._on_disk(self.disk, resumed)
        done = self._place(resumed)
        self._prepare()
        self.kept = kept = InMemory()
        done = self._advance_all(done)
        bad = kept.first_bad(self.sample_field)
        if not done.draws:
            # A warm-up alone keeps none.
            kept.take(self.chain_states, Segment(0, 0, 1, False, True), done)
        return kept.on_device(self.judge.dropped if self.judge else 0), bad, done.draws

    def _on_disk(self, disk: Disk, resumed: bool) -> tuple[dict[str, PyTree], dict[int, int], int]:
        with disk.withdrawn_if_refused(resumed):
            done = self._place(resumed)
            like = self.chain_states.abstract_draws()
            self._prepare()
            recorder = disk.recorder(like, self.sample_field, self.plan, done, resumed)
            if units := stored_units(getattr(self.kernel, "model", None)):
                self.processes.first(lambda: recorder.store.note(units=units))
        self.kept = recorder
        try:
            done = self._advance_all(done)
        finally:
            recorder.close()
        if self.judge is not None:
            recorder.drop(self.judge.dropped)
        draws = recorder.draws()
        if disk.draws is None:
            draws = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), draws)
        return draws, recorder.store.first_bad, done.draws

    def _prepare(self) -> None:
        if self.judge is not None and self.processes.is_first:
            self.judge.prepare(self.chain_states.abstract_draws(), self.plan.chunk)

    def _place(self, resumed: bool) -> Progress:
        """Set the chain states to their starts, or to those of the last checkpoint."""
        chain_states = self.chain_states
        if resumed:
            assert self.disk is not None
            if (stored := self.disk.load(chain_states.abstract())) is not None:
                chain_states.continue_from(stored[0])
                return stored[1]
        if self.warmed_up is not None:
            given = without_counts(self.warmed_up)
            chain_states.continue_from(given._replace(rng_key=self.start.keys))
            if not self.stale:
                return Progress(0, 0)
            chain_states.refresh()
        else:
            chain_states.start()
        states = chain_states.stacked
        if self.fit is not None and hasattr(states, "potential_energy"):
            # Sites of a flat position are taken apart only for the message.
            position = partial(getattr, states, self.sample_field)
            check_energy(self.fit, states.potential_energy, position)
        return Progress(0, 0)

    def _advance_all(self, done: Progress) -> Progress:
        """Take the remaining steps, or the steps up to an interruption."""
        self.chain_states.fresh_buffers()
        total = self.plan.total
        self.plan = self.plan.in_chunks(self.chain_states.buffer_size)
        if self.disk is None and self.judge is None:
            # Raises now, and not after hours, where memory cannot hold all draws.
            np.empty(self.plan.draws * self.chain_states.bytes_of_a_draw, np.uint8)
        bars = ProgressBars(self.kernel, self.num_bars if total else 0, total, done.steps)
        with bars, finish_before_interrupt(self.disk is not None) as interrupted:
            if self.judge is None:
                done = self.advance(done, bars, lambda count: interrupted())
            else:
                done = self._in_stages(done, bars, interrupted, self.judge)
        if done.steps < total and not done.draws:
            raise KeyboardInterrupt("during warm-up, before the first draw that is kept")
        return done

    def advance(
        self,
        done: Progress,
        bars: ProgressBars,
        ends: Callable[[int], bool],
        draws: int | None = None,
    ) -> Progress:
        """Take steps up to `draws`, or to all of the plan, while `ends` of the draws so far is false."""
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

    def _in_stages(
        self, done: Progress, bars: ProgressBars, interrupted: Callable[[], bool], judge: Judge
    ) -> Progress:
        """Advance until the rule is met, time is over or the user interrupts."""
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
        states, chunk = self.chain_states.stacked, self.plan.chunk
        drawn = DrawsSoFar(self.kept.between, count, seconds_a_draw, chunk, states, step)

        def evaluate() -> list[Any]:
            judge.evaluate(drawn)
            return [judge.reason, judge.dropped, judge.line]

        judge.reason, judge.dropped, judge.line = self.processes.first(evaluate)


@contextmanager
def finish_before_interrupt(also_terminate: bool) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C take effect between compiled steps, so that no draw is lost; a second one does at once."""
    # Batch systems send SIGTERM before they kill.
    signals: list[int] = []
    watched = [signal.SIGINT] + [signal.SIGTERM] * also_terminate
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(signum: int, frame: FrameType | None) -> None:
        signals.append(signum)
        restore()

    # Python delivers signals to the main thread only.
    if threading.current_thread() is threading.main_thread():
        for number in watched:
            before[number] = signal.signal(number, ask)
    try:
        yield lambda: bool(signals)
    finally:
        restore()
