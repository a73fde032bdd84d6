"""The work behind R-hat and effective sample size: one block of scalars at a time, on threads.

Three savings carry it. Ranks are known once values are sorted, so normal scores are looked up
and never computed. Draws in single precision are sorted together with their places, as one whole
number each; in double precision the folded ones, two sorted runs, are only merged. And the
autocovariance is needed only as its mean over chains, so the power spectra are summed before a
single inverse transform.

A block has shape `(b, m, n)`: scalars, half chains, draws. The public functions and their
sources are in :mod:`numpyro_bnn.rhat`.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.fft import next_fast_len
from scipy.special import ndtri

# Draws in one block over all its scalars: 2 MiB in double precision, so that the few arrays of
# a block stay in the cache.
BLOCK_SIZE = 1 << 18
# The variance within, as a share of the whole, below which normal scores count as constant
# chains: they lie at least 1/N apart, so a true share is far above and rounding far below.
_CONSTANT_SHARE = 1e-11


class _Buffers(threading.local):
    """Arrays that a thread uses again for every block.

    An array of megabytes is given back to the system when it is freed, and each page of the
    next one costs a fault: a third of the time went there.
    """

    def __call__(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        held = self.__dict__.get(name)
        if held is None or held.size < size:
            held = self.__dict__[name] = np.empty(size, np.uint8)
        return held[:size].view(dtype).reshape(shape)


_buffer = _Buffers()


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


def _rhat_of_sorted(ordered: np.ndarray, where: np.ndarray, m: int, n: int) -> np.ndarray:
    """R-hat of the normal scores of sorted rows: only their sums by half chain are formed.

    :param ordered: `(b, m * n)`, each row in increasing order.
    :param where: the flat index in `(b, m, n)` that each came from.
    """
    b, size = ordered.shape
    chain = (where // n).reshape(-1)
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


def _fft_size(n: int) -> int:
    """Length of a transform that holds all lags; powers of two are faster than their size says."""
    size = next_fast_len(2 * n, real=True)
    power_of_two = 1 << (2 * n - 1).bit_length()
    return power_of_two if power_of_two <= 1.05 * size else size


def ess_of(split: np.ndarray, means: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """ESS of `(b, m, n)` by Geyer's initial monotone sequence; Vehtari et al. 2021, section 3.2.

    In pairs of lags `S_k = rho_2k + rho_2k+1`: pairs are added up to the first that is not
    positive (pair j), each no larger than the one before; then half of `rho_2j` is added if it is
    positive, which lowers the variance for antithetic chains.
    """
    b, m, n = split.shape
    size = _fft_size(n)
    # One half chain at a time: its transform fits the cache, that of all of them does not.
    deviation = _buffer("deviation", (b, n))
    spectrum = _buffer("spectrum", (b, size // 2 + 1), np.complex128)
    parts = spectrum.view(np.float64)
    power = _buffer("power", parts.shape)
    power[:] = 0.0
    for k in range(m):
        np.subtract(split[:, k], means[:, k, None], out=deviation)
        np.fft.rfft(deviation, n=size, axis=1, out=spectrum)
        np.square(parts, out=parts)
        power += parts
    # Real and imaginary parts alternate.
    power = power[:, ::2] + power[:, 1::2]
    covariance = np.fft.irfft(power, n=size, axis=1)[:, :n] / (n * m)

    mean_variance = covariance[:, :1] * n / (n - 1.0)
    total = covariance[:, :1] + means.var(axis=1, ddof=1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (mean_variance - covariance) / total
    rho[:, 0] = 1.0
    last_pair = max((n - 1) // 2 - 1, 0)
    pairs = rho[:, 0 : 2 * last_pair + 1 : 2] + rho[:, 1 : 2 * last_pair + 2 : 2]
    stop = pairs <= 0.0
    j = np.where(stop.any(axis=1), stop.argmax(axis=1), last_pair)
    monotone = np.minimum.accumulate(pairs, axis=1)
    added = np.where(np.arange(last_pair + 1) < j[:, None], monotone, 0.0).sum(axis=1)
    row = np.arange(b)
    tail = rho[row, 2 * j]
    tail = np.where((tail > 0) | (pairs[row, j] >= 0), tail, 0.0)
    time = np.maximum(2.0 * added - 1.0 + tail, 1.0 / np.log10(m * n))
    return np.where(constant, float(m * n), m * n / time)


def _sorting(values: np.ndarray, places: np.ndarray, name: str, kind: Any = None) -> np.ndarray:
    """`places` rearranged as sorting each row of `values` in increasing order does.

    Single precision is sorted as whole numbers that hold the value above and the place below:
    sorting numbers is over twice as fast as sorting indices, and the order of floats is that of
    their bits once those of negative ones are inverted.

    :param values: `(b, size)`.
    :param places: whole numbers `(b, size)` that go along, below 2^32.
    :param name: of the buffer that holds the result.
    :param kind: of NumPy's sort in double precision; `"stable"` merges sorted runs.
    """
    if values.dtype != np.float32:
        return np.take_along_axis(places, np.argsort(values, axis=1, kind=kind), axis=1)
    bits = values.view(np.int32)
    keys = _buffer("keys", values.shape, np.int32)
    np.right_shift(bits, 31, out=keys)
    np.bitwise_and(keys, 0x7FFFFFFF, out=keys)
    np.bitwise_xor(keys, bits, out=keys)
    packed = _buffer(name, values.shape, np.int64)
    np.left_shift(keys, 32, out=packed, dtype=np.int64)
    np.bitwise_or(packed, places, out=packed)
    packed.sort(axis=1)
    return np.bitwise_and(packed, 0xFFFFFFFF, out=packed)


def summarize_block(x: np.ndarray, tail: bool) -> tuple[np.ndarray, ...]:
    """R-hat, bulk ESS and (or NaN) tail ESS of one block `x (chain, draw, b)`."""
    chains, draws, b = x.shape
    shape = (b, 2 * chains, draws // 2)
    size = shape[1] * shape[2]
    split = _buffer("split", shape, x.dtype)
    _split_into(split, x)
    order = _sorting(split.reshape(b, size), np.arange(b * size).reshape(b, size), "order")
    ordered = _buffer("ordered", (b, size), x.dtype)
    np.take(split, order, out=ordered, mode="clip")
    bad = ~(np.isfinite(ordered[:, 0]) & np.isfinite(ordered[:, -1])) | _middle_is_bad(x)
    ordered[bad] = np.arange(size)

    scores = _buffer("scores", shape)
    _scatter_scores(scores.reshape(-1), ordered, order)
    means = scores.mean(axis=2)
    rhat = _rhat_of_scores(np.einsum("bmn,bmn->b", scores, scores), means, shape[2])
    ess = ess_of(scores, means, ordered[:, 0] == ordered[:, -1])

    # In the precision of the draws, as ArviZ does: whether two folded values tie depends on it.
    median = (ordered[:, (size - 1) // 2] + ordered[:, size // 2]) / ordered.dtype.type(2)
    folded = _buffer("folded", (b, size), x.dtype)
    np.subtract(ordered, median[:, None], out=folded)
    np.abs(folded, out=folded)
    order = _sorting(folded, order, "refolded", kind="stable")
    np.take(split, order, out=folded, mode="clip")
    np.subtract(folded, median[:, None], out=folded)
    np.abs(folded, out=folded)
    rhat = np.fmax(rhat, _rhat_of_sorted(folded, order, shape[1], shape[2]))

    ess_tail = np.full(b, np.nan)
    if tail:
        if draws % 2:
            # The quantiles are those of all draws, the middle ones included.
            ordered = np.sort(x.reshape(-1, b).T, axis=1)
        ess_tail = np.minimum(*(_ess_quantile(split, ordered, q) for q in (0.05, 0.95)))
    for values in (rhat, ess, ess_tail):
        values[bad] = np.nan
    return rhat, ess, ess_tail


def _ess_quantile(split: np.ndarray, ordered: np.ndarray, q: float) -> np.ndarray:
    """ESS of the indicator of lying at or below the q quantile of all draws.

    The quantile interpolates between two order statistics, and no draw lies between them, so
    the lower one gives the same indicator without rounding.
    """
    lower = ordered[:, int(np.floor((ordered.shape[1] - 1) * q))]
    below = _buffer("scores", split.shape)
    np.less_equal(split, lower[:, None, None], out=below)
    means = below.mean(axis=2)
    share = means.mean(axis=1)
    return ess_of(below, means, (share == 0.0) | (share == 1.0))


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
