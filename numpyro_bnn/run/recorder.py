"""What a run puts on disk while it goes on, and how it is told to end.

:class:`Disk` is where: a folder for draws, one for checkpoints, or both; :class:`Recorder` writes
there behind the sampler's back. Of several processes the first one writes, and all read.
"""

import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from numpyro_bnn._checks import check_whole
from numpyro_bnn.run.chain_states import ChainStates
from numpyro_bnn.run.plan import Plan, Segment
from numpyro_bnn.samplers.failed_chains import exploded_chains
from numpyro_bnn.storage.checkpoints import Checkpoint, Progress, Start
from numpyro_bnn.storage.chunk_files import DTYPES
from numpyro_bnn.storage.draw_store import DrawStore, Variable, variables_of
from numpyro_bnn.storage.folders import leave_mark, path_of, refuse_nested, require_writable
from numpyro_bnn.storage.locks import FolderInUse, FolderLock
from numpyro_bnn.storage.processes import Processes
from numpyro_bnn.storage.run_identity import Described
from numpyro_bnn.storage.stored_array import StoredArray

_UNWRITABLE = (
    "MCMC: the folder {folder} cannot be written ({why}); nothing was sampled. Give checkpoint= and "
    "draws= folders that can."
)


class Disk(NamedTuple):
    """Where a run is kept.

    - **checkpoint** - folder of checkpoints, or None
    - **every** - steps between them, and in a chunk of draws
    - **draws** - folder of draws; None for one inside `checkpoint`
    - **dtype** - of the draws of sites there; as sampled where None
    - **processes** - of the run
    - **locks** - of the folders, which the first process holds while a run goes on
    """

    checkpoint: Path | None
    every: int
    draws: Path | None
    dtype: str | None
    processes: Processes = Processes()
    locks: tuple[FolderLock, ...] = ()

    @classmethod
    def given(
        cls, checkpoint: Any, every: Any, draws: Any, dtype: Any, processes: Processes
    ) -> "Disk | None":
        """The arguments of ``MCMC``, checked; None for a run in memory."""
        paths = [path_of("checkpoint", checkpoint), path_of("draws", draws)]
        every = check_whole("MCMC", "checkpoint_every", every)
        if dtype is not None and (draws is None or dtype not in DTYPES):
            raise ValueError(
                f"MCMC: draws_dtype must be one of {DTYPES} and goes with `draws=`, got {dtype!r} "
                f"and draws={draws!r}. A checkpoint alone keeps draws as they are."
            )
        if checkpoint is None and draws is None:
            return None
        refuse_nested(*paths)
        locks = tuple(FolderLock(path) for path in paths if path is not None)
        return cls(paths[0], every, paths[1], dtype, processes, locks)

    @property
    def settings(self) -> dict[str, Any]:
        """What the form of the stored draws follows from, by name."""
        draws = None if self.draws is None else self.draws.name
        return {"checkpoint_every": self.every, "draws": draws, "draws_dtype": self.dtype}

    @property
    def store(self) -> DrawStore:
        path = self._checkpoint.store_path if self.draws is None else self.draws
        return DrawStore(path, self.check_locks)

    @property
    def _checkpoint(self) -> Checkpoint:
        assert self.checkpoint is not None
        return Checkpoint(self.checkpoint)

    @contextmanager
    def held(self, resumed: bool) -> Iterator[None]:
        """Keep other runs out of the folders, and refuse those that no run may write to.

        :param resumed: whether the folders should hold a run already, or none.
        :raises FolderInUse: if another run writes there.
        :raises FileExistsError: if there is another run, or files of the user.
        :raises FileNotFoundError: if there should be a run and is none.
        :raises OSError: if the folders cannot be written.
        """
        with ExitStack() as locks:
            self.processes.first(partial(self._take, locks, resumed))
            yield

    def _take(self, locks: ExitStack, resumed: bool) -> None:
        # Links may lead elsewhere than when this was made.
        refuse_nested(self.checkpoint, self.draws)
        if resumed:
            self._checkpoint.require_run()
        else:
            if self.checkpoint is not None:
                self._checkpoint.refuse_foreign()
            self.store.refuse_foreign()
        for lock in self.locks:
            require_writable(lock.folder, _UNWRITABLE)
            lock.acquire()
            locks.callback(lock.release)
        if resumed:
            self.store.refuse_other(self._checkpoint.run)
        else:
            if self.checkpoint is not None:
                self._checkpoint.refuse_occupied()
            self.store.refuse_occupied()

    def check_locks(self) -> None:
        """See :meth:`FolderLock.check`."""
        for lock in self.locks:
            lock.check()

    @contextmanager
    def withdrawn_if_refused(self, resumed: bool) -> Iterator[None]:
        """Leave no begun run behind where its model or settings are refused after all."""
        try:
            yield
        except (TypeError, ValueError):
            if self.checkpoint is not None and self.processes.is_first and not resumed:
                self._checkpoint.withdraw()
            raise

    def begin(self, start: Start, describe: Callable[[], Described]) -> None:
        """Store what a run is, before its first step.

        :raises OSError: if the folders are not those of all processes.
        """
        processes = self.processes
        for folder in (self.checkpoint, self.store.path):
            if folder is None:
                continue
            mark = processes.first(partial(leave_mark, folder, _UNWRITABLE))
            try:
                processes.together(partial(_look_for, folder, mark))
            finally:
                if processes.is_first:
                    (folder / mark).unlink()
        if self.checkpoint is not None:
            processes.first(lambda: self._checkpoint.begin(start, describe()))

    def read_start(
        self, describe: Callable[[Collection[str]], Described], accept: Collection[str]
    ) -> Start:
        """How the stored run began, see :meth:`Checkpoint.read_start`."""
        checkpoint = self._checkpoint
        return self.processes.together(lambda: checkpoint.read_start(describe, accept))

    def load(self, like: Any) -> tuple[Any, Progress] | None:
        """The last complete states and how far they are; None where there are none yet.

        :param like: abstract states of the same run.
        """
        checkpoint = self._checkpoint
        # One process decides: a file system may show the newest folder to others later.
        last = self.processes.first(checkpoint.last_step)
        if last is None:
            return None
        return self.processes.together(lambda: checkpoint.load(like, last))

    def recorder(
        self, like: Any, sample_field: str, plan: Plan, done: Progress, resumed: bool
    ) -> "Recorder":
        """What writes there.

        :param like: abstract draws of a chunk, (chain, draw, …) by field.
        :param sample_field: the field that holds the sites.
        :param plan: of the run.
        :param done: what earlier processes have stored; the store is cut back to it.
        :param resumed: whether there were any.
        """
        variables = variables_of(like, sample_field, 2)
        chains = jax.tree.leaves(like)[0].shape[0]
        store = self.store
        checkpoint = None if self.checkpoint is None else self._checkpoint
        form = jax.tree.structure(like)
        recorder = Recorder(
            store, variables, form, checkpoint, done, self.processes, self.check_locks
        )

        def prepare() -> None:
            with recorder.saying_what_is_safe():
                if resumed and (done.draws or store.is_made):
                    store.check(done.draws, to_continue=True)
                    store.open_for_writing(done.draws)
                    return
                run = uuid.uuid4().hex if checkpoint is None else checkpoint.run
                store.create(variables, chains, plan.draws, plan.chunk, self.dtype, run)

        self.processes.first(prepare)
        return recorder


