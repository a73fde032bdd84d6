"""Scores of predictions against targets, their standard errors, and calibration."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from numpyro_bnn._checks import check_share, check_whole
from numpyro_bnn.data.units import row_blocks
from numpyro_bnn.scores import inputs
from numpyro_bnn.scores.inputs import Scored


def _mean_or_rows(rows: np.ndarray, known: np.ndarray, pointwise: bool) -> float | np.ndarray:
    """The mean over rows with a label, or the values of all rows, NaN for the others."""
    found = np.full(len(known), np.nan)
    found[known] = rows
    return found if pointwise else float(rows.mean())


def lppd(
    log_prob: Scored, y: ArrayLike | None = None, *, pointwise: bool = False
) -> float | np.ndarray:
    """Log pointwise predictive density, mean over rows.

    `lppd = 1/n sum_i log 1/S sum_s p(y_i | x_i, theta_s)`; Gelman, Hwang & Vehtari 2014,
    "Understanding predictive information criteria", eq. 5, divided by n. By log-sum-exp, so
    densities far below the smallest float keep their digits.

    :param log_prob: `(..., n)` log densities in nats over all leading axes of draws, or
        predictions; the density of a row with several outputs is that of all of them that are known.
    :param y: the target, NaN where it is missing; needed with predictions, and only then.
    :param pointwise: give `(n,)` values in place of their mean.
    :return: nats a row; minus infinity where every draw gives a row probability zero.
    :raises ValueError: for NaN or plus infinity, and for `y` beside log densities.

    >>> import numpy as np
    >>> round(float(np.exp(lppd(np.log([[0.2, 0.5], [0.6, 0.3]])))), 6)
    0.4
    """
    draws = inputs.log_density("lppd", log_prob, y)
    rows = np.empty(draws.shape[1])
    for block in row_blocks(draws.shape[1], draws.shape[0]):
        some = draws[:, block].astype(np.float64)
        top = np.maximum(some.max(0), np.finfo(np.float64).min)
        with np.errstate(divide="ignore"):
            rows[block] = np.log(np.exp(some - top).mean(0)) + top
    return rows if pointwise else float(inputs.mean_of_known(rows, ~np.isnan(draws[0])))


def rmse(mean: Scored, y: ArrayLike, *, pointwise: bool = False) -> float | np.ndarray:
    """Root mean squared error of the posterior predictive mean.

    `sqrt(1/n sum_i (y_i - 1/S sum_s mean_s(x_i))^2)`: the mean over draws is taken first. The
    rows are *squared* errors, so `rmse = sqrt(mean(rows))`; for its error use
    `standard_error(rows, root=True)`.

    :param mean: `(..., *y.shape)` means in the units of `y`, or predictions.
    :param y: target `(n,)` or `(n, outputs)`; those of a row that are not missing (NaN) are averaged.
    :param pointwise: give `(n,)` squared errors; NaN for rows without any target, as other scores do.
    :return: the error in the units of `y`.
    :raises ValueError: for shapes that differ, NaN or infinities.

    >>> rmse([[1.0, 2.0], [3.0, 4.0]], [2.0, 1.0])
    1.4142135623730951
    """
    y = inputs.target("rmse", y)
    draws = inputs.draws_like("rmse", "mean", inputs.values_of("rmse", mean, "mean"), y)
    squares = np.square(draws.mean(axis=0, dtype=np.float64) - y)
    found = inputs.mean_of_targets(squares, y, pointwise)
    return found if pointwise else float(np.sqrt(found))


def _gaussian_absolute(mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`E |Z|` of `Z ~ N(mean, scale^2)`: `2 s phi(m/s) + m (2 Phi(m/s) - 1)`."""
    z = mean / scale
    density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return scale * (2.0 * density + z * (2.0 * ndtr(z) - 1.0))


