"""Checkpoints of a run: files from which another process continues it to exactly the same draws.

A checkpoint is a folder:

- ``run.json``: settings, digests of the data, versions, the program that kernel and model lower to
  (:mod:`numpyro_bnn.storage.same_run`), and the names of the collected fields; written after ``start`` and
  before the first step;
- ``start``: random keys and initial positions of the chains;
- ``steps``: complete states of the chains, of the last two checkpoints (orbax);
- ``draws.zarr``: the draws so far, unless `MCMC` was given another folder for them.

Orbax writes a state to a new folder and renames that when it is complete. So a killed process or a full
disk leaves the state before it intact. Nothing here is ever unpickled.
"""

import json
import logging
import lzma
import os
import uuid
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn._checks import is_typed_key
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.storage.folders import UNREADABLE, damaged, entries, read_json
from numpyro_bnn.storage.same_run import Facts, refuse_other_facts, refuse_other_program

_FORMAT = "numpyro_bnn checkpoint 3"


class Start(NamedTuple):
    """How a run began."""

    keys: jax.Array  # Random key of each chain
    init_params: PyTree  # Initial positions of the chains, or None
    extra_fields: tuple[str, ...]  # Names of the state fields to collect
    # Settings of the stopping rule by name, for a run until predictions are known; None for a run of fixed
    # length
    until: dict[str, Any] | None = None
    # The inputs (and targets) at which the stopping rule judges predictions, or None
    at: PyTree = None


class Progress(NamedTuple):
    """The number of steps and draws that a run has taken."""

    steps: int  # Steps taken so far, warm-up included
    draws: int  # Draws of each chain in the store


