"""Monte Carlo errors of averaged predictions: distances from the averages of an infinite run.

From the Monte Carlo standard error s of every scalar
(:mod:`numpyro_bnn.diagnostics.monte_carlo.mean_errors`):

- classes: the expected total variation between a row's averaged probabilities and their limits,
  `1/2 sqrt(2 / pi) sum_c s_c`, because a normal error of standard deviation s has the mean absolute value `s
  sqrt(2 / pi)`; and the share of rows whose most probable class is not certain;
- other targets: s over the predictive standard deviation;
- the log score: its error and its bias, and its error from the finite number of rows.

The word *precision* is not used for this: it means the inverse variance of a distribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from numpyro_bnn.diagnostics.convergence.rhat import checked
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import (
    MeanErrors,
    mean_errors,
    row_distances,
    units_of,
)
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

# The mean absolute value of a normal error, in its standard deviations.
MEAN_ABSOLUTE = float(np.sqrt(2 / np.pi))
# A decision is open while the two likeliest classes differ by less than this many errors.
_OPEN_ERRORS = 2.0
# A scalar whose error is unknown enters its row with its whole standard deviation. If the error of the row is
# still at most this, a tenth of the default tolerance, the row counts as known.
_NEGLIGIBLE = {"total_variation": 0.001, "relative": 0.005}
# What an error by row is of, in words.
IN_WORDS = {"total_variation": "total variation", "relative": "error in predictive sd"}
# Share of rows that may be unknown before the mean and the 99 % quantile over rows are infinite.
_UNKNOWN_ROWS = 0.01


class Check(NamedTuple):
    """One limit of a tolerance."""

    what: str
    value: float  # Monte Carlo error; infinite where it is not known
    limit: float
    worst_rows: bool  # whether the limit is for the worst rows and not for the average
    needed: float  # how many times as many draws bring the value to the limit

    @property
    def passes(self) -> bool:
        """Whether the value is within its limit."""
        return self.value <= self.limit


@dataclass(frozen=True)
class MonteCarloError:
    """Monte Carlo errors of predictions averaged over draws; None for an error that does not apply.

    - **total_variation**, **total_variation_99** - expected total variation of a row's class
      probabilities from those of an infinite run: mean and 99 % quantile over rows
    - **relative**, **relative_99** - error over the predictive standard deviation (or that of the
      draws, for predictions without one): mean and 99 % quantile over rows
    - **log_score** - error of the mean log score, in nats
    - **decisions_open** - share of rows whose two likeliest classes are within two errors
    - **log_score_bias** - by how much finite draws lower the mean log score: negative, in nats
    - **log_score_rows** - error of the mean log score from the finite number of rows, in nats
    - **by_row** - the values of `"total_variation"` and `"relative"` row by row, `(input,)`;
      infinite where unknown
    - **num_unknown** - scalars with fewer than 50 effective draws, or fewer than five batches of
      two autocorrelation times a chain
    - **needed_to_know** - factor by which to lengthen the run until the error of every row is known; at most
      1 if it is
    - **ratio** - variance of averages from between chains over that from within, by name; about 1
      for chains that agree

    Rows with an unknown error count as infinite; of more than one in a hundred, the mean does too.
    """

    total_variation: float | None = None
    total_variation_99: float | None = None
    relative: float | None = None
    relative_99: float | None = None
    log_score: float | None = None
    decisions_open: float | None = None
    log_score_bias: float | None = None
    log_score_rows: float | None = None
    by_row: Mapping[str, np.ndarray] = field(default_factory=dict)
    num_unknown: int = 0
    needed_to_know: float = 0.0
    ratio: Mapping[str, float] = field(default_factory=dict)

    def checks(self, tolerance: Tolerance) -> tuple[Check, ...]:
        """Every limit of a tolerance that applies, beside the error that is measured.

        :param tolerance: the errors that are accepted.
        """
        found = []
        for unit, rows in self.by_row.items():
            known = rows[np.isfinite(rows)] if np.isfinite(rows).any() else np.zeros(1)
            what, (limit, worst_limit) = IN_WORDS[unit], tolerance.limits[unit]
            mean, worst = getattr(self, unit), getattr(self, f"{unit}_99")
            whole = (f"mean {what}", mean, limit, False, float(known.mean()))
            tail = (f"{what} of the worst rows", worst, worst_limit, True, _worst(known))
            found += [check_of(*each, self.needed_to_know) for each in (whole, tail)]
        if self.log_score is not None:
            limit = tolerance.log_score_limit(self.log_score_rows or 0.0)
            finite = self.log_score if np.isfinite(self.log_score) else 0.0
            found.append(
                check_of("log score", self.log_score, limit, False, finite, self.needed_to_know)
            )
        return tuple(found)

    def within(self, tolerance: Tolerance) -> bool:
        """Whether every error is known and within the tolerance."""
        return all(check.passes for check in self.checks(tolerance))

    def within_on_average(self, tolerance: Tolerance) -> bool:
        """Whether means over rows and the log score are within the tolerance; the worst rows do not count."""
        return all(check.passes or check.worst_rows for check in self.checks(tolerance))

    def needed(self, tolerance: Tolerance) -> tuple[float, str]:
        """Factor by which to lengthen the run until errors are within a tolerance, and what needs it.

        Errors fall with the square root of the number of draws. At most 1 where all are within.

        :param tolerance: the errors that are accepted.
        :return: the factor, and the quantity in words; infinite where nothing moves.
        """
        worst = max(self.checks(tolerance), key=lambda check: check.needed)
        return worst.needed, worst.what


def check_of(
    what: str, value: float, limit: float, worst: bool, finite: float, to_know: float
) -> Check:
    """Compare an error with its limit; an unknown error needs at least the draws to estimate it."""
    needed = (finite / limit) ** 2
    if not np.isfinite(value):
        return Check(f"{what} (unknown)", value, limit, worst, max(needed, to_know))
    return Check(what, value, limit, worst, needed)


def monte_carlo_error(
    predictions: Mapping[str, ArrayLike],
    *,
    log_likelihood: ArrayLike | None = None,
    errors: Mapping[str, MeanErrors] | None = None,
) -> MonteCarloError:
    """Monte Carlo errors of averaged predictions.

    :param predictions: name to draws `(chain, draw, input, ...)`: `"probs"` `(…, input, class)` for
        classes, `"mean"` and `"scale"` for a target with noise, or anything else.
    :param log_likelihood: log density or probability of each test row's target under each draw,
        `(chain, draw, input)` in nats; without it the errors of the log score are None.
    :param errors: result of :func:`~numpyro_bnn.diagnostics.monte_carlo.mean_errors.mean_errors` for each,
        where it is known already.
    :return: see :class:`MonteCarloError`.
    :raises ValueError: for no predictions, or what `mean_errors` refuses.
    """
    arrays = {name: checked(f"monte_carlo_error: {name!r}", x) for name, x in predictions.items()}
    if errors is None:
        errors = {name: mean_errors(x) for name, x in arrays.items()}
    units = units_of(arrays, errors)
    guesses = {name: np.where(each.known, 0.0, each.error) for name, each in errors.items()}
    guessed = row_distances(guesses, units)
    values: dict[str, Any] = {}
    by_row: dict[str, np.ndarray] = {}
    # Predictions that are the same at all inputs may have a single input.
    unknown_rows = np.zeros(max(x.shape[2] for x in arrays.values()), bool)
    for key, rows in row_distances({n: each.error for n, each in errors.items()}, units).items():
        scale = MEAN_ABSOLUTE if key == "total_variation" else 1.0
        unknown = ~(scale * guessed[key] <= _NEGLIGIBLE[key])
        unknown_rows |= unknown
        by_row[key] = np.where(unknown, np.inf, scale * rows)
        values[key], values[f"{key}_99"] = _mean(by_row[key]), _worst(by_row[key])
    if "probs" in arrays:
        values["decisions_open"] = _decisions_open(arrays["probs"], errors["probs"])
    to_know = _needed_to_know(errors, unknown_rows)
    if log_likelihood is not None:
        score, score_to_know = log_score_errors(log_likelihood)
        values |= score
        to_know = max(to_know, score_to_know)
    return MonteCarloError(
        **values,
        by_row=by_row,
        num_unknown=sum(int((~each.known).sum()) for each in errors.values()),
        needed_to_know=to_know,
        ratio={name: each.ratio for name, each in errors.items()},
    )


def _mean(rows: np.ndarray) -> float:
    """Mean over known rows; infinite where too many are not known."""
    known = np.isfinite(rows)
    return float(rows[known].mean()) if (~known).mean() <= _UNKNOWN_ROWS else np.inf


def _worst(rows: np.ndarray) -> float:
    """99 % quantile over rows, without interpolation: some rows may be infinite."""
    return float(np.quantile(rows, 0.99, method="higher"))


def _needed_to_know(errors: Mapping[str, MeanErrors], unknown: np.ndarray) -> float:
    """Factor by which to lengthen the run so that all rows are known; at most 1 if they are."""
    slowest: np.ndarray = np.zeros(len(unknown))
    for each in errors.values():
        slowest = np.maximum(slowest, each.needed.reshape(len(each.needed), -1).max(axis=1))
    if unknown.any():
        return float(slowest[unknown].max())
    # Known rows may hold slow scalars whose errors are too small to matter.
    return min(1.0, float(slowest.max()))


def _decisions_open(probs: np.ndarray, errors: MeanErrors) -> float:
    """Share of rows whose two likeliest classes are within two errors of their difference."""
    means = errors.mean.reshape(-1, errors.mean.shape[-1])
    num_rows, num_classes = means.shape
    first, second = np.argsort(-means, axis=-1)[:, :2].T + num_classes * np.arange(num_rows)
    flat = probs.reshape(*probs.shape[:2], -1)
    apart = np.take(flat, first, axis=2) - np.take(flat, second, axis=2)
    difference = mean_errors(apart, ratio=errors.ratio)
    return float((np.abs(difference.mean) <= _OPEN_ERRORS * difference.error).mean())


def log_score_errors(log_likelihood: Any) -> tuple[dict[str, float], float]:
    """Errors of the mean log score, and the factor by which to lengthen the run until they are known."""
    # To first order the error of the mean log score is the mean over draws of `1/n sum_i p_i(theta) /
    # pbar_i`, minus one. So it is the Monte Carlo error of the average of that one series.
    given = checked("monte_carlo_error: log_likelihood", log_likelihood)
    score = logsumexp(given, axis=(0, 1)) - np.log(given.shape[0] * given.shape[1])
    ratio = np.exp(given - score)
    of_rows = mean_errors(ratio)
    series = mean_errors(ratio.mean(axis=2, dtype=np.float64), ratio=of_rows.ratio)
    num = score.size
    return {
        "log_score": float(series.error) if series.known else np.inf,
        "log_score_bias": float(-0.5 * np.square(of_rows.error).mean()),
        "log_score_rows": float(score.std(ddof=1) / np.sqrt(num)) if num > 1 else np.nan,
    }, float(series.needed)
