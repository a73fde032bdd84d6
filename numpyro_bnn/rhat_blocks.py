"""The work behind R-hat and effective sample size: one block of scalars at a time, on threads.

Two savings carry it, beside those of :mod:`numpyro_bnn.effective_size`. Ranks are known once
values are sorted, so normal scores are looked up and never computed. Draws in single precision
are sorted together with their places, as one number each; in double precision the folded ones,
two sorted runs, are only merged.

A block has shape `(b, m, n)`: scalars, half chains, draws. The public functions and their
sources are in :mod:`numpyro_bnn.rhat`.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtri

from numpyro_bnn.buffers import buffer
from numpyro_bnn.effective_size import centre, ess_of, ess_of_indicator

# Draws in one block over all its scalars: 8 MiB in double precision. Smaller arrays stay closer
# to the processor, but two threads then wait for the interpreter's lock.
BLOCK_SIZE = 1 << 20
# The variance within, as a share of the whole, below which normal scores count as constant
# chains: they lie at least 1/N apart, so a true share is far above and rounding far below.
_CONSTANT_SHARE = 1e-11
# Whole numbers below this, added to the last bits of a double of single precision, are less than
# half of what rounding to single precision takes off.
_LABEL_LIMIT = 1 << 28
# Scalars that are packed, sorted and unpacked while the processor's cache holds them.
_SORTED_TOGETHER = 8


def checked(name: str, x: Any) -> np.ndarray:
    """`x` as an array `(chain, draw, ...)` of single or double precision.

    :param name: the function that asks, for the error.
    :param x: numbers with an axis of chains and one of draws.
    :raises TypeError: for what are not numbers.
    :raises ValueError: for fewer than two axes, no chains or no draws.
    """
    array = np.asarray(x)
    if array.ndim < 2 or 0 in array.shape[:2]:
        raise ValueError(
            f"{name}: expected draws of shape (chain, draw, ...), got shape {array.shape}. Use "
            f"mcmc.get_samples(group_by_chain=True)."
        )
    if array.dtype in (np.float32, np.float64):
        return array
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    try:
        # Half precision and bfloat16: sums of a thousand of them need more digits.
        return array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected real numbers, got dtype {array.dtype}. Leave text and objects out."
        ) from error


def _split_into(out: np.ndarray, x: np.ndarray) -> None:
    """Copy `x (chain, draw, b)` to halves `out (b, 2 chain, half)`."""
    half = out.shape[2]
    for chain in range(x.shape[0]):
        # One half at a time: the strided reads of a whole chain do not stay in the cache.
        out[:, 2 * chain] = x[chain, :half].T
        out[:, 2 * chain + 1] = x[chain, x.shape[1] - half :].T


def _middle_is_bad(x: np.ndarray) -> np.ndarray:
    """Whether a draw that belongs to neither half is NaN or infinite; `x (chain, draw, b)`."""
    if x.shape[1] % 2 == 0:
        return np.zeros(x.shape[2], bool)
    return ~np.isfinite(x[:, x.shape[1] // 2]).all(axis=0)


@lru_cache(maxsize=8)
def _score_table(size: int) -> np.ndarray:
    """Normal scores of ranks 0, 1/2, 1, 3/2 … `size`, at index twice the rank.

    `Phi^-1((r - 3/8) / (N + 1/4))`: Blom 1958, as in Vehtari et al. 2021, section 4.1.
    Averages over ties are whole or half ranks, so the table holds all there are.
    """
    rank = np.arange(2, 2 * size + 1) / 2.0
    return np.concatenate([[np.nan, np.nan], ndtri((rank - 0.375) / (size + 0.25))])


@lru_cache(maxsize=4)
def _tiled_scores(rows: int, size: int) -> np.ndarray:
    """Scores of untied rows, written out: to scatter a broadcast view takes half as long again."""
    return np.tile(_score_table(size)[2::2], (rows, 1))


def _tied_scores(ordered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flat positions of tied values in sorted rows `(b, size)`, and the score of their mean rank."""
    size = ordered.shape[1]
    values = ordered.reshape(-1)
    tie = values[1:] == values[:-1]
    # The last of one row and the first of the next are no pair.
    tie[size - 1 :: size] = False
    flat = np.flatnonzero(tie)
    # A run of ties is a run of consecutive flat indices.
    first = np.flatnonzero(np.diff(flat, prepend=-2) != 1)
    length = np.diff(first, append=flat.size) + 1
    start = flat[first]
    twice_rank = 2 * (start % size) + 1 + length
    offset = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    position = np.repeat(start, length) + offset
    return position, np.repeat(_score_table(size)[twice_rank], length)


