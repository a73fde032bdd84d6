"""Whether two sets of arrays are the same data, known from short texts or numbers about each.

Data that went through a device may have been rounded to single precision, and are the same data still. So
they are compared as single numbers where one side has no more digits, and by all digits where both have more.
"""

import zlib
from collections.abc import Sequence
from hashlib import blake2b

import jax
import numpy as np

from numpyro_bnn._types import PyTree


def _fits_single(values: np.ndarray) -> bool:
    """Whether single precision has all digits of all values."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return bool(np.all((single == values) | (values != values)))


def fingerprint(values: PyTree) -> str:
    """A text about arrays, for :func:`is_same`.

    :param values: inputs, an array or a pytree of arrays.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values)]
    texts = [_digest(leaves, np.dtype(np.float32))]
    if not all(leaf.dtype.kind in "biu" or _fits_single(leaf) for leaf in leaves):
        texts.append(_digest(leaves, np.dtype(np.float64)))
    return " ".join(texts)


def _digest(leaves: list[np.ndarray], real: np.dtype) -> str:
    found = blake2b(digest_size=16)
    for leaf in leaves:
        kind = np.dtype(np.int64) if leaf.dtype.kind in "biu" else real
        # Zero has two signs.
        with np.errstate(over="ignore"):
            found.update(repr(leaf.shape).encode() + (leaf.astype(kind) + 0).tobytes())
    return found.hexdigest()


def is_same(first: str, second: str) -> bool:
    """Whether two texts of :func:`fingerprint` are about the same rows in the same order."""
    both = first.split(), second.split()
    exact = all(len(texts) > 1 for texts in both)
    return both[0][exact] == both[1][exact]


def checksum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Numbers about arrays, for :func:`is_same_checksum`: one, or two where single precision lacks digits."""
    kinds = [np.float32] if all(map(_fits_single, arrays)) else [np.float32, np.float64]
    found = []
    for kind in kinds:
        own = 0
        for values in arrays:
            with np.errstate(over="ignore"):
                own = zlib.crc32(values.astype(kind).tobytes(), own)
        found.append(own)
    return np.asarray(found, np.uint32)


def is_same_checksum(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two results of :func:`checksum_of` are about the same data."""
    both = np.ravel(first), np.ravel(second)
    exact = int(all(numbers.size > 1 for numbers in both))
    return bool(both[0][exact] == both[1][exact])
