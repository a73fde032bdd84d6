"""Can a run be believed? R-hat and ESS in weight and function space, and a verdict in words.

The weights of a Bayesian neural network do not mix and its predictions may. So the same
statistics are computed on both, and what is asked of a run is that its *predictions* converge;
:func:`diagnose` says so of a run, :func:`diagnose_draws` from arrays. Below are the numerics:

- :func:`rhat`, :func:`ess`, :func:`mcse_mean`, :func:`nested_rhat`, :func:`summarize`: of all
  scalars at once, equal to ArviZ's;
- :func:`variance_parts`, :func:`chain_agreement`, :func:`distinct_functions`: what lies between
  the chains;
- :func:`disagreement`, :func:`compare_draws`: where chains, or two runs, part;
- :func:`find_hidden_layers`, :func:`align`: hidden units matched across draws;
- :func:`ebfmi`: whether HMC reaches the tails.
"""

from numpyro_bnn.diagnostics.compare_runs import (
    Disagreement,
    Parting,
    SecondOpinion,
    compare_draws,
    disagreement,
)
from numpyro_bnn.diagnostics.convergence.rhat import (
    Summary,
    ebfmi,
    ess,
    mcse_mean,
    nested_rhat,
    rhat,
    summarize,
)
from numpyro_bnn.diagnostics.diagnose import diagnose
from numpyro_bnn.diagnostics.distinct_functions import (
    ChainAgreement,
    DistinctFunctions,
    VarianceParts,
    chain_agreement,
    distinct_functions,
    variance_parts,
)
from numpyro_bnn.diagnostics.from_arrays import diagnose_draws
from numpyro_bnn.diagnostics.hidden_units import HiddenLayer, align, find_hidden_layers
from numpyro_bnn.diagnostics.report import Relabelling, Report, Space

__all__ = [
    "ChainAgreement",
    "Disagreement",
    "DistinctFunctions",
    "HiddenLayer",
    "Parting",
    "Relabelling",
    "Report",
    "SecondOpinion",
    "Space",
    "Summary",
    "VarianceParts",
    "align",
    "chain_agreement",
    "compare_draws",
    "diagnose",
    "diagnose_draws",
    "disagreement",
    "distinct_functions",
    "ebfmi",
    "ess",
    "find_hidden_layers",
    "mcse_mean",
    "nested_rhat",
    "rhat",
    "summarize",
    "variance_parts",
]
