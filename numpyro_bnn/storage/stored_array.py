"""Draws on disk as an array whose values are read when they are indexed."""

import tempfile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn.storage.chunk_files import DrawFiles

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
        self._refuse_other_run()
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

    def _refuse_other_run(self) -> None:
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
    if not 2 <= len(index) <= ndim:
        return False
    chains, *rest = index
    if isinstance(chains, (list, np.ndarray)):
        chains = np.asarray(chains)
        is_known = chains.ndim == 1 and chains.dtype.kind in "iu"
    else:
        is_known = _is_plain(chains)
    return is_known and all(map(_is_plain, rest))


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
        turned[..., begin : begin + step] = np.moveaxis(
            array[:, begin : begin + step], (0, 1), (-2, -1)
        )
    return np.moveaxis(turned, (-2, -1), (0, 1))
