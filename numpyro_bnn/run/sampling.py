"""Runs the chains from their start or a checkpoint to the end, with draws in memory or on disk."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.run.chain_states import ChainStates
from numpyro_bnn.run.course import Course, InMemory, Judge
from numpyro_bnn.run.interrupts import finish_before_interrupt
from numpyro_bnn.run.kernel_protocol import without_counts
from numpyro_bnn.run.plan import Plan, Segment
from numpyro_bnn.run.progress import progress_bars
from numpyro_bnn.run.recorder import Disk, Recorder
from numpyro_bnn.run.refusals import check_energy
from numpyro_bnn.storage.checkpoints import Progress, Start
from numpyro_bnn.storage.processes import Processes


class Finished(NamedTuple):
    """The draws of a finished run.

    - **draws** - draws that count, by field: leaves (chain, draw, …), in memory or on disk
    - **bad** - index of the first draw with NaN or infinities, by chain that has any
    - **num_draws** - draws of each chain that were sampled, dropped ones included
    """

    draws: dict[str, PyTree]
    bad: dict[int, int]
    num_draws: int


@dataclass(frozen=True)
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

    def run(self, resumed: bool) -> Finished:
        """Sample until the end of the plan, the stopping rule or an interruption.

        :raises KeyboardInterrupt: if it was interrupted before the first draw.
        """
        if self.disk is not None:
            return self._on_disk(self.disk, resumed)
        done = self._place(resumed)
        if self.judge is not None:
            self._prepare(self.judge)
        kept = InMemory()
        done = self._advance(done, kept)
        bad = kept.first_bad(self.sample_field)
        dropped = 0 if self.judge is None else self.judge.dropped
        if not done.draws:
            # A warm-up alone keeps none.
            kept.take(self.chain_states, Segment(0, 0, 1, False, True), done)
        return Finished(kept.on_device(dropped), bad, done.draws)

    def _on_disk(self, disk: Disk, resumed: bool) -> Finished:
        with disk.withdrawn_if_refused(resumed):
            done = self._place(resumed)
            like = self.chain_states.abstract_draws()
            if self.judge is not None:
                self._prepare(self.judge)
            recorder = disk.recorder(like, self.sample_field, self.plan, done, resumed)
        try:
            done = self._advance(done, recorder)
            recorder.leave_out(self.chain_states.stacked)
        finally:
            recorder.close()
        if self.judge is not None:
            recorder.drop(self.judge.dropped)
        draws = recorder.draws()
        if disk.draws is None:
            draws = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), draws)
        return Finished(draws, recorder.store.first_bad, done.draws)

    def _prepare(self, judge: Judge) -> None:
        if self.processes.is_first:
            judge.prepare(self.chain_states.abstract_draws(), self.plan.chunk)

    def _place(self, resumed: bool) -> Progress:
        """Set the chain states to their starts, or to those of the last checkpoint."""
        chain_states = self.chain_states
        if resumed:
            assert self.disk is not None
            stored = self.disk.load(chain_states.abstract())
            if stored is not None:
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

    def _advance(self, done: Progress, kept: Recorder | InMemory) -> Progress:
        """Take the remaining steps, or the steps up to an interruption."""
        self.chain_states.fresh_buffers()
        plan = self.plan.in_chunks(self.chain_states.buffer_size)
        if self.disk is None and self.judge is None:
            # Raises now, and not after hours, where memory cannot hold all draws.
            np.empty(plan.draws * self.chain_states.bytes_of_a_draw, np.uint8)
        course = Course(self.chain_states, plan, kept, self.processes)
        with (
            progress_bars(
                self.kernel,
                self.num_bars,
                self.plan.total,
                done.steps,
                compiling=not self.chain_states.are_compiled,
            ) as bars,
            finish_before_interrupt(self.disk is not None) as interrupted,
        ):
            if self.judge is None:
                done = course.advance(done, bars, lambda count: interrupted())
            else:
                done = course.in_stages(done, bars, interrupted, self.judge)
        if done.steps < self.plan.total and not done.draws:
            raise KeyboardInterrupt("during warm-up, before the first draw that is kept")
        return done
