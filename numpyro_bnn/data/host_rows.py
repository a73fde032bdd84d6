"""Data that stay in host memory or on disk; the device gets one minibatch at a time.

:class:`OnHost` wraps anything with rows that can be indexed: a memory map, a zarr or HDF5 array, an
array too large for the device. The compiled program itself chooses the rows of a step, from the random key in
the chain state, as for data on the device. It gets them from the host by a callback, to which it also passes
the row numbers of the next step: a thread reads those rows while the device computes. So the draws equal
those with data in memory (up to rounding: the compiler fuses the two programs differently), and a checkpoint
needs no state of a data loader.

Inside the compiled program the model gets a placeholder of the right shape and type in place of the data,
which takes no memory; ``numpyro.subsample`` replaces it by the rows.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import primitives
from numpyro.handlers import scope
from numpyro.primitives import Messenger

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.units import check_offset, check_range, native_type

# Most minibatches that are read ahead: one for each chain, up to this number of chains.
_AHEAD = 16
# Bytes of rows that are read at a time in a pass over all rows.
_PASS_BYTES = 2**26
# Data up to this size are read once before a run, where the device has a narrower type of numbers.
_CHECKED_BYTES = 2**30
# Rows, from all of the data, that show whether a large offset would take the digits of a column.
_SOME_ROWS = 1000
# One thread reads all files: the C library below netCDF4 crashes where two threads use it at once.
_READER = ThreadPoolExecutor(1, thread_name_prefix="numpyro_bnn rows")


def is_of_rows(array: Any) -> bool:
    """Whether something gives rows of a type of NumPy: an array, or a variable of a file."""
    kind, shape = (getattr(array, name, ()) for name in ("dtype", "shape"))
    return isinstance(kind, np.dtype) and len(shape) > 0 and not hasattr(array, "toarray")


def in_memory(owner: str, array: Any) -> np.ndarray:
    """All rows of a variable of a file; masked and raw packed ones are refused."""
    return _READER.submit(_unmasked, owner, array, slice(None), missing_mark(owner, array)).result()


def missing_mark(owner: str, array: Any) -> Any:
    """What stands in a file for missing values; raw packed numbers are refused."""
    attributes = getattr(array, "attrs", {})
    for name in ("scale_factor", "add_offset"):
        if name in attributes:
            raise ValueError(
                f"{owner}: the array is packed (its {name} is {attributes[name]}), and "
                f"{type(array).__name__} gives the stored numbers. Open it by netCDF4 or xarray."
            )
    return attributes.get("_FillValue")


def _unmasked(owner: str, array: Any, rows: slice | np.ndarray, missing: Any) -> np.ndarray:
    values = array[rows]
    if missing is not None:
        values = np.ma.masked_equal(values, np.ravel(missing)[0])
    if np.ma.is_masked(values):
        number = int(np.argwhere(np.ma.getmaskarray(values))[0, 0])
        row = (rows.start or 0) + number if isinstance(rows, slice) else int(rows[number])
        raise ValueError(
            f"{owner}: row {row} of the {type(array).__name__} of shape {array.shape} is masked. "
            "Leave such rows out, or write a file with values in their place."
        )
    return np.asarray(values)


class RowsOfNumbers(Protocol):
    """An array of numbers in memory or in a file: ``numpy.memmap``, a zarr or h5py array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its axes, rows first."""

    @property
    def dtype(self) -> np.dtype:
        """Type of its numbers."""

    def __getitem__(self, rows: Any, /) -> Any:
        """Rows by a slice, or by a sorted array of row numbers."""


class OnHost:
    """Rows of data that stay in host memory or on disk until a step needs them.

    Give it to ``MCMC.run`` in place of an array, with a kernel that takes minibatches, or with
    ``MCMC(…, chunk_size=…)`` for all rows in every step. The model takes its rows by
    ``numpyro.subsample`` in a plate, as for every minibatch, before it does anything else to them.
    Computations on all rows (a start, an anchor of a control variate, a Metropolis correction) read them
    once from beginning to end, 64 MiB at a time.

    Numbers that the device cannot hold (64 bits become 32) are refused as data in memory are: before the run,
    in a pass over up to a GiB; of larger data when a step reads them. So are masked rows.

    :param array: anything with ``shape``, ``dtype`` and rows that can be taken by slices and by
        sorted arrays of row numbers, such as ``numpy.memmap``, zarr, h5py and netCDF4 arrays. Rows in
        another byte order, or of wider floats, are converted as they are read.
    :raises TypeError: if it lacks one of these, or does not hold numbers.
    :raises ValueError: for a raw array of packed numbers: its attributes have a scale or an offset.

    >>> import numpy as np, numpyro_bnn as bnn
    >>> bnn.OnHost(np.zeros((1000, 3), np.float32))
    OnHost(shape=(1000, 3), float32)
    """

    def __init__(self, array: RowsOfNumbers) -> None:
        # Rows of pandas go by label, not by number.
        self.array = np.asarray(array) if hasattr(array, "iloc") else array
        self.shape = tuple(getattr(array, "shape", ()))
        # A packed netCDF4 variable gives other numbers than the type that it names: a row tells.
        row = self.array[:1] if is_of_rows(self.array) else None
        self._stored = np.ma.getdata(row).dtype
        if self._stored.kind not in "biuf":
            raise TypeError(
                f"OnHost: expected an array of numbers with rows, got {type(array).__name__} of shape "
                f"{self.shape} and dtype {getattr(array, 'dtype', None)}. Open the file as "
                "`numpy.memmap`, zarr or h5py array first."
            )
        self._missing = missing_mark("OnHost", array)
        self._masks = self._missing is not None or np.ma.isMaskedArray(row)
        self.dtype = np.dtype(jax.dtypes.canonicalize_dtype(native_type(self._stored)))
        self._ahead: OrderedDict[bytes, Future] = OrderedDict()
        self._checked = False

    def __reduce__(self) -> tuple[type["OnHost"], tuple]:
        # Rows that are read ahead stay here.
        return OnHost, (self.array,)

    def __repr__(self) -> str:
        return f"OnHost(shape={self.shape}, {self.dtype})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            f"{self!r} is read a minibatch at a time, and something wants all of it at once. Use "
            "a model that takes its rows by `numpyro.subsample`; what is standardised with the "
            "statistics of all data (`regression`, `classification`) must be so in the file."
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Rows by a slice or by number, in the type of the device."""
        return self.read(np.arange(len(self))[rows])

    def stand_in(self) -> jax.Array:
        """A placeholder to trace a model with: NaN in the shape and type of the data, without memory."""
        missing = jnp.nan if jnp.issubdtype(self.dtype, jnp.floating) else 0
        return jnp.full(self.shape, missing, self.dtype)

    def take(self, rows: jax.Array, ahead: jax.Array | None = None) -> jax.Array:
        """Rows by number, inside a compiled program.

        :param rows: (B,) row numbers.
        :param ahead: row numbers of the next step, to be read meanwhile.
        """
        kind = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)
        numbers = (rows,) if ahead is None else (rows, ahead)
        return jax.pure_callback(self._serve, kind, *numbers, vmap_method="broadcast_all")

    def _serve(self, rows: Any, ahead: Any = None) -> np.ndarray:
        rows = np.asarray(rows)
        if rows.ndim > 1:  # one minibatch a chain
            following = [None] * len(rows) if ahead is None else np.asarray(ahead)
            return np.stack([self._serve(r, a) for r, a in zip(rows, following)])
        coming = self._ahead.pop(rows.tobytes(), None)
        values = self.read(rows) if coming is None else coming.result()
        if ahead is not None:
            ahead = np.asarray(ahead)
            if ahead.tobytes() not in self._ahead:
                self._ahead[ahead.tobytes()] = _READER.submit(self._read, ahead)
            while len(self._ahead) > _AHEAD:
                self._ahead.popitem(last=False)
        return values

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Rows by number, in the type of the device."""
        return _READER.submit(self._read, rows).result()

    def rows(self, rows: slice | np.ndarray) -> np.ndarray:
        """Rows as the array gives them, by a slice or by sorted numbers."""
        return _READER.submit(self._rows, rows).result()

    def _rows(self, rows: slice | np.ndarray) -> np.ndarray:
        return _unmasked("OnHost", self.array, rows, self._missing)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        first, count = int(rows[0]), len(rows)
        if np.array_equal(rows, np.arange(first, first + count)):
            values = self._rows(slice(first, first + count))
        else:
            # HDF5 requires row numbers in increasing order, in which disks also read fastest.
            ordered, back = np.unique(rows, return_inverse=True)
            values = self._rows(ordered)[back]
        # The cast below would wrap whole numbers round in silence.
        label = f"a block of {len(rows)} rows of the array of shape {self.shape}"
        check_range("OnHost", label, values)
        return np.asarray(values, self.dtype)

    def check_fits(self, owner: str, label: str) -> None:
        """Refuse numbers that would overflow or become equal in the device's number type."""
        if self._checked or (self._stored == self.dtype and not self._masks):
            return
        size = self.shape[0]
        if self._stored.itemsize * int(np.prod(self.shape)) <= _CHECKED_BYTES:
            ends: list[np.ndarray] = []
            for begin, values in self.blocks():
                if values.dtype.kind in "iu":
                    # The error names the smallest and the largest of all.
                    ends += [values.min(), values.max()]
                else:
                    check_range(owner, label, values, begin)
            check_range(owner, label, np.asarray(ends, self._stored))
        rows = np.unique(np.linspace(0, size - 1, min(size, _SOME_ROWS)).astype(int))
        check_offset(owner, label, self.rows(rows))
        self._checked = True

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All rows as they are stored, a block at a time, with the number of the first row of each."""
        for begin in range(0, self.shape[0], self.rows_a_pass):
            yield begin, self.rows(slice(begin, begin + self.rows_a_pass))

    @property
    def rows_a_pass(self) -> int:
        """Number of rows that are read at a time in a pass over all rows."""
        row = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        return max(1, min(self.shape[0], _PASS_BYTES // max(1, row)))


def sources_in(tree: PyTree) -> list[OnHost]:
    """The data on the host among the arguments of a model."""
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, OnHost)]


class RowsTaken(NamedTuple):
    """The rows that a model is to see of the plate of its data."""

    indices: jax.Array  # Row numbers
    plate: str
    size: int  # Number of rows of the plate
    ahead: jax.Array | None = None  # Row numbers that are read next
    # ``take(values, axis)`` for data on the device; default: by NumPyro
    take: Callable | None = None


class WithStandIns(Messenger):
    """Handler that gives a model placeholders for host data, and the rows themselves where it subsamples."""

    def __init__(self, fn: Callable, rows: RowsTaken | None = None) -> None:
        self.rows = rows
        super().__init__(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._known: list[tuple[jax.Array, OnHost]] = []
        self._taken: set[int] = set()

        def exchanged(leaf: Any) -> Any:
            if not isinstance(leaf, OnHost):
                return leaf
            self._known.append((leaf.stand_in(), leaf))
            return self._known[-1][0]

        args, kwargs = jax.tree.map(exchanged, (args, kwargs))
        result = super().__call__(*args, **kwargs)
        left = [source for _, source in self._known if id(source) not in self._taken]
        if self.rows is not None and left:
            raise ValueError(
                f"The model never takes rows of {left[0]!r} in the plate '{self.rows.plate}' of the data, or "
                "changes it before it takes rows of it. Begin this plate with "
                "`numpyro.subsample(x, event_dim=…)` of the argument as it is."
            )
        return result

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "subsample" or self.rows is None:
            return
        # Row numbers belong to one plate; another one, also of the same size, needs all of its rows.
        if (dim := axis_of_plate(self.rows.plate, self)) is None:
            return
        values = None
        for stand_in, source in self._known:
            if msg["value"] is stand_in:
                values = source.take(self.rows.indices, self.rows.ahead)
                self._taken.add(id(source))
        axis, shape = dim - msg["kwargs"]["event_dim"], jnp.shape(msg["value"])
        fits = len(shape) >= -axis and shape[axis] == self.rows.size
        if values is None and self.rows.take is not None and fits:
            values = self.rows.take(jnp.asarray(msg["value"]), axis)
        if values is not None:
            # With another type the plate does not subsample the rows again.
            msg["type"], msg["value"] = "taken", values


def axis_of_plate(plate: str, handler: Messenger) -> int | None:
    """The axis of a plate around the running code, counted from the right; None where it is not inside."""
    # `handler` is the one that asks while it processes a message; plates around it do not count.
    message: dict[str, Any] = {"type": "deterministic", "name": "", "cond_indep_stack": []}
    for inner in reversed(primitives._PYRO_STACK):
        if inner is handler:
            break
        # A `scope` renames the plates inside it.
        if isinstance(inner, (primitives.plate, scope)):
            inner.process_message(message)
    return {frame.name: frame.dim for frame in message["cond_indep_stack"]}.get(plate)
