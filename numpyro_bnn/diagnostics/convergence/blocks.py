"""Computes R-hat and effective sample size, one block of scalars at a time, on threads.

Draws are ranked by their values and by their distances from the median; normal scores come from a table. The
loops are those of :mod:`numpyro_bnn.diagnostics.convergence.compiled_loops`.

A block has shape `(b, m, n)`: scalars, half chains, draws. The public functions and their
sources are in :mod:`numpyro_bnn.diagnostics.convergence.rhat`.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from numpyro_bnn.diagnostics.convergence.buffers import buffer
from numpyro_bnn.diagnostics.convergence.compiled_loops import (
    DIGITS,
    fold_rows,
    score_rows,
    sort_rows,
)
from numpyro_bnn.diagnostics.convergence.ess import centre, ess_of

# Numbers in one block, draws times scalars: 2 MiB in double precision, which stay in the cache.
BLOCK_SIZE = 1 << 18
# Chains whose variance within is below this share of the whole count as constant: normal scores lie at
# least 1/N apart, so a true share is far above it, and rounding far below.
_CONSTANT_SHARE = 1e-11


def checked(name: str, x: ArrayLike) -> np.ndarray:
    """Draws as an array `(chain, draw, ...)` of single or double precision.

    :param name: the function that was called, for the error.
    :param x: numbers with an axis of chains and one of draws.
    :raises TypeError: for anything but numbers.
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
        # Sums of a thousand numbers in half precision or bfloat16 need more digits.
        return array.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected real numbers, got dtype {array.dtype}. Leave text and objects out."
        ) from error


def powers_of(x: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """The power of two of the largest number of each scalar; 0 for zeros, and for NaN or infinities.

    Draws that are divided by it have squares that neither overflow nor vanish, and lose no digit.

    :param x: draws.
    :param axis: the axes of chains and draws.
    """
    largest = np.maximum(x.max(axis=axis), -x.min(axis=axis))
    return np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]


def _split_into(out: np.ndarray, x: np.ndarray) -> None:
    """Copy `x (chain, draw, b)` to halves `out (b, 2 chain, half)`."""
    half = out.shape[2]
    for chain in range(x.shape[0]):
        # One half chain at a time: strided reads of a whole chain do not stay in the cache.
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
    Averages over ties are whole or half ranks, so the table holds every rank that occurs.
    """
    rank = np.arange(2, 2 * size + 1) / 2.0
    return np.concatenate([[np.nan, np.nan], ndtri((rank - 0.375) / (size + 0.25))])


def _sorted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows `(b, size)` in place; return them, and the index in its row that each number had before."""
    bits = values.view(np.uint32 if values.itemsize == 4 else np.uint64)
    place = buffer("place", values.shape, np.int32)
    pair = (2, values.shape[1])
    # The arrays are made here: a compiled function that makes them takes seconds longer to compile.
    sort_rows(
        bits, place, np.empty(pair, bits.dtype), np.empty(pair, place.dtype), np.empty(DIGITS, "u4")
    )
    return values, place


