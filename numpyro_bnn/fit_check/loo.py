"""Leave-one-out predictive densities with their Monte Carlo errors, and averages without a row.

The average of h over the posterior without row i is that over the draws with weights w_s, which add up to 1
and are made by Pareto smoothing of 1 / p(y_i | θ_s). Its Monte Carlo error is that of the mean of

    g_s = S w_s (h_s - Σ w h),

the first-order effect of draw s on a ratio of means, so that it knows how dependent draws are. For a log
density h = p(y_i | θ) is divided by its average; the effects on a sum over rows are added up draw by draw,
because all rows are averaged over the same draws.

*Calibration*: is each row where the posterior without it expects it? The tests allow for Monte Carlo error.
Of a continuous target: u_i, the probability of a target up to y_i without row i (LOO-PIT), is uniform where
the model is right (Gelfand, Dey and Chang 1992; Gneiting, Balabdaoui and Raftery 2007). The largest distance
between the distribution function of all u_i and the uniform one is at most δ larger than with infinitely
many draws, where no u_i is off by more than δ; so two Monte Carlo errors of the u_i (their 95 % quantile over
rows) are taken off before Kolmogorov's distribution gives the probability of such a distance.

Of classes: where the model is right, the most probable class of a row without it is right with the
probability that it is given. Σ (right_i - probability_i), less two Monte Carlo errors, is compared with
a normal distribution of variance Σ p_i (1 - p_i), and of more where classes tie (:func:`of_classes`).

Both are the distributions for independent rows. Under posteriors without one row, rows depend a little: in
linear models with 40 and 200 rows and from 2 to 100 weights, p was below 0.05 in 4.4 to 7.5 % of 3000 data
sets of the model's own, and below 0.01 in 0.9 to 1.5 %.
"""

from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import kstest, kstwo, norm, zscore

from numpyro_bnn.diagnostics.convergence.rhat import ess, mcse_mean
from numpyro_bnn.posterior.leave_one_out import smoothed
from numpyro_bnn.scores.against_targets import lppd

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
    by_row = np.asarray(lppd(found.log_weights + log_likelihood, pointwise=True))
    by_row += np.log(chains * draws)
    effect = np.asarray(lppd(log_likelihood, pointwise=True)) - by_row
    made = LeaveOneOut(
        elpd=float(by_row.sum()),
        se=float(np.sqrt(rows * by_row.var(ddof=1))),
        error=np.nan,
        p_loo=float(effect.sum()),
        by_row=by_row,
        error_by_row=np.empty(0),
        effect=effect,
        **found._asdict(),
    )
    # Densities divided by their average without the row: of mean 1, whatever their unit.
    _, effects = made.average(np.exp(log_likelihood - by_row))
    return made._replace(error=float(mcse_mean(effects.sum(-1))), error_by_row=mcse_mean(effects))


# A right model seldom has a p below this.
RARE = 0.01


class Calibration(NamedTuple):
    """How calibrated the rows are under the posteriors without them.

    - **kind** - ``"pit"`` of a continuous or counted target, ``"confidence"`` of classes
    - **distance** - of ``"pit"`` the largest distance from uniform; of ``"confidence"`` the mean probability
      of the most probable class less the share of rows that it is right of: positive where the model is too
      sure
    - **error** - Monte Carlo error of the distance, an upper bound for ``"pit"``
    - **p** - probability of at least such a distance, less two Monte Carlo errors, under a right model
    - **pit** - u of each row, (row,); None of classes
    - **probabilities** - of the classes of each row without it, (row, class); None of other targets
    """

    kind: Literal["pit", "confidence"]
    distance: float
    error: float
    p: float
    pit: np.ndarray | None = None
    probabilities: np.ndarray | None = None

    @property
    def is_rare(self) -> bool:
        """Whether a right model seldom is so far off."""
        return self.p < RARE


def of_distribution(
    loo: LeaveOneOut, cdf: np.ndarray, mass: np.ndarray | None = None
) -> Calibration:
    """Calibration by `cdf` (chain, draw, row) at the targets; `mass` is theirs, for counts."""
    # u of a count is drawn between the values of the distribution function below and at it.
    values = np.asarray(cdf, np.float64)
    if mass is not None:
        values = values - np.random.default_rng(0).uniform(size=values.shape[-1]) * mass
    pit, effects = loo.average(values)
    pit = pit.clip(0.0, 1.0)
    count = pit.size
    error = float(np.quantile(np.nan_to_num(mcse_mean(effects), nan=np.inf), 0.95))
    distance = float(kstest(pit, "uniform", method="asymp").statistic)
    # Monte Carlo error of 0 where no draw differs from another.
    p = float(kstwo.sf(max(distance - 2 * error, 0.0), count))
    return Calibration("pit", distance, error, p, pit)


def of_classes(loo: LeaveOneOut, probs: np.ndarray, y: np.ndarray) -> Calibration:
    """Calibration of the most probable class of each row, by probabilities (chain, draw, row, class)."""
    means = np.einsum("cdr,cdrk->rk", np.exp(loo.log_weights), probs)
    best = means.argmax(-1)
    of_best = np.take_along_axis(probs, best[None, None, :, None], -1)[..., 0]
    confidence, effects = loo.average(of_best.astype(np.float64))
    confidence = confidence.clip(0.0, 1.0)
    error = float(np.nan_to_num(mcse_mean(effects.mean(-1)), nan=np.inf))
    gap = float(confidence.mean() - (y == best).mean())
    spread = float(np.sqrt((confidence * (1 - confidence)).sum())) / len(y)
    # Where classes tie, a row's own label decides which is the most probable one without it. Such rows are
    # right or wrong together, as far as their probabilities move together.
    decided = probs.mean((0, 1)).argmax(-1) != best
    moves = np.nan_to_num(zscore(of_best.reshape(-1, len(y))[:, decided], axis=0))
    spread = float(np.hypot(spread, moves.sum(-1).std() / len(y)))
    beyond = max(abs(gap) - 2 * error, 0.0)
    p = float(2 * norm.sf(beyond / spread)) if spread > 0 else float(beyond == 0)
    return Calibration("confidence", gap, error, p, probabilities=means)
