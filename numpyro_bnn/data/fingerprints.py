"""Whether two sets of arrays are the same data, known from short texts or numbers about each.

Data that went through a device may have been rounded to single precision, and are the same data still. So
each array is compared in single precision where one side has no more digits, and by all digits where both
have more.
"""

import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

import jax
import numpy as np

from numpyro_bnn._types import PyTree

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# Stands for the digits of an array that has no more than single precision.
_NO_MORE = "-"
T = TypeVar("T")


def _fits_single(values: np.ndarray) -> bool:
    """Whether single precision has all digits of all values."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return bool(np.all((single == values) | (values != values)))


def _each(leaves: Sequence[np.ndarray], digest: Callable, no_more: T) -> list[T]:
    """Digests of each array in single and in double precision; nothing where none has more digits."""
    fits = [leaf.dtype.kind in "biu" or _fits_single(leaf) for leaf in leaves]
    if all(fits):
        return []
    pairs = [
        (digest([leaf], _SINGLE), no_more if fit else digest([leaf], _DOUBLE))
        for leaf, fit in zip(leaves, fits)
    ]
    return [part for pair in pairs for part in pair]


def _is_same(first: list[T], second: list[T], no_more: T) -> bool:
    """Whether digests, that of all arrays first, are those of the same data."""
    if len(first) == 1 or len(second) == 1:
        return first[0] == second[0]
    return len(first) == len(second) and all(
        one == other or no_more in (one, other) for one, other in zip(first[1:], second[1:])
    )


def fingerprint(values: PyTree) -> str:
    """A text about an array or a pytree of arrays, for :func:`is_same`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values)]
    return " ".join([_digest(leaves, _SINGLE), *_each(leaves, _digest, _NO_MORE)])


def _digest(leaves: Sequence[np.ndarray], real: np.dtype) -> str:
    found = blake2b(digest_size=16)
    for leaf in leaves:
        kind = np.dtype(np.int64) if leaf.dtype.kind in "biu" else real
        # Zero has two signs.
        with np.errstate(over="ignore"):
            found.update(repr(leaf.shape).encode() + (leaf.astype(kind) + 0).tobytes())
    return found.hexdigest()


def is_same(first: str, second: str) -> bool:
    """Whether two texts of :func:`fingerprint` are about the same rows in the same order."""
    return _is_same(first.split(), second.split(), _NO_MORE)


def checksum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Numbers about arrays, for :func:`is_same_checksum`: one where single precision has all digits."""
    # Integers count as floats here, as in checksums of one number, an older form.
    leaves = [np.asarray(a, _DOUBLE) if a.dtype.kind in "biu" else a for a in arrays]
    return np.asarray([_checksum(leaves, _SINGLE), *_each(leaves, _checksum, 0)], np.uint32)


def _checksum(arrays: Sequence[np.ndarray], real: np.dtype) -> int:
    found = 0
    for values in arrays:
        with np.errstate(over="ignore"):
            found = zlib.crc32(values.astype(real).tobytes(), found)
    return found


def is_same_checksum(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two results of :func:`checksum_of` are about the same data."""
    return _is_same(np.ravel(first).tolist(), np.ravel(second).tolist(), 0)
