"""Writes draws and checkpoints of a run to disk while the chains continue.

:class:`Disk` holds the folders: one for draws, one for checkpoints, or both; :class:`Recorder` writes
to them on a thread of its own. Of several processes the first one writes, and all of them read.
"""

import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from numpyro_bnn._checks import check_whole, require_extra
from numpyro_bnn._types import PyTree
from numpyro_bnn.run.chain_states import ChainStates, Plan, Segment
from numpyro_bnn.samplers.suspects import exploded_chains
from numpyro_bnn.storage import folders
from numpyro_bnn.storage.checkpoints import Checkpoint, Progress, Start
from numpyro_bnn.storage.draw_store import DrawStore, variables_of
from numpyro_bnn.storage.folders import FolderInUse, FolderLock
from numpyro_bnn.storage.processes import Processes
from numpyro_bnn.storage.same_run import Facts
from numpyro_bnn.storage.stored_array import DTYPES, StoredArray

_UNWRITABLE = (
    "MCMC: the folder {folder} cannot be written ({why}); nothing was sampled. Give checkpoint= and "
    "draws= folders that can."
)


class Disk(NamedTuple):
    """The folders that a run is stored in."""

    checkpoint: Path | None  # Folder of checkpoints, or None
    every: int  # Steps between checkpoints, and in a chunk of draws
    draws: Path | None  # Folder of draws; None for one inside `checkpoint`
    dtype: str | None  # Dtype in which draws of sites are stored; None for that of the sampler
    processes: Processes = Processes()  # The processes of the run
    # Locks on the folders, which the first process holds during the run
    locks: tuple[FolderLock, ...] = ()

    @classmethod
    def given(
        cls, checkpoint: object, every: object, draws: object, dtype: object, processes: Processes
    ) -> "Disk | None":
        """The arguments of ``MCMC``, checked; None for a run in memory."""
        paths = [folders.path_of(checkpoint), folders.path_of(draws)]
        every = check_whole("MCMC", "checkpoint_every", every)
        if dtype is not None and (draws is None or dtype not in DTYPES):
            raise ValueError(
                f"MCMC: draws_dtype must be one of {DTYPES} and goes with `draws=`, got {dtype!r} "
                f"and draws={draws!r}. A checkpoint alone keeps draws as they are."
            )
        if checkpoint is None and draws is None:
            return None
        require_extra("MCMC: a run on disk (checkpoint=, draws=)", "storage")
        folders.refuse_nested(*paths)
        locks = tuple(FolderLock(path) for path in paths if path is not None)
        return cls(paths[0], every, paths[1], dtype, processes, locks)

    @property
    def settings(self) -> dict[str, object]:
        """Settings that the format of the stored draws depends on, by name."""
        draws = None if self.draws is None else self.draws.name
        return {"checkpoint_every": self.every, "draws": draws, "draws_dtype": self.dtype}

    @property
    def store(self) -> DrawStore:
        """The store of draws: the folder `draws`, or else one inside the checkpoint."""
        path = self._checkpoint.store_path if self.draws is None else self.draws
        return DrawStore(path, self.check_locks)

    @property
    def _checkpoint(self) -> Checkpoint:
        assert self.checkpoint is not None
        return Checkpoint(self.checkpoint)

    @contextmanager
    def locked(self, resumed: bool) -> Iterator[None]:
        """Lock the folders against other runs, and refuse folders that this run must not write to."""
        with ExitStack() as locks:
            self.processes.first(partial(self._take, locks, resumed))
            yield

    def _take(self, locks: ExitStack, resumed: bool) -> None:
        # A symbolic link may have changed since this object was made.
        folders.refuse_nested(self.checkpoint, self.draws)
        if resumed:
            self._checkpoint.require_run()
        else:
            if self.checkpoint is not None:
                self._checkpoint.refuse_foreign()
            self.store.refuse_foreign()
        for lock in self.locks:
            folders.require_writable(lock.folder, _UNWRITABLE)
            lock.acquire()
            locks.callback(lock.release)
        if resumed:
            self.store.refuse_other(self._checkpoint.run)
        else:
            if self.checkpoint is not None:
                self._checkpoint.refuse_occupied()
            self.store.refuse_occupied()

    def check_locks(self) -> None:
        """Check that this process still holds its locks; see :meth:`FolderLock.check`."""
        for lock in self.locks:
            lock.check()

    @contextmanager
    def withdrawn_if_refused(self, resumed: bool) -> Iterator[None]:
        """Remove the header of a new run if its model or settings are refused before the first step."""
        try:
            yield
        except (TypeError, ValueError):
            if self.checkpoint is not None and self.processes.is_first and not resumed:
                self._checkpoint.withdraw()
            raise

    def begin(self, start: Start, facts: Facts, program: Callable[[], dict[str, str]]) -> None:
        """Store what a run is and its start, before its first step; see :meth:`Checkpoint.begin`."""
        processes = self.processes
        for folder in (self.checkpoint, self.store.path):
            if folder is None:
                continue
            mark = processes.first(partial(folders.leave_mark, folder, _UNWRITABLE))
            try:
                processes.together(partial(_look_for, folder, mark))
            finally:
                if processes.is_first:
                    (folder / mark).unlink()
        if self.checkpoint is not None:
            processes.first(lambda: self._checkpoint.begin(start, facts, program()))

    def read_start(self, facts: Facts, accept: Collection[str]) -> Start:
        """How the stored run began, see :meth:`Checkpoint.read_start`."""
        return self.processes.together(lambda: self._checkpoint.read_start(facts, accept))

    def refuse_other_program(self, program: dict[str, str], accept: Collection[str]) -> None:
        """Refuse to continue the stored run with another program than it began with."""
        self.processes.together(lambda: self._checkpoint.refuse_other_program(program, accept))

    def load(self, like: PyTree) -> tuple[PyTree, Progress] | None:
        """The last complete states, and their steps and draws; None where there are none yet."""
        checkpoint = self._checkpoint
        # One process decides: on a shared file system others may see the newest folder later.
        if (last := self.processes.first(checkpoint.last_step)) is None:
            return None
        return self.processes.together(lambda: checkpoint.load(like, last))

    def recorder(
        self, like: PyTree, sample_field: str, plan: Plan, done: Progress, resumed: bool
    ) -> "Recorder":
        """The recorder that writes to these folders."""
        recorder = Recorder(self, like, sample_field, done)
        store, checkpoint = recorder.store, recorder.checkpoint

        def prepare() -> None:
            with recorder.saying_what_is_safe():
                if resumed and (done.draws or store.is_made):
                    store.check(done.draws, to_continue=True)
                    store.open_for_writing(done.draws)
                    return
                run = uuid.uuid4().hex if checkpoint is None else checkpoint.run
                chains = jax.tree.leaves(like)[0].shape[0]
                store.create(recorder.variables, chains, plan.draws, plan.chunk, self.dtype, run)

        self.processes.first(prepare)
        return recorder


