"""Draws on disk as an array whose values are read when they are indexed."""

import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

# Arrays of up to so many bytes are read into memory as a whole.
_IN_MEMORY = 2**26


class Store(Protocol):
    """The part of a store of draws that one of its arrays uses, for error messages.

    - **path** - folder of the store
    - **num_sound** - draws of each chain that are neither missing nor damaged
    """

    path: Path

    @property
    def num_sound(self) -> int:
        """Draws of each chain that are neither missing nor damaged."""


class StoredArray:
    """Draws of one variable on disk, shaped (chain, draw, …), read when they are indexed.

    ``np.asarray`` reads all of it; ``array[:, a:b]`` reads those draws alone.

    :param array: the zarr array.
    :param store: the store that holds it.
    :param chains: numbers of the chains to show; None for all.
    :param first: the first draw to show; earlier ones were dropped.
    """

    def __init__(
        self, array: Any, store: "Store", chains: ArrayLike | None = None, first: int = 0
    ) -> None:
        self._array = array
        self._store = store
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
        drawn = index[1] if len(index) > 1 else slice(None)
        if drawn is Ellipsis or index[0] is Ellipsis or isinstance(drawn, (list, np.ndarray)):
            return self._read(slice(None), ())[index]
        if isinstance(drawn, (int, np.integer)):
            at = range(self.shape[1])[drawn]  # raises IndexError beyond the last
            return self._read(slice(at, at + 1), ())[:, 0][(index[0], *index[2:])]
        # A slice of the first axis of a draw can be read alone: files are split along it.
        third = index[2:3] if len(index) > 2 and isinstance(index[2], slice) else ()
        values = self._read(drawn, third)
        rest = (slice(None), *index[3:]) if third else index[2:]
        return values[(index[0], slice(None), *rest)]

    def _read(self, drawn: slice, more: tuple) -> np.ndarray:
        if self._first:
            begin, end, step = drawn.indices(self.shape[1])
            if step < 1:
                return self._read(slice(None), more)[:, drawn]
            drawn = slice(begin + self._first, end + self._first, step)
        try:
            return np.asarray(self._array[(slice(None), drawn, *more)])[self.chains]
        except (ValueError, RuntimeError, OSError) as error:
            safe = max(0, self._store.num_sound - self._first)
            advice = f": read them with `array[:, :{safe}]`" if safe else ""
            raise ValueError(
                f"The draws in {self.path} are damaged ({error}). The first {safe} draws of each "
                f"chain are whole{advice}."
            ) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(slice(None), ()), dtype)

    def take_chains(self, chains: ArrayLike) -> "StoredArray":
        """An array of the draws of some chains only; `chains` indexes the chains shown here."""
        return StoredArray(self._array, self._store, self.chains[np.asarray(chains)], self._first)

    def __repr__(self) -> str:
        return f"StoredArray({self.path}, shape={self.shape}, {self.dtype})"


def read_by_scalar(array: StoredArray) -> np.ndarray:
    """All draws of a site in an order in which the draws of one scalar can be read quickly.

    Statistics over draws need all draws of a few scalars, and a store keeps all scalars of a few draws
    together. So the draws are copied, a block at a time, to a temporary file in which the draws of a
    scalar are contiguous; it is mapped into memory, and deleted with the result.

    :param array: draws on disk.
    :return: (chain, draw, …) in single or double precision; memory-mapped where it is large.
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