def _scatter_scores(out: np.ndarray, ordered: np.ndarray, where: np.ndarray) -> None:
    """Write the normal scores of sorted rows to the flat indices that they came from.

    :param out: flat array that receives the scores.
    :param ordered: `(b, size)`, each row in increasing order; ties get that of their mean rank.
    :param where: `(b, size)`, the place of each in `out`.
    """
    out[where] = _tiled_scores(*ordered.shape)
    position, scores = _tied_scores(ordered)
    out[where.reshape(-1)[position]] = scores


def _rhat_of_sorted(ordered: np.ndarray, chain: np.ndarray, m: int, n: int) -> np.ndarray:
    """R-hat of the normal scores of sorted rows: only their sums by half chain are formed.

    :param ordered: `(b, m * n)`, each row in increasing order.
    :param chain: the half chain that each came from, counted through all rows: below `b * m`.
    """
    b, size = ordered.shape
    chain = chain.reshape(-1)
    scores = _tiled_scores(b, size).reshape(-1)
    position, tied = _tied_scores(ordered)
    squares = np.full(b, np.square(_score_table(size)[2::2]).sum())
    if position.size < size // 2:
        # A few ties are put right afterwards. With many, the difference of two sums would leave
        # rounding where a constant row has exactly nothing.
        sums = np.bincount(chain, scores, b * m)
        old = scores[position]
        sums += np.bincount(chain[position], tied - old, b * m)
        squares += np.bincount(position // size, np.square(tied) - np.square(old), b)
    else:
        scores = scores.copy()
        scores[position] = tied
        sums = np.bincount(chain, scores, b * m)
        squares = np.square(scores).reshape(b, size).sum(axis=1)
    return _rhat_of_scores(squares, sums.reshape(b, m) / n, n)


def rhat_of(split: np.ndarray) -> np.ndarray:
    """R-hat of `(b, m, n)`: `sqrt((B/W + n - 1) / n)`, Vehtari et al. 2021, section 3.1."""
    n = split.shape[2]
    return _rhat_from(split.mean(axis=2), split.var(axis=2, ddof=1).mean(axis=1), n)


def _rhat_from(means: np.ndarray, within: np.ndarray, n: int) -> np.ndarray:
    between = n * means.var(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def _rhat_of_scores(squares: np.ndarray, means: np.ndarray, n: int) -> np.ndarray:
    """The same from sums of squares and means of normal scores, which do not cancel badly.

    :param squares: `(b,)`, over all chains; of order one for each draw.
    :param means: `(b, m)`, by half chain of n draws.
    """
    within = squares - n * np.einsum("bm,bm->b", means, means)
    within = np.where(within > _CONSTANT_SHARE * squares, within, 0.0)
    return _rhat_from(means, within / (means.shape[1] * (n - 1)), n)


def _sort_with(values: np.ndarray, labels: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `values` in increasing order, and `labels` rearranged alike.

    As doubles, numbers of single precision end in 29 empty bits. There the labels ride along:
    sorting numbers is over twice as fast as sorting indices. They are so small that rounding
    takes them off again, and are lost by NaN and infinities.

    :param values: `(b, size)`, in single precision overwritten by what is returned.
    :param labels: whole numbers `(b, size)`, in single precision below 2^28.
    :param name: of the buffer that holds the labels returned.
    """
    if values.dtype != np.float32:
        # The folded values are two sorted runs, which this sort merges.
        order = np.argsort(values, axis=1, kind="stable")
        return np.take_along_axis(values, order, axis=1), np.take_along_axis(labels, order, axis=1)
    carried = buffer(name, values.shape, np.int64)
    with np.errstate(invalid="ignore"):
        # An infinity with a label is a NaN that signals.
        for start in range(0, len(values), _SORTED_TOGETHER):
            rows = slice(start, start + _SORTED_TOGETHER)
            some = values[rows]
            packed = buffer("packed", some.shape)
            packed[:] = some
            bits = packed.view(np.int64)
            np.bitwise_or(bits, labels[rows], out=bits)
            packed.sort(axis=1)
            some[:] = packed
            np.bitwise_and(bits, _LABEL_LIMIT - 1, out=carried[rows])
    return values, carried


@lru_cache(maxsize=4)
def _places(b: int, size: int) -> np.ndarray:
    return np.arange(b * size).reshape(b, size)


def summarize_block(x: np.ndarray, tail: bool) -> tuple[np.ndarray, ...]:
    """R-hat, bulk ESS and (or NaN) tail ESS of one block `x (chain, draw, b)`."""
    chains, draws, b = x.shape
    m, n = 2 * chains, draws // 2
    size = m * n
    if b * size > _LABEL_LIMIT:
        x = x.astype(np.float64)
    split = buffer("split", (b, m, n), x.dtype)
    _split_into(split, x)
    places = _places(b, size)
    ordered, place = _sort_with(split.reshape(b, size), places, "place")
    bad = ~(np.isfinite(ordered[:, 0]) & np.isfinite(ordered[:, -1])) | _middle_is_bad(x)
    ordered[bad], place[bad] = np.arange(size), places[bad]
    constant = ordered[:, 0] == ordered[:, -1]

    scores = buffer("scores", (b, m, n))
    flat = scores.reshape(b, size)
    _scatter_scores(flat.reshape(-1), ordered, place)
    squares = np.vecdot(flat, flat)
    ess_tail = np.full(b, np.nan)
    if tail:
        limits = _quantile_scores(x, ordered, flat.reshape(-1), place)
        below = (scores <= limit[:, None, None] for limit in limits)
        ess_tail = np.minimum(*map(ess_of_indicator, below))
    means = centre(scores)
    ess = ess_of(scores, means, constant)
    rhat = _rhat_of_scores(squares, means, n)

    # In the precision of the draws, as ArviZ does: whether two folded values tie depends on it.
    median = (ordered[:, (size - 1) // 2] + ordered[:, size // 2]) / ordered.dtype.type(2)
    np.subtract(ordered, median[:, None], out=ordered)
    np.abs(ordered, out=ordered)
    ordered, chain = _sort_with(ordered, np.floor_divide(place, n, out=place), "chain")
    rhat = np.fmax(rhat, _rhat_of_sorted(ordered, chain, m, n))
    for values in (rhat, ess, ess_tail):
        values[bad] = np.nan
    return rhat, ess, ess_tail


def _quantile_scores(
    x: np.ndarray, ordered: np.ndarray, scores: np.ndarray, place: np.ndarray
) -> np.ndarray:
    """The highest scores up to the 5 % and the 95 % quantile of all draws, `(2, b)`.

    A quantile interpolates between two order statistics, and no draw lies between them, so
    the lower one parts the draws alike without rounding.
    """
    b, size = ordered.shape
    everything = ordered
    if x.shape[1] % 2:
        # The quantiles are those of all draws, the middle ones included.
        everything = np.sort(x.reshape(-1, b).T, axis=1)
    limits = []
    for q in (0.05, 0.95):
        at = int(np.floor((everything.shape[1] - 1) * q))
        lower = everything[:, at]
        num_below = np.full(b, at + 1)
        # Without ties, and with all draws at hand, that is the number up to the quantile.
        counted = (
            ordered[:, min(at + 1, size - 1)] <= lower if everything is ordered else slice(None)
        )
        num_below[counted] = (ordered[counted] <= lower[counted, None]).sum(axis=1)
        highest = scores[place[np.arange(b), num_below - 1]]
        limits.append(np.where(num_below > 0, highest, -np.inf))
    return np.stack(limits)


def _blocks(x: np.ndarray) -> Iterator[slice]:
    step = max(1, BLOCK_SIZE // (x.shape[0] * x.shape[1]))
    for start in range(0, x.shape[2], step):
        yield slice(start, start + step)


def by_block(x: np.ndarray, function: Any, num_outputs: int) -> list[np.ndarray]:
    """Apply `function` to blocks of the scalars of `x` on threads; outputs shaped `x.shape[2:]`."""
    scalars = x.shape[2:]
    # A view for C-ordered draws, and for draws on disk (memory-mapped) too.
    flat = x.reshape(*x.shape[:2], -1)
    outputs = [np.empty(flat.shape[2]) for _ in range(num_outputs)]

    def work(block: slice) -> None:
        for output, values in zip(outputs, function(flat[:, :, block])):
            output[block] = values

    # Sorting, transforms and array arithmetic all release the interpreter's lock; the buffers go
    # with the threads.
    with ThreadPoolExecutor(min(8, _num_cpus())) as pool:
        list(pool.map(work, _blocks(flat)))
    return [output.reshape(scalars) for output in outputs]


def _num_cpus() -> int:
    """CPUs that this process may use, where the system can say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def finite_split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halves of a block in its own precision, and which scalars hold NaN or infinities."""
    split = np.empty((x.shape[2], 2 * x.shape[0], x.shape[1] // 2), x.dtype)
    _split_into(split, x)
    bad = ~np.isfinite(split).all(axis=(1, 2)) | _middle_is_bad(x)
    split[bad] = 0
    return split, bad


def rank_scores(values: np.ndarray) -> np.ndarray:
    """Normal scores of each row of `(b, m, n)` over all its draws."""
    flat = values.reshape(len(values), -1)
    order = np.argsort(flat, axis=1) + (np.arange(len(flat)) * flat.shape[1])[:, None]
    out = np.empty(values.shape)
    _scatter_scores(out.reshape(-1), flat.reshape(-1)[order], order)
    return out


def fold(split: np.ndarray) -> np.ndarray:
    """Distances of draws `(b, m, n)` from the median of each scalar."""
    return np.abs(split - np.median(split, axis=(1, 2), keepdims=True))
