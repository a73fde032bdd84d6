"""A linear network whose weights share a Gamma precision τ, and the exact posterior of τ."""

import numpy as np
from scipy.special import logsumexp

NOISE, CONCENTRATION, RATE = 0.5, 2.0, 1.0
_RNG = np.random.default_rng(4)
_X = _RNG.normal(size=(15, 3))
DATA = _X, _X @ [1.0, -0.5, 0.2] + 0.3 + NOISE * _RNG.normal(size=15)


def exact_moments():
    """Mean of τ and of log τ: weights integrated out in closed form, τ on a grid."""
    x, y = DATA
    inputs = np.c_[x, np.ones(len(x))]
    u = np.linspace(-6, 4, 2001)
    # Gamma, and dτ = τ du.
    log_joint = CONCENTRATION * u - RATE * np.exp(u)
    for i, tau in enumerate(np.exp(u)):
        covariance = NOISE**2 * np.eye(len(x)) + inputs @ inputs.T / tau
        _, determinant = np.linalg.slogdet(covariance)
        log_joint[i] -= 0.5 * (determinant + y @ np.linalg.solve(covariance, y))
    weight = np.exp(log_joint - logsumexp(log_joint))
    return weight @ np.exp(u), weight @ u
