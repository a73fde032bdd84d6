"""A zarr store that draws are written to during a run, and that xarray and ArviZ can open meanwhile.

The store holds two groups named as in ArviZ, ``posterior`` (one variable a site) and ``sample_stats`` (one a
field of the sampler), with axes (chain, draw, …). A chunk of draws is written in full before the metadata
(``zarr.json``, each file replaced atomically) count it. So readers see complete draws only, and when the
process is killed, all draws that were counted are intact. Every chunk ends in a checksum, and reading a
damaged chunk raises an error that says which draws are intact. A site becomes a folder and a variable of an
xarray dataset, whose axes have names too: a site of such a name is refused.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.not_finite import first_bad_draws, not_finite
from numpyro_bnn.priors.paths import dims_of, variable_name
from numpyro_bnn.storage.folders import UNREADABLE, damaged, entries, read_json
from numpyro_bnn.storage.stored_array import DrawFiles, StoredArray, layout

FORMAT = "numpyro_bnn draws on disk 1"
_SAFE = "The draws in its subfolders are untouched; restore the file from a copy."


# The two groups of a store, named as ArviZ names them.
POSTERIOR, STATS = "posterior", "sample_stats"


class Variable(NamedTuple):
    """One array of the store."""

    group: str  # ``"posterior"`` or ``"sample_stats"``
    name: str  # Its name in the file
    source: str  # Name of the site or state field; for a pytree, with the path of the leaf
    shape: tuple[int, ...]  # Shape of one draw
    dtype: np.dtype  # Dtype of the draws as they were sampled


def variables_of(draws: Mapping[str, PyTree], sample_field: str) -> list[Variable]:
    """The variables to store for the fields that a run collects, in the order of the leaves."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(draws))[0]:
        field, *rest = (jax.tree_util.keystr((part,), simple=True) for part in path)
        own = field == sample_field
        source = ".".join(rest or ["x"]) if own else ".".join([field, *rest])
        group = POSTERIOR if own else STATS
        shape = tuple(leaf.shape[2:])
        found.append(Variable(group, variable_name(source), source, shape, leaf.dtype))
    for group in (POSTERIOR, STATS):
        _refuse_clashes([v for v in found if v.group == group])
    return found


def axes_of(variables: list[Variable]) -> list[list[str]]:
    """Names of the axes of each variable of one group, beside (chain, draw)."""
    named = dims_of({v.source: v.shape for v in variables if v.group == POSTERIOR})
    return [
        (named[v.source] if v.group == POSTERIOR else [])
        or [f"{v.name}.axis_{i}" for i in range(len(v.shape))]
        for v in variables
    ]


def _refuse_clashes(variables: list[Variable]) -> None:
    """Refuse names that variables of one dataset cannot have."""
    axes = {"chain", "draw", *(axis for names in axes_of(variables) for axis in names)}
    sites: dict[str, str] = {}
    for _, name, site, *_ in variables:
        if name in axes:
            raise ValueError(
                f"MCMC: the site {site!r} cannot be stored under {name!r}, which is the name of an axis of "
                "the draws. Rename it in the model."
            )
        if name in sites:
            raise ValueError(
                f"MCMC: the sites {sites[name]!r} and {site!r} would be stored under one name, {name!r}. "
                "Rename one in the model."
            )
        sites[name] = site