class Checkpoint:
    """The folder of checkpoints of one run; its files are described at the head of this module."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self.store_path = self.directory / "draws.zarr"
        self._header = self.directory / "run.json"
        # The header before the run is accepted; it also marks the folder as one of this package.
        self._draft = self.directory / "run.json.partial"
        self._steps = self.directory / "steps"
        self._manager: Any = None

    @property
    def holds_run(self) -> bool:
        """Whether the folder holds the description of a run, which is written before its first step."""
        return self._header.exists()

    @property
    def run(self) -> str | None:
        """Identifier of the run, which its store of draws repeats."""
        return self._read_header().get("run")

    def refuse_foreign(self) -> None:
        """Refuse a folder with files that are not of a checkpoint."""
        # The empty store of a run that was ended while it compiled is no draw lost.
        empty = set() if entries(self.store_path) else {self.store_path.name}
        files = entries(self.directory) - empty
        if files and not files & {self._header.name, self._draft.name}:
            raise FileExistsError(
                f"checkpoint={str(self.directory)!r} holds files that are not of numpyro_bnn "
                f"({', '.join(sorted(files)[:3])}), which are left as they are. Choose another folder, "
                "which may not exist yet."
            )

    def refuse_occupied(self) -> None:
        """Refuse a folder that holds a run already."""
        if self.holds_run:
            raise FileExistsError(
                f"checkpoint={str(self.directory)!r} holds a run already. Continue it with "
                "`mcmc.resume(…)`, choose another folder, or remove this one."
            )

    def require_run(self) -> None:
        """Refuse a folder that holds no run."""
        if not self.holds_run:
            raise FileNotFoundError(
                f"checkpoint={str(self.directory)!r} holds no run: it was ended before it stored "
                "anything, or the folder is another. Begin with `mcmc.run(…)`."
            )

    def withdraw(self) -> None:
        """Undo `begin`, for a run that was refused before its first step."""
        with suppress(FileNotFoundError):
            os.replace(self._header, self._draft)

    def begin(self, start: Start, facts: Facts, program: Mapping[str, str]) -> None:
        """Store what a run is and its start, before its first step."""
        self.refuse_occupied()
        leaves, structure = jax.tree.flatten((start.keys, start.init_params, start.at))
        form: Any = structure
        try:
            form = form.serialize_using_proto().hex()
        except ValueError as error:
            raise TypeError(
                "checkpoint=: starts must be dicts, lists or tuples of arrays, got "
                f"{type(start.init_params).__name__}. Give a kernel over a potential such a position."
            ) from error
        plain, kinds = _to_plain(leaves)
        content = {
            "format": _FORMAT,
            "run": uuid.uuid4().hex,
            "facts": facts,
            "kernel": program["kernel"],
            "program": b64encode(lzma.compress(program["program"].encode())).decode(),
            "extra_fields": start.extra_fields,
            "until": start.until,
            "start": {
                "form": form,
                "kinds": kinds,
                "shapes": [(list(x.shape), str(x.dtype)) for x in plain],
            },
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        self._draft.write_text(json.dumps(content, indent=1))
        with _quiet_orbax() as ocp, ocp.StandardCheckpointer(**_alone(ocp)) as writer:
            writer.save(self.directory / "start", _named(plain), force=True)
        os.replace(self._draft, self._header)

    def read_start(self, facts: Facts, accept: Collection[str] | None = None) -> Start:
        """How the stored run began."""
        self.require_run()
        content = self._read_header()
        refuse_other_facts(self.directory, content["facts"], facts, accept)
        try:
            keys, init_params, at = self._read_leaves(content["start"])
        except UNREADABLE as error:
            raise ValueError(
                f"The start of the run in {self.directory} cannot be read; {self._header} or a file in "
                f"{self.directory / 'start'} is damaged ({type(error).__name__}: {error}). {self._safe}"
            ) from error
        return Start(keys, init_params, tuple(content["extra_fields"]), content.get("until"), at)

    def refuse_other_program(
        self, program: Mapping[str, str], accept: Collection[str] | None = None
    ) -> None:
        """Refuse to continue the stored run with another program than it began with."""
        content = self._read_header()
        try:
            text = lzma.decompress(b64decode(content["program"])).decode()
        except (ValueError, lzma.LZMAError) as error:
            raise damaged(self._header, error, self._safe) from error
        before = {"kernel": content["kernel"], "program": text}
        refuse_other_program(self.directory, before, program, accept)

    def _read_leaves(self, start: dict[str, Any]) -> Any:
        """Random keys, initial positions, and inputs of the stopping rule, as the header lists them."""
        target = [np.zeros(shape, kind) for shape, kind in start["shapes"]]
        with _quiet_orbax() as ocp, ocp.StandardCheckpointer(**_alone(ocp)) as reader:
            found = reader.restore(self.directory / "start", _named(target))
        form = jax.tree_util.PyTreeDef.deserialize_using_proto(
            jax.tree_util.default_registry, bytes.fromhex(start["form"])
        )
        plain = _in_order(found, target)
        keys, init_params, _ = jax.tree.unflatten(form, _from_plain(plain, start["kinds"]))
        # The inputs of the stopping rule stay on the host in their own precision: a device would round them.
        return keys, init_params, jax.tree.unflatten(form, plain)[2]

    @property
    def _safe(self) -> str:
        """A sentence for errors: which draws are intact when header or start are damaged."""
        where = f" in {self.store_path}" if self.store_path.exists() else ""
        return (
            f"The draws so far{where} are untouched: read them with `bnn.load`. Restore the damaged file "
            "from a copy to resume, or begin a new run in another folder."
        )

    def _read_header(self) -> dict[str, Any]:
        """The content of ``run.json``: description of the run, collected fields, start."""
        content = read_json(self._header, self._safe)
        if content.get("format") != _FORMAT:
            raise ValueError(
                f"{self._header} is no checkpoint of numpyro_bnn in the format {_FORMAT!r}: it names "
                f"the format {content.get('format')!r}. {self._safe}"
            )
        return content

    def save(self, states: PyTree, progress: Progress) -> None:
        """Store the complete states of all chains; until that is done the last checkpoint is kept."""
        plain, kinds = _to_plain(jax.tree.leaves(states))
        with _quiet_orbax() as ocp:
            args = ocp.args.Composite(
                state=ocp.args.StandardSave(_named(plain)),
                progress=ocp.args.JsonSave({**progress._asdict(), "kinds": kinds}),
            )
            self._open().save(progress.steps, args=args, force=True)

    def last_step(self) -> int | None:
        """The step at which complete states were last stored; None where there are none yet."""
        try:
            return self._open().latest_step()
        except UNREADABLE as error:
            steps = [int(p.name) for p in self._steps.iterdir() if p.name.isdigit()]
            raise self._unreadable(max(steps, default=0), error) from error

    def load(self, like: PyTree, step: int) -> tuple[PyTree, Progress]:
        """The complete states of all chains, and the numbers of steps and draws taken before them."""
        leaves, structure = jax.tree.flatten(like)
        with self._reading(step) as args:
            wanted = args.Composite(progress=args.JsonRestore())
            told = self._open().restore(step, args=wanted).progress
            progress = Progress(*(int(told[name]) for name in Progress._fields))
            kinds = list(told["kinds"])
        if len(kinds) != len(leaves):
            raise ValueError(
                f"The states in {self._steps / str(step)} were written by another version of numpyro_bnn: "
                f"they consist of {len(kinds)} arrays, and those of this version of {len(leaves)}. The draws "
                "are untouched: read them with `bnn.load`. Finish this run with the version that began it, "
                "or begin another one in another folder."
            )
        shapes = [jax.eval_shape(jax.random.key_data, x) if is_typed_key(x) else x for x in leaves]
        plain = [np.zeros(x.shape, x.dtype) for x in shapes]
        with self._reading(step) as args:
            state = args.StandardRestore(_named(plain))
            found = self._open().restore(step, args=args.Composite(state=state)).state
            restored = _from_plain(_in_order(found, plain), kinds)
            return jax.tree.unflatten(structure, restored), progress

    @contextmanager
    def _reading(self, step: int) -> Iterator[Any]:
        """Orbax's arguments of `restore`; errors say that the checkpoint of a step cannot be read."""
        try:
            with _quiet_orbax() as ocp:
                yield ocp.args
        except UNREADABLE as error:
            raise self._unreadable(step, error) from error

    def _unreadable(self, step: int, error: Exception) -> ValueError:
        return ValueError(
            f"The checkpoint of step {step} in {self.directory} cannot be read: a file in "
            f"{self._steps / str(step)} is damaged ({type(error).__name__}: {error}). The draws are "
            f"untouched. If an earlier step is in {self._steps}, remove the folder {step} to go back to "
            "it; the run then gives the same draws again."
        )

    def close(self) -> None:
        """Wait for states to be written, and release the files."""
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _open(self) -> Any:
        if self._manager is None:
            self._steps.mkdir(parents=True, exist_ok=True)
            with _quiet_orbax() as ocp:
                options = ocp.CheckpointManagerOptions(
                    max_to_keep=2, enable_async_checkpointing=False, create=False, **_alone(ocp)
                )
                self._manager = ocp.CheckpointManager(
                    self._steps, options=options, item_names=("state", "progress")
                )
        return self._manager


