"""Writes the chunks of a zarr array of draws, with few copies so that the sampler is hardly delayed.

A file has the content that zarr's own writer would give it: numbers in C order, compressed where the
array says so, then the crc32c of these bytes. Zarr's writer copies a chunk several times, on threads of
its own; here draws are copied at most once, and the checksum is computed from the memory that is written.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_bnn.storage.folders import damaged, read_json

DTYPES = ("float16", "bfloat16", "float32", "float64")
# Bytes in one file of a chunk: with several files, some of the scalars can be read without the others.
_FILE_BYTES = 2**22
# Bytes of the checksum at the end of a file.
_CHECKSUM_BYTES = 4
# Draws rounded to bfloat16 are stored as float32, which every reader knows; the two bytes that rounding
# sets to zero compress to nothing.
_COMPRESSION: dict[str, Any] = {"cname": "lz4", "clevel": 1}


def layout(
    kind: np.dtype, wanted: str | None, chains: int, draws: int, shape: tuple[int, ...]
) -> dict[str, Any]:
    """Chunk shape, dtype and compression of an array of draws: arguments of zarr's ``create_array``."""
    from zarr.codecs import BloscCodec, Crc32cCodec

    stored = np.dtype(kind) if kind != jnp.bfloat16 else np.dtype(np.float32)
    compressors: list[Any] = [Crc32cCodec()]
    if wanted is not None and np.issubdtype(stored, np.floating):
        stored = np.dtype(np.float32 if wanted == "bfloat16" else wanted)
        if wanted == "bfloat16":
            compressors.insert(0, BloscCodec(typesize=4, shuffle="shuffle", **_COMPRESSION))
    return {
        "chunks": _chunk_shape(chains, draws, shape, stored.itemsize),
        "dtype": stored,
        "compressors": compressors,
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
            # Only draws that were rounded to bfloat16 are compressed.
            self._compressed = any(codec["name"] == "blosc" for codec in own["codecs"])
            self._shape = tuple(map(int, own["shape"]))
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, error, safe) from error
        if not 2 <= len(self._shape) == len(self._lengths) or min(self._lengths) < 1:
            wrong = ValueError(f"it tells chunks of {self._lengths} for numbers of {self._shape}")
            raise damaged(path, wrong, safe)
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
            found = path.stat().st_size if path.is_file() else 0
            if found <= _CHECKSUM_BYTES if self._compressed else found != size:
                return False
            if with_checksums and not _has_its_checksum(path):
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
        crc32c = _crc32c()
        values = self._rounded(values)
        for part, path in enumerate(self._paths(chunk)):
            block = values
            if len(self._lengths) > 2:
                length = self._lengths[2]
                block = values[:, :, part * length : (part + 1) * length]
            if block.shape == self._lengths:
                block = np.ascontiguousarray(block)
            else:
                # Zarr expects all chunks of an array to have the same size.
                more = [(0, n - own) for n, own in zip(self._lengths, block.shape)]
                block = np.pad(block, more)
            content = np.frombuffer(self._compress(block), np.uint8)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(content)
                file.write(crc32c(content).to_bytes(_CHECKSUM_BYTES, "little"))

    def _compress(self, block: np.ndarray) -> Any:
        if not self._compressed:
            return block
        from numcodecs import Blosc

        return Blosc(shuffle=Blosc.SHUFFLE, **_COMPRESSION).encode(block)

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            rounded = np.asarray(values, jnp.bfloat16 if self._compressed else self._kind)
        if self._kind == np.float16 and (np.isinf(rounded) & np.isfinite(values)).any():
            largest = float(np.abs(values[np.isfinite(values)]).max())
            raise ValueError(
                f"draws_dtype='float16' cannot hold {largest:.3g} of {self.folder.name!r} (limit "
                "65504). Use 'bfloat16', which has the range of float32."
            )
        return np.asarray(rounded, self._kind)


def _has_its_checksum(path: Path) -> bool:
    try:
        content = memoryview(path.read_bytes())
    except OSError:
        return False
    numbers, checksum = content[:-_CHECKSUM_BYTES], content[-_CHECKSUM_BYTES:]
    return _crc32c()(np.frombuffer(numbers, np.uint8)) == int.from_bytes(checksum, "little")


def _crc32c() -> Any:
    """The checksum function of zarr, whose older and newer versions depend on different packages."""
    try:
        import google_crc32c
    except ImportError:
        import crc32c

        return crc32c.crc32c
    return google_crc32c.value
