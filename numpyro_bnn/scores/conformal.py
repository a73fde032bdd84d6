"""Split conformal prediction: scores of rows that were held out, and the threshold that covers new rows.

If calibration rows and a new row are exchangeable (drawn alike, in any order), the score of the new one is at
most the ⌈(n + 1) c⌉-th smallest of n calibration scores with probability at least c, whatever the model, the
prior and the convergence of its posterior (Vovk, Gammerman and Shafer 2005; Lei et al. 2018, theorem 2.2).
The coverage is an average over rows: no promise for any particular one.
"""

from math import ceil
from typing import Any

import numpy as np


def threshold(scores: Any, coverage: float) -> float:
    """The score that a new row stays below with probability `coverage`.

    :param scores: scores of the calibration rows, (n,).
    :param coverage: strictly between 0 and 1.
    :return: the ⌈(n + 1) coverage⌉-th smallest score.
    :raises ValueError: for a coverage out of range, or too few rows for it.

    >>> threshold([3.0, 1.0, 2.0, 4.0], coverage=0.75)
    4.0
    """
    if not 0 < coverage < 1:
        raise ValueError(
            f"coverage must lie strictly between 0 and 1, got {coverage}. Pass 0.9 for 90 %."
        )
    ordered = np.sort(np.asarray(scores, np.float64))
    # A product such as 100 · 0.9 may lie a rounding above the whole number that it is.
    rank = ceil((len(ordered) + 1) * coverage - 1e-9)
    if rank > len(ordered):
        least = ceil(coverage / (1 - coverage) - 1e-9)
        raise ValueError(
            f"{len(ordered)} calibration rows cannot cover {coverage:.4g}: that takes at least {least}. "
            "Hold out more rows, or ask for less."
        )
    return float(ordered[rank - 1])


def central_scores(cdf: np.ndarray) -> np.ndarray:
    """|F(y) - 1/2|, how far each target is from the median of its predictive distribution.

    Source: Chernozhukov, Wüthrich and Zhu, *Distributional conformal prediction* (2021), eq. 4.

    :param cdf: predictive distribution function at the targets, (n,).
    """
    return np.abs(np.asarray(cdf, np.float64) - 0.5)


def quantile_scores(low: np.ndarray, high: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far each target is outside of an interval; negative inside.

    Source: Romano, Patterson and Candès, *Conformalized quantile regression* (2019), eq. 6.

    :param low: lower ends, (n,).
    :param high: upper ends, (n,).
    :param y: targets, (n,).
    """
    return np.maximum(low - y, y - high)


def set_scores(
    probs: np.ndarray, uniform: np.ndarray, penalty: float = 0.0, free: int = 1
) -> np.ndarray:
    """For every class, the probability of the classes above it and a random share of its own.

    Source: Romano, Sesia and Candès, *Classification with valid and adaptive coverage* (2020), eq. 8; with a
    penalty a class for every rank beyond `free`: Angelopoulos et al., *Uncertainty sets for image
    classifiers using conformal prediction* (2021), algorithm 2.

    :param probs: probabilities (n, classes).
    :param uniform: numbers between 0 and 1, one a row, by which coverage is exact.
    :param penalty: added for each rank beyond `free`, so that sets do not grow large.
    :param free: classes without penalty.
    :return: (n, classes).
    """
    order = np.argsort(-probs, axis=1, kind="stable")
    ranked = np.take_along_axis(probs, order, 1)
    above = np.cumsum(ranked, 1) - uniform[:, None] * ranked
    above = above + penalty * np.maximum(0, np.arange(1, probs.shape[1] + 1) - free)
    scores = np.empty_like(above)
    np.put_along_axis(scores, order, above, 1)
    return scores
