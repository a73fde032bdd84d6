"""Plots of predictions and of their scores. Reached through :mod:`numpyro_bnn.plots`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.typing import ColorType
from numpy.typing import ArrayLike
from scipy.stats import kstwo

from numpyro_bnn import scores
from numpyro_bnn.plots.style import (
    axes_or_new,
    color_at,
    foreground,
    label_axes,
    legend_above,
    line_style,
    marker_at,
)
from numpyro_bnn.posterior.predictive_draws import average
from numpyro_bnn.scores.inputs import Scored

# Rows whose intervals can be told apart in a plot.
_MOST_INTERVALS = 300


def plot_predictive_band(
    x: ArrayLike,
    mean: Scored,
    scale: ArrayLike | None = None,
    *,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    num_draws: int = 0,
    label: str = "posterior average",
    color: ColorType | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Mean of the model average, and bands of ± ½ and ± 2 of its standard deviations.

    The variance is that of the mixture over draws, E[scale²] + Var[mean]: noise and disagreement.

    :param x: one input a row, ``(row,)`` or ``(row, 1)``; in any order.
    :param mean: mean of each draw at each row, ``(…, row)``, such as `predictions.mean`; or
        predictions with both.
    :param scale: standard deviation of the noise, shaped like `mean` or broadcasting to it;
        without it the bands are of the function alone.
    :param data: pair of inputs and targets to show as points.
    :param num_draws: how many draws of the function to show as thin lines, evenly spaced.
    :param label: name of the mean in the legend.
    :param color: colour of mean and bands; by default the first of the palette.
    :param ax: axes to draw on.
    :return: the axes, whose labels are to be replaced by names and units of the data.
    :raises ValueError: for means of other rows than `x`, or of several targets.
    """
    # An average holds the standard deviation of the whole mixture, predictions the noise of each draw.
    for spread in ("sd", "scale"):
        if hasattr(mean, "mean") and hasattr(mean, spread):
            mean, scale = mean.mean, getattr(mean, spread) if scale is None else scale
    mean = np.asarray(mean, np.float64)
    x = np.asarray(x)
    x = x[:, 0] if x.ndim == 2 and x.shape[1] == 1 else x
    if x.ndim != 1 or mean.shape[-1:] != x.shape:
        raise ValueError(
            f"plot_predictive_band: x has shape {x.shape} and the means {mean.shape}; expected (row,) and "
            "(…, row). Draw several targets one by one."
        )
    order = np.argsort(x, kind="stable")
    x, draws = x[order], mean.reshape(-1, x.size)[:, order]
    within = np.zeros(x.size)
    if scale is not None:
        noise = np.broadcast_to(np.asarray(scale, np.float64), mean.shape)
        within = (noise.reshape(draws.shape)[:, order] ** 2).mean(0)
    center = draws.mean(0, dtype=np.float64)
    sd = np.sqrt(within + draws.var(0, dtype=np.float64))
    ax = axes_or_new(ax)
    color = color_at(ax, 0) if color is None else color
    for factor, alpha, name in ((2, 0.22, "± 2 sd"), (0.5, 0.4, "± ½ sd")):
        low, high = center - factor * sd, center + factor * sd
        ax.fill_between(x, low, high, color=color, alpha=alpha, linewidth=0, label=name)
    if num_draws > 0:
        chosen = np.unique(np.linspace(0, len(draws) - 1, num_draws).round().astype(int))
        lines = ax.plot(x, draws[chosen].T, color=color, alpha=0.7, linewidth=0.6)
        lines[0].set_label("draws of the function")
    ax.plot(x, center, color=color, linewidth=1.8, label=label)
    if data is not None:
        point_x, point_y = (np.ravel(np.asarray(part)) for part in data)
        ax.scatter(point_x, point_y, s=10, color=foreground(ax), zorder=3, label="data")
    label_axes(ax, "input (units of x)", "target (units of y)")
    legend_above(ax)
    return ax


