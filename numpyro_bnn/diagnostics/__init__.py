"""Whether a run can be believed: Monte Carlo errors of averages, agreement of chains, and a verdict.

Weights of a Bayesian neural network do not mix, but its predictions may. So a run is judged by its
predictions: their averages must be known, and its chains must agree about them.
:func:`diagnose` reports on a run, :func:`diagnose_draws` on arrays. The measures behind them:

- :func:`monte_carlo_error`, :func:`mean_errors`: how far averages are from those of an infinite run;
- :func:`agreement`: whether chains differ by more than their own errors;
- :func:`rhat_limit`, :func:`nested_rhat_limit`: the limit for the largest R-hat of many scalars;
- :func:`rhat`, :func:`ess`, :func:`mcse_mean`, :func:`nested_rhat`, :func:`summarize`: computed for all
  scalars at once, equal to ArviZ's;
- :func:`variance_parts`: how much chains differ;
- :func:`compare_draws`: where two runs differ;
- :func:`find_hidden_layers`, :func:`align`: hidden units matched across draws;
- :func:`ebfmi`: whether HMC reaches the tails.
"""

from numpyro_bnn.diagnostics.compare_runs import (
    QuantileDifference,
    SecondOpinion,
    VarianceParts,
    compare_draws,
    variance_parts,
)
from numpyro_bnn.diagnostics.convergence.rhat import (
    Summary,
    ebfmi,
    ess,
    mcse_mean,
    nested_rhat,
    nested_rhat_limit,
    rhat,
    rhat_limit,
    summarize,
)
from numpyro_bnn.diagnostics.diagnose import diagnose, diagnose_draws
from numpyro_bnn.diagnostics.evidence import Relabelling, RhatTable
from numpyro_bnn.diagnostics.hidden_units import HiddenLayer, align, find_hidden_layers
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement, agreement
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import MeanErrors, mean_errors
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError, monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.diagnostics.verdict import Verdict

__all__ = [
    "Agreement",
    "HiddenLayer",
    "MeanErrors",
    "MonteCarloError",
    "QuantileDifference",
    "Relabelling",
    "Report",
    "RhatTable",
    "SecondOpinion",
    "Summary",
    "Tolerance",
    "VarianceParts",
    "Verdict",
    "agreement",
    "align",
    "compare_draws",
    "diagnose",
    "diagnose_draws",
    "ebfmi",
    "ess",
    "find_hidden_layers",
    "mcse_mean",
    "mean_errors",
    "monte_carlo_error",
    "nested_rhat",
    "nested_rhat_limit",
    "rhat",
    "rhat_limit",
    "summarize",
    "variance_parts",
]