class DrawStore:
    """The draws of one run on disk; the head of this module describes the folder."""

    def __init__(self, path: str | Path, guard: Callable[[], None] = lambda: None) -> None:
        self.path = Path(path)
        self._guard = guard
        self._files: dict[tuple[str, str], DrawFiles] = {}

    @property
    def is_made(self) -> bool:
        """Whether the folder holds a store whose creation was completed."""
        return (self.path / "zarr.json").exists() and not self._read_about().get("unfinished")

    def refuse_foreign(self) -> None:
        """Refuse a folder with files that are not of a store of draws."""
        if not (self.path / "zarr.json").exists():
            self.refuse_occupied()

    def refuse_occupied(self) -> None:
        """Refuse a folder that is not empty."""
        if entries(self.path):
            raise FileExistsError(
                f"draws={str(self.path)!r} exists and is not empty. Choose another folder, continue "
                "an interrupted run with `resume`, or remove it."
            )

    def refuse_other(self, run: str | None) -> None:
        """Refuse a folder that holds anything but the draws of one run."""
        if not (found := entries(self.path)):
            return
        if "zarr.json" not in found:
            some = ", ".join(sorted(found)[:3])
            what = f"files that are not of numpyro_bnn, or lost their `zarr.json` ({some})"
        elif self._read_about().get("run") != run:
            what = "the draws of another run"
        else:
            return
        raise FileExistsError(
            f"draws={str(self.path)!r} holds {what}, which are left as they are. Give `MCMC` the "
            "folder of draws that the run began with, or an empty one."
        )

    def create(
        self,
        variables: list[Variable],
        chains: int,
        num_draws: int,
        chunk: int,
        dtype: str | None,
        run: str | None = None,
    ) -> None:
        """Create an empty store and open it for writing."""
        import zarr

        self.refuse_other(run)
        if self.is_made:
            raise FileExistsError(f"{self.path} holds draws already. Choose another folder.")
        self._guard()
        self.path.mkdir(parents=True, exist_ok=True)
        about: dict[str, Any] = {"format": FORMAT, "run": run}
        _replace(self.path / "zarr.json", _group(about | {"unfinished": True}, {}))
        for group in (POSTERIOR, STATS):
            shutil.rmtree(self.path / group, ignore_errors=True)
        root: Any = zarr.open_group(self.path, mode="a", zarr_format=3)
        groups = {group: root.create_group(group) for group in (POSTERIOR, STATS)}
        for variable, axes in zip(variables, axes_of(variables)):
            stored_dtype = dtype if variable.group == POSTERIOR else None
            groups[variable.group].create_array(
                variable.name,
                shape=(chains, num_draws, *variable.shape),
                dimension_names=["chain", "draw", *axes],
                attributes={"source": variable.source},
                **layout(variable.dtype, stored_dtype, chains, chunk, variable.shape),
            )
        about |= {
            "capacity": num_draws,
            "chunk": chunk,
            "dtype": dtype,
            "num_draws": 0,
            "not_finite": {},
            "left_out": {},
        }
        self._files = {
            (v.group, v.name): DrawFiles(self.path / v.group / v.name) for v in variables
        }
        self._commit(about)

    # -- writing -------------------------------------------------------------------------------

    def open_for_writing(self, num_draws: int) -> None:
        """Continue after the first `num_draws` draws; later ones no longer count and are overwritten."""
        about = self.about
        about["not_finite"] = {c: d for c, d in about["not_finite"].items() if d < num_draws}
        about["left_out"] = {c: o for c, o in about["left_out"].items() if o["after"] < num_draws}
        about["num_draws"] = num_draws
        about["dropped"] = 0
        self._commit(about)

    def append(self, variables: list[Variable], leaves: list[np.ndarray]) -> None:
        """Add a chunk of draws of every chain; only the last one of a run may be short."""
        self._guard()
        about = self.about
        begin = about["num_draws"]
        sites = [leaf for v, leaf in zip(variables, leaves) if v.group == POSTERIOR]
        for chain, draw in first_bad_draws(sites).items():
            about["not_finite"].setdefault(str(chain), begin + draw)
        for variable, leaf in zip(variables, leaves):
            self._files[variable.group, variable.name].write(begin // about["chunk"], leaf)
        self._commit(about | {"num_draws": begin + leaves[0].shape[1]})

    def note(self, **facts: object) -> None:
        """Write facts about the whole run into the metadata, such as its suspect chains."""
        self._commit(self.about | facts)

    def _found(self) -> dict[tuple[str, str], DrawFiles]:
        """The files of every array by group and name, as the metadata list them."""
        path = self.path / "zarr.json"
        try:
            known = list(read_json(path, _SAFE)["consolidated_metadata"]["metadata"])
        except (KeyError, TypeError) as error:
            raise damaged(path, error, _SAFE) from error
        names = [(group, name) for group, _, name in (key.partition("/") for key in known) if name]
        return {(group, name): DrawFiles(self.path / group / name) for group, name in names}

    def _commit(self, about: dict[str, Any]) -> None:
        """Write the number of draws where readers look for it: every ``zarr.json``, the root's last."""
        self._guard()
        self._files = self._files or self._found()
        known: dict[str, dict] = {}
        for (group, name), files in self._files.items():
            files.about["shape"][1] = about["num_draws"]
            _replace(files.folder / "zarr.json", files.about)
            known[f"{group}/{name}"] = files.about
        for group in (POSTERIOR, STATS):
            inner = {k.partition("/")[2]: v for k, v in known.items() if k.startswith(f"{group}/")}
            known[group] = _group({}, {})
            _replace(self.path / group / "zarr.json", _group({}, inner))
        # zarr 3.0.8 loses the first arrays of a group whose arrays are listed in two places.
        _replace(self.path / "zarr.json", _group(about, dict(sorted(known.items()))))

    def leave_out(self, failed: Mapping[int, str]) -> None:
        """Record chains to leave out of averages although their draws are finite."""
        about = self.about
        new = {str(chain): why for chain, why in failed.items()}
        new = {chain: why for chain, why in new.items() if chain not in about["left_out"]}
        if new:
            after = about["num_draws"]
            about["left_out"] |= {c: {"after": after, "why": why} for c, why in new.items()}
            self._commit(about)

    @property
    def first_bad(self) -> dict[int, int]:
        """Index of the first draw with NaN or infinities, by chain that has any."""
        return {int(chain): draw for chain, draw in self.about["not_finite"].items()}

    @property
    def failed(self) -> dict[int, str]:
        """Chains to leave out, with the reason."""
        left_out = {int(chain): noted["why"] for chain, noted in self.about["left_out"].items()}
        return left_out | not_finite(self.first_bad)

    # -- reading -------------------------------------------------------------------------------

    @property
    def about(self) -> dict[str, Any]:
        """The attributes of the store: format, number of draws, chunk length, chains to leave out."""
        about = self._read_about()
        if about.get("unfinished"):
            raise ValueError(
                f"{self.path} holds no draws of numpyro_bnn yet: its run was ended before the first."
            )
        return about

    def _read_about(self) -> dict[str, Any]:
        path = self.path / "zarr.json"
        try:
            about = read_json(path, _SAFE).get("attributes")
        except OSError as error:
            raise ValueError(f"{self.path} holds no draws of numpyro_bnn: {error}.") from error
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ValueError(
                f"{self.path} holds no draws of numpyro_bnn: {path} does not name the format "
                f"{FORMAT!r}. Its files are left as they are."
            )
        # A run that drops no draws does not say so.
        return {"dropped": 0, **about}

    def arrays(self) -> dict[tuple[str, str], StoredArray]:
        """Every array by group and source, read on demand; draws dropped from the beginning are not shown."""
        import zarr

        about = self.about
        self.check(about["num_draws"])
        try:
            root: Any = zarr.open_group(self.path, mode="r")
            found = {}
            for (group, name), files in self._found().items():
                array = root[group][name]
                found[group, array.attrs["source"]] = StoredArray(
                    array, self, files, about.get("run"), first=about["dropped"]
                )
        except UNREADABLE as error:
            raise damaged(self.path / "zarr.json", error, _SAFE) from error
        return found

    def check(self, num_draws: int, to_continue: bool = False) -> None:
        """Refuse a store with files missing or cut short: zarr would read a missing one as zeros."""
        if self._first_sound(to_continue) >= num_draws:
            return
        sound = min(num_draws, self.num_sound)
        what = (
            f"{self.path} should hold {num_draws} draws of each chain, but files of draws from "
            f"{sound} on are missing, cut short or changed."
        )
        if to_continue:
            what += " The run cannot go on from there; begin it anew in another folder."
        if not sound:
            raise ValueError(f"{what} No draw is whole in every chain and site.")
        raise ValueError(
            f"{what} The first {sound} are whole: `from numpyro_bnn.storage.draw_store import DrawStore; "
            f"DrawStore({str(self.path)!r}).open_for_writing({sound})` forgets the rest, and "
            "`bnn.load` reads them then."
        )

    @property
    def num_sound(self) -> int:
        """Number of draws before the first file that is missing, cut short or fails its checksum."""
        return self._first_sound(with_checksums=True)

    def _first_sound(self, with_checksums: bool) -> int:
        about = self.about
        sound = about["num_draws"]
        for files in self._found().values():
            for chunk in range(-(-sound // about["chunk"])):
                if not files.are_whole(chunk, with_checksums):
                    sound = chunk * about["chunk"]
                    break
        return sound


def _group(attributes: dict, metadata: dict[str, dict]) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": attributes,
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata},
    }


def _replace(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content))
    os.replace(partial, path)