def _look_for(folder: Path, mark: str) -> None:
    if not (folder / mark).exists():
        raise FileNotFoundError(
            f"MCMC: the folder {folder} of this process is not that of process 0, which writes "
            "there. Give checkpoint= and draws= folders that all processes share."
        )


class Recorder:
    """Puts finished chunks on disk while the next one is computed, on one thread.

    The draws of a chunk are whole on disk before the checkpoint that counts them.

    :param store: where draws go.
    :param variables: what they consist of.
    :param form: of the tree of draws by field, whose leaves they are.
    :param checkpoint: where states go; None for draws alone.
    :param done: what is on disk already.
    :param processes: of the run.
    :param may_write: called before anything is written; raises where this process may not.
    """

    takes_parts = False

    def __init__(
        self,
        store: DrawStore,
        variables: list[Variable],
        form: Any,
        checkpoint: Checkpoint | None,
        done: Progress,
        processes: Processes,
        may_write: Callable[[], None],
    ) -> None:
        self.processes = processes
        self._may_write = may_write
        self.store = store
        self.variables = variables
        self._form = form
        self.checkpoint = checkpoint
        self._safe = done
        self._pending: Future | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="numpyro_bnn recorder")

    def put(self, draws: Callable[[], Any] | None, states: Any, progress: Progress) -> None:
        """Hand over a chunk; waits until the one before is on disk.

        :raises OSError: if that one could not be written.
        """
        self.wait()
        if self.processes.is_first:
            self._pending = self._pool.submit(self._write, draws, states, progress)

    def take(self, chain_states: ChainStates, segment: Segment, progress: Progress) -> None:
        """Take over a chunk that chain_states have finished; warm-up has a checkpoint and no draws."""
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

    def leave_out(self, states: Any) -> None:
        """Note the chains that exploded in a store that earlier releases of this package wrote."""
        if self.processes.is_first:
            self.store.leave_out(exploded_chains(states))

    def wait(self) -> None:
        """Until all that was handed over is on disk.

        :raises OSError: if it could not be written; the message says what is safe.
        :raises RuntimeError: in the processes that do not write, for the same reason.
        """
        pending, self._pending = self._pending, None

        def finish() -> None:
            if pending is not None:
                with self.saying_what_is_safe():
                    pending.result()

        self.processes.together(finish)

    @contextmanager
    def saying_what_is_safe(self) -> Iterator[None]:
        """Add to errors of the disk what is on it already.

        :raises OSError: in place of that of the file system, with its number.
        """
        try:
            yield
        except FolderInUse:
            raise
        except OSError as error:
            said = f"{error.strerror or error}. {self._what_is_safe()}"
            raise OSError(error.errno, said) from error
        except Exception as error:
            # Orbax wraps what the file system says in errors of its own.
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
        """Let no reader count the first draws of each chain."""
        if count:
            self.processes.first(lambda: self.store.note(dropped=count))

    def draws(self) -> dict[str, Any]:
        """All that is in the store and counts, by field: leaves are read when indexed."""
        arrays: dict[tuple[str, str], StoredArray] = self.store.arrays()
        return jax.tree.unflatten(self._form, [arrays[v.group, v.source] for v in self.variables])

    def between(self, begin: int, end: int) -> dict[str, Any]:
        """Draws from one number to another, by field."""
        return jax.tree.map(lambda leaf: leaf[:, begin:end], self.draws())

    def close(self) -> None:
        self._pool.shutdown()
        if self.checkpoint is not None:
            self.checkpoint.close()
