"""Plots of Monte Carlo errors, and of distances between the averages of chains."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import ArrayLike

from numpyro_bnn.diagnostics.convergence.blocks import checked
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement, agreement
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import mean_errors, row_distances, units_of
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.plots.style import axes_or_new, color_at, foreground, label_axes, legend_above
from numpyro_bnn.scores.inputs import Scored

_UNITS = {"total_variation": "total variation", "relative": "predictive sd"}
# Least number of draws of each chain for which an error is shown, and the largest number in the forecast over
# all draws.
_SHORTEST = 25
_FARTHEST = 100.0
# Up to this number of chains, numbers are written into the plot.
_MOST_WRITTEN = 8


def plot_monte_carlo_error(
    predictions: Scored | Mapping[str, ArrayLike],
    *,
    tolerance: Tolerance | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Monte Carlo error of averaged predictions against the number of draws, and the forecast.

    The error is computed from the first draws of every chain, for several numbers of draws up to all. The
    forecast falls with the square root of the number of draws, until both limits of the tolerance are met.

    :param predictions: the result of :func:`~numpyro_bnn.predict`, or a mapping of names to draws
        `(chain, draw, input, ...)`.
    :param tolerance: the accepted Monte Carlo error, drawn as dashed lines; default ``Tolerance()``.
    :param ax: axes to draw on.
    :return: the axes; both are logarithmic.
    :raises ValueError: where no error is known, not even of all draws.
    """
    values = _arrays("plot_monte_carlo_error", predictions)
    accepted = Tolerance() if tolerance is None else tolerance
    draws = next(iter(values.values())).shape[1]
    sizes = np.unique(np.geomspace(min(_SHORTEST, draws), draws, 10).round().astype(int))
    measured = [monte_carlo_error({n: x[:, :size] for n, x in values.items()}) for size in sizes]
    unit = "relative" if measured[-1].total_variation is None else "total_variation"
    needed, _ = measured[-1].needed(accepted)
    series = {
        "mean of rows": (unit, accepted.limits[unit][0]),
        "99 % quantile of rows": (f"{unit}_99", accepted.limits[unit][1]),
    }
    known = {
        label: np.array([getattr(each, field) for each in measured])
        for label, (field, _) in series.items()
    }
    if not all(np.isfinite(errors[-1]) for errors in known.values()):
        raise ValueError(
            f"plot_monte_carlo_error: the errors of {draws} draws a chain are not known, for want of "
            f"effective draws. Run longer: {needed:.3g} times as many draws tell."
        )
    ax = axes_or_new(ax, (6.8, 4.0))
    end = draws * min(max(needed, 1.0), _FARTHEST)
    for index, (label, (_, limit)) in enumerate(series.items()):
        color, errors = color_at(ax, index), known[label]
        ax.plot(sizes, errors, "so"[index] + "-", color=color, markersize=4, label=label)
        ax.axhline(
            limit, color=color, linestyle="--", linewidth=1.1, label=f"accepted: {limit:.2g}"
        )
        if end > draws:
            ahead = np.array([draws, end])
            ax.plot(ahead, errors[-1] * np.sqrt(draws / ahead), ":", color=color, linewidth=1.6)
    if end > draws:
        ax.axvline(end, color=foreground(ax), linewidth=1.0, linestyle=":", label=_forecast(needed))
    _logarithmic(ax, float(sizes[np.isfinite(list(known.values())).all(axis=0)][0]), end)
    label_axes(ax, "draws a chain", f"Monte Carlo error ({_UNITS[unit]})")
    legend_above(ax, columns=2)
    return ax


def plot_agreement(
    predictions: Scored | Mapping[str, ArrayLike],
    *,
    tolerance: Tolerance | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Distances between the averages of each two chains, with chains that agree next to each other.

    The colour bar marks the accepted distance, and the distance that equal chains have by chance.

    :param predictions: the result of :func:`~numpyro_bnn.predict`, or a mapping of names to draws
        `(chain, draw, input, ...)`; of one chain the halves are compared.
    :param tolerance: the accepted Monte Carlo error; default ``Tolerance()``.
    :param ax: axes to draw on.
    :return: the axes, whose title gives the result of the test of all predictions together; the colour bar
        has axes of its own.
    """
    values = _arrays("plot_agreement", predictions)
    accepted = Tolerance() if tolerance is None else tolerance
    errors = {name: mean_errors(x) for name, x in values.items()}
    result = agreement(values, errors=errors, tolerance=accepted)
    means = {name: each.chain_means for name, each in errors.items()}
    units = units_of(values, errors)
    apart = row_distances({name: mean[:, None] - mean for name, mean in means.items()}, units)
    unit = "total_variation" if "total_variation" in apart else "relative"
    # The average of one chain has an error sqrt(number of chains) times that of all chains. A normal
    # difference of two such averages has the mean absolute value sqrt(2 / pi) times its standard deviation.
    factor = np.sqrt(2 / np.pi) * np.sqrt(2 * len(result.members))
    within = row_distances({name: each.within for name, each in errors.items()}, units)[unit]
    chance = float(factor * within.mean())
    order = np.argsort(result.members, kind="stable")
    distance = apart[unit].mean(axis=-1)[np.ix_(order, order)]
    limit = accepted.limits[unit][0]
    ax = axes_or_new(ax, (5.4, 4.4))
    brightest = max(2 * limit, 2 * chance, float(np.max(distance)))
    image = ax.imshow(distance, cmap="cividis", vmin=0, vmax=brightest)
    if len(order) <= _MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(distance):
            if row != column:
                color = "white" if value < 0.5 * brightest else "black"
                ax.text(column, row, f"{value:.2g}", ha="center", va="center", color=color)
    for edge in np.flatnonzero(np.diff(result.members[order])) + 0.5:
        ax.axhline(edge, color="white", linewidth=3)
        ax.axvline(edge, color="white", linewidth=3)
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label(f"distance of averages ({_UNITS[unit]})\nline: accepted; dots: by chance")
    bar.ax.axhline(limit, color="white", linewidth=2)
    bar.ax.axhline(chance, color="white", linewidth=2, linestyle=":")
    ax.set_xticks(range(len(order)), order)
    ax.set_yticks(range(len(order)), order)
    name = "half of the chain" if result.halves else "chain"
    label_axes(ax, name, name)
    ax.set_title(_verdict_in_words(result, accepted), fontsize="medium")
    return ax


def _arrays(owner: str, predictions: Scored | Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    values = getattr(predictions, "values", None)
    values = values if isinstance(values, Mapping) else predictions
    arrays = values if isinstance(values, Mapping) else {"values": values}
    return {str(name): checked(f"{owner}: {name!r}", x) for name, x in arrays.items()}


def _forecast(needed: float) -> str:
    if needed > _FARTHEST:
        return f"more than {_FARTHEST:.0f} times as many draws"
    return f"all within: {needed:.1f} times as many draws"


def _logarithmic(ax: Axes, first: float, last: float) -> None:
    """Both axes logarithmic, with ticks at 1, 2 and 5 times powers of ten."""
    ax.set(xscale="log", yscale="log", xlim=(0.9 * first, 1.15 * last))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:.1g}"))


def _verdict_in_words(result: Agreement, tolerance: Tolerance) -> str:
    who = "halves" if result.halves else "chains"
    if not result.tested:
        return f"too few draws to test whether {who} agree"
    if result.disagree(tolerance):
        return f"{who} disagree: {result.groups} groups (p = {result.p:.2g})"
    return (
        f"{who} agree (p = {result.p:.2g})"
        if result.p >= 0.01
        else f"{who} differ within tolerance"
    )
