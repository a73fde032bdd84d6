"""Effective sample size of a block of scalars, from autocovariances averaged over half chains.

Geyer's sum mostly ends within a few lags, and then only the products of these lags are computed. Where
it does not, autocovariances of all lags come from Fourier transforms: the power spectra of all half
chains are summed before a single inverse transform.
"""

import numpy as np
from scipy.fft import next_fast_len

from numpyro_bnn.diagnostics.convergence.buffers import buffer
from numpyro_bnn.diagnostics.convergence.compiled_loops import geyer, time_rows

# Number of lags that are computed by products first; a transform takes as long as about so many.
_MOST_LAGS = 64


def _fft_size(n: int) -> int:
    """Length of a Fourier transform that holds all lags: a power of two if that is hardly longer."""
    size = next_fast_len(2 * n, real=True)
    power_of_two = 1 << (2 * n - 1).bit_length()
    return power_of_two if power_of_two <= 1.05 * size else size


def centre(split: np.ndarray) -> np.ndarray:
    """Subtract the means of half chains from `(b, m, n)`, in place, and return them, `(b, m)`."""
    means = split.mean(axis=2)
    split -= means[:, :, None]
    return means


def ess_of(deviation: np.ndarray, means: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """ESS of `(b, m, n)` by Geyer's initial monotone sequence; Vehtari et al. 2021, section 3.2.

    :param deviation: from the means of half chains, in double precision.
    :param means: `(b, m)`, what :func:`centre` returns.
    :param constant: scalars `(b,)` whose draws are all equal.
    """
    b, m, n = deviation.shape
    between = means.var(axis=1, ddof=1)
    time = np.ones(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        time_rows(deviation, between, _MOST_LAGS, time)
        rest = np.isnan(time) & ~constant
        if rest.any():
            covariance = _all_lags(deviation[rest])
            time[rest] = [geyer(c, v, m, n) for c, v in zip(covariance, between[rest])]
    return np.where(constant, float(m * n), m * n / time)


def _all_lags(deviation: np.ndarray) -> np.ndarray:
    """Autocovariances at all lags `(b, n)`, mean over half chains."""
    b, m, n = deviation.shape
    size = _fft_size(n)
    # One half chain at a time: its transform fits the cache, the transform of all does not.
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
