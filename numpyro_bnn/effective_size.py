"""Effective sample size of a block of scalars, from autocovariances averaged over half chains.

Geyer's sum mostly ends within a few lags, whose products are all that is formed then: of numbers
one by one, of indicators 64 draws at a time. Where it does not, the power spectra of all half
chains are summed before a single inverse transform.
"""

from collections.abc import Callable

import numpy as np
from scipy.fft import next_fast_len

from numpyro_bnn.buffers import buffer

# Lags whose products are formed before any transform: of independent draws one in 16 needs more.
# At least a pair.
_FIRST_LAGS = 10


def _fft_size(n: int) -> int:
    """Length of a transform that holds all lags; powers of two are faster than their size says."""
    size = next_fast_len(2 * n, real=True)
    power_of_two = 1 << (2 * n - 1).bit_length()
    return power_of_two if power_of_two <= 1.05 * size else size


def centre(split: np.ndarray) -> np.ndarray:
    """Take the means of half chains off `(b, m, n)`, in place; return them `(b, m)`."""
    means = split.mean(axis=2)
    split -= means[:, :, None]
    return means


def ess_of(deviation: np.ndarray, means: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """ESS of `(b, m, n)` by Geyer's initial monotone sequence; Vehtari et al. 2021, section 3.2.

    :param deviation: from the means of half chains.
    :param means: `(b, m)`, what :func:`centre` returns.
    :param constant: scalars `(b,)` whose draws are all equal.
    """
    # A block that needs all lags of every scalar is not copied.
    return _ess(
        _first_lags(deviation),
        lambda rest: deviation if rest.all() else deviation[rest],
        means,
        constant,
        deviation.shape[2],
    )


def ess_of_indicator(indicator: np.ndarray) -> np.ndarray:
    """The same of events: booleans `(b, m, n)`."""
    b, m, n = indicator.shape
    words = _words(indicator)
    counts = np.bitwise_count(words).sum(axis=0, dtype=np.int64).reshape(b, m)
    means = counts / n
    share = counts.sum(axis=1)
    return _ess(
        _first_lags_of_indicator(indicator, words, counts),
        lambda rest: indicator[rest] - means[rest, :, None],
        means,
        (share == 0) | (share == m * n),
        n,
    )


def _ess(
    first: np.ndarray,
    deviation: Callable[[np.ndarray], np.ndarray],
    means: np.ndarray,
    constant: np.ndarray,
    n: int,
) -> np.ndarray:
    """ESS from the first autocovariances where the sequence ends there, and from all elsewhere.

    :param first: `(b, lag)`.
    :param deviation: what gives the deviations from `means` of the scalars chosen `(b,)`.
    :param means: `(b, m)` of half chains of n draws.
    :param constant: scalars `(b,)` whose draws are all equal.
    """
    m = means.shape[1]
    between = means.var(axis=1, ddof=1)
    time, ended = _autocorrelation_time(first, between, m, n)
    rest = ~(ended | constant)
    if rest.any():
        covariance = _all_lags(deviation(rest))
        time[rest] = _autocorrelation_time(covariance, between[rest], m, n)[0]
    return np.where(constant, float(m * n), m * n / time)


def _first_lags(deviation: np.ndarray) -> np.ndarray:
    """Autocovariances at the first lags `(b, lag)`, mean over half chains."""
    b, m, n = deviation.shape
    lags = min(_FIRST_LAGS, n)
    products = np.empty((lags, b))
    for k in range(lags):
        products[k] = np.vecdot(deviation[:, :, k:], deviation[:, :, : n - k]).sum(axis=1)
    return products.T / (n * m)


def _words(indicator: np.ndarray) -> np.ndarray:
    """Booleans `(b, m, n)` as words of 64 draws `(word, b * m)`.

    Words lie first, so that operations run through all half chains at once. There is one more
    than the draws need: what is shifted in behind the last is false.
    """
    b, m, n = indicator.shape
    bits = np.packbits(indicator, axis=2, bitorder="little").reshape(b * m, -1)
    padded = np.zeros((b * m, 8 * (-(-n // 64) + 1)), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return np.ascontiguousarray(padded.view("<u8").T)


def _first_lags_of_indicator(
    indicator: np.ndarray, words: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The same of booleans, from the number of pairs of draws that both are true.

    With mean `p` of a half chain, the products of deviations at lag k add up to
    `pairs - p (sum without the last k + sum without the first k) + (n - k) p^2`.

    :param words: `(word, b * m)`, what :func:`_words` returns.
    :param counts: `(b, m)`, of draws that are true.
    """
    b, m, n = indicator.shape
    lags = min(_FIRST_LAGS, n, 64)
    pairs = np.empty((lags, b * m))
    pairs[0] = counts.reshape(-1)
    for k in range(1, lags):
        shifted = words[1:] << np.uint64(64 - k)
        shifted |= words[:-1] >> np.uint64(k)
        shifted &= words[:-1]
        np.bitwise_count(shifted).sum(axis=0, out=pairs[k])
    # The sums without the last k draws, and without the first.
    left_out = np.zeros((lags, b, m))
    ends = indicator[:, :, : lags - 1].astype(np.float64)
    ends += indicator[:, :, : n - lags : -1]
    np.cumsum(np.moveaxis(ends, 2, 0), axis=0, out=left_out[1:])
    mean = counts / n
    kept = np.arange(n, n - lags, -1)[:, None, None]
    products = pairs.reshape(lags, b, m) - mean * (2.0 * counts - left_out - kept * mean)
    return products.sum(axis=2).T / (n * m)


def _all_lags(deviation: np.ndarray) -> np.ndarray:
    """Autocovariances at all lags `(b, n)`, mean over half chains."""
    b, m, n = deviation.shape
    size = _fft_size(n)
    # One half chain at a time: its transform fits the cache, that of all of them does not.
    spectrum = buffer("spectrum", (b, size // 2 + 1), np.complex128)
    parts = spectrum.view(np.float64)
    power = buffer("power", parts.shape)
    power[:] = 0.0
    for k in range(m):
        np.fft.rfft(deviation[:, k], n=size, axis=1, out=spectrum)
        np.square(parts, out=parts)
        power += parts
    # Real and imaginary parts alternate.
    power = power[:, ::2] + power[:, 1::2]
    return np.fft.irfft(power, n=size, axis=1)[:, :n] / (n * m)


def _autocorrelation_time(
    covariance: np.ndarray, between: np.ndarray, m: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Integrated autocorrelation time, and whether the sequence ended within the lags given.

    In pairs of lags `S_k = rho_2k + rho_2k+1`: pairs are added up to the first that is not
    positive (pair j), each no larger than the one before; then half of `rho_2j` is added if it is
    positive, which lowers the variance for antithetic chains.

    :param covariance: `(b, lag)`, mean over the m half chains of n draws.
    :param between: `(b,)`, variance of their means.
    """
    mean_variance = covariance[:, :1] * n / (n - 1.0)
    total = covariance[:, :1] + between[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (mean_variance - covariance) / total
    rho[:, 0] = 1.0
    last_pair = max(min((n - 1) // 2, covariance.shape[1] // 2) - 1, 0)
    pairs = rho[:, 0 : 2 * last_pair + 1 : 2] + rho[:, 1 : 2 * last_pair + 2 : 2]
    stop = pairs <= 0.0
    ended = stop.any(axis=1)
    j = np.where(ended, stop.argmax(axis=1), last_pair)
    monotone = np.minimum.accumulate(pairs, axis=1)
    added = np.where(np.arange(last_pair + 1) < j[:, None], monotone, 0.0).sum(axis=1)
    row = np.arange(len(rho))
    tail = rho[row, 2 * j]
    tail = np.where((tail > 0) | (pairs[row, j] >= 0), tail, 0.0)
    return np.maximum(2.0 * added - 1.0 + tail, 1.0 / np.log10(m * n)), ended