def _look_for(folder: Path, mark: str) -> None:
    if not (folder / mark).exists():
        raise FileNotFoundError(
            f"MCMC: the folder {folder} of this process is not that of process 0, which writes "
            "there. Give checkpoint= and draws= folders that all processes share."
        )


class Recorder:
    """Writes finished chunks to disk on a thread: the draws first, then the checkpoint that counts them."""

    takes_parts = False

    def __init__(self, disk: Disk, like: PyTree, sample_field: str, done: Progress) -> None:
        self.processes = disk.processes
        self._may_write = disk.check_locks
        self.store = disk.store
        self.variables = variables_of(like, sample_field)
        self._form = jax.tree.structure(like)
        self.checkpoint = None if disk.checkpoint is None else Checkpoint(disk.checkpoint)
        self._safe = done
        self._pending: Future | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="numpyro_bnn recorder")

    def put(self, draws: Callable[[], PyTree] | None, states: PyTree, progress: Progress) -> None:
        """Hand over a chunk to be written; waits until the one before is on disk."""
        self.wait()
        if self.processes.is_first:
            self._pending = self._pool.submit(self._write, draws, states, progress)

    def take(self, chain_states: ChainStates, segment: Segment, progress: Progress) -> None:
        """Write the chunk that a segment has finished; in warm-up a checkpoint without draws."""
        if segment.warmup:
            self.put(None, chain_states.stacked, progress)
            return
        self.put(chain_states.take(segment.slot + segment.draws), chain_states.stacked, progress)
        chain_states.fresh_buffers()

    def _write(self, draws: Callable[[], Any] | None, states: Any, progress: Progress) -> None:
        self._may_write()
        if draws is not None:
            self.store.leave_out(exploded_chains(states))
            self.store.append(self.variables, jax.tree.leaves(draws()))
        if self.checkpoint is not None:
            self._may_write()
            self.checkpoint.save(states, progress)
        self._safe = progress

    def wait(self) -> None:
        """Wait until everything that was handed over is on disk."""
        pending, self._pending = self._pending, None

        def finish() -> None:
            if pending is not None:
                with self.saying_what_is_safe():
                    pending.result()

        self.processes.together(finish)

    @contextmanager
    def saying_what_is_safe(self) -> Iterator[None]:
        """Add to errors of the file system which steps and draws are on disk already."""
        try:
            yield
        except FolderInUse:
            raise
        except OSError as error:
            message = f"{error.strerror or error}. {self._what_is_safe()}"
            raise OSError(error.errno, message) from error
        except (RuntimeError, ValueError) as error:
            # Orbax wraps errors of the file system in its own.
            error.add_note(self._what_is_safe())
            raise

    def _what_is_safe(self) -> str:
        steps, draws = self._safe
        text = f"The first {draws} draws of each chain are safe in {self.store.path}"
        if self.checkpoint is not None and not steps:
            return (
                "No step was taken that could be lost, and the start is safe in "
                f"{self.checkpoint.directory}; make room, then go on with `mcmc.resume(…)`."
            )
        if self.checkpoint is None:
            return f"{text}; read them with `bnn.load`. This run cannot be continued."
        return (
            f"{text}, and the checkpoint of step {steps} in {self.checkpoint.directory}; make room or "
            "repair the disk, then go on with `mcmc.resume(…)`."
        )

    def drop(self, count: int) -> None:
        """Mark the first `count` draws of each chain as dropped: readers do not show them."""
        if count:
            self.processes.first(lambda: self.store.note(dropped=count))

    def draws(self) -> dict[str, PyTree]:
        """All stored draws that count, by field; leaves are read from disk when indexed."""
        arrays: dict[tuple[str, str], StoredArray] = self.store.arrays()
        return jax.tree.unflatten(self._form, [arrays[v.group, v.source] for v in self.variables])

    def between(self, begin: int, end: int) -> dict[str, PyTree]:
        """Draws `begin` to `end` of each chain, by field."""
        return jax.tree.map(lambda leaf: leaf[:, begin:end], self.draws())

    def close(self) -> None:
        """Wait for the last chunk to be written, and release thread and checkpoint."""
        self._pool.shutdown()
        if self.checkpoint is not None:
            self.checkpoint.close()
