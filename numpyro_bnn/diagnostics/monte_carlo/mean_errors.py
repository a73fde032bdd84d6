"""The Monte Carlo standard error of the average of every scalar over draws.

There are two estimates of it. *Within* chains: the variance of a chain's average from its own
autocovariances; it is too small if chains are in different modes. *Between* chains: the variance of the
chains' averages; it includes differences between modes, but is computed from as few numbers as there are
chains. Where chains disagree, the larger of the two is right. Where four chains agree, the larger one is 12 %
too large on average, and 1.9 times too large in one scalar of a hundred. So the ratio of the two is averaged
over scalars, and the ratio of a single scalar is used only where it exceeds what chance explains for the
largest of all. Replicated batch means: Gupta and Vats 2020 (arXiv:2002.10041), Vats and Knudson 2021
(arXiv:1812.09384).

Distances between predictions are one number a row. Class probabilities (`"probs"`) differ by their total
variation, half the sum over classes of absolute differences; of several labels a row by that of the label
with the largest. Anything else is measured in standard deviations: of the prediction where there are `"mean"`
and `"scale"`, else of the draws of that scalar; the distance of a row is that of its largest scalar.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import f

from numpyro_bnn.diagnostics.convergence import rhat

# Number of lags that are summed before draws are averaged in fours.
_MOST_LAGS = 16

# With fewer effective draws, all chains together, the estimate of the error is not reliable.
LEAST_ESS = 50.0
# Number of batches that every chain must hold, and their length in autocorrelation times: from ten times on,
# the estimated error of AR(1) chains is within 2 % of the true error on average.
LEAST_BATCHES = 5
BATCH_TIMES = 2.0
# Effective draws for one degree of freedom of the error from within chains, as measured.
_ESS_PER_DEGREE = 5.0
# Draws between 2^-30 and 2^30 are squared as they are.
_MOST_POWER = 30
# The probability that the ratio of any single scalar is used although the chains agree.
_CHANCE = 0.05


class MeanErrors(NamedTuple):
    """The average of every scalar over all draws, and its Monte Carlo standard error.

    Every field but the last two has the shape of the scalars.

    - **mean** - average over all draws
    - **sd** - standard deviation of the draws, over all chains
    - **time** - autocorrelation time in draws, from within chains; 1 for constants
    - **ess** - effective draws of all chains together: all draws over `time`
    - **error** - Monte Carlo standard error of `mean`; `sd` where the error cannot be estimated
    - **known** - whether there are 50 effective draws and five batches of two autocorrelation
      times a chain; constants are known
    - **within** - the error from within chains alone
    - **needed** - factor by which to lengthen the run until the error is known; at most 1 where it is known
    - **ratio** - variance of the average from between chains over that from within, mean over
      scalars; about 1 for chains that agree
    - **chain_means** - averages by chain, `(chain, ...)`
    """

    mean: np.ndarray
    sd: np.ndarray
    time: np.ndarray
    ess: np.ndarray
    error: np.ndarray
    known: np.ndarray
    within: np.ndarray
    needed: np.ndarray
    ratio: float
    chain_means: np.ndarray


def as_chains(x: np.ndarray) -> np.ndarray:
    """Draws of two or more chains; a single chain is split into its halves."""
    if len(x) > 1:
        return x
    half = x.shape[1] // 2
    return np.stack([x[0, :half], x[0, x.shape[1] - half :]])


def _block_moments(block: np.ndarray) -> list[np.ndarray]:
    """Variance within chains and of a chain's average, averages and unit of a block `(m, n, b)`."""
    # The unit, the last, is a power of 2: squares of draws of 1e20 would overflow in single precision, and
    # those of 1e-25 vanish.
    values = np.empty((block.shape[2], *block.shape[:2]), block.dtype)
    for chain, draws in enumerate(block):
        values[:, chain] = draws.T
    power = rhat.powers_of(values, (1, 2))
    power = np.where(np.abs(power) > _MOST_POWER, power, 0)
    if power.any():
        values = np.ldexp(values, -power[:, None, None])
    # Draws that are not finite are refused by their averages.
    with np.errstate(invalid="ignore", over="ignore"):
        within, of_mean, means = chain_moments(values)
    return [within, of_mean, *means.T, power]


def chain_moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variance within chains, variance of a chain's average from within it, averages `(b, m)`."""
    # Where Geyer's sum does not end within a few lags, every four successive draws are averaged, which does
    # not change the variance of the whole average, and the short sum is tried again.
    b, m, n = values.shape
    # The first draw is subtracted first, so that a large common value costs no digits.
    first = values[:, :, :1].copy()
    values -= first
    # A chain that only differs from its average by rounding is constant.
    moves = values.any(axis=(1, 2))
    shift = values.mean(axis=2, dtype=np.float64, keepdims=True)
    values -= shift.astype(values.dtype)
    within = np.vecdot(values, values).sum(axis=1, dtype=np.float64) / (m * n) * moves
    of_mean = np.zeros(b)
    rows = np.flatnonzero(moves)
    while rows.size:
        values = values[moves]
        n = values.shape[2]
        variance = partial(_variance_of_chain_mean, m=m, n=n)
        of_mean[rows] = rhat.by_first_lags(values, variance, min(_MOST_LAGS, n))
        moves = np.isnan(of_mean[rows]) & (n > _MOST_LAGS)
        rows = rows[moves]
        values = np.mean([values[..., k : n - n % 4 : 4] for k in range(4)], axis=0)
    return within, of_mean, (first + shift)[..., 0]


