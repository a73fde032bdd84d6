"""Quantiles of a mixture of distributions, from their distribution functions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

# Halvings of an interval of many standard deviations: to about 10⁻⁵ of one. Where one draw is far wider than
# the others, or a distribution has heavy tails, that is not near, and there are more, at most so many.
_HALVINGS, _MOST_HALVINGS = 25, 300
# F is known at both ends to be so near to the level, as a share of the level or of 1 less the level; or both
# ends are so near to each other, as a share of their size.
_NEAR, _EQUAL = 1e-5, 1e-7
# Single precision does not resolve F near 1 better.
_LARGEST = 1 - 1e-6
# The first interval reaches so many standard deviations beyond the draws, and is doubled where that is short.
_REACH = 4.0


def quantiles_of(
    mean: np.ndarray,
    scale: np.ndarray,
    cdf: Callable[[np.ndarray], np.ndarray],
    levels: ArrayLike,
    discrete: bool = False,
) -> np.ndarray:
    """The least q with average over draws of F_s(q) ≥ level for each row, by bisection."""
    levels = np.atleast_1d(np.asarray(levels, np.float64))
    if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)):
        raise ValueError(
            f"quantiles: levels must lie strictly between 0 and 1, got {levels.tolist()}. Give 0.05 and "
            "0.95 for the ends of a central 90 % interval."
        )

    def averaged(at: np.ndarray) -> np.ndarray:
        found = cdf(at)
        if found.dtype == np.float32 and (levels > _LARGEST).any():
            raise ValueError(
                f"quantiles: single precision does not tell the level {float(max(levels))!r} from 1. Give "
                f"levels up to {_LARGEST}, or predict in double precision (`numpyro.enable_x64()`)."
            )
        return found.mean((0, 1), dtype=np.float64)

    # Distributions with heavy tails have no mean or no standard deviation: any start does.
    mean, scale = np.where(np.isfinite(mean), mean, 0.0), np.where(np.isfinite(scale), scale, 1.0)
    spread = scale.max((0, 1)) + np.ptp(mean, axis=(0, 1))
    middle, varies = mean.mean((0, 1), dtype=np.float64), spread > 0
    step = np.where(varies, spread, 1.0)
    found = np.stack([_solved(averaged, middle, step, level, discrete) for level in levels])
    # A value that is the same in all draws, without noise, is its own quantile.
    # A zero without a sign: just below 0 it would be rounded to -0.
    return np.where(varies, np.round(found) + 0.0 if discrete else found, middle)


def _solved(
    averaged: Callable[[np.ndarray], np.ndarray],
    middle: np.ndarray,
    spread: np.ndarray,
    level: float,
    discrete: bool,
) -> np.ndarray:
    low = _beyond(averaged, middle, -_REACH * spread, lambda value: value <= level)
    high = _beyond(averaged, middle, _REACH * spread, lambda value: value >= level)
    at_low, at_high = averaged(low), averaged(high)
    for halving in range(_MOST_HALVINGS):
        size = np.maximum(np.abs(low), np.abs(high))
        close = high - low <= (0.5 if discrete else _EQUAL * size)
        if not discrete:
            close |= at_high - at_low <= _NEAR * min(level, 1 - level)
        if halving >= _HALVINGS and close.all():
            break
        centre = (low + high) / 2
        value = averaged(centre)
        below = value < level
        low, high = np.where(below, centre, low), np.where(below, high, centre)
        at_low, at_high = np.where(below, value, at_low), np.where(below, at_high, value)
    return (low + high) / 2


def _beyond(
    averaged: Callable[[np.ndarray], np.ndarray],
    middle: np.ndarray,
    step: np.ndarray,
    is_far: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """A number a row that is on the far side of the quantile."""
    at = middle + step
    while not (far := is_far(_require_finite(averaged(at)))).all():
        step = np.where(far, step, 2 * step)
        at = middle + step
    return at


def _require_finite(values: np.ndarray) -> np.ndarray:
    """Refuse NaN, with which no side would ever be far enough."""
    if np.isnan(values).any():
        raise ValueError(
            "quantiles: the predictions hold values that are not finite. Look for a chain that exploded "
            "(`mcmc.left_out`), and leave it out."
        )
    return values
