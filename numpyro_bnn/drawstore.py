"""Draws on disk while a run is going: a zarr store that xarray and ArviZ open as it grows.

The store holds two groups like ArviZ's, ``posterior`` (one variable a site) and ``sample_stats``
(one a field of the sampler), with axes (chain, draw, …). A chunk of draws is written in full
before the files that tell the number of draws (``zarr.json``, each replaced atomically) count it,
so that whoever opens the store sees whole draws only, and a kill at any time leaves those that
were counted. Nothing is compressed unless told, every chunk ends in a checksum, and reading one
that was damaged is an error that says which draws are safe.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_bnn.drawfiles import DrawFiles, layout
from numpyro_bnn.faults import first_bad_draws
from numpyro_bnn.site_dims import dims_of, variable_name

FORMAT = "numpyro_bnn draws on disk 1"
POSTERIOR, STATS = "posterior", "sample_stats"
# Bytes of draws that are read at once.
_IN_MEMORY = 2**26


class Variable(NamedTuple):
    """One array of the store.

    - **group** - ``"posterior"`` or ``"sample_stats"``
    - **name** - in the file
    - **source** - name of the site or field; a leaf of a field that is a tree has its path added
    - **shape** - of one value
    - **dtype** - of the draws as they were sampled
    """

    group: str
    name: str
    source: str
    shape: tuple[int, ...]
    dtype: Any


def variables_of(draws: Mapping[str, Any], sample_field: str, lead: int) -> list[Variable]:
    """The arrays that a collection of draws consists of, in the order of its leaves.

    :param draws: abstract or real arrays by field.
    :param sample_field: the field that holds the sites.
    :param lead: number of leading axes (chain, draw) of each array.
    """
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(draws))[0]:
        field, *rest = [_key(part) for part in path]
        own = field == sample_field
        source = ".".join(rest or ["x"]) if own else ".".join([field, *rest])
        group = POSTERIOR if own else STATS
        shape = tuple(leaf.shape[lead:])
        found.append(Variable(group, variable_name(source), source, shape, leaf.dtype))
    names = [(v.group, v.name) for v in found]
    clash = sorted({name for group, name in names if names.count((group, name)) > 1})
    if clash:
        raise ValueError(
            f"draws=: two sites would be stored under the name(s) {clash}. Rename one in the model."
        )
    return found


def _key(part: Any) -> str:
    return str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part))))


class StoredArray:
    """Draws of one variable on disk, shaped (chain, draw, …), read when they are indexed.

    ``np.asarray`` reads all of it; ``array[:, a:b]`` reads those draws alone.

    :param array: the zarr array.
    :param path: of the store, for messages.
    :param chains: which chains to show; all where None.
    """

    def __init__(self, array: Any, path: Path, chains: Any = None) -> None:
        self._array = array
        self.path = path
        self.place: str = array.path
        self.chains = np.arange(array.shape[0]) if chains is None else np.asarray(chains)
        self.shape = (len(self.chains), *array.shape[1:])
        self.dtype = array.dtype
        self.ndim = len(self.shape)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        drawn = index[1] if len(index) > 1 else slice(None)
        if drawn is Ellipsis or index[0] is Ellipsis or isinstance(drawn, (list, np.ndarray)):
            return self._read(slice(None), ())[index]
        if isinstance(drawn, (int, np.integer)):
            at = range(self.shape[1])[drawn]  # raises IndexError beyond the last
            return self._read(slice(at, at + 1), ())[:, 0][(index[0], *index[2:])]
        # The first scalar axis may be cut while reading: files are split along it.
        third = index[2:3] if len(index) > 2 and isinstance(index[2], slice) else ()
        values = self._read(drawn, third)
        rest = (slice(None), *index[3:]) if third else index[2:]
        return values[(index[0], slice(None), *rest)]

    def _read(self, drawn: slice, more: tuple) -> np.ndarray:
        try:
            return np.asarray(self._array[(slice(None), drawn, *more)])[self.chains]
        except (ValueError, RuntimeError, OSError) as error:
            safe = DrawStore(self.path).num_sound
            raise ValueError(
                f"The draws in {self.path} are damaged ({error}). The first {safe} draws of each "
                f"chain are whole: read them with `array[:, :{safe}]`."
            ) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(slice(None), ()), dtype)

    def take_chains(self, chains: Any) -> "StoredArray":
        """The same draws, of some of its chains only."""
        return StoredArray(self._array, self.path, self.chains[np.asarray(chains)])

    def __repr__(self) -> str:
        return f"StoredArray({self.path}, shape={self.shape}, {self.dtype})"


def read_by_scalar(array: StoredArray) -> np.ndarray:
    """All draws of a site, in a file that can be read one scalar at a time.

    Statistics over draws want all draws of a few scalars, and a store holds all scalars of a few
    draws. The draws are copied, a block at a time, to a temporary file with the draws of a scalar
    side by side, which is mapped into memory and goes when the result does.

    :param array: draws on disk.
    :return: (chain, draw, …) in single or double precision, read from the file where it is looked at.
    """
    chains, num_draws, *shape = array.shape
    kind = np.float32 if array.dtype == np.float16 else array.dtype
    if array.nbytes <= _IN_MEMORY:
        return np.asarray(array, kind)
    with tempfile.TemporaryFile() as file:
        turned = np.memmap(file, kind, "w+", shape=(*shape, chains, num_draws))
    step = max(1, _IN_MEMORY // (4 * array.nbytes // num_draws))
    for begin in range(0, num_draws, step):
        turned[..., begin : begin + step] = np.moveaxis(
            array[:, begin : begin + step], (0, 1), (-2, -1)
        )
    return np.moveaxis(turned, (-2, -1), (0, 1))


class DrawStore:
    """A folder of draws; see the module.

    :param path: the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._files: dict[tuple[str, str], DrawFiles] = {}

    @property
    def is_ours(self) -> bool:
        """Whether the store was made to the end."""
        try:
            return bool(self.about)
        except ValueError:
            return False

    def refuse_occupied(self) -> None:
        """:raises FileExistsError: if the folder holds something already."""
        if self.path.exists() and any(self.path.iterdir()):
            raise FileExistsError(
                f"draws={str(self.path)!r} exists and is not empty. Choose another folder, continue "
                "an interrupted run with `resume`, or remove it."
            )

    def create(
        self, variables: list[Variable], chains: int, num_draws: int, chunk: int, dtype: str | None
    ) -> None:
        """Make an empty store for `num_draws` draws, `chunk` of them a file, and open it."""
        import zarr

        root: Any = zarr.open_group(self.path, mode="w", zarr_format=3)
        dims = dims_of({v.source: v.shape for v in variables if v.group == POSTERIOR})
        for group in (POSTERIOR, STATS):
            root.create_group(group)
        for variable in variables:
            own = dims.get(variable.source) if variable.group == POSTERIOR else None
            axes = own or [f"{variable.name}.axis_{i}" for i in range(len(variable.shape))]
            given = dtype if variable.group == POSTERIOR else None
            root[variable.group].create_array(
                variable.name,
                shape=(chains, num_draws, *variable.shape),
                dimension_names=["chain", "draw", *axes],
                attributes={"source": variable.source},
                **layout(variable.dtype, given, chains, chunk, variable.shape),
            )
        about = {
            "format": FORMAT,
            "capacity": num_draws,
            "chunk": chunk,
            "dtype": dtype,
            "num_draws": 0,
            "not_finite": {},
        }
        self._files = self._found()
        self._commit(about)

    # -- writing -------------------------------------------------------------------------------

    def open_for_writing(self, num_draws: int) -> None:
        """Continue after the first `num_draws` draws; later ones are forgotten."""
        about = self.about
        kept = {c: d for c, d in about["not_finite"].items() if d < num_draws}
        about |= {"num_draws": num_draws, "not_finite": kept}
        self._files = self._found()
        self._commit(about)

    def append(self, variables: list[Variable], leaves: list[np.ndarray]) -> None:
        """Add a chunk of draws of every chain; only the last one of a run may be short.

        :param leaves: arrays (chain, draw, …), in the order of `variables`.
        """
        about = self.about
        begin = about["num_draws"]
        sites = [leaf for v, leaf in zip(variables, leaves) if v.group == POSTERIOR]
        for chain, draw in first_bad_draws(sites).items():
            about["not_finite"].setdefault(str(chain), begin + draw)
        for variable, leaf in zip(variables, leaves):
            self._files[variable.group, variable.name].write(begin // about["chunk"], leaf)
        self._commit(about | {"num_draws": begin + leaves[0].shape[1]})

    def note(self, **facts: Any) -> None:
        """Keep what is known of the run once it is finished, such as its suspect chains."""
        self._files = self._found()
        self._commit(self.about | facts)

    def _found(self) -> dict[tuple[str, str], DrawFiles]:
        """The files of every array by group and name."""
        return {
            (group, folder.name): DrawFiles(folder)
            for group in (POSTERIOR, STATS)
            for folder in sorted((self.path / group).iterdir())
            if folder.is_dir()
        }

    def _commit(self, about: dict[str, Any]) -> None:
        """Tell readers the number of draws: every ``zarr.json``, the root's last."""
        known: dict[str, dict] = {}
        for (group, name), files in self._files.items():
            files.about["shape"][1] = about["num_draws"]
            _replace(files.folder / "zarr.json", files.about)
            known[f"{group}/{name}"] = files.about
        for group in (POSTERIOR, STATS):
            inner = {k.partition("/")[2]: v for k, v in known.items() if k.startswith(f"{group}/")}
            known[group] = _group({}, {})
            _replace(self.path / group / "zarr.json", _group({}, inner))
        _replace(self.path / "zarr.json", _group(about, known))

    @property
    def first_bad(self) -> dict[int, int]:
        """First draw of each chain that is not finite, by chain."""
        return {int(chain): draw for chain, draw in self.about["not_finite"].items()}

    # -- reading -------------------------------------------------------------------------------

    @property
    def about(self) -> dict[str, Any]:
        """What the store says about itself.

        :raises ValueError: if the folder is not one of ours.
        """
        try:
            about = json.loads((self.path / "zarr.json").read_text())["attributes"]
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{self.path} holds no draws of numpyro_bnn: {error}.") from error
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ValueError(f"{self.path} holds no draws of numpyro_bnn in the format {FORMAT!r}.")
        return about

    def arrays(self) -> dict[tuple[str, str], StoredArray]:
        """Every array by group and source, lazily."""
        import zarr

        self.check(self.about["num_draws"])
        root: Any = zarr.open_group(self.path, mode="r")
        found = {}
        for group, name in self._found():
            array = root[group][name]
            found[group, array.attrs["source"]] = StoredArray(array, self.path)
        return found

    def check(self, num_draws: int) -> None:
        """Refuse a store with files missing or cut short: a missing one would read as zeros.

        :param num_draws: draws of each chain that should be whole.
        :raises ValueError: saying which draws are.
        """
        sound = self.num_sound
        if sound < num_draws:
            raise ValueError(
                f"{self.path} should hold {num_draws} draws of each chain, but files of draws from "
                f"{sound} on are missing or cut short. The first {sound} are whole; for these run "
                f"`DrawStore({str(self.path)!r}).open_for_writing({sound})`, which forgets the rest."
            )

    @property
    def num_sound(self) -> int:
        """Draws before the first file that is missing, cut short or fails its checksum size."""
        about = self.about
        sound = about["num_draws"]
        for files in self._found().values():
            for chunk in range(-(-sound // about["chunk"])):
                if not files.are_whole(chunk):
                    sound = chunk * about["chunk"]
                    break
        return sound


def _group(attributes: dict, metadata: dict[str, dict]) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": attributes,
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": metadata,
        },
    }


def _replace(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content))
    os.replace(partial, path)
