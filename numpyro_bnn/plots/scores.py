"""Plots of scores: against time, and against the severity of a shift."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from numpyro_bnn.plots.style import (
    axes_or_new,
    foreground,
    label_axes,
    legend_above,
    line_style,
    marker_at,
)


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
    :raises ValueError: if there is no curve, or its parts differ in length.
    """
    if not curves:
        raise ValueError("plot_score_against_time: no curves; give {name: (cost, score)}.")
    ax = axes_or_new(ax)
    for index, (name, curve) in enumerate(curves.items()):
        parts = [np.atleast_1d(np.asarray(part, np.float64)) for part in curve]
        if len(parts) not in (2, 3) or len({part.shape for part in parts}) != 1:
            raise ValueError(
                f"plot_score_against_time: the curve '{name}' has parts of shapes "
                f"{[part.shape for part in parts]}; expected (cost, score) or (cost, score, "
                "error) of one length."
            )
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


def plot_severity(
    severity: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    score: str = "accuracy",
    ax: Axes | None = None,
) -> Axes:
    """How a score falls as the inputs shift.

    :param severity: levels of the shift, 0 for none.
    :param curves: by method ``(severity,)``, or ``(kind of shift, severity)``: then the median over
        kinds, and their quartiles as a band.
    :param score: name of the score with its unit.
    :param ax: axes to draw on.
    :return: the axes.
    :raises ValueError: if there is no curve, or one has another number of levels.
    """
    severity = np.asarray(severity, np.float64)
    if not curves:
        raise ValueError("plot_severity: no curves; give {name: scores}.")
    ax = axes_or_new(ax)
    for index, (name, values) in enumerate(curves.items()):
        values = np.asarray(values, np.float64)
        if values.ndim not in (1, 2) or values.shape[-1:] != severity.shape:
            raise ValueError(
                f"plot_severity: '{name}' has shape {values.shape} for {severity.size} levels of "
                "severity; expected (severity,) or (kind, severity)."
            )
        style = line_style(ax, index)
        middle = np.median(np.atleast_2d(values), 0)
        marker = marker_at(index)
        ax.plot(severity, middle, marker=marker, markersize=5, linewidth=1.5, label=name, **style)
        if values.ndim == 2:
            low, high = np.quantile(values, [0.25, 0.75], axis=0)
            ax.fill_between(severity, low, high, color=style["color"], alpha=0.2, linewidth=0)
    ax.set_xticks(severity)
    label_axes(ax, "severity of the shift (0: none)", score)
    legend_above(ax)
    return ax
