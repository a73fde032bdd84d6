"""The loops behind R-hat and effective sample size, compiled.

Draws are ranked by a radix sort that keeps track of their places, and distances from the median by a merge of
two sorted halves. Autocovariances are computed lag by lag until Geyer's sum ends. All arrays have one row for
each scalar; no loop holds the interpreter's lock. The public functions and their sources are in
:mod:`numpyro_bnn.diagnostics.convergence.rhat`.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

# Number of digits of the radix sort: their counts fit the first cache.
_DIGIT_BITS = 11
DIGITS = 1 << _DIGIT_BITS


def compiled(function: Callable) -> Callable:
    """`function` compiled by Numba when first called, and cached on disk where that is possible."""
    # The compiler may reorder sums, so that it adds several numbers at once; NaN stays NaN.
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract"},
    }
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # Neither the folder of the package nor that of the user can be written: nothing is cached.
        return numba.njit(**options)(function)


@compiled
def sort_rows(
    bits: np.ndarray, place: np.ndarray, keys: np.ndarray, here: np.ndarray, counts: np.ndarray
) -> None:
    """Sort rows of floating-point numbers, given by their bits, in place.

    :param bits: `(b, size)`, a view of the numbers as whole numbers without sign.
    :param place: `(b, size)`, receives the former index of each number in its row. Equal bits keep their
        order; NaN go to the ends.
    :param keys: `(2, size)` for work, as `bits`.
    :param here: `(2, size)` for work, as `place`.
    :param counts: `(DIGITS,)` for work, without sign: an index that may be negative costs more.
    """
    size = bits.shape[1]
    num_bits = 8 * bits.itemsize
    sign = bits.dtype.type(1) << bits.dtype.type(num_bits - 1)
    mask = bits.dtype.type(DIGITS - 1)
    keys, next_keys = keys[0], keys[1]
    here, there = here[0], here[1]
    for row in range(bits.shape[0]):
        # Positive numbers are ordered as their bits; negative ones in reverse, and below the positive ones.
        for i in range(size):
            b = bits[row, i]
            keys[i] = ~b if b & sign else b | sign
            here[i] = i
        # The lowest digit comes first: each pass keeps the order of the pass before.
        for lowest in range(0, num_bits, _DIGIT_BITS):
            shift = bits.dtype.type(lowest)
            for digit in range(DIGITS):
                counts[digit] = 0
            for i in range(size):
                counts[(keys[i] >> shift) & mask] += np.uint32(1)
            total = np.uint32(0)
            for digit in range(DIGITS):
                total, counts[digit] = total + counts[digit], total
            for i in range(size):
                digit = (keys[i] >> shift) & mask
                at = counts[digit]
                counts[digit] = at + np.uint32(1)
                next_keys[at] = keys[i]
                there[at] = here[i]
            keys, next_keys = next_keys, keys
            here, there = there, here
        for i in range(size):
            key = keys[i]
            bits[row, i] = key ^ sign if key & sign else ~key
            place[row, i] = here[i]


@compiled
def score_rows(
    ordered: np.ndarray, place: np.ndarray, table: np.ndarray, scores: np.ndarray
) -> None:
    """Write normal scores to the places that sorted draws came from; ties get the score of their mean rank.

    :param ordered: `(b, size)`, each row in increasing order.
    :param place: `(b, size)`, the place of each in its row of `scores`.
    :param table: scores at index twice the rank.
    :param scores: `(b, size)`, receives them.
    """
    size = ordered.shape[1]
    for row in range(ordered.shape[0]):
        first = 0
        while first < size:
            end = first + 1
            while end < size and ordered[row, end] == ordered[row, first]:
                end += 1
            score = table[first + end + 1]
            for i in range(first, end):
                scores[row, place[row, i]] = score
            first = end


@compiled
def fold_rows(
    ordered: np.ndarray, place: np.ndarray, folded: np.ndarray, folded_place: np.ndarray
) -> None:
    """Distances from the median of each sorted row, in increasing order, with their places.

    Distances have the precision of the draws, as in ArviZ: whether two of them tie depends on it. Rows have
    an even length. The distances of each half of a row are sorted, and the halves are merged from both ends
    at once: neither end can use up a half before it has done its part.
    """
    size = ordered.shape[1]
    half = size // 2
    for row in range(ordered.shape[0]):
        values, places = ordered[row], place[row]
        median = (values[half - 1] + values[half]) / values.dtype.type(2)
        left, right = half - 1, half
        first, last = 0, size - 1
        for i in range(half):
            below, above = median - values[left], values[right] - median
            lower = below < above
            folded[row, i] = below if lower else above
            folded_place[row, i] = places[left] if lower else places[right]
            left -= lower
            right += not lower

            below, above = median - values[first], values[last] - median
            # This end takes the larger one of two distances, and ties in the order of the other end.
            higher = below >= above
            folded[row, size - 1 - i] = below if higher else above
            folded_place[row, size - 1 - i] = places[first] if higher else places[last]
            first += higher
            last -= not higher


@compiled
def first_lags(deviation: np.ndarray, covariance: np.ndarray, known: int) -> None:
    """Autocovariances at the lags from `known` on, mean over half chains.

    :param deviation: `(m, n)` from the means of half chains.
    :param covariance: `(lag,)`, receives them.
    """
    m, n = deviation.shape
    for lag in range(known, covariance.size):
        total = 0.0
        for chain in range(m):
            values = deviation[chain]
            for i in range(n - lag):
                total += values[i] * values[i + lag]
        covariance[lag] = total / (n * m)


@compiled
def geyer(covariance: np.ndarray, between: float, m: int, n: int) -> float:
    """Integrated autocorrelation time, or NaN where the sequence does not end within the lags.

    With `S_k = rho_2k + rho_2k+1` for each pair of lags: pairs are added, each reduced to the one before
    where it is larger, up to the first that is not positive (pair j). Then half of `rho_2j` is added if it is
    positive, which lowers the variance for antithetic chains. Vehtari et al. 2021, section 3.2.

    :param covariance: `(lag,)`, mean over the m half chains of n draws; n lags are all there are.
    :param between: variance of their means.
    """
    mean_variance = covariance[0] * n / (n - 1.0)
    total = covariance[0] + between
    last = max((n - 1) // 2 - 1, 0)
    added = 0.0
    smallest = np.inf
    for j in range(last + 1):
        if 2 * j + 1 >= covariance.size:
            return np.nan
        even = 1.0 - (mean_variance - covariance[2 * j]) / total if j else 1.0
        pair = even + 1.0 - (mean_variance - covariance[2 * j + 1]) / total
        if pair <= 0.0 or j == last:
            tail = even if even > 0.0 or pair >= 0.0 else 0.0
            return max(2.0 * added - 1.0 + tail, 1.0 / np.log10(m * n))
        smallest = min(smallest, pair)
        added += smallest
    return np.nan


@compiled
def time_rows(deviation: np.ndarray, between: np.ndarray, most_lags: int, time: np.ndarray) -> None:
    """Autocorrelation times `(b,)`, NaN where the sequence does not end within `most_lags`.

    :param deviation: `(b, m, n)` from the means of half chains.
    :param between: `(b,)`, variance of those means.
    """
    b, m, n = deviation.shape
    most = min(most_lags, n)
    covariance = np.empty(most)
    for row in range(b):
        known, lags = 0, min(4, most)
        while True:
            first_lags(deviation[row], covariance[:lags], known)
            time[row] = geyer(covariance[:lags], between[row], m, n)
            if lags == most or not np.isnan(time[row]):
                break
            known, lags = lags, min(2 * lags, most)
