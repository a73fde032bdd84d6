"""The files of a zarr array of draws, and the array whose values are read from them when they are indexed.

Zarr writes them chunk by chunk, and they are checked before they are read. Metadata on disk count the draws
that are whole, so the array that zarr writes to is another one, in memory, that ends with the chunk. A file
holds numbers in C order, then the crc32c of these bytes.
"""

import tempfile
from pathlib import Path
from threading import Lock
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn.storage.folders import UNREADABLE, damaged, read_json

DTYPES = ("float16", "float32", "float64")
# Bytes in one file of a chunk: with several files, some of the scalars can be read without the others.
_FILE_BYTES = 2**22
_CONFIGURED = Lock()
# Bytes of the checksum at the end of a file.
_CHECKSUM_BYTES = 4


def layout(
    kind: np.dtype, wanted: str | None, chains: int, draws: int, shape: tuple[int, ...]
) -> dict[str, Any]:
    """Chunk shape, dtype and checksum of an array of draws: arguments of zarr's ``create_array``."""
    from zarr.codecs import Crc32cCodec

    stored = np.dtype(kind) if kind != jnp.bfloat16 else np.dtype(np.float32)
    if wanted is not None and np.issubdtype(stored, np.floating):
        stored = np.dtype(wanted)
    return {
        "chunks": _chunk_shape(chains, draws, shape, stored.itemsize),
        "dtype": stored,
        "compressors": [Crc32cCodec()],
        "fill_value": np.zeros((), stored)[()],
    }


