"""Quantiles of a mixture of distributions, from their distribution functions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

# Halvings of an interval of many standard deviations: to about 10⁻⁵ of one, beyond what float32 tells.
_HALVINGS = 25
# The first interval reaches so many standard deviations beyond the draws, and is doubled where that is short.
_REACH = 4.0


def quantiles_of(
    mean: np.ndarray, scale: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray], levels: ArrayLike
) -> np.ndarray:
    """The least q with average over draws of F_s(q) ≥ level for each row, by bisection.

    Of counts it is a whole number.

    :param mean: means of the draws, (chain, draw, row).
    :param scale: their standard deviations; infinite where a law has none.
    :param cdf: F of every draw at one number a row, (chain, draw, row).
    :param levels: probabilities, (levels,).
    :return: (levels, row).
    :raises ValueError: for levels that are not strictly between 0 and 1.
    """
    levels = np.atleast_1d(np.asarray(levels, np.float64))
    if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)):
        raise ValueError(
            f"quantiles: levels must lie strictly between 0 and 1, got {levels.tolist()}. Give 0.05 and "
            "0.95 for the ends of a central 90 % interval."
        )

    def averaged(at: np.ndarray) -> np.ndarray:
        return cdf(at).astype(np.float64).mean((0, 1))

    # Laws with heavy tails have no mean or no standard deviation: any start does.
    mean, scale = np.where(np.isfinite(mean), mean, 0.0), np.where(np.isfinite(scale), scale, 1.0)
    spread = scale.max((0, 1)) + np.ptp(mean, axis=(0, 1))
    spread = np.where(spread > 0, spread, 1.0)
    return np.stack([_solved(averaged, mean.mean((0, 1)), spread, level) for level in levels])


def _solved(
    averaged: Callable[[np.ndarray], np.ndarray],
    middle: np.ndarray,
    spread: np.ndarray,
    level: float,
) -> np.ndarray:
    low = _beyond(averaged, middle, -_REACH * spread, lambda value: value <= level)
    high = _beyond(averaged, middle, _REACH * spread, lambda value: value >= level)
    for _ in range(_HALVINGS):
        centre = (low + high) / 2
        below = averaged(centre) < level
        low, high = np.where(below, centre, low), np.where(below, high, centre)
    # Where F jumps: targets are float32, in which the number and its neighbours are one.
    found = (low + high) / 2
    whole = np.round(found)
    near = np.abs(found - whole) <= (high - low) + 1e-6 * np.maximum(1.0, np.abs(whole))
    return np.where(near, whole, found)


def _beyond(
    averaged: Callable[[np.ndarray], np.ndarray],
    middle: np.ndarray,
    step: np.ndarray,
    is_far: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """A number a row that is on the far side of the quantile."""
    at = middle + step
    while not (far := is_far(_known(averaged(at)))).all():
        step = np.where(far, step, 2 * step)
        at = middle + step
    return at


def _known(values: np.ndarray) -> np.ndarray:
    """Refuse NaN, with which no side would ever be far enough."""
    if np.isnan(values).any():
        raise ValueError(
            "quantiles: the predictions hold values that are not finite. Look for a chain that exploded "
            "(`mcmc.left_out`), and leave it out."
        )
    return values
