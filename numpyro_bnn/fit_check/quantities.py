"""Quantities of the data beside those of data that the model makes from each draw (posterior predictive).

For a quantity T(y, θ) and each draw θ_s, new targets ỹ are drawn at the same inputs, and

    p = P(T(ỹ, θ) ≥ T(y, θ) | y),   ties counted half

(Gelman, Meng and Stern 1996, *Posterior predictive assessment of model fitness via realized discrepancies*).
Given θ, y and ỹ have one distribution where the model is right, so that for each draw the probability of a
larger T is uniform, and p, their average, is less spread out than uniform: P(p ≤ α) ≤ 2 α for data from the
model's own prior predictive distribution (Meng 1994, *Posterior predictive p-values*, section 3.1). It is
often much smaller: a p near ½ says little, one near 0 or 1 says much. With m quantities one is called rare
where twice its smaller tail, with two Monte Carlo errors added, is below 0.05 / (2 m): under a right model
that happens to any of them in at most 5 % of data sets.
"""

from typing import NamedTuple

import numpy as np

from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean

_ALARMS = 0.05
_BINS = 10


class Quantity(NamedTuple):
    """A quantity of the data beside that of data that the model makes.

    - **name** - what it is
    - **observed** - of the data, averaged over draws where it depends on them
    - **low**, **high** - 5 and 95 % quantiles of what the model makes
    - **p** - probability that the model makes a larger one
    - **error** - Monte Carlo error of `p`
    - **is_rare** - whether a right model seldom gives such a p; see above
    - **adjusted** - two-sided p-value for all quantities together, with two Monte Carlo errors
    """

    name: str
    observed: float
    low: float
    high: float
    p: float
    error: float
    is_rare: bool
    adjusted: float


def of_residuals(
    mean: np.ndarray, scale: np.ndarray | None, y: np.ndarray, made: np.ndarray
) -> tuple[Quantity, ...]:
    """Standard deviation, extremes and skewness of residuals over rows, divided by `scale` if given."""
    shape = (*mean.shape[:2], -1)
    units = 1.0 if scale is None else scale.reshape(shape).astype(np.float64)
    center = mean.reshape(shape).astype(np.float64)
    observed = (np.asarray(y, np.float64).reshape(-1) - center) / units
    replicated = (made.reshape(shape).astype(np.float64) - center) / units
    kind = "residuals" if scale is None else "standardised residuals"
    return _compared(
        {
            f"{name} of {kind}": (of(observed), of(replicated))
            for name, of in (
                ("sd", _sd),
                ("smallest", _min),
                ("largest", _max),
                ("skewness", _skew),
            )
        }
    )


def of_labels(probs: np.ndarray, y: np.ndarray, made: np.ndarray) -> tuple[Quantity, ...]:
    """Share of the rows of each class, share that is of its most probable class, and calibration error."""
    # Several labels of a row count as rows.
    chains, draws, classes = *probs.shape[:2], probs.shape[-1]
    y, made = y.reshape(-1), made.reshape(chains, draws, -1)
    best = probs.argmax(-1).reshape(made.shape)
    confidence = probs.max(-1).reshape(made.shape)
    found = {}
    for k in range(classes):
        share = np.full(made.shape[:2], float((y == k).mean()))
        found[f"share of class {k}"] = (share, (made == k).mean(-1))
    right, right_made = (best == y), (best == made)
    found["share of the most probable class"] = (right.mean(-1), right_made.mean(-1))
    found["calibration error"] = (_ece(confidence, right), _ece(confidence, right_made))
    return _compared(found)


def _compared(pairs: dict[str, tuple[np.ndarray, np.ndarray]]) -> tuple[Quantity, ...]:
    """Quantities of the data and of what the model makes, (chain, draw) each."""
    limit = _ALARMS / (2 * len(pairs))
    return tuple(_quantity(name, *pair, limit) for name, pair in pairs.items())


def _quantity(name: str, observed: np.ndarray, made: np.ndarray, limit: float) -> Quantity:
    larger = (made > observed) + 0.5 * (made == observed)
    # One draw more on either side, so that no finite number of draws gives 0 or 1.
    p = float((larger.sum() + 1) / (larger.size + 2))
    error = float(np.nan_to_num(mcse_mean(larger), nan=np.inf))
    low, high = np.quantile(made, (0.05, 0.95))
    adjusted = min(1.0, 2 * (min(p, 1 - p) + 2 * error) * _ALARMS / limit)
    rare = adjusted < _ALARMS
    return Quantity(name, float(observed.mean()), float(low), float(high), p, error, rare, adjusted)


def _sd(r: np.ndarray) -> np.ndarray:
    return r.std(-1)


def _min(r: np.ndarray) -> np.ndarray:
    return r.min(-1)


def _max(r: np.ndarray) -> np.ndarray:
    return r.max(-1)


def _skew(r: np.ndarray) -> np.ndarray:
    """Third central moment over the cube of the standard deviation; 0 where all are equal."""
    gap = r - r.mean(-1, keepdims=True)
    cube = (gap**2).mean(-1) ** 1.5
    return np.where(cube > 0, (gap**3).mean(-1) / np.where(cube > 0, cube, 1.0), 0.0)


def _ece(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Expected calibration error of each draw, in ten bins of equal width."""
    place = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gap = right - confidence.astype(np.float64)
    total = sum(np.abs((gap * (place == b)).sum(-1)) for b in range(_BINS))
    return np.asarray(total) / confidence.shape[-1]
