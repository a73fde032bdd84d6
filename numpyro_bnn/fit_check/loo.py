"""Leave-one-out predictive densities with their Monte Carlo errors, and averages without a row.

The average of h over the posterior without row i is that over the draws with weights w_s, which add up to 1
and are made by Pareto smoothing of 1 / p(y_i | θ_s). Its Monte Carlo error is that of the mean of

    g_s = S w_s (h_s - Σ w h),

the first-order effect of draw s on a ratio of means, so that it knows how dependent draws are. For a log
density h = p(y_i | θ) is divided by its average; the effects on a sum over rows are added up draw by draw,
because all rows are averaged over the same draws.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from numpyro_bnn.diagnostics.convergence.rhat import ess, mcse_mean
from numpyro_bnn.posterior.leave_one_out import smoothed

LEAST_DRAWS = 100


class LeaveOneOut(NamedTuple):
    """Leave-one-out log predictive densities of the rows of a fit, in nats.

    - **elpd** - their sum over rows
    - **se** - its standard error: how much it varies from one sample of rows to another
    - **error** - its Monte Carlo error: how far more draws may move it
    - **p_loo** - effective number of parameters, elpd with the rows less elpd without
    - **by_row** - the log density of each row under the posterior without it, (row,)
    - **error_by_row** - their Monte Carlo errors, (row,)
    - **pareto_k** - Pareto k̂ of each row, (row,)
    - **good_k** - the largest k̂ at which so many draws suffice, at most 0.7
    - **log_weights** - importance weights of the draws without each row, (chain, draw, row)
    - **effect** - log density of each row with it less that without it, which adds up to `p_loo`, (row,)
    """

    elpd: float
    se: float
    error: float
    p_loo: float
    by_row: np.ndarray
    error_by_row: np.ndarray
    pareto_k: np.ndarray
    good_k: float
    log_weights: np.ndarray
    effect: np.ndarray = np.empty(0)

    @property
    def carried(self) -> float:
        """Share of the effects of all rows that is of rows whose k̂ is not good."""
        effect = np.abs(self.effect)
        return float(effect[self.bad_rows].sum() / max(effect.sum(), 1e-300))

    @property
    def counts(self) -> tuple[int, int, int]:
        """Rows whose k̂ is good, bad (above `good_k`) and very bad (above 1), as ArviZ counts them."""
        good = int((self.pareto_k <= self.good_k).sum())
        very_bad = int((~(self.pareto_k <= 1)).sum())
        return good, self.pareto_k.size - good - very_bad, very_bad

    @property
    def bad_rows(self) -> np.ndarray:
        """Numbers of the rows whose k̂ is not good, the worst first."""
        order = np.argsort(-np.nan_to_num(self.pareto_k, nan=np.inf), kind="stable")
        return order[~(self.pareto_k[order] <= self.good_k)]

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Averages over the posteriors without each row, and the effects of the draws on them.

        :param values: (chain, draw, row), of each draw at the row that is left out.
        :return: averages (row,), and the g of the notes above, (chain, draw, row), whose means are 0.
        """
        weights = np.exp(self.log_weights)
        mean = (weights * values).sum((0, 1))
        return mean, weights.shape[0] * weights.shape[1] * weights * (values - mean)


def leave_one_out(log_likelihood: np.ndarray) -> LeaveOneOut:
    """Leave-one-out log predictive densities by Pareto-smoothed importance sampling."""
    # Vehtari, Gelman and Gabry, *Practical Bayesian model evaluation using leave-one-out cross-validation and
    # WAIC* (2017), eqs. 3 and 10.
    log_likelihood = np.asarray(log_likelihood, np.float64)
    chains, draws, rows = log_likelihood.shape
    if rows < 2:
        raise ValueError(
            f"check_fit: expected two rows or more, got {rows}. Score a single row by "
            "`bnn.scores.lppd`."
        )
    if chains * draws < LEAST_DRAWS or draws < 4:
        raise ValueError(
            f"check_fit: {chains} chains of {draws} draws are too few for leave-one-out by importance "
            f"sampling. Give at least {LEAST_DRAWS} draws, and 4 of each chain."
        )
    if not np.isfinite(log_likelihood).all():
        row = int(np.argwhere(~np.isfinite(log_likelihood).all((0, 1)))[0, 0])
        raise ValueError(
            f"check_fit: row {row} has a log density that is not finite under some draws, so that the "
            "posterior without it cannot be reached from them. Check its target, or leave the row out "
            "and fit again."
        )
    likelihood = np.exp(log_likelihood - log_likelihood.max((0, 1)))
    sizes = ess(likelihood, method="mean") / (chains * draws)
    # A row with one density under all draws has no effective size.
    known = sizes[np.isfinite(sizes)]
    found = smoothed(log_likelihood, float(np.mean(known)) if known.size else 1.0)
    made = LeaveOneOut(
        found.elpd,
        found.se,
        np.nan,
        found.p_loo,
        found.by_row,
        np.empty(0),
        found.pareto_k,
        found.good_k,
        found.log_weights,
        logsumexp(log_likelihood, axis=(0, 1)) - np.log(chains * draws) - found.by_row,
    )
    # Densities divided by their average without the row: of mean 1, whatever their unit.
    _, effects = made.average(np.exp(log_likelihood - found.by_row))
    errors = mcse_mean(effects)
    return made._replace(error=float(mcse_mean(effects.sum(-1))), error_by_row=errors)