def _chunk_shape(chains: int, draws: int, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if not shape:
        return chains, draws
    row = chains * draws * itemsize * int(np.prod(shape[1:]))
    inner = min(shape[0], max(1, _FILE_BYTES // max(1, row))), *shape[1:]
    # A chunk of zarr has a length of 1 at least, for sites of size 0 too.
    return chains, draws, *(max(1, length) for length in inner)


class DrawFiles:
    """The files of one zarr array: one file a chunk, or several, split along the first axis of a draw."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "zarr.json"
        kept = f"The numbers beside it, in {folder / 'c'}, are untouched; restore the file from a copy."
        safe = kept if folder.exists() else "Restore the folder of the array from a copy."
        try:
            own: dict[str, Any] = read_json(path, safe)
        except OSError as error:
            raise damaged(path, error, safe) from error
        try:
            self._lengths = tuple(map(int, own["chunk_grid"]["configuration"]["chunk_shape"]))
            self._kind = np.dtype(own["data_type"]).newbyteorder("<")
            self._shape = tuple(map(int, own["shape"]))
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, error, safe) from error
        self.about = own

    def _paths(self, chunk: int) -> list[Path]:
        # A chunk is split along the first axis of a draw only.
        counts = [-(-n // length) for n, length in zip(self._shape[2:], self._lengths[2:])]
        folder = self.folder / "c" / "0" / str(chunk)
        return [folder.joinpath(*map(str, inner)) for inner in np.ndindex(*counts)]

    def are_whole(self, chunk: int, with_checksums: bool) -> bool:
        """Whether no file of a chunk is missing, cut short or changed."""
        size = int(np.prod(self._lengths)) * self._kind.itemsize + _CHECKSUM_BYTES
        if not all(path.is_file() and path.stat().st_size == size for path in self._paths(chunk)):
            return False
        if with_checksums:
            try:
                self._array(chunk)[:, chunk * self._lengths[1] :]
            except UNREADABLE:
                return False
        return True

    def require(self, draws: slice) -> None:
        """Refuse to read draws of which a file is missing or cut short: zarr would give zeros."""
        for chunk in range(draws.start // self._lengths[1], -(-draws.stop // self._lengths[1])):
            if not self.are_whole(chunk, with_checksums=False):
                raise ValueError(
                    f"a file of chunk {chunk} in {self.folder} is missing or cut short"
                )

    def write(self, chunk: int, values: np.ndarray) -> None:
        """Write the files of a chunk."""
        values, (_, length, *_) = self._rounded(values), self._lengths
        if (missing := length - values.shape[1]) > 0:
            # Zarr would add a part of a chunk to what its file holds.
            values = np.pad(values, [(0, 0), (0, missing), *[(0, 0)] * (values.ndim - 2)])
        self._array(chunk)[:, chunk * length :] = values

    def _array(self, chunk: int) -> Any:
        """The zarr array up to the end of a chunk."""
        import zarr

        shape = (self._shape[0], (chunk + 1) * self._lengths[1], *self._shape[2:])
        place = zarr.storage.StorePath(zarr.storage.LocalStore(self.folder))
        # Zarr would leave out chunks of zeros. All threads share its configuration.
        with _CONFIGURED, zarr.config.set({"array.write_empty_chunks": True}):
            return zarr.Array.from_dict(place, {**self.about, "shape": shape})

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            rounded = np.asarray(values, self._kind)
        if self._kind == np.float16 and (np.isinf(rounded) & np.isfinite(values)).any():
            largest = float(np.abs(values[np.isfinite(values)]).max())
            raise ValueError(
                f"draws_dtype='float16' cannot hold {largest:.3g} of {self.folder.name!r} (limit "
                "65504). Use 'float32'."
            )
        return rounded


# Arrays of up to so many bytes are read into memory as a whole.
_IN_MEMORY = 2**26


class StoredArray:
    """Draws of one variable on disk, shaped (chain, draw, …), read when they are indexed.

    ``np.asarray`` reads all of it; ``array[:, a:b]`` reads those draws alone. Any index of NumPy gives what
    it gives of the whole array; all draws are read for those that are not whole numbers and forward slices
    (and a list of chains). Shown are some `chains`, all where None, from the draw `first` on.
    """

    def __init__(
        self,
        array: Any,
        store: Any,
        files: DrawFiles,
        run: str | None,
        chains: ArrayLike | None = None,
        first: int = 0,
    ) -> None:
        self._array = array
        self._store = store
        self._files = files
        self._run = run
        self._first = first
        self.path = store.path
        self.place: str = array.path
        self.chains = np.arange(array.shape[0]) if chains is None else np.asarray(chains)
        self.shape = (len(self.chains), max(0, array.shape[1] - first), *array.shape[2:])
        self.dtype = array.dtype
        self.ndim = len(self.shape)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        if not _reads_a_part(index, self.ndim):
            return self._read(slice(None), ())[index]
        chains, drawn, *rest = index
        if isinstance(drawn, slice):
            kept: Any = slice(None)
        else:
            at = range(self.shape[1])[drawn]  # raises IndexError beyond the last
            drawn, kept = slice(at, at + 1), 0
        # A slice of the first axis of a draw can be read alone: files are split along it.
        third = tuple(rest[:1]) if rest and isinstance(rest[0], slice) else ()
        values = self._read(drawn, third)
        return values[(chains, kept, *((slice(None), *rest[1:]) if third else rest))]

    def _read(self, drawn: slice, more: tuple) -> np.ndarray:
        begin, end, step = drawn.indices(self.shape[1])
        part = slice(begin + self._first, max(begin, end) + self._first, step)
        self.refuse_other_run()
        try:
            self._files.require(part)
            return np.asarray(self._array[(slice(None), part, *more)])[self.chains]
        except (ValueError, RuntimeError, OSError) as error:
            safe = max(0, self._store.num_sound - self._first)
            advice = f": read them with `array[:, :{safe}]`" if safe else ""
            raise ValueError(
                f"The draws in {self.path} are damaged ({error}). The first {safe} draws of each "
                f"chain are whole{advice}."
            ) from error

    def refuse_other_run(self) -> None:
        """Refuse to read from a folder that was removed, or replaced by that of another run."""
        advice = (
            "Draws on disk are read when they are used: put the folder of their run back, or read it with "
            "`bnn.load` where it is now."
        )
        try:
            run = self._store.about.get("run")
        except ValueError as error:
            raise ValueError(f"The draws in {self.path} are gone: {error} {advice}") from error
        if run != self._run:
            raise ValueError(f"{self.path} holds the draws of another run now. {advice}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(slice(None), ()), dtype)

    def take_chains(self, chains: ArrayLike) -> "StoredArray":
        """An array of the draws of some chains only; `chains` indexes the chains shown here."""
        chains = self.chains[np.asarray(chains)]
        return StoredArray(self._array, self._store, self._files, self._run, chains, self._first)

    def __repr__(self) -> str:
        return f"StoredArray({self.path}, shape={self.shape}, {self.dtype})"


def _reads_a_part(index: tuple, ndim: int) -> bool:
    """Whether an index (whole numbers, forward slices, a list of chains) is the same for some draws."""
    if not 2 <= len(index) <= ndim or not all(map(_is_plain, index[1:])):
        return False
    if isinstance(index[0], (list, np.ndarray)):
        chains = np.asarray(index[0])
        return chains.ndim == 1 and chains.dtype.kind in "iu"
    return _is_plain(index[0])


def _is_plain(part: Any) -> bool:
    if isinstance(part, slice):
        return part.step is None or (_is_plain(part.step) and part.step > 0)
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def read_by_scalar(array: StoredArray) -> np.ndarray:
    """All draws of a site, copied to a temporary file in which those of a scalar are contiguous."""
    chains, num_draws, *shape = array.shape
    kind = np.float32 if array.dtype == np.float16 else array.dtype
    if array.nbytes <= _IN_MEMORY:
        return np.asarray(array, kind)
    with tempfile.TemporaryFile() as file:
        turned = np.memmap(file, kind, "w+", shape=(*shape, chains, num_draws))
    step = max(1, _IN_MEMORY // (4 * array.nbytes // num_draws))
    for begin in range(0, num_draws, step):
        some = array[:, begin : begin + step]
        turned[..., begin : begin + step] = np.moveaxis(some, (0, 1), (-2, -1))
    return np.moveaxis(turned, (-2, -1), (0, 1))
