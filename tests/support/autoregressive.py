"""Chains whose draws depend on the ones before, as those of a sampler do."""

import numpy as np
from scipy.signal import lfilter


def autoregressive(rng, shape, rho):
    """Stationary AR(1) of unit variance along axis 1."""
    x = rng.standard_normal(shape)
    x[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], x, axis=1)
