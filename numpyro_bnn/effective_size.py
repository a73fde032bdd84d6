"""Effective sample size of a block of scalars, from autocovariances averaged over half chains.

Geyer's sum mostly ends within a few lags, whose products are all that is formed then. Where it
does not, the power spectra of all half chains are summed before a single inverse transform.
"""

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

    Where chains mix, the sequence ends after a few lags, whose products cost a third of the
    transforms that give all lags: those are left to the scalars that need them.

    :param deviation: from the means of half chains.
    :param means: `(b, m)`, what :func:`centre` returns.
    :param constant: scalars `(b,)` whose draws are all equal.
    """
    m, n = deviation.shape[1:]
    between = means.var(axis=1, ddof=1)
    time, ended = _autocorrelation_time(_first_lags(deviation), between, m, n)
    rest = ~(ended | constant)
    if rest.any():
        # A block that needs all of it is not copied.
        left = deviation if rest.all() else deviation[rest]
        time[rest] = _autocorrelation_time(_all_lags(left), between[rest], m, n)[0]
    return np.where(constant, float(m * n), m * n / time)


def _first_lags(deviation: np.ndarray) -> np.ndarray:
    """Autocovariances at the first lags `(b, lag)`, mean over half chains."""
    b, m, n = deviation.shape
    lags = min(_FIRST_LAGS, n)
    products = np.empty((lags, b))
    for k in range(lags):
        products[k] = np.vecdot(deviation[:, :, k:], deviation[:, :, : n - k]).sum(axis=1)
    return products.T / (n * m)


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
