"""Scores of posterior predictions: each with its definition, its source and its error.

Conventions, the same everywhere:

- The first argument is an array whose leading axes are draws, or an object of predictions with
  a mapping `values` (`"probs"`, or `"mean"` and `"scale"`) and a method `log_prob(y)`. Draws are
  averaged as probabilities (the posterior predictive), never as logits or scores.
- Rows of the test set are the first axis of `y`, and nothing is broadcast against it.
- `pointwise=True` gives the score of each row, `(n,)`, in place of their mean;
  :func:`standard_error` and :func:`paired_difference` take those, so that every mean score has
  an error and any two models can be compared row by row.
- Logarithms are natural: densities in nats.

Which way is better: `lppd`, `accuracy` up; `rmse`, `crps`, `brier`,
`expected_calibration_error` down; `coverage` should equal its level.
"""

from numpyro_bnn.scores.against_targets import (
    PairedDifference,
    Reliability,
    accuracy,
    brier,
    coverage,
    crps,
    expected_calibration_error,
    lppd,
    paired_difference,
    pit,
    reliability,
    rmse,
    standard_error,
)
from numpyro_bnn.scores.distributions import (
    Uncertainty,
    agreement,
    entropy,
    ood_auroc,
    total_variation,
    uncertainty,
    wasserstein,
)

__all__ = [
    "PairedDifference",
    "Reliability",
    "Uncertainty",
    "accuracy",
    "agreement",
    "brier",
    "coverage",
    "crps",
    "entropy",
    "expected_calibration_error",
    "lppd",
    "ood_auroc",
    "paired_difference",
    "pit",
    "reliability",
    "rmse",
    "standard_error",
    "total_variation",
    "uncertainty",
    "wasserstein",
]
