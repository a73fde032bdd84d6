"""What plots refuse, and the words in which they do."""

from collections.abc import Callable

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from test_plots import POINTS, X2, Y2, Regressor, centers, density

from numpyro_bnn import plots


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plots.intervals(Regressor(), np.ones(3), np.ones(4)),
            r"y has shape \(4,\) and the predictions \(3,\)",
        ),
        (
            lambda: plots.plot_predictive_band(np.ones(3), np.ones((2, 4))),
            r"x has shape \(3,\) and mean \(2, 4\)",
        ),
        (
            lambda: plots.plot_predictive_band(np.ones(3), np.ones((2, 3)), np.ones(2)),
            "could not be broadcast",
        ),
        (
            lambda: plots.plot_predictive_band(np.ones(3), np.ones(3), data=([1.0], [1.0, 2.0])),
            "must be the same size",
        ),
        (
            lambda: plots.plot_decision_boundary(centers, np.ones((3, 4)), np.ones(3)),
            "Choose two inputs",
        ),
        (
            lambda: plots.plot_decision_boundary(
                centers, X2, Y2, point=centers, ax=plt.subplots()[1]
            ),
            "argument 2 is longer than argument 1",
        ),
        (
            lambda: plots.plot_decision_boundary(
                lambda z: np.full((len(z), 2), 0.5), np.eye(3, 2), [1, 2, 1], resolution=3
            ),
            "y has the class 2, and the predictions are probabilities of 2 classes",
        ),
        (lambda: plots.plot_rhat([np.nan], [np.inf]), "no finite R-hat.*'weights': 1"),
        (lambda: plots.plot_trace(np.ones((2, 3, 4))), r"log_joint has shape \(2, 3, 4\)"),
        (lambda: plots.plot_temperature(np.ones((2, 9)), window=0), "positive, got 0"),
        (
            lambda: plots.plot_temperature(np.ones((2, 9)), target=np.ones(3)),
            r"target has shape \(3,\) for 9 draws",
        ),
        (lambda: plots.plot_layer_temperature({"kinetic": {}}), "no layers"),
        (lambda: plots.plot_score_against_time({}), "no curves"),
        (
            lambda: plots.plot_score_against_time({"NUTS": ([1, 2], [1])}),
            "same first dimension",
        ),
        (lambda: plots.plot_severity([0, 1], {}), "no curves"),
        (
            lambda: plots.plot_pit([0.5, 1.5]),
            r"values between 0 and 1, one a row, got shape \(2,\)",
        ),
        (
            lambda: plots.plot_pit([0.5], level=1.0),
            r"level must be strictly between 0 and 1, got 1\.0",
        ),
        (
            lambda: plots.plot_severity([0, 1], {"MAP": [1, 2, 3]}),
            "same first dimension",
        ),
        (lambda: plots.plot_density_surface(density, POINTS[:2]), "got 2 samples, expected 3"),
        (
            lambda: plots.plot_density_surface(density, [POINTS[0], POINTS[1], 2 * POINTS[1]]),
            "lie on one line",
        ),
        (
            lambda: plots.plot_density_surface(lambda z: jnp.nan * z[0], POINTS, resolution=3),
            "nowhere finite",
        ),
        (lambda: plots.plot_schedule(0.1, num_steps=0), "num_steps must be positive, got 0"),
        (lambda: plots.plot_schedule(0.1, num_steps=5, kept=[5]), "from 0 to 4, got 5 to 5"),
    ],
)
def test_errors(call: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
