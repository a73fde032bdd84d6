"""Calibration: whether predicted probabilities and intervals are as frequent as they claim.

Classification by confidence against accuracy, regression by the probability integral transform.
Shapes, predictions and `pointwise` are as in :mod:`numpyro_bnn.scores`, through which all of
these are reached.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from numpyro_bnn._checks import check_whole
from numpyro_bnn.scores import inputs
from numpyro_bnn.scores.inputs import Scored


def pit(
    predictions: Scored, y: ArrayLike, scale: ArrayLike | None = None, *, seed: int = 0
) -> np.ndarray:
    """Probability integral transform of each target under its predictive distribution.

    Mixture: `1/S sum_s Phi((y - mean_s) / scale_s)`, or for predictions that know it the distribution
    function of their own distribution (Student's t, ...) in place of Phi; samples: `(r + 1/2) / (S + 1)` with
    `r` the number of samples below `y`, ties counted half. Uniform when the predictive is calibrated
    (Dawid 1984; Gneiting, Balabdaoui & Raftery 2007). The distribution function of counts jumps, by
    the probability of the target: a uniform number is drawn between its two sides (Brockwell 2007;
    Czado, Gneiting & Held 2009), which is uniform again. A distribution without a known distribution
    function gives samples.

    :param predictions: means or samples `(..., *y.shape)`, or predictions with both.
    :param y: target `(n,)` or `(n, outputs)`.
    :param scale: standard deviations; None when `predictions` are samples of `y`.
    :param seed: of what is drawn for counts.
    :return: values in (0, 1) of the shape of `y`.
    :raises ValueError: for shapes that differ, NaN, a scale that is not positive, or times that may be
        censored.

    >>> float(pit([[0.0]], [0.0], scale=1.0)[0])
    0.5
    """
    y = inputs.target("pit", y)
    below, at = _sides("pit", predictions, y, scale)
    return below + np.random.default_rng(seed).uniform(size=y.shape) * (at - below)


def _sides(
    name: str, predictions: Scored, y: np.ndarray, scale: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray]:
    """The average distribution function just below each target and at it; the same where it does not jump."""
    if (known := _own_distribution(name, predictions, y)) is not None:
        return known
    values, scales = inputs.mixture(name, predictions, y, scale)
    num_draws = values.shape[0]
    flat_y, values = y.reshape(-1), values.reshape(num_draws, -1)
    out = np.empty(flat_y.size)
    for block in inputs.row_blocks(flat_y.size, num_draws):
        gap = flat_y[block] - values[:, block].astype(np.float64)
        if scales is not None:
            out[block] = ndtr(gap / scales.reshape(num_draws, -1)[:, block]).mean(axis=0)
        else:
            below = (np.sign(gap) + 1.0).sum(axis=0) / 2.0
            out[block] = (below + 0.5) / (num_draws + 1)
    found = out.reshape(y.shape)
    return found, found


def _own_distribution(
    name: str, predictions: Scored, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Both sides for predictions that know their distribution function; None for others."""
    if not (inputs.is_predictions(predictions) and hasattr(predictions, "cdf")):
        return None
    inputs.values_of(name, predictions, "mean")
    try:
        at: np.ndarray = predictions.cdf(y).astype(np.float64).mean((0, 1))
    except NotImplementedError:
        return None
    below = at
    if getattr(predictions, "discrete", False):
        below = predictions.cdf(y - 1).astype(np.float64).mean((0, 1))
    # Draws with NaN are refused by the caller.
    return (below, at) if np.isfinite(at).all() else None


def coverage(
    predictions: Scored,
    y: ArrayLike,
    scale: ArrayLike | None = None,
    *,
    level: ArrayLike = 0.9,
    pointwise: bool = False,
) -> float | np.ndarray:
    """Share of targets inside their central predictive interval.

    Row i is covered at level l when `(1 - l)/2 <= PIT_i <= (1 + l)/2`: the interval between the
    predictive quantiles, without solving for them. A count is covered when it is one of the whole
    numbers from the lower quantile to the upper one, whose probability is the level or more.

    :param predictions: means or samples `(..., *y.shape)`, or predictions with both.
    :param y: target `(n,)` or `(n, outputs)`.
    :param scale: standard deviations; None when `predictions` are samples of `y`.
    :param level: a number in (0, 1), or several, e.g. for a curve.
    :param pointwise: give 0/1 (several outputs: their share) for each row, `(*level, n)`.
    :return: the share, which should equal `level` (of counts, be no less); an array when `level` is one.
    :raises ValueError: for a level outside (0, 1), shapes that differ, NaN, or times that may be censored.

    >>> coverage([[0.0, 0.0, 0.0]], [0.1, -1.0, 3.0], scale=1.0, level=[0.5, 0.9]).round(3)
    array([0.333, 0.667])
    """
    levels = np.asarray(level, dtype=np.float64)
    if not np.all((levels > 0) & (levels < 1)):
        raise ValueError(
            f"scores.coverage: level must lie strictly between 0 and 1, got {level!r}. Pass 0.9 "
            f"for 90 %."
        )
    y = inputs.target("coverage", y)
    below, at = _sides("coverage", predictions, y, scale)
    half = levels[(...,) + (None,) * y.ndim] / 2.0
    # Of whole numbers the quantile is the first whose distribution function is not below the level.
    ends = below < 0.5 + half if getattr(predictions, "discrete", False) else at <= 0.5 + half
    inside = (at >= 0.5 - half) & ends
    rows = inside.reshape(*levels.shape, y.shape[0], -1).mean(axis=-1)
    if pointwise:
        return rows
    share = rows.mean(axis=-1)
    return float(share) if levels.ndim == 0 else share


class Reliability(NamedTuple):
    """Confidence against accuracy in bins, `(bins,)` each; empty bins hold NaN.

    - **edges** - `(bins + 1,)` edges; a bin is open to the left and closed to the right.
    - **num_rows** - rows in each bin; they sum to n.
    - **confidence** - mean probability of the predicted class.
    - **accuracy** - share of rows that are right.
    """

    edges: np.ndarray
    num_rows: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability(
    probs: Scored, y: ArrayLike, num_bins: int = 15, *, adaptive: bool = False
) -> Reliability:
    """The table behind a reliability diagram and the calibration error.

    Bins are `(e_k, e_k+1]`, the first one closed at zero too, so that each row is in exactly
    one, a confidence of 1 and one on an edge included.

    :param probs: `(..., n, classes)`, or predictions; averaged over draws first.
    :param y: integer labels `(n,)` from zero.
    :param num_bins: number of bins.
    :param adaptive: edges at quantiles of the confidence (about equal counts; equal
        confidences stay together) in place of equal widths.
    :return: edges, counts, mean confidence and accuracy by bin.
    :raises ValueError: for fewer than one bin, or bad probabilities or labels.
    :raises TypeError: for labels that are not integers.
    """
    num_bins = check_whole("scores.reliability", "num_bins", num_bins)
    p = inputs.mean_probabilities("reliability", probs)
    y = inputs.labels("reliability", y, *p.shape)
    confidence = p.max(axis=1)
    right = p.argmax(axis=1) == y
    if adaptive:
        # An order statistic and not an interpolated one: an edge that is a data point keeps
        # the whole group of points equal to it on its left.
        inner = np.quantile(confidence, np.arange(1, num_bins) / num_bins, method="inverted_cdf")
        edges = np.concatenate([[0.0], inner, [max(1.0, confidence.max())]])
    else:
        edges = np.arange(num_bins + 1) / num_bins
    # The number of inner edges strictly below is the bin: bins are closed on the right and hold every row.
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(index, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, confidence, num_bins) / count
        mean_accuracy = np.bincount(index, right, num_bins) / count
    return Reliability(edges, count, mean_confidence, mean_accuracy)


def expected_calibration_error(
    probs: Scored, y: ArrayLike, num_bins: int = 15, *, adaptive: bool = False
) -> float:
    """Expected calibration error of the predicted class.

    `sum_b n_b / n |accuracy_b - confidence_b|`: Naeini, Cooper & Hauskrecht 2015; Guo et al.
    2017, eq. 3, with 15 bins as there. `adaptive`: bins of equal count (Nixon et al. 2019). It is
    biased upwards at few rows a bin and is no mean over rows: it has no pointwise form.

    :param probs: `(..., n, classes)`, or predictions; averaged over draws first.
    :param y: integer labels `(n,)` from zero.
    :param num_bins: number of bins.
    :param adaptive: bins of about equal count in place of equal width.
    :return: a number between 0 and 1.
    :raises ValueError: for fewer than one bin, or bad probabilities or labels.
    :raises TypeError: for labels that are not integers.

    >>> round(expected_calibration_error([[1.0, 0.0], [0.7, 0.3]], [0, 1], num_bins=10), 6)
    0.35
    """
    table = reliability(probs, y, num_bins, adaptive=adaptive)
    gap = np.abs(table.accuracy - table.confidence)
    return float(np.nansum(gap * table.num_rows) / table.num_rows.sum())
