"""The warning at the end of an estimator's fit whose predictions are not known as well as was asked."""

import warnings

from numpyro.util import find_stack_level
from sklearn.exceptions import ConvergenceWarning

from numpyro_bnn.diagnostics.report import Report

_MORE_DRAWS = (
    "give more draws (num_samples=), or sample until they are known (until=bnn.Tolerance())"
)
# What to do, by verdict; nothing where predictions are within tolerance.
_ADVICE = {
    "run_longer": _MORE_DRAWS,
    "too_short": _MORE_DRAWS,
    "chains_disagree": (
        "it says which chains differ; more draws (num_samples=, or until=bnn.Tolerance()) help only "
        'chains that cross, and the page "What the verdict lets you do" has what helps others'
    ),
    "invalid": "it says which chains hold values that are not finite, or do not move",
}


def warn_of_verdict(owner: str, report: Report) -> None:
    """Warn with scikit-learn's ``ConvergenceWarning`` of a verdict that is not within tolerance."""
    advice = _ADVICE.get(report.verdict)
    if advice is not None:
        warnings.warn(
            f"{owner}: the predictions are not known within tolerance (verdict: {report.verdict.words}; "
            f"{report.headline}). Print `report_`: {advice}.",
            ConvergenceWarning,
            stacklevel=find_stack_level(),
        )