def _mixture_spread(mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """`E |X - X'|` of two independent draws from each row's mixture; `mean (rows, draws)`."""
    # The closed form over pairs of draws costs S^2 operations; the integral `E|X - X'| = 2 int F (1 - F)`
    # costs S times the number of nodes. The integrand is smooth on the scale of the narrowest component s, so
    # the trapezoid rule with step s/2 is wrong by about exp(-4 pi^2), beyond double precision. The cheaper is
    # taken.
    rows, draws = mean.shape
    out = np.empty(rows)
    for i in range(rows):
        m, s = mean[i], scale[i]
        low, high = (m - 9 * s).min(), (m + 9 * s).max()
        num_nodes = 2 * (high - low) / s.min() + 2
        if num_nodes < draws:
            nodes, step = np.linspace(low, high, int(num_nodes) + 1, retstep=True)
            cdf = ndtr((nodes[:, None] - m) / s).mean(axis=1)
            out[i] = 2.0 * step * np.sum(cdf * (1.0 - cdf))
        else:
            total = 0.0
            for block in row_blocks(draws, draws):
                gap = m[block, None] - m
                total += _gaussian_absolute(gap, np.hypot(s[block, None], s)).sum()
            out[i] = total / draws**2
    return out


def crps(
    predictions: Scored, y: ArrayLike, scale: ArrayLike | None = None, *, pointwise: bool = False
) -> float | np.ndarray:
    """Continuous ranked probability score of the posterior predictive, mean over rows.

    `CRPS = E|X - y| - 1/2 E|X - X'|`, Gneiting & Raftery 2007, eq. 21. With `scale` the
    predictive is the mixture `1/S sum_s N(mean_s, scale_s^2)`, in closed form after Grimit et
    al. 2006; without it `predictions` are samples of `y` and the score is that of their
    empirical distribution. Draws of the *mean* without a scale are not samples of `y`. Predictions
    whose distribution is not Gaussian (counts, Student's t) are scored by 4000 samples of it, the same at
    every call: a row's score errs by about a sixtieth of the standard deviation of its distribution.

    :param predictions: means or samples `(..., *y.shape)`, or predictions with both.
    :param y: target `(n,)` or `(n, outputs)`; those of a row that are not missing (NaN) are averaged.
    :param scale: standard deviations: one number, or an array with the axes of the means.
    :param pointwise: give `(n,)` values in place of their mean.
    :return: the score in the units of `y`; for a point forecast the absolute error.
    :raises ValueError: for shapes that differ, NaN, a scale that is not positive, or times that may be
        censored.

    >>> round(crps([[0.0]], [0.0], scale=1.0), 6)   # (sqrt 2 - 1) / sqrt pi
    0.233695
    """
    y = inputs.target("crps", y)
    values, scales = inputs.mixture("crps", predictions, y, scale)
    num_draws = values.shape[0]
    flat_y = y.reshape(-1)
    values = values.reshape(num_draws, -1)
    out = np.empty(flat_y.size)
    for block in row_blocks(flat_y.size, num_draws):
        x = values[:, block].T.astype(np.float64)
        gap = x - flat_y[block, None]
        if scales is not None:
            s = scales.reshape(num_draws, -1)[:, block].T.astype(np.float64)
            out[block] = _gaussian_absolute(gap, s).mean(axis=1) - 0.5 * _mixture_spread(x, s)
        else:
            # sum_ij |x_i - x_j| = 2 sum_i (2 i - S - 1) x_(i) over sorted values, i from 1.
            weight = 2.0 * np.arange(1, num_draws + 1) - num_draws - 1
            spread = 2.0 * np.sort(x, axis=1) @ weight / num_draws**2
            out[block] = np.abs(gap).mean(axis=1) - 0.5 * spread
    return inputs.mean_of_targets(out.reshape(y.shape), y, pointwise)


def accuracy(probs: Scored, y: ArrayLike, *, pointwise: bool = False) -> float | np.ndarray:
    """Share of rows whose most probable class, under the averaged probabilities, is `y`.

    A tie goes to the lower class, as in `np.argmax`.

    :param probs: `(..., n, classes)`, or predictions.
    :param y: integer labels `(n,)` from zero; rows of NaN are left out.
    :param pointwise: give 0/1 for each row.
    :return: a share between 0 and 1.
    :raises ValueError: for what are not probabilities, or labels of wrong shape or range.
    :raises TypeError: for labels that are not integers.

    >>> accuracy([[[0.9, 0.1], [0.4, 0.6]]], [0, 0])
    0.5
    """
    p, y, known = inputs.labelled("accuracy", probs, y)
    return _mean_or_rows((p.argmax(axis=1) == y).astype(np.float64), known, pointwise)


def brier(probs: Scored, y: ArrayLike, *, pointwise: bool = False) -> float | np.ndarray:
    """Brier score: squared distance between probabilities and the one-hot label.

    `1/n sum_i sum_c (p_ic - 1[y_i = c])^2`, summed over classes as in Brier 1950, eq. 2: from 0
    to 2. For two classes this is twice the score of the positive class alone (scikit-learn's).

    :param probs: `(..., n, classes)`, or predictions; averaged over draws first.
    :param y: integer labels `(n,)` from zero; rows of NaN are left out.
    :param pointwise: give `(n,)` values in place of their mean.
    :return: the score, between 0 and 2.
    :raises ValueError: for what are not probabilities, or labels of wrong shape or range.
    :raises TypeError: for labels that are not integers.

    >>> round(brier([[0.8, 0.2]], [0]), 6)
    0.08
    """
    p, y, known = inputs.labelled("brier", probs, y)
    return _mean_or_rows(np.square(p - np.eye(p.shape[1])[y]).sum(axis=1), known, pointwise)


def _rows(name: str, what: str, values: ArrayLike) -> np.ndarray:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 1 or rows.size < 2:
        raise ValueError(
            f"scores.{name}: {what} must hold one score a row for at least two rows, got shape "
            f"{rows.shape}. Compute the score with pointwise=True."
        )
    return rows


def standard_error(pointwise: ArrayLike, *, root: bool = False) -> float:
    """Standard error of a mean score over test rows taken as independent.

    `sd / sqrt(n)` with `n - 1` in the variance. `root=True`: of the root of the mean, by the
    delta method, `se / (2 sqrt(mean))` (for :func:`rmse`, whose rows are squared errors).

    :param pointwise: `(n,)` scores from `pointwise=True`; NaN for rows without any target.
    :param root: the score is the square root of the mean of its rows.
    :return: one standard error, in the units of the score.
    :raises ValueError: for another shape, or fewer than two rows.

    >>> standard_error([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.5 / 5) ** 0.5
    True
    """
    rows = _rows("standard_error", "pointwise", pointwise)
    rows = _rows("standard_error", "pointwise", rows[~np.isnan(rows)])
    if not np.isfinite(rows).all():
        # If one row has an infinite score, so has the mean, and no error describes that.
        return float("inf")
    error = float(rows.std(ddof=1) / np.sqrt(rows.size))
    if not root:
        return error
    mean = float(rows.mean())
    return error / (2.0 * mean**0.5) if mean > 0 else 0.0


class PairedDifference(NamedTuple):
    """Mean difference of two models' scores on the same rows.

    - **difference** - mean of `a - b`.
    - **standard_error** - its standard error over rows.
    - **num_rows** - number of rows.
    """

    difference: float
    standard_error: float
    num_rows: int


def paired_difference(a: ArrayLike, b: ArrayLike) -> PairedDifference:
    """Difference of two mean scores with the error of the *paired* rows.

    Two models often err on the same difficult rows. Then the error of `mean(a_i - b_i)` is far smaller than
    the two separate errors suggest. The ratio difference / standard_error is the paired t.

    :param a: `(n,)` scores of one model from `pointwise=True`.
    :param b: `(n,)` scores of the other on the same rows in the same order.
    :return: difference, standard error and number of rows; NaN where one alone has a score at some row.
    :raises ValueError: for shapes that differ, or fewer than two rows.

    >>> paired_difference([1.0, 2.0, 4.0], [0.0, 1.0, 3.0])
    PairedDifference(difference=1.0, standard_error=0.0, num_rows=3)
    """
    a = _rows("paired_difference", "a", a)
    b = _rows("paired_difference", "b", b)
    rows = (a - b)[~(np.isnan(a) & np.isnan(b))]
    error = float("nan") if np.isnan(rows).any() else standard_error(rows)
    return PairedDifference(float(rows.mean()), error, rows.size)


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
    :return: values in (0, 1) of the shape of `y`; NaN where the target is missing.
    :raises ValueError: for shapes that differ, a scale that is not positive, or times that may be censored.

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
    for block in row_blocks(flat_y.size, num_draws):
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
    return (below, at) if np.isfinite(at[~np.isnan(y)]).all() else None


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
    for one in np.ravel(level).tolist():
        check_share("scores.coverage", "level", one)
    levels = np.asarray(level, dtype=np.float64)
    y = inputs.target("coverage", y)
    below, at = _sides("coverage", predictions, y, scale)
    half = levels[(...,) + (None,) * y.ndim] / 2.0
    # Of whole numbers the quantile is the first whose distribution function is not below the level.
    ends = below < 0.5 + half if getattr(predictions, "discrete", False) else at <= 0.5 + half
    return inputs.mean_of_targets((at >= 0.5 - half) & ends, y, pointwise)


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


def reliability(probs: Scored, y: ArrayLike, num_bins: int = 15) -> Reliability:
    """The table behind a reliability diagram and the calibration error.

    Bins are `(e_k, e_k+1]`, the first one closed at zero too, so that each row is in exactly
    one, a confidence of 1 and one on an edge included.

    :param probs: `(..., n, classes)`, or predictions; averaged over draws first.
    :param y: integer labels `(n,)` from zero; rows of NaN are left out.
    :param num_bins: number of bins.
    :return: edges, counts, mean confidence and accuracy by bin.
    :raises ValueError: for fewer than one bin, or bad probabilities or labels.
    :raises TypeError: for labels that are not integers.
    """
    return _reliability("reliability", probs, y, num_bins)


def _reliability(owner: str, probs: Scored, y: ArrayLike, num_bins: int) -> Reliability:
    """Bins of predicted probability and observed share; errors name the score `owner`."""
    num_bins = check_whole(f"scores.{owner}", "num_bins", num_bins)
    p, y, _ = inputs.labelled(owner, probs, y)
    confidence = p.max(axis=1)
    right = p.argmax(axis=1) == y
    edges = np.arange(num_bins + 1) / num_bins
    # The number of inner edges strictly below is the bin: bins are closed on the right and hold every row.
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(index, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, confidence, num_bins) / count
        mean_accuracy = np.bincount(index, right, num_bins) / count
    return Reliability(edges, count, mean_confidence, mean_accuracy)


def expected_calibration_error(probs: Scored, y: ArrayLike, num_bins: int = 15) -> float:
    """Expected calibration error of the predicted class.

    `sum_b n_b / n |accuracy_b - confidence_b|`: Naeini, Cooper & Hauskrecht 2015; Guo et al.
    2017, eq. 3, with 15 bins as there. It is biased upwards at few rows a bin and is no mean over rows: it
    has no pointwise form.

    :param probs: `(..., n, classes)`, or predictions; averaged over draws first.
    :param y: integer labels `(n,)` from zero; rows of NaN are left out.
    :param num_bins: number of bins.
    :return: a number between 0 and 1.
    :raises ValueError: for fewer than one bin, or bad probabilities or labels.
    :raises TypeError: for labels that are not integers.

    >>> round(expected_calibration_error([[1.0, 0.0], [0.7, 0.3]], [0, 1], num_bins=10), 6)
    0.35
    """
    table = _reliability("expected_calibration_error", probs, y, num_bins)
    gap = np.abs(table.accuracy - table.confidence)
    return float(np.nansum(gap * table.num_rows) / table.num_rows.sum())
