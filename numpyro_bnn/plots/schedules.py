"""Plots of step sizes and temperatures that change while a chain runs."""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from numpyro_bnn.plots.style import (
    axes_or_new,
    color_at,
    foreground,
    label_axes,
    legend_above,
)
from numpyro_bnn.samplers.sgmcmc.schedules import Schedule, as_schedule


def plot_schedule(
    step_size: float | Schedule,
    temperature: float | Schedule | None = None,
    *,
    num_steps: int,
    kept: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Step size, and temperature, against the step, with the draws that are kept marked.

    :param step_size: number or schedule.
    :param temperature: number or schedule; drawn against an axis on the right.
    :param num_steps: steps after warm-up to show.
    :param kept: steps whose draws are kept; by default those of a cyclical schedule.
    :param ax: axes to draw on.
    :return: the axes of the step size.
    :raises ValueError: if `num_steps` is not positive, or a kept step is outside.
    """
    if num_steps < 1:
        raise ValueError(f"plot_schedule: num_steps must be positive, got {num_steps}.")
    counts = np.arange(num_steps)
    schedule = as_schedule(step_size)
    if kept is None:
        marked = getattr(step_size, "is_sampling", None)
        kept = counts[np.asarray(marked(counts))] if marked is not None else counts[:0]
    kept = np.asarray(kept, int)
    if kept.size and not (kept.min() >= 0 and kept.max() < num_steps):
        raise ValueError(
            f"plot_schedule: kept steps must be from 0 to {num_steps - 1}, got {kept.min()} to "
            f"{kept.max()}."
        )
    ax = axes_or_new(ax, (7.0, 3.4))
    steps = _values(schedule, counts)
    # Kept draws are marked by points without a line, which would hide the curve.
    ax.plot(counts, steps, color=color_at(ax, 0), linewidth=1.6, label="step size")
    if kept.size:
        ax.plot(
            kept,
            steps[kept],
            linestyle="none",
            marker="o",
            markersize=3.5,
            color=foreground(ax),
            label=f"kept draws ({kept.size:,})",
        )
    ax.set_xlim(0, max(1, num_steps - 1))
    ax.set_ylim(bottom=0)
    label_axes(ax, "step after warm-up", "step size (units of the kernel)")
    handles, names = ax.get_legend_handles_labels()
    if temperature is not None:
        right = ax.twinx()
        heat = _values(as_schedule(temperature, "temperature"), counts)
        (line,) = right.plot(
            counts,
            heat,
            color=color_at(ax, 1),
            linewidth=1.3,
            linestyle="--",
            drawstyle="steps-post",
        )
        right.set_ylabel("temperature (1: posterior)")
        right.set_ylim(0, max(1.0, float(heat.max())) * 1.15)
        right.spines["top"].set_visible(False)
        handles, names = [*handles, line], [*names, "temperature"]
    legend_above(ax, handles, names, columns=2)
    return ax


def _values(schedule: Schedule, counts: np.ndarray) -> np.ndarray:
    # Schedules of Optax take one count at a time.
    return np.asarray(jax.vmap(lambda count: jnp.asarray(schedule(count), float))(counts))