def plot_intervals(
    predictor: Any,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    coverage: float = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Predicted mean and interval of each row, in the order of the means, with the targets as points.

    :param predictor: a fitted :class:`~numpyro_bnn.BNNRegressor`, what :func:`numpyro_bnn.fit` returns, or
        predictions.
    :param X: the rows to predict, such as a data frame; None where predictions are given.
    :param y: their targets, (row,); the legend says which share of them the intervals hold.
    :param coverage: the share that the intervals should hold.
    :param ax: axes to draw on.
    :return: the axes; of more than 300 rows, 300 are drawn.
    :raises ValueError: for a classifier, and targets of another shape than the predicted means.

    >>> plot_intervals(BNNRegressor().fit(X, y), X_test, y_test)  # doctest: +SKIP
    """
    if hasattr(predictor, "predict_proba"):
        raise ValueError("plot_intervals: classes have no intervals. Take `plot_reliability`.")
    if hasattr(predictor, "predict_interval"):
        middle, (low, high) = predictor.predict(X), predictor.predict_interval(X, coverage)
    else:
        made = predictor if X is None else predictor.predict(X)
        middle = average(made).mean
        low, high = made.quantiles((0.5 - coverage / 2, 0.5 + coverage / 2))
    target = None if y is None else np.asarray(y)
    if middle.ndim != 1 or (target is not None and target.shape != middle.shape):
        shape = () if target is None else target.shape
        raise ValueError(
            f"plot_intervals: y has shape {shape} and the predictions {middle.shape}; expected (row,)."
        )
    shown = np.linspace(0, len(middle) - 1, min(len(middle), _MOST_INTERVALS)).round().astype(int)
    order = np.argsort(middle, kind="stable")[shown]
    place = np.arange(len(order))
    ax = axes_or_new(ax, (7.0, 4.0))
    name = f"{coverage:.0%} interval"
    ax.vlines(
        place, low[order], high[order], color=color_at(ax, 0), alpha=0.4, linewidth=2, label=name
    )
    ax.plot(place, middle[order], color=color_at(ax, 0), linewidth=1.5, label="mean")
    if target is not None:
        inside = (low <= target) & (target <= high)
        label = f"observed ({inside[~np.isnan(target)].mean():.0%} inside)"
        colors = [foreground(ax) if held else color_at(ax, 1) for held in inside[order]]
        ax.scatter(place, target[order], s=9, c=colors, label=label, zorder=3)
    label_axes(ax, "rows, in the order of their predicted mean", "target")
    legend_above(ax)
    return ax


def plot_decision_boundary(
    posterior: Callable[[np.ndarray], ArrayLike],
    x: ArrayLike,
    y: ArrayLike,
    *,
    point: Callable[[np.ndarray], ArrayLike] | None = None,
    resolution: int = 120,
    class_names: Sequence[str] | None = None,
    ax: Axes | Sequence[Axes] | np.ndarray | None = None,
) -> Axes | Sequence[Axes] | np.ndarray:
    """Decision regions over two inputs, shaded by how certain the prediction is.

    The deeper the colour of a class, the higher its probability; where all classes are equally likely, there
    is no colour. With `point` there are two panels, on the left the point estimate and on the right the
    posterior average: far from the data a single network is confident, and the average is not.

    :param posterior: from inputs (row, 2) to probabilities (…, row, class), averaged over leading
        axes; for example ``lambda x: bnn.predict(model, mcmc, x).probs``.
    :param x: inputs of the data (row, 2).
    :param y: their classes, integers from 0.
    :param point: probabilities (row, class) of a point estimate (MAP), a function of inputs too.
    :param resolution: points of the grid along each axis.
    :param class_names: for the legend.
    :param ax: axes to draw on: one, or two with `point`.
    :return: the axes; an array of two with `point`.
    :raises ValueError: for classes that are not among those of the predictions, or one axes where two are
        needed.
    """
    x, y = np.asarray(x), np.asarray(y)
    panels = {"posterior average": posterior}
    if point is not None:
        panels = {"MAP": point, **panels}
    if ax is None:
        size = (4.8 * len(panels), 4.4)
        _, ax = plt.subplots(1, len(panels), figsize=size, sharey=True, layout="constrained")
    all_axes = np.ravel(np.asarray(ax, dtype=object))
    span = np.ptp(x, axis=0) + 1e-12
    low, high = x.min(0) - span / 4, x.max(0) + span / 4
    lines = [np.linspace(low[i], high[i], resolution, dtype=np.float32) for i in (0, 1)]
    grid = np.stack(np.meshgrid(*lines), -1).reshape(-1, 2)
    for each, (title, probs_of) in zip(all_axes, panels.items(), strict=True):
        probs = np.asarray(probs_of(grid), np.float64)
        probs = probs.reshape(-1, *probs.shape[-2:]).mean(0)
        strange = y[~np.isin(y, range(probs.shape[-1]))]
        if strange.size:
            raise ValueError(
                f"plot_decision_boundary: y has the class {strange[0].item()!r}, and the predictions are "
                f"probabilities of {probs.shape[-1]} classes. Number the classes from 0."
            )
        _draw_regions(each, probs.reshape(resolution, resolution, -1), lines)
        for k in range(probs.shape[-1]):
            inside = y == k
            each.scatter(
                *x[inside].T,
                s=22,
                marker=marker_at(k),
                color=color_at(each, k),
                edgecolors=foreground(each),
                linewidths=0.6,
                label=f"class {k}" if class_names is None else str(class_names[k]),
            )
        each.set(title=title, xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        label_axes(each, "input 1 (units of x)", "input 2 (units of x)")
    if len(all_axes) > 1:
        all_axes[1].set_ylabel("")
    handles, names = all_axes[-1].get_legend_handles_labels()
    handles.append(Line2D([], [], color=foreground(all_axes[-1]), linewidth=1.4))
    all_axes[-1].legend(handles, [*names, "boundary"], loc="best", framealpha=0.8)
    return ax


def _draw_regions(ax: Axes, probs: np.ndarray, lines: list[np.ndarray]) -> None:
    count = probs.shape[-1]
    colors = np.array([to_rgb(color_at(ax, k)) for k in range(count)])
    best = probs.argmax(-1)
    certain = np.clip((probs.max(-1) - 1 / count) / (1 - 1 / count), 0, 1)
    # Transparency, not white, works on any background.
    image = np.concatenate([colors[best], 0.75 * certain[..., None]], -1)
    extent = (lines[0][0], lines[0][-1], lines[1][0], lines[1][-1])
    ax.imshow(image, extent=extent, origin="lower", aspect="auto", interpolation="nearest")
    for k in range(count if count > 2 else 1):
        lead = probs[..., k] - np.delete(probs, k, -1).max(-1)
        if lead.min() < 0 < lead.max():
            ax.contour(*lines, lead, [0.0], colors=[foreground(ax)], linewidths=1.4)


def plot_reliability(
    probs: Scored, y: ArrayLike, *, num_bins: int = 15, ax: Axes | None = None
) -> Axes:
    """Accuracy against confidence, with the number of rows of each bin above.

    Bins as in :func:`numpyro_bnn.scores.against_targets.reliability`: every row is in exactly one, and empty
    ones have no mark. Below the diagonal predictions are overconfident.

    :param probs: ``(…, row, class)``, or predictions; averaged over draws first.
    :param y: classes (row,), integers from 0.
    :param num_bins: number of bins.
    :param ax: axes to draw on; the counts become an inset above it.
    :return: the axes.
    :raises ValueError: for bad probabilities or labels.
    """
    table = scores.reliability(probs, y, num_bins)
    error = scores.expected_calibration_error(probs, y, num_bins)
    full = table.num_rows > 0
    ax = axes_or_new(ax, (5.0, 4.8))
    ax.plot([0, 1], [0, 1], color=foreground(ax), linewidth=1, linestyle="--", label="calibrated")
    stated, share, count = table.confidence[full], table.accuracy[full], table.num_rows[full]
    # One success and one failure are added, so that the error of a bin without a wrong row is not 0.
    smoothed = (share * count + 1) / (count + 2)
    bars = np.sqrt(smoothed * (1 - smoothed) / count)
    blue, orange = color_at(ax, 0), color_at(ax, 1)
    ax.vlines(stated, stated, share, color=orange, linewidth=5, alpha=0.45, label="gap")
    points: dict[str, Any] = {"fmt": "o-", "markersize": 4, "linewidth": 1.2, "capsize": 2}
    ax.errorbar(stated, share, yerr=bars, color=blue, label="accuracy ± standard error", **points)
    # The vertical axis has the whole range of accuracies, so that the legend fits below the diagonal.
    low = max(0.0, min(0.9, float(table.edges[:-1][full][0])) - 0.02)
    ax.set(xlim=(low, 1.02), ylim=(-0.02, 1.05))
    label_axes(ax, "confidence (probability of the predicted class)", "accuracy (share of rows)")
    title = f"calibration error {error:.3f}"
    ax.legend(frameon=False, loc="lower right", title=title, alignment="left")
    counts = ax.inset_axes((0.0, 1.03, 1.0, 0.2), sharex=ax)
    style: dict[str, Any] = {"color": blue, "alpha": 0.6, "edgecolor": ax.get_facecolor()}
    counts.bar(table.edges[:-1], table.num_rows, np.diff(table.edges), align="edge", **style)
    counts.tick_params(labelbottom=False)
    counts.set_ylabel("rows")
    counts.spines[["top", "right"]].set_visible(False)
    return ax


def plot_pit(pit: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """How the distribution function of probability integral transforms departs from the uniform one.

    The curve is the share of rows with a value up to u, less u. It stays within the band in 95 %
    of data sets of a right model with independent rows. An arch above zero on the left and below on the
    right: too many extreme targets, the predictions are too narrow; the other way round, too wide; all on one
    side, biased.

    :param pit: values between 0 and 1, (row,), such as ``check_fit(run).calibration.pit`` or
        :func:`numpyro_bnn.scores.pit`; NaN where a target is missing.
    :param ax: axes to draw on.
    :return: the axes.
    """
    values = np.asarray(pit, np.float64)
    ordered = np.sort(values[~np.isnan(values)])
    ax = axes_or_new(ax, (6.0, 3.6))
    count = ordered.size
    half = float(kstwo.ppf(0.95, count))
    shade = foreground(ax)
    u = np.linspace(0, 1, 201)
    low, high = np.maximum(-half, -u), np.minimum(half, 1 - u)
    ax.fill_between(
        u, low, high, color=shade, alpha=0.15, linewidth=0, label="95 % of right models"
    )
    ax.axhline(0, color=shade, linewidth=1, linestyle="--")
    at = np.concatenate([[0.0], np.repeat(ordered, 2), [1.0]])
    share = np.concatenate([[0.0], np.repeat(np.arange(count + 1), 2)[1:-1] / count, [1.0]])
    ax.plot(at, share - at, color=color_at(ax, 0), linewidth=1.4, label="rows")
    ax.set(xlim=(0, 1))
    label_axes(
        ax, "probability of a target up to the observed one (u)", "share of rows up to u, less u"
    )
    legend_above(ax)
    return ax


def plot_score_against_time(
    curves: Mapping[str, Sequence[ArrayLike]],
    *,
    against: str = "wall clock (s)",
    score: str = "test log score (nats a row)",
    reference: float | None = None,
    log: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Score of several methods against their cost in seconds, draws or gradients.

    :param curves: by method ``(cost, score)`` or ``(cost, score, standard error)``; a method that
        ends at once (MAP) may have a single point.
    :param against: name of the cost with its unit; for example ``"draws"``.
    :param score: name of the score with its unit.
    :param reference: score of a long run, as a line.
    :param log: whether the cost has a logarithmic axis.
    :param ax: axes to draw on.
    :return: the axes.
    """
    ax = axes_or_new(ax)
    for index, (name, curve) in enumerate(curves.items()):
        parts = [np.atleast_1d(np.asarray(part, np.float64)) for part in curve]
        style = line_style(ax, index)
        marker = marker_at(index)
        ax.plot(*parts[:2], marker=marker, markersize=4.5, linewidth=1.5, label=name, **style)
        if len(parts) == 3:
            low, high = parts[1] - parts[2], parts[1] + parts[2]
            if parts[0].size == 1:
                ax.vlines(parts[0], low, high, color=style["color"], linewidth=1.2)
            else:
                ax.fill_between(parts[0], low, high, color=style["color"], alpha=0.2, linewidth=0)
    if reference is not None:
        ax.axhline(reference, color=foreground(ax), linewidth=1, linestyle="--", label="reference")
    if log:
        ax.set_xscale("log")
    label_axes(ax, against, score)
    legend_above(ax)
    return ax
