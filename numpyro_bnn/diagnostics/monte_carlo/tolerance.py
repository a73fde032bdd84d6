"""The Monte Carlo error that a user accepts, in the units of predictions."""

from dataclasses import dataclass

from numpyro_bnn._checks import check_positive

# The limit for the worst rows (99 % quantile) of class probabilities, over the limit for the mean.
_WORST_VARIATION = 3.0
# The limit for the mean over rows of other predictions, over the limit for the worst rows.
_MEAN_RELATIVE = 0.5
# The limit for the error of the log score, over its error from the finite number of test rows.
_SHARE_OF_ROWS = 0.2


@dataclass(frozen=True)
class Tolerance:
    """The Monte Carlo error of averages over draws that is accepted.

    For scale: two converged runs of full-batch HMC on MNIST have a total variation distance of 0.010. One
    number is given for each unit; the other limits of that unit follow from it, so that all grow together:

    :param total_variation: of the *mean* over rows of the expected total variation between class
        probabilities and those of an infinite run; the 99 % quantile of rows may be three times
        as large (0.03).
    :param relative: of the *99 % quantile* over rows of errors in predictive standard deviations;
        their mean may be half as large (0.05).
    :param log_score: of the error of the mean log score, in nats; it may not exceed a fifth of the
        error from the finite number of test rows either, whatever is given here.
    :raises ValueError: for a number that is not positive and finite.
    :raises TypeError: for what is no number.
    """

    total_variation: float = 0.01
    relative: float = 0.1
    log_score: float = 0.005

    def __post_init__(self) -> None:
        check_positive(
            "Tolerance",
            total_variation=self.total_variation,
            relative=self.relative,
            log_score=self.log_score,
        )

    @property
    def total_variation_99(self) -> float:
        """Limit of the 99 % quantile over rows of the total variation."""
        return _WORST_VARIATION * self.total_variation

    @property
    def relative_mean(self) -> float:
        """Limit of the mean over rows of errors in predictive standard deviations."""
        return _MEAN_RELATIVE * self.relative

    @property
    def limits(self) -> dict[str, tuple[float, float]]:
        """Limits of the mean over rows and of the 99 % quantile, by unit."""
        return {
            "total_variation": (self.total_variation, self.total_variation_99),
            "relative": (self.relative_mean, self.relative),
        }

    def log_score_limit(self, rows_error: float) -> float:
        """Limit of the error of the log score, given its error from the finite number of test rows."""
        # An infinite or undefined error from the rows gives no limit.
        share = _SHARE_OF_ROWS * rows_error
        return min(self.log_score, share) if share > 0 else self.log_score


def checked_tolerance(what: str, tolerance: object) -> Tolerance:
    """A tolerance that was given, or the default where it is None."""
    if tolerance is not None and not isinstance(tolerance, Tolerance):
        raise TypeError(
            f"{what} must be a bnn.Tolerance, got {tolerance!r}. Write "
            "`bnn.Tolerance(total_variation=0.01, relative=0.1, log_score=0.005)`."
        )
    return Tolerance() if tolerance is None else tolerance
