"""Checkpoints of a run: what it takes to continue it in another process to the very same draws.

A checkpoint is a folder:

- ``run.json``: facts that make a run this run (:mod:`numpyro_bnn.storage.run_identity`), paths of what is
  left out of them, and the fields that it collects; written before the first step, after ``start``;
- ``start``: random keys and starts;
- ``steps``: complete states of the chains, the last two (orbax);
- ``draws.zarr``: the draws so far, where they are not kept elsewhere.

Orbax writes a state beside the others and renames it when it is whole, so that a kill or a full
disk at any moment leaves the one before. Nothing here is ever unpickled.
"""

import json
import logging
import os
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.util import find_stack_level

from numpyro_bnn.storage.changed_by_model import warn_of_left_out
from numpyro_bnn.storage.folders import damaged, entries, read_json
from numpyro_bnn.storage.run_identity import Described, Facts, difference, differing, is_within

_FORMAT = "numpyro_bnn checkpoint 2"
# Its facts are fewer: what a model's code reaches was not looked at.
_BEFORE = "numpyro_bnn checkpoint 1"
# What the form of the stored states and draws follows from.
_LENGTHS = ("num_warmup", "num_samples", "num_chains", "thinning", "checkpoint_every")
_FORM = ("sites", *_LENGTHS, "draws", "draws_dtype", "x64")


class Start(NamedTuple):
    """How a run began.

    - **keys** - random key of each chain
    - **init_params** - starts of the chains, or None
    - **extra_fields** - names of the fields to collect
    - **until** - numbers by name that say when the run is long enough; None for one of fixed length
    - **at** - arrays that this is judged at, or None
    """

    keys: jax.Array
    init_params: Any
    extra_fields: tuple[str, ...]
    until: dict[str, Any] | None = None
    at: Any = None


class Progress(NamedTuple):
    """How far a run is.

    - **steps** - taken so far, warm-up included
    - **draws** - of each chain that the store holds
    """

    steps: int
    draws: int


