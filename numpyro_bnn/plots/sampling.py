"""Plots of samplers and of their draws. Reached through :mod:`numpyro_bnn.plots`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import ArrayLike

from numpyro_bnn.plots.style import (
    PALETTE,
    axes_or_new,
    chains_by_draws,
    color_at,
    flat_values,
    foreground,
    label_axes,
    legend_above,
    line_style,
)
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.posterior.fitted import is_finished
from numpyro_bnn.potential.compiled_arguments import map_in_blocks
from numpyro_bnn.potential.potential import Potential


def plot_rhat(
    weights: ArrayLike | Mapping[str, ArrayLike],
    predictions: ArrayLike | Mapping[str, ArrayLike] = None,
    *,
    limit: float = 1.01,
    ax: Axes | None = None,
) -> Axes:
    """Histograms of the R-hat of weights and of predictions.

    The axis is logarithmic in R-hat - 1; values below 1.0001, and below 1, are counted at its left
    end, infinite ones at its right end. Undefined values are only counted, in the legend.

    :param weights: R-hat of each weight, an array or a mapping of arrays.
    :param predictions: R-hat of each prediction, likewise.
    :param limit: R-hat at which a line is drawn.
    :param ax: axes to draw on.
    :return: the axes.
    """
    groups = {"weights": flat_values(weights)}
    if predictions is not None:
        groups["predictions"] = flat_values(predictions)
    known = {name: v[~np.isnan(v)] for name, v in groups.items()}
    smallest = 1e-4
    largest = max(v.max(initial=1.0, where=np.isfinite(v)) for v in known.values()) - 1
    top = max(largest * 1.3, 2 * (limit - 1), 10 * smallest)
    bins = np.geomspace(smallest, top, 41).tolist()
    ax = axes_or_new(ax, (7.0, 3.6))
    for index, (name, values) in enumerate(groups.items()):
        good, color = known[name], color_at(ax, 1 - index)
        excess = np.clip(good - 1, smallest, top)
        above = np.mean(good > limit) if good.size else 0.0
        text = f"{name} ({values.size:,}; {above:.0%} above {limit:g}"
        missing = values.size - good.size
        text += f"; {missing:,} undefined)" if missing else ")"
        share = np.full(good.size, 1 / max(1, good.size))
        style: dict[str, Any] = {"facecolor": (color, 0.35), "edgecolor": color, "linewidth": 1.5}
        ax.hist(excess, bins, weights=share, histtype="stepfilled", label=text, **style)
    ax.axvline(
        limit - 1, color=foreground(ax), linewidth=1.2, linestyle="--", label=f"limit {limit:g}"
    )
    ax.set_xscale("log")
    ax.set_xlim(smallest, top)
    ticks = [t for t in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0) if smallest <= t <= top]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{1 + t:g}"))
    label_axes(ax, "R-hat (distance from 1 on a logarithmic axis)", "share of scalars")
    legend_above(ax, columns=1)
    return ax


def plot_trace(log_joint: ArrayLike, *, label: str | None = None, ax: Axes | None = None) -> Axes:
    """The log joint density of each draw, one line a chain.

    :param log_joint: ``(chain, draw)``: the negative of the field `potential_energy`; or a run, what
        :func:`numpyro_bnn.fit` returned, or an estimator, whose recorded energy is then used.
    :param label: label of the vertical axis, for traces of other quantities; by default it also says where
        the recorded energy is not that of the draws (SGLD, BAOAB, …; minibatches).
    :param ax: axes to draw on.
    :return: the axes.
    """
    label_of_values = "log joint density (nats)"
    if is_finished(log_joint):
        draws = draws_of(log_joint, owner="plot_trace")
        # Up to a constant that the kernel leaves out.
        log_joint = -np.asarray(draws.stats["potential_energy"])
        if not draws.has_exact_energy:
            label_of_values = "log joint density at the last gradient (nats)"
    values = chains_by_draws(log_joint)
    ax = axes_or_new(ax, (7.0, 3.2))
    for chain, line in enumerate(values):
        ax.plot(line, linewidth=0.9, alpha=0.85, label=f"chain {chain}", **line_style(ax, chain))
    ax.set_xlim(0, max(1, values.shape[1] - 1))
    label_axes(ax, "draw after warm-up", label_of_values if label is None else label)
    if len(values) <= 8:
        legend_above(ax, columns=4)
    return ax


def plot_temperature(
    temperatures: ArrayLike | Mapping[str, ArrayLike],
    *,
    target: ArrayLike = 1.0,
    window: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Trace of the measured temperatures of the chains.

    Thin lines are chains; a thick line is the moving average over all of them. A temperature that
    stays above its target says that steps are too large or gradients too noisy.

    :param temperatures: ``(chain, draw)``, or several by name, such as
        ``{"kinetic": …, "configurational": …}``.
    :param target: the temperature asked for, a number or one a draw.
    :param window: draws of the moving average; by default a twentieth of them.
    :param ax: axes to draw on.
    :return: the axes.
    """
    if not isinstance(temperatures, Mapping):
        temperatures = {"kinetic": temperatures}
    ax = axes_or_new(ax, (7.0, 3.6))
    num_draws, widths = 0, set()
    middles = [np.ravel(np.asarray(target, np.float64))]
    for index, (name, value) in enumerate(temperatures.items()):
        values = np.ma.masked_invalid(chains_by_draws(value))
        num_draws = max(num_draws, values.shape[1])
        style = line_style(ax, index)
        ax.plot(values.T, linewidth=0.5, alpha=0.3, **style)
        width = min(window or max(1, values.shape[1] // 20), values.shape[1])
        widths.add(str(width))
        mean = values.mean(0).filled(np.nan)
        smooth = np.convolve(mean, np.full(width, 1 / width), mode="valid")
        start = np.arange(smooth.size) + (width - 1) / 2
        ax.plot(start, smooth, linewidth=2.2, label=name, **style)
        # The axis shows most of the values only: configurational temperatures have heavy tails.
        if values.count():
            middles.append(np.quantile(values.compressed(), [0.01, 0.99]))
    line = np.broadcast_to(target, (num_draws,))
    ax.plot(line, color=foreground(ax), linewidth=1.2, linestyle="--", label="target")
    ends: np.ndarray = np.concatenate(middles)
    margin = 0.15 * max(np.ptp(ends), 0.1)
    ax.set(xlim=(0, max(1, num_draws - 1)), ylim=(ends.min() - margin, ends.max() + margin))
    draw = f"draw after warm-up (thick: mean over chains and {' or '.join(sorted(widths))} draws)"
    label_axes(ax, draw, "temperature (1: posterior)")
    legend_above(ax)
    return ax


def plot_layer_temperature(
    temperatures: Mapping[str, Mapping[str, ArrayLike]],
    *,
    target: float = 1.0,
    ax: Axes | None = None,
) -> Axes:
    """Temperature of each layer with its error, which shows layers where the step size is too large.

    :param temperatures: by kind (``"kinetic"``, ``"configurational"``), then by layer, a number or
        a pair of the temperature and its standard error; bars are two of these.
    :param target: the temperature asked for.
    :param ax: axes to draw on.
    :return: the axes.
    """
    layers = list(dict.fromkeys(layer for kind in temperatures.values() for layer in kind))
    ax = axes_or_new(ax, (6.4, 1.2 + 0.45 * len(layers)))
    for index, (kind, by_layer) in enumerate(temperatures.items()):
        shift = 0.24 * (index - (len(temperatures) - 1) / 2)
        # A number without an error gets the error 0.
        pairs = [(layers.index(layer), *np.append(v, 0.0)[:2]) for layer, v in by_layer.items()]
        place, value, error = (np.array(part, np.float64) for part in zip(*pairs))
        points: dict[str, Any] = {"fmt": "so^D"[index % 4], "markersize": 5, "capsize": 3}
        points["color"] = line_style(ax, index)["color"]
        ax.errorbar(value, place + shift, xerr=2 * error, label=kind, **points)
    ax.axvline(target, color=foreground(ax), linewidth=1.2, linestyle="--", label="target")
    ax.set_yticks(range(len(layers)), layers)
    ax.set_ylim(len(layers) - 0.5, -0.5)
    label_axes(ax, "temperature ± 2 standard errors (1: posterior)", "layer")
    legend_above(ax)
    return ax


def plot_density_surface(
    log_density: Callable[[jax.Array], jax.Array] | Potential,
    samples: Sequence[ArrayLike | Mapping[str, ArrayLike]],
    *,
    resolution: int = 60,
    ax: Axes | None = None,
) -> Axes:
    """The posterior density in the plane through three samples.

    Both axes are distances in the space of the weights. Each colour is so many nats below the
    highest density in the picture, on a logarithmic scale: far from a sample the posterior of a
    network falls by many thousands.

    Source of the idea: Garipov et al. 2018; Izmailov et al. 2021, fig. 3.

    :param log_density: a function of a flat vector; or a :class:`~numpyro_bnn.potential.potential.Potential`,
        whose negative is used.
    :param samples: three flat vectors; for a potential, three draws by site name, with a value for
        each latent site of the model (constrained, as ``get_samples`` gives them).
    :param resolution: points of the grid along each axis.
    :param ax: axes to draw on.
    :return: the axes; the colour bar beside it is another.
    :raises ValueError: for samples that span no plane.
    """
    evaluate, points = _flat_density(log_density, samples)
    origin = points[0]
    first, other = points[1] - origin, points[2] - origin
    length = np.linalg.norm(first)
    u = first / (length or 1.0)
    rest = other - (other @ u) * u
    if not length or np.linalg.norm(rest) <= 1e-6 * max(length, float(np.linalg.norm(other))):
        raise ValueError(
            "plot_density_surface: the three samples lie on one line and span no plane. Take draws "
            "that are farther apart."
        )
    basis = np.stack([u, rest / np.linalg.norm(rest)])
    places = (points - origin) @ basis.T
    span = np.ptp(places, axis=0)
    low, high = places.min(0) - 0.4 * span, places.max(0) + 0.4 * span
    lines = [np.linspace(low[i], high[i], resolution) for i in (0, 1)]
    grid = np.stack(np.meshgrid(*lines), -1).reshape(-1, 2)

    @jax.jit
    def over(plane: jax.Array) -> jax.Array:
        start, axes = jnp.asarray(origin, plane.dtype), jnp.asarray(basis, plane.dtype)
        return map_in_blocks(lambda p: evaluate(start + p @ axes), plane, 32)

    values = np.asarray(over(jnp.asarray(grid, jnp.result_type(float))), np.float64)
    values = values.reshape(resolution, resolution)
    drop = np.nanmax(np.where(np.isfinite(values), values, -np.inf)) - values
    drop = np.ma.masked_invalid(np.clip(drop, 1.0, None))
    ax = axes_or_new(ax, (5.8, 4.6))
    levels = np.geomspace(1.0, max(10.0, float(drop.max())) * 1.001, 16)
    norm = LogNorm(levels[0], levels[-1])
    filled = ax.contourf(*lines, drop, levels, norm=norm, cmap="cividis_r")
    ax.contour(*lines, drop, levels[::3], norm=norm, colors="black", linewidths=0.4, alpha=0.6)
    bar = ax.figure.colorbar(filled, ax=ax)
    powers = 10.0 ** np.arange(0, np.floor(np.log10(levels[-1])) + 1)
    bar.set_ticks(powers.tolist(), labels=[f"{power:,.0f}" for power in powers])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_label("log density below the highest (nats)")
    # The colours of the map do not depend on the background, and neither do those of the marks on it.
    x, y = places.T
    ax.scatter(x, y, s=60, color=PALETTE[1], edgecolors="white", linewidths=1.2, zorder=3)
    box = {"boxstyle": "round,pad=0.15", "facecolor": "black", "alpha": 0.6, "linewidth": 0}
    bold: dict[str, Any] = {"fontweight": "bold", "color": "white", "bbox": box}
    for letter, place in zip("ABC", places):
        ax.annotate(letter, place, (7, 6), textcoords="offset points", **bold)
    ax.set_aspect("equal")
    label_axes(ax, "distance along A to B (weight units)", "distance towards C (weight units)")
    return ax


def _flat_density(log_density: Any, samples: Sequence[Any]) -> tuple[Callable, np.ndarray]:
    if not isinstance(log_density, Potential):
        points = np.stack([np.ravel(np.asarray(sample, np.float64)) for sample in samples])
        return log_density, points
    latent = log_density.structure.latent
    z = [log_density.unconstrain({name: jnp.asarray(s[name]) for name in latent}) for s in samples]
    unravel = ravel_pytree(z[0])[1]
    points = np.stack([np.asarray(ravel_pytree(one)[0], np.float64) for one in z])
    return lambda flat: -log_density(unravel(flat)), points
