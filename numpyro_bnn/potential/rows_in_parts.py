"""Compares what a model computes for some rows together with what it computes for parts of them.

Predictions are computed by blocks of rows, and likelihoods summed over chunks and minibatches. Both are
silently wrong if rows depend on one another: a model that standardises its inputs by their mean, a recurrent
network along the rows, lags made inside, a sum over rows.
"""

from collections.abc import Callable, Sequence

import numpy as np

# Rounding, in standard deviations of a result and in proportion to its numbers.
_ROUNDING, _LAST_DIGITS = 1e-3, 1e-5

# From row numbers to arrays computed at these rows.
AtRows = Callable[[np.ndarray], Sequence[np.ndarray]]
# From a number of rows to the shapes of these arrays.
Shapes = Callable[[int], Sequence[tuple[int, ...]]]


def differing(first: tuple[int, ...], second: tuple[int, ...]) -> list[int]:
    """Axes on which two shapes differ."""
    if len(first) != len(second):
        return list(range(len(first)))
    return [axis for axis, (a, b) in enumerate(zip(first, second)) if a != b]


def same_in_parts(
    at_rows: AtRows, shapes: Shapes, size: int, part: int, most: int, drawn: bool = False
) -> bool:
    """Whether rows have the same results together and in parts, up to rounding."""
    # The first and the last rows of some are computed alone: dependence on other rows, on their number or
    # on the place of a row shows. Results have their rows on the axis that changes with their number; those
    # without such an axis must not change at all. Random numbers belong to places (`drawn`): then other
    # rows replace one half of a part, and results of the other half must stay.
    if size < 2:
        return True
    pairs = _replaced(size, part) if drawn else _parts(size, part, most)
    axes = [differing(*pair) for pair in zip(shapes(size), shapes(size - 1))]
    if any(len(axis) > 1 for axis in axes):
        return False
    together = at_rows(pairs[0][0])
    for _, rows, kept, place in pairs:
        for one, two, axis in zip(together, at_rows(rows), axes):
            at = (slice(None),) * axis[0] if axis else ()
            if not _agree(one[(*at, kept)] if axis else one, two[(*at, place)] if axis else two):
                return False
    return True


def _parts(size: int, part: int, most: int) -> list[tuple]:
    """Numbers of rows together and in a part, and the places of the common ones in both."""
    count = min(size, max(most, 2))
    part = min(part, -(-count // 2))
    rows, every = np.arange(count), slice(None)
    return [
        (rows, rows[:part], slice(part), every),
        (rows, rows[-part:], slice(-part, None), every),
    ]


def _replaced(size: int, part: int) -> list[tuple]:
    """The same, with one half of the rows replaced by others."""
    half = max(min(part, size) // 2, 1)
    rows, others = np.arange(2 * half), np.arange(size - half, size)[::-1]
    first, last = slice(half), slice(half, None)
    return [
        (rows, np.concatenate([rows[first], others]), first, first),
        (rows, np.concatenate([others, rows[last]]), last, last),
    ]


def _agree(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether numbers are equal up to rounding, where they are finite."""
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    if one.shape != two.shape:
        return False
    known = np.isfinite(one)
    if not known.any():
        return True
    off = _ROUNDING * np.std(one[known]) + _LAST_DIGITS * np.abs(one[known])
    return bool((np.abs(two[known] - one[known]) <= off).all())
