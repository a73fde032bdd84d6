"""Posterior moments of a few parameters by the trapezoid rule, for exact references."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize


class Nodes(NamedTuple):
    """Points with weights that sum to one: averages over them are posterior expectations."""

    points: np.ndarray  # (node, parameter)
    weights: np.ndarray  # (node,)
    mode: np.ndarray  # the parameters of highest density

    @property
    def mean(self) -> np.ndarray:
        return self.weights @ self.points

    @property
    def covariance(self) -> np.ndarray:
        centred = self.points - self.mean
        return (centred * self.weights[:, None]).T @ centred


def nodes_of(
    log_density: Callable[[np.ndarray], np.ndarray],
    hessian: Callable[[np.ndarray], np.ndarray],
    num_parameters: int,
    count: int = 33,
    width: float = 7.0,
) -> Nodes:
    """The trapezoid rule in the coordinates that whiten the curvature at the mode: `count` nodes an axis."""
    start = np.zeros(num_parameters)
    found = minimize(lambda p: -log_density(p[None])[0], start, method="BFGS", tol=1e-8)
    mode = found.x
    scale = np.linalg.inv(np.linalg.cholesky(hessian(mode))).T
    axes = [np.linspace(-width, width, count)] * num_parameters
    whitened = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, num_parameters)
    points = mode + whitened @ scale.T
    values = log_density(points)
    weights = np.exp(values - values.max())
    kept = weights > 1e-14
    return Nodes(points[kept], weights[kept] / weights[kept].sum(), mode)