def _scores(ordered: np.ndarray, place: np.ndarray, m: int) -> np.ndarray:
    """Normal scores `(b, m, n)` of sorted rows, put back into the order of the draws."""
    b, size = ordered.shape
    scores = buffer("scores", (b, size))
    score_rows(ordered, place, _score_table(size), scores)
    return scores.reshape(b, m, size // m)


def rhat_of(split: np.ndarray) -> np.ndarray:
    """R-hat of `(b, m, n)`: `sqrt((B/W + n - 1) / n)`, Vehtari et al. 2021, section 3.1."""
    n = split.shape[2]
    return _rhat_from(split.mean(axis=2), split.var(axis=2, ddof=1).mean(axis=1), n)


def _rhat_from(means: np.ndarray, within: np.ndarray, n: int) -> np.ndarray:
    between = n * means.var(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def _rhat_of_scores(squares: np.ndarray, means: np.ndarray, n: int) -> np.ndarray:
    """R-hat from sums of squares and means of normal scores.

    Their variance is a difference of squares and squared means, which loses few digits: scores are of order
    one.

    :param squares: `(b,)`, over all chains; of order one for each draw.
    :param means: `(b, m)`, by half chain of n draws.
    """
    within = squares - n * np.einsum("bm,bm->b", means, means)
    within = np.where(within > _CONSTANT_SHARE * squares, within, 0.0)
    return _rhat_from(means, within / (means.shape[1] * (n - 1)), n)


def _squares(scores: np.ndarray) -> np.ndarray:
    flat = scores.reshape(len(scores), -1)
    return np.vecdot(flat, flat)


def _rhat_of_sorted(ordered: np.ndarray, place: np.ndarray, m: int) -> np.ndarray:
    """R-hat of the normal scores of sorted rows of m half chains."""
    scores = _scores(ordered, place, m)
    return _rhat_of_scores(_squares(scores), scores.mean(axis=2), scores.shape[2])


def _folded(ordered: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances from the median of each sorted row, sorted, and the indices of their draws."""
    folded = buffer("folded", ordered.shape, ordered.dtype)
    folded_place = buffer("folded place", place.shape, place.dtype)
    fold_rows(ordered, place, folded, folded_place)
    return folded, folded_place


def summarize_block(x: np.ndarray, tail: bool) -> tuple[np.ndarray, ...]:
    """R-hat, bulk ESS and tail ESS (NaN unless `tail`) of one block `x (chain, draw, b)`."""
    chains, draws, b = x.shape
    m, n = 2 * chains, draws // 2
    split = buffer("split", (b, m, n), x.dtype)
    _split_into(split, x)
    ordered, place = _sorted(split.reshape(b, m * n))
    bad = ~(np.isfinite(ordered[:, 0]) & np.isfinite(ordered[:, -1])) | _middle_is_bad(x)
    ordered[bad] = np.arange(m * n)
    constant = ordered[:, 0] == ordered[:, -1]

    scores = _scores(ordered, place, m)
    squares = _squares(scores)
    ess_tail = np.full(b, np.nan)
    if tail:
        below = (scores <= limit[:, None, None] for limit in _quantile_scores(x, ordered))
        ess_tail = np.minimum(*map(_ess_of_events, below))
    means = centre(scores)
    ess = ess_of(scores, means, constant)
    rhat = _rhat_of_scores(squares, means, n)
    rhat = np.fmax(rhat, _rhat_of_sorted(*_folded(ordered, place), m))
    for values in (rhat, ess, ess_tail):
        values[bad] = np.nan
    return rhat, ess, ess_tail


def _ess_of_events(happened: np.ndarray) -> np.ndarray:
    """ESS of booleans `(b, m, n)`."""
    constant = happened.all(axis=(1, 2)) | ~happened.any(axis=(1, 2))
    deviation = happened.astype(np.float64)
    return ess_of(deviation, centre(deviation), constant)


def _quantile_scores(x: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Normal scores that separate draws up to the 5 % (and the 95 %) quantile from the others, `(2, b)`.

    A quantile interpolates between two order statistics with no draw between them, so the lower one
    separates the draws in the same way, without rounding.
    """
    b, size = ordered.shape
    everything = ordered
    if x.shape[1] % 2:
        # The middle draws belong to neither half.
        everything = np.sort(x.reshape(-1, b).T, axis=1)
    table = _score_table(size)
    limits = []
    for q in (0.05, 0.95):
        quantile = everything[:, int(np.floor((everything.shape[1] - 1) * q))]
        num_below = (ordered <= quantile[:, None]).sum(axis=1)
        # Draws below have ranks up to this number, the other draws have larger ones.
        limits.append(np.where(num_below > 0, table[np.maximum(2 * num_below, 2)], -np.inf))
    return np.stack(limits)


def _blocks(x: np.ndarray) -> Iterator[slice]:
    step = max(1, BLOCK_SIZE // (x.shape[0] * x.shape[1]))
    for start in range(0, x.shape[2], step):
        yield slice(start, start + step)


def by_block(x: np.ndarray, function: Callable, num_outputs: int) -> list[np.ndarray]:
    """Apply `function` to blocks of the scalars of `x` on threads; outputs shaped `x.shape[2:]`."""
    scalars = x.shape[2:]
    # Reshaping copies nothing where draws are in C order, also for draws on disk (memory-mapped).
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
    b, m, n = values.shape
    return _scores(*_sorted(values.reshape(b, m * n).copy()), m).copy()


def fold(split: np.ndarray) -> np.ndarray:
    """Distances of draws `(b, m, n)` from the median of each scalar."""
    return np.abs(split - np.median(split, axis=(1, 2), keepdims=True))
