"""Plots: functions that draw on Matplotlib axes and return them, as in ArviZ.

Each takes ``ax=``, where None makes a new figure; none calls ``plt.show``. Colours follow the current style
sheet, light or dark, and a palette for colour-blind readers.

Predictions: :func:`plot_predictive_band`, :func:`plot_decision_boundary`,
:func:`plot_intervals` (also called `intervals`), :func:`plot_reliability`,
:func:`plot_pit`, :func:`plot_score_against_time`. Samplers: :func:`plot_rhat`, :func:`plot_trace`,
:func:`plot_temperature`, :func:`plot_layer_temperature`, :func:`plot_density_surface`.
"""

from numpyro_bnn.plots.predictive import (
    plot_decision_boundary,
    plot_intervals,
    plot_pit,
    plot_predictive_band,
    plot_reliability,
    plot_score_against_time,
)
from numpyro_bnn.plots.sampling import (
    plot_density_surface,
    plot_layer_temperature,
    plot_rhat,
    plot_temperature,
    plot_trace,
)
from numpyro_bnn.plots.style import PALETTE

intervals = plot_intervals

__all__ = [
    "PALETTE",
    "intervals",
    "plot_decision_boundary",
    "plot_density_surface",
    "plot_intervals",
    "plot_layer_temperature",
    "plot_pit",
    "plot_predictive_band",
    "plot_reliability",
    "plot_rhat",
    "plot_score_against_time",
    "plot_temperature",
    "plot_trace",
]
