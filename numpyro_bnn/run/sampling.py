"""One run from its start, or from its checkpoint, to its draws: in memory or on disk."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.run.chain_states import ChainStates
from numpyro_bnn.run.course import Course, InMemory, Judge
from numpyro_bnn.run.interrupts import finish_before_interrupt
from numpyro_bnn.run.plan import Plan
from numpyro_bnn.run.progress import progress_bars
from numpyro_bnn.run.recorder import Disk, Recorder
from numpyro_bnn.run.refusals import check_energy
from numpyro_bnn.samplers.failed_chains import first_bad_draws
from numpyro_bnn.storage.checkpoints import Progress, Start
from numpyro_bnn.storage.processes import Processes


class Finished(NamedTuple):
    """What a run leaves.

    - **draws** - that count, by field: leaves (chain, draw, …), in memory or on disk
    - **bad** - first draw of each chain that is not finite, by chain, of all that were sampled
    - **num_draws** - of each chain that were sampled
    """

    draws: dict[str, Any]
    bad: dict[int, int]
    num_draws: int


@dataclass(frozen=True)
class Sampling:
    """What a run consists of.

    :param kernel: says how its chains are doing.
    :param sample_field: the field that holds the sites.
    :param start: keys and starts of the chains.
    :param fit: the model on its data; None for a kernel over a potential function.
    :param chain_states: the chains.
    :param plan: how the run is cut.
    :param disk: where it is kept; None for a run in memory.
    :param processes: that share it.
    :param num_bars: progress bars to show.
    :param warmed_up: states that an earlier warm-up left, to go on from; None for a run of its own.
    :param judge: says when it is long enough; None for a run of fixed length.
    """

    kernel: MCMCKernel
    sample_field: str
    start: Start
    fit: BoundModel | None
    chain_states: ChainStates
    plan: Plan
    disk: Disk | None
    processes: Processes
    num_bars: int
    warmed_up: Any
    judge: Judge | None

    def run(self, resumed: bool) -> Finished:
        """Sample.

        :param resumed: whether to begin where a checkpoint is.
        :raises KeyboardInterrupt: if it was interrupted before the first draw.
        """
        if self.disk is not None:
            return self._on_disk(self.disk, resumed)
        done = self._place(resumed)
        if self.judge is None:
            done = self._advance(done, None)
            draws = self.chain_states.draws(done.draws)
            return Finished(draws, first_bad_draws(draws[self.sample_field]), done.draws)
        self._prepare(self.judge)
        kept = InMemory()
        done = self._advance(done, kept)
        found = kept.between(0, done.draws)
        bad = first_bad_draws(found[self.sample_field])
        dropped = self.judge.dropped
        draws = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, dropped:]), found)
        return Finished(draws, bad, done.draws)

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
        """Put the chains where they start, or where they were stored."""
        chain_states = self.chain_states
        if resumed:
            assert self.disk is not None
            stored = self.disk.load(chain_states.abstract())
            if stored is not None:
                chain_states.continue_from(stored[0])
                return stored[1]
        if self.warmed_up is not None:
            chain_states.continue_from(self.warmed_up._replace(rng_key=self.start.keys))
            return Progress(0, 0)
        chain_states.start()
        states = chain_states.stacked
        if self.fit is not None and hasattr(states, "potential_energy"):
            check_energy(self.fit, states.potential_energy, getattr(states, self.sample_field))
        return Progress(0, 0)

    def _advance(self, done: Progress, kept: Recorder | InMemory | None) -> Progress:
        """Take the steps that are left, or those up to an interruption."""
        course = Course(self.chain_states, self.plan, kept, self.processes)
        self.chain_states.fresh_buffers()
        with (
            progress_bars(self.kernel, self.num_bars, self.plan.total, done.steps) as bars,
            finish_before_interrupt(self.disk is not None) as interrupted,
        ):
            if self.judge is None:
                done = course.advance(done, bars, lambda count: interrupted())
            else:
                done = course.in_stages(done, bars, interrupted, self.judge)
        if done.steps < self.plan.total and not done.draws:
            raise KeyboardInterrupt("during warm-up, before the first draw that is kept")
        return done
