"""The files of a zarr array of draws: written by zarr chunk by chunk, and checked before they are read.

Metadata on disk count the draws that are whole, so the array that zarr writes to is another one, in memory,
that ends with the chunk. A file holds numbers in C order, then the crc32c of these bytes.
"""

from pathlib import Path
from threading import Lock
from typing import Any

import jax.numpy as jnp
import numpy as np

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
        for path in self._paths(chunk):
            if not path.is_file() or path.stat().st_size != size:
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
