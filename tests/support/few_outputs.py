"""Targets of two columns in units that differ by a factor of a hundred, linear in three inputs."""

import numpy as np


def data(rows=30):
    """Inputs (rows, 3) and targets (rows, 2)."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(rows, 3)) * [1.0, 5.0, 0.2] + [0.0, 3.0, -1.0]
    slopes = np.array([[1.0, -40.0], [0.1, 20.0], [-2.0, 0.0]])
    noise = rng.normal(size=(rows, 2)) * [0.2, 30.0]
    return x, x @ slopes + [5.0, -700.0] + noise
