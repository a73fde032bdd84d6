"""Stationary covariance of descent with minibatches at a constant rate, for generalised linear models.

The step is θ ← θ - r g with g the gradient of the energy U on B rows drawn independently, N/B times
their sum plus that of the prior. Around the optimum, with H = ∇²U and the covariance C of g,

    HΣ + ΣH = r C                                   for small r,
    Σ = (I - rH) Σ (I - rH) + r² C                  for any r, C constant,

Mandt, Hoffman and Blei (2017), eq. 13 and its discrete form. C itself grows with Σ where residuals
do; :func:`of_linear_regression` has that term too and is exact.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov


class Setting(NamedTuple):
    """What the covariance of the iterates follows from."""

    rows: np.ndarray  # (row, parameter), a column of ones among them
    slopes: np.ndarray  # derivative of each row's energy by its linear predictor, at the optimum
    hessian: np.ndarray  # of the energy, prior included, at the optimum
    batch_size: int  # B

    @property
    def noise(self) -> np.ndarray:
        """Covariance of the minibatch gradient at the optimum."""
        each = self.rows * self.slopes[:, None]
        return len(each) ** 2 / self.batch_size * np.cov(each, rowvar=False, bias=True)

    @property
    def rate(self) -> float:
        """The rate nearest to the posterior in KL (their theorem 1), at most 1 / λ_max."""
        best = 2 * len(self.hessian) / np.trace(self.noise)
        return float(min(best, 1 / np.linalg.eigvalsh(self.hessian)[-1]))


def of_small_steps(given: Setting, rate: float) -> np.ndarray:
    """Covariance as the rate tends to zero."""
    return solve_continuous_lyapunov(given.hessian, rate * given.noise)


def of_this_step(given: Setting, rate: float) -> np.ndarray:
    """Covariance at this rate, the noise as at the optimum."""
    kept = np.eye(len(given.hessian)) - rate * given.hessian
    return solve_discrete_lyapunov(kept, rate**2 * given.noise)


def of_linear_regression(given: Setting, rate: float, noise: float) -> np.ndarray:
    """Exact covariance for squared errors of standard deviation `noise`.

    With deviation δ from the optimum, the residual of a row is e + x'δ; averaged over δ ~ (0, Σ),

        C(Σ) = N²/B [mean xx' (s² + x'Σx / σ⁴) - m m' - A Σ A / σ⁴],

    s = e/σ² the slopes, m = mean x s, A = mean xx'. Linear in Σ, so solved at once; infinite where
    the descent has no stationary distribution of finite variance.
    """
    x, size = given.rows, len(given.hessian)
    kept = np.eye(size) - rate * given.hessian
    pairs = np.einsum("ni,nj->nij", x, x).reshape(len(x), -1)
    moment = x.T @ x / len(x)
    grown = (pairs.T @ pairs / len(x) - np.kron(moment, moment)) / noise**4
    factor = len(x) ** 2 / given.batch_size * rate**2
    moved = np.kron(kept, kept) + factor * grown
    if np.abs(np.linalg.eigvals(moved)).max() >= 1:
        return np.full((size, size), np.inf)
    solved = np.linalg.solve(np.eye(size**2) - moved, (rate**2 * given.noise).reshape(-1))
    return solved.reshape(size, size)
