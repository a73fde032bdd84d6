"""Checkpoints of a run: all that is needed to continue it in another process, to exactly the same draws.

A checkpoint is a folder:

- ``run.json``: the description of kernel, model and data (:mod:`numpyro_bnn.storage.run_identity`), the
  paths that are left out of it, and the names of the collected fields; written after ``start`` and before
  the first step;
- ``start``: random keys and initial positions of the chains;
- ``steps``: complete states of the chains, of the last two checkpoints (orbax);
- ``draws.zarr``: the draws so far, unless `MCMC` was given another folder for them.

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
# The format before it has fewer facts: globals and modules that a model's code reaches are missing.
_BEFORE = "numpyro_bnn checkpoint 1"
# Settings that the shapes of stored states and draws depend on: a resumed run cannot differ in them.
_LENGTHS = ("num_warmup", "num_samples", "num_chains", "thinning", "checkpoint_every")
_FORM = ("sites", *_LENGTHS, "draws", "draws_dtype", "x64")


class Start(NamedTuple):
    """How a run began.

    - **keys** - random key of each chain
    - **init_params** - initial positions of the chains, or None
    - **extra_fields** - names of the state fields to collect
    - **until** - settings of the stopping rule by name, for a run until predictions are known; None for
      a run of fixed length
    - **at** - the inputs (and targets) at which the stopping rule judges predictions, or None
    """

    keys: jax.Array
    init_params: Any
    extra_fields: tuple[str, ...]
    until: dict[str, Any] | None = None
    at: Any = None


class Progress(NamedTuple):
    """How far a run is.

    - **steps** - steps taken so far, warm-up included
    - **draws** - draws of each chain in the store
    """

    steps: int
    draws: int


class Checkpoint:
    """The folder of checkpoints of one run; its files are described at the head of this module.

    :param directory: the folder; made when the run begins.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self._manager: Any = None

    @property
    def store_path(self) -> Path:
        return self.directory / "draws.zarr"

    @property
    def holds_run(self) -> bool:
        """Whether the folder holds the description of a run, which is written before its first step."""
        return self._header.exists()

    @property
    def _header(self) -> Path:
        return self.directory / "run.json"

    @property
    def _draft(self) -> Path:
        """``run.json`` before the run is accepted; it also marks the folder as one of this package."""
        return self.directory / "run.json.partial"

    @property
    def _steps(self) -> Path:
        return self.directory / "steps"

    @property
    def run(self) -> str | None:
        """Identifier of the run, which its store of draws repeats; None for checkpoints of older versions."""
        return self._read_header().get("run")

    def refuse_foreign(self) -> None:
        """Refuse a folder with files that are not of a checkpoint.

        :raises FileExistsError: naming some of the files.
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
        if self.holds_run:
            raise FileExistsError(
                f"checkpoint={str(self.directory)!r} holds a run already. Continue it with "
                "`mcmc.resume(…)`, choose another folder, or remove this one."
            )

    def require_run(self) -> None:
        """:raises FileNotFoundError: if the folder holds no run."""
        if not self.holds_run:
            raise FileNotFoundError(
                f"checkpoint={str(self.directory)!r} holds no run: it was ended before it stored "
                "anything, or the folder is another. Begin with `mcmc.run(…)`."
            )

    def withdraw(self) -> None:
        """Undo `begin`, for a run that was refused before its first step."""
        with suppress(FileNotFoundError):
            os.replace(self._header, self._draft)

    def begin(self, start: Start, described: Described) -> None:
        """Store the description and the start of a run, before its first step.

        Warns of objects that are left out of the description.

        :param start: keys, initial positions and settings.
        :param described: facts about kernel, model and data.
        :raises FileExistsError: if the folder holds a run already.
        :raises TypeError: if the initial positions have a structure that only pickle could store.
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

        :param describe: describes the run that would continue it, leaving out the paths it is given.
        :param accept: paths in which the two runs may differ; None for callers without such an argument.
        :raises FileNotFoundError: if nothing was stored.
        :raises ValueError: if the stored run is another one, naming what differs, or files are damaged.
        """
        self.require_run()
        content = self._read_header()
        self._refuse_other_run(content, describe, accept)
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
        """Random keys, initial positions, and inputs of the stopping rule, as the header lists them."""
        import orbax.checkpoint as ocp

        target = [np.zeros(shape, kind) for shape, kind in start["shapes"]]
        with _quiet_orbax(), ocp.StandardCheckpointer(multiprocessing_options=_alone()) as reader:
            found = reader.restore(self.directory / "start", _named(target))
        form = jax.tree_util.PyTreeDef.deserialize_using_proto(
            jax.tree_util.default_registry, bytes.fromhex(start["form"])
        )
        plain = [found[str(i)] for i in range(len(target))]
        keys, init_params, *more = jax.tree.unflatten(form, _from_plain(plain, start["kinds"]))
        if not more:  # stored before there was a stopping rule
            return keys, init_params, None
        # The inputs of the stopping rule stay on the host as they were given: a device would round them.
        return keys, init_params, jax.tree.unflatten(form, plain)[2]

    @property
    def _safe(self) -> str:
        """For error messages: the draws that a damaged header or start leaves intact."""
        where = f" in {self.store_path}" if self.store_path.exists() else ""
        return (
            f"The draws so far{where} are untouched: read them with `bnn.load`. Restore the damaged file "
            "from a copy to resume, or begin a new run in another folder."
        )

    def _read_header(self) -> dict[str, Any]:
        """The content of ``run.json``: description of the run, collected fields, start.

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

    def _refuse_other_run(
        self,
        content: dict[str, Any],
        describe: Callable[[Collection[str]], Described],
        accept: Collection[str] | None,
    ) -> None:
        """Refuse to continue the stored run with another kernel, model, data or settings.

        :param content: content of ``run.json``.
        :param describe: see :meth:`read_start`.
        :param accept: see :meth:`read_start`.
        :raises ValueError: naming the facts that differ.
        """
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
        """Store the complete states of all chains; the previous checkpoint stays until this one is whole."""
        import orbax.checkpoint as ocp

        plain, kinds = _to_plain(jax.tree.leaves(states))
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(_named(plain)),
            progress=ocp.args.JsonSave({**progress._asdict(), "kinds": kinds}),
        )
        with _quiet_orbax():
            self._open().save(progress.steps, args=args, force=True)

    def last_step(self) -> int | None:
        """The step at which complete states were last stored; None where there are none yet.

        :raises ValueError: if the files that list the stored steps are damaged.
        """
        try:
            return self._open().latest_step()
        except Exception as error:  # damaged files make the readers fail in any way there is
            found = [int(p.name) for p in self._steps.iterdir() if p.name.isdigit()]
            raise self._unreadable(max(found, default=0), error) from error

    def load(self, like: Any, step: int) -> tuple[Any, Progress]:
        """The complete states of all chains, and the steps and draws that they come after.

        :param like: abstract states of the same run, for structure, shapes and dtypes.
        :param step: the step at which they were stored.
        :raises ValueError: if the stored states have another structure or are damaged.
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
    """Options by which orbax waits for no other process: one of them writes, each reads by itself."""
    import orbax.checkpoint as ocp

    here = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )


def check_accept(accept: Any) -> Collection[str]:
    """Refuse an `accept` that is no list of paths, or that names a setting the stored files depend on.

    :param accept: the argument of `resume`.
    :raises TypeError: for anything but a list of names.
    :raises ValueError: for a setting in which a resumed run cannot differ.
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
    """Facts of a checkpoint in the older format, and of the run that continues it, that can be compared."""
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
    """Leaves as NumPy arrays, and for each that was a typed random key the kind of the key."""
    kinds = [str(jax.random.key_impl(x)) if _is_key(x) else None for x in leaves]
    plain = [jax.random.key_data(x) if kind else x for x, kind in zip(leaves, kinds)]
    return [np.asarray(x) for x in plain], kinds


def _zeros_like(leaves: list[Any]) -> list[np.ndarray]:
    """Zeros of the shapes and dtypes that `_to_plain` gives, from abstract leaves."""
    shapes = [jax.eval_shape(jax.random.key_data, x) if _is_key(x) else x for x in leaves]
    return [np.zeros(x.shape, x.dtype) for x in shapes]


def _from_plain(leaves: list[Any], kinds: list[str | None]) -> list[jax.Array]:
    return [
        jnp.asarray(x) if kind is None else jax.random.wrap_key_data(jnp.asarray(x), impl=kind)
        for x, kind in zip(leaves, kinds)
    ]


@contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Silence the warnings that orbax logs about its own waiting."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
