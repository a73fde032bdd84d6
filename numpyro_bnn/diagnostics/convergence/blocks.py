"""Computes R-hat and effective sample size, one block of scalars at a time, on threads.

Draws are ranked by their values and by their distances from the median; normal scores come from a table.
Geyer's sum of autocorrelations mostly ends within a few lags, and then only the products of these lags are
computed. Where it does not, autocovariances of all lags come from Fourier transforms.

A block has shape `(b, m, n)`: scalars, half chains, draws. The public functions and their
sources are in :mod:`numpyro_bnn.diagnostics.convergence.rhat`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri

from numpyro_bnn._checks import num_cpus

# Numbers in one block, draws times scalars: 512 KiB in double precision: they stay in the
# cache, and larger arrays would be new to the system each time (page faults).
BLOCK_SIZE = 1 << 16
# Chains whose normal scores have less variance within are constant: scores of N draws lie at least 1/N apart,
# so that a true variance is far above it, and rounding far below.
_CONSTANT_SHARE = 1e-20
# Number of lags that are computed by products first; a transform costs about as much.
_MOST_LAGS = 64


def checked(name: str, x: ArrayLike) -> np.ndarray:
    """Draws as an array (chain, draw, …) of single or double precision."""
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
    # Sums of a thousand numbers in half precision or bfloat16 need more digits.
    return array.astype(np.float32)


def powers_of(x: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """The power of two of the largest number of each scalar; 0 for zeros, and for NaN or infinities."""
    # Draws that are divided by it have squares that neither overflow nor vanish, and lose no digit.
    largest = np.maximum(x.max(axis=axis), -x.min(axis=axis))
    return np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1]


def finite_split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halves `(b, 2 chain, half)` of `x (chain, draw, b)`, and which scalars are not finite: zeros there."""
    chains, draws, b = x.shape
    half = draws // 2
    split = np.empty((b, 2 * chains, half), x.dtype)
    for chain in range(chains):
        # One half chain at a time: strided reads of a whole chain do not stay in the cache.
        split[:, 2 * chain] = x[chain, :half].T
        split[:, 2 * chain + 1] = x[chain, draws - half :].T
    # With an odd number of draws the middle one is in neither half.
    bad = ~(np.isfinite(split).all(axis=(1, 2)) & np.isfinite(x[:, draws // 2]).all(axis=0))
    split[bad] = 0
    return split, bad


@lru_cache(maxsize=8)
def _score_table(size: int) -> np.ndarray:
    """Normal scores `Phi^-1((r - 3/8) / (N + 1/4))` of ranks 0, 1/2, 1 … `size`, at twice the rank."""
    # Blom 1958, as in Vehtari et al. 2021, section 4.1. Averages over ties are whole or half ranks, so the
    # table holds every rank that occurs.
    rank = np.arange(2, 2 * size + 1) / 2.0
    return np.concatenate([[np.nan, np.nan], ndtri((rank - 0.375) / (size + 0.25))])


def _in_order(values: np.ndarray, kind: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows `(b, size)` in increasing order, and the index in all rows that each number had."""
    place = np.argsort(values, axis=1, kind=kind)
    place += values.shape[1] * np.arange(len(values))[:, None]
    return values.ravel()[place], place


def _folded(ordered: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances from the median of ordered rows, in order; in the precision of the draws, as in ArviZ."""
    middle = ordered.shape[1] // 2
    median = (ordered[:, middle - 1] + ordered[:, middle]) / 2
    # They fall and then rise, so that a stable sort only has to merge two parts.
    folded, again = _in_order(np.abs(ordered - median[:, None]), "stable")
    return folded, place.ravel()[again]


def _scores(ordered: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Normal scores of rows in order, put where the draws were; ties get the score of their mean rank."""
    b, size = ordered.shape
    table = _score_table(size)
    of_rank = np.tile(table[2::2], b)
    ties = np.zeros((b, size), bool)
    np.equal(ordered[:, 1:], ordered[:, :-1], out=ties[:, 1:])
    # Draws that equal the one before; successive ones are of one group, which no row shares with the next.
    tied = np.flatnonzero(ties)
    is_first = np.diff(tied, prepend=-1) != 1
    first = tied[is_first] - 1
    others = np.diff(np.flatnonzero(is_first), append=tied.size)
    of_group = table[2 * (first % size) + others + 2]
    of_rank[first], of_rank[tied] = of_group, np.repeat(of_group, others)
    scores = np.empty(b * size)
    scores[place.ravel()] = of_rank
    return scores.reshape(b, size)


def rank_scores(split: np.ndarray, folded: bool = False) -> np.ndarray:
    """Normal scores of each scalar of `(b, m, n)`, or of the distances of its draws from their median."""
    ranked = _in_order(split.reshape(len(split), -1))
    return _scores(*(_folded(*ranked) if folded else ranked)).reshape(split.shape)


def rhat_of(split: np.ndarray) -> np.ndarray:
    """R-hat of `(b, m, n)`: `sqrt((B/W + n - 1) / n)`, Vehtari et al. 2021, section 3.1."""
    return _rhat_from(split.mean(axis=2), split.var(axis=2, ddof=1).mean(axis=1), split.shape[2])


def _rhat_from(means: np.ndarray, within: np.ndarray, n: int) -> np.ndarray:
    between = n * means.var(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def _rhat_of_deviations(deviation: np.ndarray, means: np.ndarray) -> np.ndarray:
    """R-hat of normal scores `(b, m, n)`, from their deviations from the means of half chains."""
    b, m, n = deviation.shape
    within = np.vecdot(deviation.reshape(b, -1), deviation.reshape(b, -1)) / (m * n)
    within = np.where(within > _CONSTANT_SHARE, within, 0.0)
    return _rhat_from(means, within * n / (n - 1), n)


def summarize_block(x: np.ndarray, tail: bool) -> tuple[np.ndarray, ...]:
    """R-hat, bulk ESS and tail ESS (NaN unless `tail`) of one block `x (chain, draw, b)`."""
    split, bad = finite_split(x)
    ordered, place = _in_order(split.reshape(len(split), -1))
    constant = ordered[:, 0] == ordered[:, -1]
    scores = _scores(ordered, place).reshape(split.shape)
    folded = _scores(*_folded(ordered, place)).reshape(split.shape)
    means = centre(scores)
    ess = ess_of(scores, means, constant)
    rhat = _rhat_of_deviations(scores, means)
    rhat = np.fmax(rhat, _rhat_of_deviations(folded, centre(folded)))
    ess_tail = np.full(len(split), np.nan)
    if tail:
        below = [split <= limit[:, None, None] for limit in _tail_limits(x, ordered)]
        ess_tail = np.minimum(*np.split(_ess_of_events(np.concatenate(below)), 2))
    for values in (rhat, ess, ess_tail):
        values[bad] = np.nan
    return rhat, ess, ess_tail


def _ess_of_events(happened: np.ndarray) -> np.ndarray:
    """ESS of booleans `(b, m, n)`."""
    constant = happened.all(axis=(1, 2)) | ~happened.any(axis=(1, 2))
    deviation = happened.astype(np.float64)
    return ess_of(deviation, centre(deviation), constant)


def _tail_limits(x: np.ndarray, ordered: np.ndarray) -> list[np.ndarray]:
    """Draws `(b,)` that separate those up to the 5 % (and the 95 %) quantile from the others."""
    # A quantile interpolates between two order statistics with no draw between them, so the lower one
    # separates the draws in the same way, without rounding.
    # With an odd number of draws the middle ones belong to neither half, but to the quantile.
    everything = np.sort(x.reshape(-1, x.shape[2]).T, axis=1) if x.shape[1] % 2 else ordered
    return [everything[:, int((everything.shape[1] - 1) * q)] for q in (0.05, 0.95)]


def centre(split: np.ndarray) -> np.ndarray:
    """Subtract the means of half chains from `(b, m, n)`, in place, and return them, `(b, m)`."""
    means = split.mean(axis=2)
    split -= means[:, :, None]
    return means


def ess_of(deviation: np.ndarray, means: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """ESS of `(b, m, n)` by Geyer's initial monotone sequence; Vehtari et al. 2021, section 3.2."""
    m, n = deviation.shape[1:]
    between = means.var(axis=1, ddof=1)

    def time_of(covariance: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return geyer(covariance, between[rows], m, n)

    time = by_first_lags(deviation, time_of, min(_MOST_LAGS, n))
    rest = np.flatnonzero(np.isnan(time) & ~constant)
    if rest.size:
        time[rest] = time_of(_all_lags(deviation[rest]), rest)
    return np.where(constant, float(m * n), m * n / time)


def by_first_lags(deviation: np.ndarray, function: Callable, most: int) -> np.ndarray:
    """A function `(b,)` of as many autocovariances as it needs; NaN where more than `most` are needed."""
    # `function` takes autocovariances (row, lag), mean over chains, and the numbers of these rows; it returns
    # NaN where they are too few.
    b, m, n = deviation.shape
    values, rows, covariance, lags = np.full(b, np.nan), np.arange(b), np.empty((b, 0)), 4
    while rows.size and covariance.shape[1] < most:
        known = range(covariance.shape[1], min(lags, most))
        # Sums over one chain are in the precision of the draws, which has enough digits for them.
        new = [np.vecdot(deviation[..., : n - k], deviation[..., k:]).sum(1, float) for k in known]
        covariance = np.concatenate([covariance, np.stack(new, axis=1) / (n * m)], axis=1)
        values[rows] = function(covariance, rows)
        rest = np.isnan(values[rows])
        rows, covariance, deviation, lags = rows[rest], covariance[rest], deviation[rest], 2 * lags
    return values


def geyer(covariance: np.ndarray, between: np.ndarray, m: int, n: int) -> np.ndarray:
    """Integrated autocorrelation times, or NaN where the sequence does not end within the lags."""
    # Vehtari et al. 2021, section 3.2. With `S_k = rho_2k + rho_2k+1` for each pair of lags: pairs are added,
    # each reduced to the one before where it is larger, up to the first that is not positive (pair j). Then
    # half of `rho_2j` is added if it is positive, which lowers the variance for antithetic chains.
    b, lags = covariance.shape
    last = max((n - 1) // 2 - 1, 0)
    count = min(last + 1, lags // 2)
    total = covariance[:, :1] + between[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (covariance[:, :1] * (n / (n - 1.0)) - covariance[:, : 2 * count]) / total
    rho[:, 0] = 1.0
    pairs = rho.reshape(b, count, 2).sum(axis=2)
    ends = pairs <= 0.0
    if count == last + 1:
        ends[:, last] = True
    end = ends.argmax(axis=1)[:, None]
    even, pair = (np.take_along_axis(each, end, 1)[:, 0] for each in (rho[:, ::2], pairs))
    added = (np.minimum.accumulate(pairs, axis=1) * (np.arange(count) < end)).sum(axis=1)
    tail = np.where((even > 0.0) | (pair >= 0.0), even, 0.0)
    time = np.maximum(2.0 * added - 1.0 + tail, 1.0 / np.log10(m * n))
    return np.where(ends.any(axis=1), time, np.nan)


def _all_lags(deviation: np.ndarray) -> np.ndarray:
    """Autocovariances at all lags `(b, n)`, mean over half chains, by Fourier transforms."""
    m, n = deviation.shape[1:]
    size = next_fast_len(2 * n, real=True)
    # One half chain at a time: its transform fits the cache, the transform of all does not.
    power = sum(np.square(np.abs(rfft(deviation[:, k], n=size, axis=1))) for k in range(m))
    return irfft(power, n=size, axis=1)[:, :n] / (n * m)


def by_block(x: np.ndarray, function: Callable, num_outputs: int) -> list[np.ndarray]:
    """Apply `function` to blocks of the scalars of `x` on threads; outputs shaped `x.shape[2:]`."""
    scalars = x.shape[2:]
    # Reshaping copies nothing where draws are in C order, also for draws on disk (memory-mapped).
    flat = x.reshape(*x.shape[:2], -1)
    outputs = [np.empty(flat.shape[2]) for _ in range(num_outputs)]

    def work(block: slice) -> None:
        for output, values in zip(outputs, function(flat[:, :, block])):
            output[block] = values

    # Sorting, transforms and array arithmetic all release the interpreter's lock.
    with ThreadPoolExecutor(min(8, num_cpus())) as pool:
        step = max(1, BLOCK_SIZE // (flat.shape[0] * flat.shape[1]))
        list(pool.map(work, (slice(i, i + step) for i in range(0, flat.shape[2], step))))
    return [output.reshape(scalars) for output in outputs]
