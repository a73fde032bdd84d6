"""Mixtures of point predictions with one noise, which rows held out have chosen."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

# Standard deviations of the noise that are tried, in units of the target.
NOISES = np.geomspace(1e-3, 1, 121)


def log_mixture(means: np.ndarray, noise: float, y: np.ndarray) -> np.ndarray:
    """Log density of each target under the average of the members, all with the same noise.

    :param means: predictions of the members, (member, row).
    """
    return logsumexp(norm(means, noise).logpdf(y), 0) - np.log(len(means))


def fitted_noise(means: np.ndarray, y: np.ndarray) -> float:
    """The noise of :data:`NOISES` with the best log score of rows that no member was trained on."""
    return max(NOISES, key=lambda sd: log_mixture(means, sd, y).mean())
