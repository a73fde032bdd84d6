"""Whether two sets of arrays are the same data, known from short texts about each or each row.

Data that went through a device may have been rounded to single precision, and are the same data still. So
each array is compared in single precision where one side has no more digits, and by all digits where both
have more. Draws that are stored, or come from an approximation, do not have their training rows. Hashes of
some of them are enough to notice that predictions are about to be judged or calibrated on rows of the fit.
"""

import base64
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import by_place

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# Stands for the digits of an array that has no more than single precision.
_NO_MORE = "-"


def fingerprint(values: PyTree) -> str:
    """A text about an array or a pytree of arrays, for :func:`is_same`."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values)]
    # Whole numbers count as real ones.
    leaves = [leaf.astype(_DOUBLE) if leaf.dtype.kind in "biu" else leaf for leaf in leaves]
    with np.errstate(over="ignore"):
        fits = [np.array_equal(x.astype(np.float32), x, equal_nan=True) for x in leaves]
    texts = [_digest(leaves, _SINGLE)]
    for leaf, fit in zip(leaves, fits) if not all(fits) else ():
        texts += [_digest([leaf], _SINGLE), _NO_MORE if fit else _digest([leaf], _DOUBLE)]
    return " ".join(texts)


def _digest(leaves: Sequence[np.ndarray], real: np.dtype) -> str:
    found = blake2b(digest_size=16)
    for leaf in leaves:
        # Zero has two signs.
        with np.errstate(over="ignore"):
            found.update(repr(leaf.shape).encode() + (leaf.astype(real) + 0).tobytes())
    return found.hexdigest()


def is_same(first: str, second: str) -> bool:
    """Whether two texts of :func:`fingerprint` are about the same rows in the same order."""
    one, other = first.split(), second.split()
    if len(one) == 1 or len(other) == 1:
        return one[0] == other[0]
    pairs = zip(one[1:], other[1:])
    return len(one) == len(other) and all(a == b or _NO_MORE in (a, b) for a, b in pairs)


# Most training rows that are hashed, and bytes of one hash.
_MOST, _BYTES = 1000, 8
# Name of the hashes in `Draws.info`.
KNOWN_ROWS = "training_rows"


class SeenRows(NamedTuple):
    """Hashes of rows that were fitted, and of rows that are given now."""

    fitted: list[bytes]  # of the training rows, or of some of them
    given: list[bytes]
    share: float = 1.0  # how many of the training rows are in `fitted`


def row_hashes(*tables: list[PyTree]) -> list[list[bytes]]:
    """A hash of each row of some tables (lists of arrays), the same where all their numbers are equal."""
    # One table may have gone through the device, which rounds to float32.
    # Whole numbers are exact in float64, of 8 bytes.
    types = [[np.dtype(leaf.dtype) for leaf in column] for column in zip(*tables)]
    kinds = [min(own, key=lambda k: k.itemsize if k.kind == "f" else 8) for own in types]
    return [hashes_of(table, kinds) for table in tables]


def hashes_of(table: list[Any], kinds: list[np.dtype], size: int = 16) -> list[bytes]:
    """A hash of each row of arrays, in these precisions."""
    columns = [
        # Zero has two signs.
        np.asarray(leaf)
        .reshape(len(leaf), math.prod(leaf.shape[1:]))
        .astype(kind if kind.kind == "f" else np.float64)
        + 0.0
        for leaf, kind in zip(table, kinds)
    ]
    return [
        blake2b(b"".join(part.tobytes() for part in row), digest_size=size).digest()
        for row in zip(*columns)
    ]


def noted_rows(
    model: Callable | None,
    args: tuple,
    kwargs: Mapping[str, PyTree],
    targets: Callable[[], Collection[int | str]],
) -> dict[str, dict[str, Any]]:
    """What :func:`seen_rows` needs of a fit: hashes of at most 1000 rows; nothing for data not in memory."""
    # Inputs are hashed together with the target; alone where no other argument has a value for each row.
    # Where `targets` finds no target among several such arguments, any of them may be it.
    given = by_place(model, args, kwargs)
    x = jax.tree.leaves(given.pop(0, None))
    if not _are_rows(x):
        return {}
    count = len(x[0])
    others = {place: jax.tree.leaves(value) for place, value in given.items()}
    by_row = {p: v for p, v in others.items() if _are_rows(v) and len(v[0]) == count}
    if len(by_row) > 1:
        by_row = {p: by_row[p] for p in targets() if p in by_row} or by_row
    chosen = np.sort(np.random.default_rng(0).permutation(count)[:_MOST])
    texts = {}
    for place, values in (by_row or {"": []}).items():
        rows = [np.asarray(leaf[chosen]) for leaf in (*x, *values)]
        texts[str(place)] = base64.b64encode(b"".join(_short(rows))).decode()
    return {KNOWN_ROWS: {"rows": count, "noted": texts}}


def _are_rows(leaves: list[Any]) -> bool:
    """Whether all are arrays of numbers in the memory of this machine, with one number of rows."""
    return (
        bool(leaves)
        and all(
            isinstance(leaf, (np.ndarray, jax.Array))
            and getattr(leaf, "is_fully_addressable", True)
            # Random keys have no dtype kind.
            and (getattr(leaf.dtype, "kind", "none") in "biuf" or leaf.dtype == jnp.bfloat16)
            and leaf.shape[:1] == leaves[0].shape[:1] != ()
            for leaf in leaves
        )
    )


def _short(rows: list[Any]) -> list[bytes]:
    """Fingerprints in single precision, which data keep on their way through a device."""
    return hashes_of(rows, [np.dtype(np.float32)] * len(rows), _BYTES)


def seen_rows(known: Mapping[str, Any], x: list[Any], y: list[Any]) -> list[SeenRows]:
    """Given rows beside those noted by :func:`noted_rows`, for each argument that may be the target."""
    found = []
    for place, text in known["noted"].items():
        rows = [*x, *y] if place else x
        if not _are_rows(rows):
            continue
        joined = base64.b64decode(text)
        fitted = [joined[at : at + _BYTES] for at in range(0, len(joined), _BYTES)]
        found.append(SeenRows(fitted, _short(rows), len(fitted) / known["rows"]))
    return found
