"""Plots: functions that draw on Matplotlib axes and return them, as in ArviZ.

Each takes ``ax=``, where None makes a new figure; none calls ``plt.show``. Colours follow the current style
sheet, light or dark, and a palette for colour-blind readers.

Predictions: :func:`plot_predictive_band`, :func:`plot_decision_boundary`,
:func:`plot_intervals` (also called `intervals`), :func:`plot_reliability`,
:func:`plot_interval_calibration`, :func:`plot_pit`, :func:`plot_score_against_time`,
:func:`plot_severity`. Samplers: :func:`plot_rhat`, :func:`plot_trace`,
:func:`plot_temperature`, :func:`plot_layer_temperature`, :func:`plot_schedule`,
:func:`plot_density_surface`. Verdicts: :func:`plot_monte_carlo_error` and :func:`plot_agreement`, also
called `monte_carlo_error` and `agreement`.
"""

from numpyro_bnn.plots.convergence import plot_agreement, plot_monte_carlo_error
from numpyro_bnn.plots.predictive import (
    plot_decision_boundary,
    plot_interval_calibration,
    plot_intervals,
    plot_pit,
    plot_predictive_band,
    plot_reliability,
    plot_score_against_time,
    plot_severity,
)
from numpyro_bnn.plots.sampling import (
    plot_density_surface,
    plot_layer_temperature,
    plot_rhat,
    plot_schedule,
    plot_temperature,
    plot_trace,
)
from numpyro_bnn.plots.style import PALETTE

agreement = plot_agreement
intervals = plot_intervals
monte_carlo_error = plot_monte_carlo_error

__all__ = [
    "PALETTE",
    "agreement",
    "intervals",
    "monte_carlo_error",
    "plot_agreement",
    "plot_decision_boundary",
    "plot_density_surface",
    "plot_interval_calibration",
    "plot_intervals",
    "plot_layer_temperature",
    "plot_monte_carlo_error",
    "plot_pit",
    "plot_predictive_band",
    "plot_reliability",
    "plot_rhat",
    "plot_schedule",
    "plot_score_against_time",
    "plot_severity",
    "plot_temperature",
    "plot_trace",
]