class Checkpoint:
    """A folder of checkpoints; see the module.

    :param directory: the folder; made when the run begins.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self._manager: Any = None

    @property
    def store_path(self) -> Path:
        return self.directory / "draws.zarr"

    @property
    def begun(self) -> bool:
        """Whether a run has stored what it is."""
        return self._header.exists()

    @property
    def _header(self) -> Path:
        return self.directory / "run.json"

    @property
    def _draft(self) -> Path:
        """The header of a run that has not begun: who finds it knows that the folder is ours."""
        return self.directory / "run.json.partial"

    @property
    def _steps(self) -> Path:
        return self.directory / "steps"

    @property
    def run(self) -> str | None:
        """Identity of the run, which its draws have too; None for runs of before there was one."""
        return self._read_header().get("run")

    def refuse_foreign(self) -> None:
        """Refuse a folder with files that no run of ours has put there.

        :raises FileExistsError: naming some.
        """
        found = entries(self.directory)
        if found and not found & {self._header.name, self._draft.name}:
            raise FileExistsError(
                f"checkpoint={str(self.directory)!r} holds files that are not of numpyro_bnn "
                f"({', '.join(sorted(found)[:3])}), which are left as they are. Choose another folder, "
                "which may not exist yet."
            )

    def refuse_occupied(self) -> None:
        """:raises FileExistsError: if the folder holds a run already."""
        if self.begun:
            raise FileExistsError(
                f"checkpoint={str(self.directory)!r} holds a run already. Continue it with "
                "`mcmc.resume(…)`, choose another folder, or remove this one."
            )

    def require_begun(self) -> None:
        """:raises FileNotFoundError: if the folder holds no run."""
        if not self.begun:
            raise FileNotFoundError(
                f"checkpoint={str(self.directory)!r} holds no run: it was ended before it stored "
                "anything, or the folder is another. Begin with `mcmc.run(…)`."
            )

    def withdraw(self) -> None:
        """Take back what `begin` stored: the run was refused before its first step."""
        with suppress(FileNotFoundError):
            os.replace(self._header, self._draft)

    def begin(self, start: Start, described: Described) -> None:
        """Store what a run is, before its first step, and warn of what is no part of it.

        :raises FileExistsError: if the folder holds a run already.
        :raises TypeError: if the starts are of a form that cannot be stored without pickle.
        """
        import orbax.checkpoint as ocp

        self.refuse_occupied()
        warn_of_left_out(f"checkpoint={str(self.directory)!r}", described.unknown)
        leaves, structure = jax.tree.flatten((start.keys, start.init_params, start.at))
        form: Any = structure
        try:
            form = form.serialize_using_proto().hex()
        except ValueError as error:
            raise TypeError(
                "checkpoint=: starts must be dicts, lists or tuples of arrays, got "
                f"{type(start.init_params).__name__}. Give a kernel over a potential such a position."
            ) from error
        except RuntimeError as error:
            raise ValueError(
                "checkpoint=: the names of sites must be valid Unicode, and those of the starts are "
                f"not: one cannot be stored ({list(start.init_params)!a}). Rename it in the model."
            ) from error
        plain, kinds = _to_plain(leaves)
        content = {
            "format": _FORMAT,
            "run": uuid.uuid4().hex,
            "facts": described.facts,
            "left_out": list(described.unknown),
            "extra_fields": start.extra_fields,
            "until": start.until,
            "start": {"form": form, "kinds": kinds, "shapes": _shapes(plain)},
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        self._draft.write_text(json.dumps(content, indent=1))
        with _quiet_orbax(), ocp.StandardCheckpointer(multiprocessing_options=_alone()) as writer:
            writer.save(self.directory / "start", _named(plain), force=True)
        os.replace(self._draft, self._header)

    def read_start(
        self,
        describe: Callable[[Collection[str]], Described],
        accept: Collection[str] | None = None,
    ) -> Start:
        """How the stored run began.

        :param describe: tells the run that would continue it, without the paths that it is given.
        :param accept: paths in which the two may differ; None where nobody can be asked.
        :raises FileNotFoundError: if nothing was stored.
        :raises ValueError: if the run is another, naming what differs, or the files are damaged.
        """
        self.require_begun()
        content = self._read_header()
        self._refuse_another(content, describe, accept)
        try:
            keys, init_params, at = self._read_leaves(content["start"])
        except Exception as error:  # damaged files make the readers fail in any way there is
            raise ValueError(
                f"The start of the run in {self.directory} cannot be read; {self._header} or a file in "
                f"{self.directory / 'start'} is damaged ({type(error).__name__}: {error}). {self._safe}"
            ) from error
        fields = tuple(content["extra_fields"])
        return Start(keys, init_params, fields, content.get("until"), at)

    def _read_leaves(self, start: dict[str, Any]) -> Any:
        """Keys, starts, and what the run is judged at, as the header describes them."""
        import orbax.checkpoint as ocp

        target = [np.zeros(shape, kind) for shape, kind in start["shapes"]]
        with _quiet_orbax(), ocp.StandardCheckpointer(multiprocessing_options=_alone()) as reader:
            found = reader.restore(self.directory / "start", _named(target))
        form = jax.tree_util.PyTreeDef.deserialize_using_proto(
            jax.tree_util.default_registry, bytes.fromhex(start["form"])
        )
        plain = [found[str(i)] for i in range(len(target))]
        keys, init_params, *more = jax.tree.unflatten(form, _from_plain(plain, start["kinds"]))
        if not more:  # the start of a run before they could be of unknown length
            return keys, init_params, None
        # What is judged at stays on the host as it was given: a device would round it.
        return keys, init_params, jax.tree.unflatten(form, plain)[2]

    @property
    def _safe(self) -> str:
        """What a damaged header or start does not touch."""
        where = f" in {self.store_path}" if self.store_path.exists() else ""
        return (
            f"The draws so far{where} are untouched: read them with `bnn.load`. Restore the damaged file "
            "from a copy to resume, or begin a new run in another folder."
        )

    def _read_header(self) -> dict[str, Any]:
        """What a run is, from its header.

        :raises ValueError: if the file is damaged, or of another format.
        """
        content = read_json(self._header, self._safe)
        if content.get("format") not in (_FORMAT, _BEFORE):
            raise ValueError(
                f"{self._header} is no checkpoint of numpyro_bnn in the format {_FORMAT!r}: it names "
                f"the format {content.get('format')!r}. {self._safe}"
            )
        kinds = {"facts": dict, "extra_fields": list, "start": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]
        texts = [*content["extra_fields"], *content["facts"].values()] if not wrong else []
        if wrong or not all(isinstance(text, str) for text in texts):
            error = ValueError(f"it lacks sound fields {wrong or ['facts', 'extra_fields']}")
            raise damaged(self._header, error, self._safe)
        return content

    def _refuse_another(
        self,
        content: dict[str, Any],
        describe: Callable[[Collection[str]], Described],
        accept: Collection[str] | None,
    ) -> None:
        left_out = content.get("left_out", [])
        described = describe(left_out)
        new = {n: why for n, why in described.unknown.items() if not is_within(n, left_out)}
        warn_of_left_out(f"checkpoint={str(self.directory)!r}", new)
        skip = [*left_out, *new, *(accept or ())]
        before, now = content["facts"], described.facts
        if content["format"] == _BEFORE:
            before, now = _known_to_both(before, now)
        before, now = (
            {k: v for k, v in x.items() if not is_within(k, skip)} for x in (before, now)
        )
        differs = differing(before, now)
        if not differs:
            return
        free = [name for name in differs if not is_within(name, _FORM)]
        advice = "Resume with what the run began with, or begin a new run in another folder."
        if accept is not None and len(free) == len(differs):
            advice += f" If that changes no draw, go on with `resume(…, accept={free[:3]})`."
        raise ValueError(
            f"The checkpoint in {self.directory} is of another run, and would not continue to "
            f"the same draws. What differs: {difference(before, now)}. {advice}"
        )

    def save(self, states: Any, progress: Progress) -> None:
        """Store complete states of all chains; the one before stays until this is whole."""
        import orbax.checkpoint as ocp

        plain, kinds = _to_plain(jax.tree.leaves(states))
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(_named(plain)),
            progress=ocp.args.JsonSave({**progress._asdict(), "kinds": kinds}),
        )
        with _quiet_orbax():
            self._open().save(progress.steps, args=args, force=True)

    def last_step(self) -> int | None:
        """Step of the last complete states; None where there are none yet.

        :raises ValueError: if what tells of them is damaged.
        """
        try:
            return self._open().latest_step()
        except Exception as error:  # damaged files make the readers fail in any way there is
            found = [int(p.name) for p in self._steps.iterdir() if p.name.isdigit()]
            raise self._unreadable(max(found, default=0), error) from error

    def load(self, like: Any, step: int) -> tuple[Any, Progress]:
        """Complete states and how far they are.

        :param like: abstract states of the same run.
        :param step: that they were stored at.
        :raises ValueError: if the stored states have another form or are damaged.
        """
        import orbax.checkpoint as ocp

        leaves, structure = jax.tree.flatten(like)
        plain = _zeros_like(leaves)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(_named(plain)), progress=ocp.args.JsonRestore()
        )
        try:
            with _quiet_orbax():
                found = self._open().restore(step, args=args)
            progress = Progress(*(int(found.progress[name]) for name in Progress._fields))
            if progress.steps != step or not 0 <= progress.draws <= step:
                raise ValueError(f"it tells {progress}")
            kinds = found.progress["kinds"]
            restored = _from_plain([found.state[str(i)] for i in range(len(plain))], kinds)
            return jax.tree.unflatten(structure, restored), progress
        except Exception as error:  # damaged files make the readers fail in any way there is
            raise self._unreadable(step, error) from error

    def _unreadable(self, step: int, error: Exception) -> ValueError:
        return ValueError(
            f"The checkpoint of step {step} in {self.directory} cannot be read: a file in "
            f"{self._steps / str(step)} is damaged ({type(error).__name__}: {error}). The draws are "
            f"untouched. If an earlier step is in {self._steps}, remove the folder {step} to go back to "
            "it; the run then gives the same draws again."
        )

    def close(self) -> None:
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _open(self) -> Any:
        if self._manager is None:
            import orbax.checkpoint as ocp

            self._steps.mkdir(parents=True, exist_ok=True)
            options = ocp.CheckpointManagerOptions(
                max_to_keep=2,
                enable_async_checkpointing=False,
                create=False,
                multiprocessing_options=_alone(),
            )
            with _quiet_orbax():
                self._manager = ocp.CheckpointManager(
                    self._steps, options=options, item_names=("state", "progress")
                )
        return self._manager


def _alone() -> Any:
    """Orbax waits for no other process: one of them writes, and each reads when it likes."""
    import orbax.checkpoint as ocp

    here = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )


def check_accept(accept: Any) -> Collection[str]:
    """Refuse what is no list of paths, or a path that the stored files depend on.

    :raises TypeError: for another kind.
    :raises ValueError: for a path that no run can differ in.
    """
    names = isinstance(accept, (list, tuple, set, frozenset))
    if not names or not all(isinstance(name, str) and name for name in accept):
        raise TypeError(
            "resume: accept must be a list of names that the message of a refused `resume` gives, such "
            f"as ['kernel.model.SCALE'], got {accept!r}."
        )
    fixed = [name for name in accept if is_within(name, _FORM)]
    if fixed:
        raise ValueError(
            f"resume: accept={fixed} cannot differ, because the stored states and draws have that form. "
            "Resume with what the run began with, or begin a new run in another folder."
        )
    return accept


def _known_to_both(before: Facts, now: Facts) -> tuple[Facts, Facts]:
    """Facts of a checkpoint of the format before this one, and those that it is compared in."""
    warnings.warn(
        "The checkpoint was written by an earlier version, which did not look at globals and modules "
        "that a model reaches. What it did look at is compared; see to the rest yourself.",
        stacklevel=find_stack_level(),
    )
    told = [
        name
        for name in before
        if name in now
        and ".wrapped" not in name
        and not before[name].startswith("as ")
        and not now[name].startswith(("as ", "not compared"))
        and " #" not in now[name]
    ]
    return {n: before[n] for n in told}, {n: now[n] for n in told}


def _named(leaves: list[Any]) -> dict[str, Any]:
    return {str(i): leaf for i, leaf in enumerate(leaves)}


def _shapes(leaves: list[np.ndarray]) -> list[tuple[list[int], str]]:
    return [(list(leaf.shape), str(leaf.dtype)) for leaf in leaves]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_plain(leaves: list[Any]) -> tuple[list[np.ndarray], list[str | None]]:
    """Arrays of numbers on the host, and which of them stand for random keys of which kind."""
    kinds = [str(jax.random.key_impl(x)) if _is_key(x) else None for x in leaves]
    plain = [jax.random.key_data(x) if kind else x for x, kind in zip(leaves, kinds)]
    return [np.asarray(x) for x in plain], kinds


def _zeros_like(leaves: list[Any]) -> list[np.ndarray]:
    """What `_to_plain` gives for arrays of which only the shapes are known."""
    shapes = [jax.eval_shape(jax.random.key_data, x) if _is_key(x) else x for x in leaves]
    return [np.zeros(x.shape, x.dtype) for x in shapes]


def _from_plain(leaves: list[Any], kinds: list[str | None]) -> list[jax.Array]:
    return [
        jnp.asarray(x) if kind is None else jax.random.wrap_key_data(jnp.asarray(x), impl=kind)
        for x, kind in zip(leaves, kinds)
    ]


@contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Orbax logs warnings about how it waits for itself."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
