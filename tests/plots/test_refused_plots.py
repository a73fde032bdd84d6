"""What plots refuse, and the words in which they do."""

from collections.abc import Callable

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
            lambda: plots.plot_predictive_band(np.ones(3), np.ones((2, 3)), np.ones(2)),
            "could not be broadcast",
        ),
        (
            lambda: plots.plot_predictive_band(np.ones(3), np.ones(3), data=([1.0], [1.0, 2.0])),
            "must be the same size",
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
        (lambda: plots.plot_score_against_time({"NUTS": ([1, 2], [1])}), "same first dimension"),
        (
            lambda: plots.plot_density_surface(density, [POINTS[0], POINTS[1], 2 * POINTS[1]]),
            "lie on one line",
        ),
    ],
)
def test_errors(call: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