def _alone(ocp: Any) -> dict[str, Any]:
    """Options of orbax for one process that writes, or reads, without waiting for the others."""
    here = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )
    return {"multiprocessing_options": options}


def _named(leaves: Sequence[Array]) -> dict[str, Array]:
    """Leaves by their position as text: orbax stores mappings with text keys, and no empty arrays."""
    return {str(i): leaf for i, leaf in enumerate(leaves) if leaf.size}


def _in_order(found: Mapping[str, Array], like: Sequence[Array]) -> list[Array]:
    """The leaves that `named` was given, from what orbax restored; empty ones as in `like`."""
    return [found[str(i)] if leaf.size else leaf for i, leaf in enumerate(like)]


def _to_plain(leaves: Sequence[Array]) -> tuple[list[np.ndarray], list[str | None]]:
    """Leaves as NumPy arrays, and for each that was a typed random key the kind of the key."""
    kinds = [str(jax.random.key_impl(x)) if is_typed_key(x) else None for x in leaves]
    plain = [jax.random.key_data(x) if kind else x for x, kind in zip(leaves, kinds)]
    return [np.asarray(x) for x in plain], kinds


def _from_plain(leaves: Sequence[Array], kinds: list[str | None]) -> list[jax.Array]:
    """The leaves that `to_plain` was given: arrays of JAX, and keys of their own kinds."""
    return [
        jnp.asarray(x) if kind is None else jax.random.wrap_key_data(jnp.asarray(x), impl=kind)
        for x, kind in zip(leaves, kinds)
    ]


@contextmanager
def _quiet_orbax() -> Iterator[Any]:
    """Orbax, without the warnings that it logs about its own waiting."""
    import orbax.checkpoint as ocp

    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield ocp
    finally:
        logger.setLevel(before)
