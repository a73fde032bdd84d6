"""Distances between predictions, one number a row, in total variation or standard deviations.

Class probabilities (`"probs"`) differ by their total variation, half the sum over classes of absolute
differences; of several labels a row by that of the label with the largest. Anything else is measured in
standard deviations: of the prediction where there are `"mean"` and `"scale"`, else of the draws of that
scalar; the distance of a row is that of its largest scalar.
"""

from collections.abc import Mapping

import numpy as np

from numpyro_bnn.diagnostics.monte_carlo.mean_errors import MeanErrors


def units_of(
    predictions: Mapping[str, np.ndarray], errors: Mapping[str, MeanErrors]
) -> dict[str, np.ndarray]:
    """The units of all scalars: standard deviations, and 1 of class probabilities."""
    units = {
        n: np.ones_like(each.sd) if n == "probs" else each.sd
        for n, each in errors.items()
        if n in predictions
    }
    if {"mean", "scale"} <= set(units):
        noise, center = errors["scale"], errors["mean"]
        # The variance of a mixture: the mean variance of the noise, and the variance of the means.
        sd = np.hypot(np.hypot(noise.mean, noise.sd), center.sd)
        units |= {"mean": sd, "scale": sd}
    return units


def row_distances(
    differences: Mapping[str, np.ndarray], units: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Distance of every row, `(..., input)`, as `"total_variation"` and `"relative"`, or one of them."""
    found: dict[str, np.ndarray] = {}
    for name, difference in differences.items():
        size, unit = np.abs(difference), units[name]
        if name == "probs":
            apart = 0.5 * size.sum(axis=-1)
            # Of several labels of a row, the most different one counts.
            lead = difference.ndim - unit.ndim + 1
            found["total_variation"] = apart.reshape(*apart.shape[:lead], -1).max(axis=-1)
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            # Constants have no unit: their distance is 0 or infinite.
            size = np.where(size > 0, size / unit, 0.0)
        lead = difference.ndim - unit.ndim
        largest = size.reshape(*size.shape[: lead + 1], -1).max(axis=-1)
        found["relative"] = np.maximum(found.get("relative", 0.0), largest)
    return found
