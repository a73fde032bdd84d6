"""Draws on disk are indexed as NumPy indexes an array, and read in part where that is certain."""

from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_bnn.storage.stored_array import StoredArray

zarr = pytest.importorskip("zarr")
RNG = np.random.default_rng(0)
STORE = SimpleNamespace(path=Path("draws"), num_sound=12, about={"run": "a"})
FILES = SimpleNamespace(require=lambda draws: None)
MASK = RNG.random((4, 12)) < 0.5
ALL = slice(None)
# Of draws of scalars and of arrays alike.
INDICES = {
    "None": None,
    "None, 3": (None, 3),
    "None, :, 2": (None, ALL, 2),
    ":, None": (ALL, None),
    ":, True": (ALL, True),
    ":, False": (ALL, False),
    "True": True,
    "1, True": (1, True),
    "mask": MASK,
    "mask of chains": MASK[:, 0],
    "list of truth values": [True, False, True, False],
    ":, mask of draws": (ALL, MASK[0]),
    "chains, draws": ([0, 1], [2, 3]),
    "range of chains": range(2),
    ":, range": (ALL, range(3)),
    ":, tuple": (ALL, (1, 2)),
    ":, ::-1": (ALL, slice(None, None, -1)),
    "::-1, ::2": (slice(None, None, -1), slice(None, None, 2)),
    ":, -3:": (ALL, slice(-3, None)),
    ":, 5:2": (ALL, slice(5, 2)),
    ":, 8:99": (ALL, slice(8, 99)),
    "scalar of JAX": jnp.asarray(3),
    ":, scalar of JAX": (ALL, jnp.asarray(3)),
    "array of JAX": jnp.asarray([0, 2]),
    ":, scalar of NumPy": (ALL, np.int32(3)),
    ":, array without axes": (ALL, np.array(3)),
    "array without axes, 3": (np.array(2), 3),
    "chains, 3": ([0, 2], 3),
    "chains, 1:3": ([0, 2], slice(1, 3)),
    "chains by an array of two axes": np.array([[0, 1], [2, 3]]),
    "no chains": ([], ...),
    "-1, -1": (-1, -1),
    "empty": (),
    "0, ...": (0, ...),
    "4": 4,
    ":, 12": (ALL, 12),
    ":, -13": (ALL, -13),
    "text": "w",
    "a number": 1.5,
}
OF_ARRAYS = {
    ":, :, None": (ALL, ALL, None),
    ":, :, True": (ALL, ALL, True),
    ":, :, 1:3": (ALL, ALL, slice(1, 3)),
    ":, :, ::-1": (ALL, ALL, slice(None, None, -1)),
    ":, 2, 1:3, 0": (ALL, 2, slice(1, 3), 0),
    ":, :, pairs": (ALL, ALL, [0, 1], [0, 1]),
    "chains, :, rows": ([0, 1], ALL, [1, 2]),
    "chains, 1, rows": ([0, 1], 1, [1, 2]),
    "0, :, rows": (0, ALL, [1, 2]),
    "0, 2, :, columns": (0, 2, ALL, [1, 2]),
    "chains, 2, :, columns": ([0, 1], 2, ALL, [1, 2]),
    "chains, 2, :, 1": ([0, 1], 2, ALL, 1),
    "chains, :, 1:2, columns": ([0, 1], ALL, slice(1, 2), [1, 2]),
    "too many": (0, 0, 0, 0, 0),
}


def stored(shape, first=0):
    values = RNG.normal(size=(4, 12, *shape)).astype(np.float32)
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=values.shape, chunks=values.shape, dtype=values.dtype
    )
    array[:] = values
    return StoredArray(array, STORE, FILES, "a", first=first), values[:, first:]


def result(array, index):
    try:
        return np.asarray(array[index])
    except IndexError:
        return "IndexError"


@pytest.mark.parametrize("shape", [(), (4, 5)], ids=["scalar", "array"])
@pytest.mark.parametrize("first", [0, 5])
def test_every_index_gives_what_numpy_gives(shape, first):
    array, values = stored(shape, first)
    wrong = []
    for name, index in (INDICES | (OF_ARRAYS if shape else {})).items():
        expected, found = result(values, index), result(array, index)
        if isinstance(expected, str) or isinstance(found, str):
            same = isinstance(expected, str) and isinstance(found, str)
        else:
            same = np.array_equal(found, expected)
        if not same:
            wrong.append(name)
    assert not wrong


def test_a_part_is_read_alone():
    array, _ = stored((4, 5), first=2)
    asked = []
    inner = array._array

    class Seen:
        def __getitem__(self, index):
            asked.append(index)
            return inner[index]

    array._array = Seen()
    array[1, 3]
    array[:, 2:6:2, 1:3, 0]
    assert asked == [(ALL, slice(5, 6, 1)), (ALL, slice(4, 8, 2), slice(1, 3))]