def _variance_of_chain_mean(covariance: np.ndarray, rows: np.ndarray, m: int, n: int) -> np.ndarray:
    """Variance of the average of one chain, or NaN where Geyer's sum does not end within the lags."""
    # Deviations are from the chain's own average, which lowers every autocovariance by about the variance of
    # that average. Without a correction the error of AR(1) chains of ten autocorrelation times is 16 % too
    # small, with one 5 %, with two below 1 %; more of them diverge for shorter chains.
    variance = covariance[:, 0]
    between = variance / (n - 1.0)
    for _ in range(2):
        between = (variance + between) * rhat.geyer(covariance, between, m, n) / n
    return (variance + between) * rhat.geyer(covariance, between, m, n) / n


def mean_errors(x: ArrayLike, *, ratio: float | None = None) -> MeanErrors:
    """Monte Carlo standard error of the average of every scalar.

    :param x: draws `(chain, draw, ...)`; one chain's halves stand for chains.
    :param ratio: ratio of the variances between and within chains, where it is known from other scalars
        of the same run, such as for a single series; default: the mean over these scalars.
    :return: see :class:`MeanErrors`, arrays of shape `...`, in the units of `x`.
    :raises ValueError: without axes of chains and draws, with fewer than four draws a chain (eight
        for one chain), or for NaN or infinite draws.

    >>> x = np.random.default_rng(0).normal(size=(4, 1000, 100))
    >>> bool(abs(mean_errors(x).error.mean() * 4000**0.5 - 1) < 0.05)
    True
    """
    x = as_chains(rhat.checked("diagnostics.mean_errors", x))
    if x.shape[1] < 4:
        raise ValueError(
            f"diagnostics.mean_errors: expected four draws a chain or more, and eight for one chain "
            f"because its halves are compared, got shape {x.shape}. Draw more."
        )
    m, n = x.shape[:2]
    variance, of_mean, *means, power = rhat.by_block(x, _block_moments, 3 + m)
    chain_means, power = np.stack(means), power.astype(int)
    if not (np.isfinite(chain_means).all() and np.isfinite(variance).all()):
        raise ValueError(
            "diagnostics.mean_errors: expected finite draws, got NaN or infinite ones. Leave the "
            "chains out that exploded."
        )
    total = variance + chain_means.var(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        time = np.where(of_mean > 0, n * of_mean / (variance + of_mean), 1.0)
    ess = m * n / time
    needed = np.maximum(LEAST_ESS / ess, LEAST_BATCHES * BATCH_TIMES * time / n)
    # The average of a constant is known; that of chains with different constant values is not.
    needed = np.where(of_mean > 0, needed, np.where(total > 0, np.inf, 0.0))
    known = needed <= 1
    between = chain_means.var(axis=0, ddof=1)
    degrees = (m - 1, ess / _ESS_PER_DEGREE)
    inflation, ratio = _inflation(between, of_mean, degrees, known & (of_mean > 0), ratio)
    within = np.sqrt(of_mean / m)
    error = np.where(known, within * np.sqrt(inflation), np.sqrt(total))
    return MeanErrors(
        np.ldexp(chain_means.mean(axis=0), power),
        np.ldexp(np.sqrt(total), power),
        time,
        ess,
        np.ldexp(error, power),
        known,
        np.ldexp(within, power),
        needed,
        ratio,
        np.ldexp(chain_means, power),
    )


def _inflation(
    between: np.ndarray,
    of_mean: np.ndarray,
    degrees: tuple[int, np.ndarray],
    judged: np.ndarray,
    ratio: float | None,
) -> tuple[np.ndarray, float]:
    """The factor by which to multiply the variance from within chains, `(...)`, and the mean ratio."""
    inflation = np.ones(of_mean.shape)
    if not judged.any():
        return inflation, 1.0 if ratio is None else ratio
    own = between[judged] / of_mean[judged]
    # A scalar in which chains clearly disagree must not raise the errors of all others.
    common = own <= f.isf(_CHANCE / own.size, degrees[0], degrees[1][judged])
    if ratio is None:
        ratio = float(own[common].mean()) if common.any() else 1.0
    inflation[judged] = np.where(common, max(1.0, ratio), np.maximum(own, 1.0))
    return inflation, ratio


def units_of(
    predictions: Mapping[str, np.ndarray], errors: Mapping[str, MeanErrors]
) -> dict[str, np.ndarray]:
    """The units of all scalars: standard deviations, and 1 of class probabilities."""
    units = {
        n: np.ones_like(each.sd) if n == "probs" else each.sd
        for n, each in errors.items()
        if n in predictions
    }
    if {"mean", "scale"} <= set(units):
        noise, center = errors["scale"], errors["mean"]
        # The variance of a mixture: the mean variance of the noise, and the variance of the means.
        sd = np.hypot(np.hypot(noise.mean, noise.sd), center.sd)
        units |= {"mean": sd, "scale": sd}
    return units


def row_distances(
    differences: Mapping[str, np.ndarray], units: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Distance of every row, `(..., input)`, as `"total_variation"` and `"relative"`, or one of them."""
    found: dict[str, np.ndarray] = {}
    for name, difference in differences.items():
        size, unit = np.abs(difference), units[name]
        if name == "probs":
            apart = 0.5 * size.sum(axis=-1)
            # Of several labels of a row, the most different one counts.
            lead = difference.ndim - unit.ndim + 1
            found["total_variation"] = apart.reshape(*apart.shape[:lead], -1).max(axis=-1)
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            # Constants have no unit: their distance is 0 or infinite.
            size = np.where(size > 0, size / unit, 0.0)
        lead = difference.ndim - unit.ndim
        largest = size.reshape(*size.shape[: lead + 1], -1).max(axis=-1)
        found["relative"] = np.maximum(found.get("relative", 0.0), largest)
    return found
