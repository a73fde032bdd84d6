"""Quantiles of a mixture of distributions, from their distribution functions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

# Halvings of an interval of many standard deviations: to about 10⁻⁵ of one, beyond what float32 tells.
_HALVINGS = 25
# The first interval reaches so many standard deviations beyond the draws, and is doubled where that is short.
_REACH = 4.0


def quantiles_of(
    mean: np.ndarray,
    scale: np.ndarray,
    cdf: Callable[[np.ndarray], np.ndarray],
    levels: ArrayLike,
    discrete: bool = False,
) -> np.ndarray:
    """The least q with average over draws of F_s(q) ≥ level for each row, by bisection.

    :param mean: means of the draws, (chain, draw, row).
    :param scale: their standard deviations; infinite where a law has none.
    :param cdf: F of every draw at one number a row, (chain, draw, row).
    :param levels: probabilities, (levels,).
    :param discrete: of whole numbers, at which F jumps.
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
    middle, varies = mean.mean((0, 1)), spread > 0
    step = np.where(varies, spread, 1.0)
    found = np.stack([_solved(averaged, middle, step, level) for level in levels])
    # What is the same in all draws, and without noise, is its own quantile.
    # A zero without a sign: just below 0 it would be rounded to -0.
    return np.where(varies, np.round(found) + 0.0 if discrete else found, middle)


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
    return (low + high) / 2


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
