"""Everything that is measured on the draws of a run before a verdict.

:func:`measure` gives the Monte Carlo errors of the averages and the agreement of the chains;
:class:`Evidence` holds these beside R-hat, the sampler's own record and the comparison with a second run.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from numpyro_bnn.diagnostics.compare_runs import Disagreement, SecondOpinion
from numpyro_bnn.diagnostics.convergence.rhat import nested_rhat, nested_rhat_limit, rhat_limit
from numpyro_bnn.diagnostics.distinct_functions import DistinctFunctions
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement, agreement
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import MeanErrors, mean_errors
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError, monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.prediction_units import row_distances, units_of
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.report import Relabelling
from numpyro_bnn.diagnostics.rhat_of_weights_and_predictions import Space
from numpyro_bnn.diagnostics.sampler_stats import SamplerStats
from numpyro_bnn.diagnostics.verdict_names import Verdict
from numpyro_bnn.samplers.tempering.evidence import Tempering

Arrays = dict[str, np.ndarray]
# Without predictions weights are judged: at most so many scalars, evenly spaced over their sites.
_MOST_WEIGHTS = 10_000


class ErrorsAndAgreement(NamedTuple):
    """Monte Carlo errors of averages, agreement of chains, and the verdict that the two allow.

    - **error** - Monte Carlo errors of the averages
    - **agreement** - whether the chains differ by more than their errors
    - **tolerance** - the Monte Carlo error that is accepted
    - **num_scalars** - number of scalars measured
    - **rhat_limit** - the limit that the largest R-hat of so many scalars stays below if chains are
      stationary, at the median effective sample size
    - **num_above** - number of scalars whose R-hat is above the limit for their own effective sample size;
      None for weights
    - **scores** - mean log score of each group of chains in nats, where targets were given and chains
      disagree
    - **num_impossible** - number of rows to whose targets no draw gives any probability; their log score
      is minus infinity and has no error, so the log score is left out
    - **apart** - distance of the averages from those of a second run: for `"total_variation"` or
      `"relative"` the mean and the 99 % quantile over rows
    """

    error: MonteCarloError
    agreement: Agreement
    tolerance: Tolerance
    num_scalars: int
    rhat_limit: float
    num_above: int | None
    scores: tuple[float, ...]
    num_impossible: int
    apart: Mapping[str, tuple[float, float]]

    @property
    def nothing_moves(self) -> bool:
        """Whether all draws of all chains are the same."""
        return not self.agreement.tested and self.agreement.needed <= 1

    @property
    def verdict(self) -> Verdict:
        """The verdict on these numbers: agreement first, then the tolerance.

        Chains whose agreement could not be tested need more draws, and so do chains that have not forgotten
        their starts.
        """
        if self.agreement.disagree(self.tolerance):
            return Verdict("chains_disagree")
        if self.agreement.remember_starts:
            return Verdict("run_longer")
        if self.agreement.tested and self.error.within(self.tolerance):
            return Verdict("within_tolerance")
        if self.agreement.tested and self.error.within_on_average(self.tolerance):
            return Verdict("within_tolerance_on_average")
        return Verdict("run_longer")

    @property
    def needed(self) -> tuple[float, str]:
        """Factor by which to lengthen the run until all is within tolerance, and what needs it."""
        if self.nothing_moves:
            return float("inf"), "nothing moves"
        error, what = self.error.needed(self.tolerance)
        if self.agreement.needed > max(1.0, error):
            return float(self.agreement.needed), "the test of chains"
        return float(error), what.removesuffix(" (unknown)")


class Evidence(NamedTuple):
    """Everything that is measured on a run before it is judged; see the fields of `Report`.

    - **spaces** - R-hat and ESS by kind of scalar; a kind without draws is empty
    - **bad_chains** - first draw and site of NaN or infinities, by chain
    - **verdict_without** - the verdict on the other chains, where some hold NaN or infinities
    - **not_finite** - why predictions are not finite while the weights are; empty otherwise
    - **measured** - errors and agreement; None for draws that are invalid or too few
    - **what** - the quantities that are judged: `"predictions"`, or `"weights"` without predictions
    - **stuck** - chains that do not move
    - **second_tempering** - the record of a second run by parallel tempering
    """

    spaces: Mapping[str, Space]
    num_chains: int
    num_draws: int
    min_draws: int
    sampler: SamplerStats
    bad_chains: Mapping[int, tuple[int, str]]
    verdict_without: Verdict | None
    measured: ErrorsAndAgreement | None
    what: str
    stuck: tuple[int, ...]
    chains: Disagreement | None
    distinct: DistinctFunctions | None
    second: SecondOpinion | None
    relabelling: Relabelling | None = None
    second_tempering: Tempering | None = None
    not_finite: str = ""


def measure(
    functions: Arrays,
    log_likelihood: np.ndarray | None,
    tolerance: Tolerance,
    *,
    space: Space | None = None,
    second: Mapping[str, np.ndarray] | None = None,
    superchains: np.ndarray | None = None,
) -> ErrorsAndAgreement:
    """Monte Carlo errors and agreement of chains, from finite draws.

    :param functions: name to draws of predictions `(chain, draw, input, ...)`; a prediction that is the
        same at all inputs, such as a noise scale, has a single one.
    :param log_likelihood: log density of the targets under each draw, `(chain, draw, input)` in nats.
    :param tolerance: the Monte Carlo error that is accepted.
    :param space: R-hat of the same scalars.
    :param second: predictions of another run, under the same names.
    :param superchains: the label of the superchain of each chain; see
        :func:`~numpyro_bnn.diagnostics.nested_rhat`.
    """
    impossible = 0
    if log_likelihood is not None:
        impossible = int(np.isneginf(log_likelihood.max(axis=(0, 1))).sum())
        log_likelihood = None if impossible else log_likelihood
    errors = {name: mean_errors(x) for name, x in functions.items()}
    error = monte_carlo_error(functions, log_likelihood=log_likelihood, errors=errors)
    agrees = agreement(functions, errors=errors, tolerance=tolerance)
    size = np.concatenate([each.ess[each.sd > 0] for each in errors.values()])
    chains = len(next(iter(functions.values())))
    limit, above = float("nan"), None
    if size.size:
        limit = float(rhat_limit(size.size, chains, float(np.median(size))))
    if space is not None:
        above = 0
        for group in space.groups if size.size else ():
            own = rhat_limit(size.size, chains, errors[group.name].ess)
            above += int((group.rhat > own).sum())
    if superchains is not None and size.size:
        agrees = _with_nested_rhat(agrees, functions, superchains, size)
    scores: tuple[float, ...] = ()
    if log_likelihood is not None and agrees.groups > 1 and not agrees.halves:
        scores = _scores(log_likelihood, agrees.members)
    return ErrorsAndAgreement(
        error,
        agrees,
        tolerance,
        sum(each.mean.size for each in errors.values()),
        limit,
        above,
        scores,
        impossible,
        {} if second is None else _apart(functions, errors, second),
    )


def _with_nested_rhat(
    agrees: Agreement, functions: Arrays, superchains: np.ndarray, ess: np.ndarray
) -> Agreement:
    """The agreement with the largest nested R-hat of all scalars, and its limit at the median ESS."""
    chains, draws = next(iter(functions.values())).shape[:2]
    method = "rank" if draws >= 4 else "identity"
    found = [nested_rhat(x, superchains, method=method) for x in functions.values()]
    groups = np.unique(superchains).size
    # A chain counts as one effective draw at least: superchains may consist of very short chains.
    limit = nested_rhat_limit(ess.size, groups, chains, max(float(np.median(ess)), float(chains)))
    worst = float(np.nanmax(np.concatenate([np.ravel(each) for each in found])))
    return agrees._replace(nested_rhat=worst, nested_rhat_limit=float(limit))


def _scores(log_likelihood: np.ndarray, members: np.ndarray) -> tuple[float, ...]:
    """Mean log score in nats of each group of chains, predictions averaged over the group."""
    found = []
    for group in range(int(members.max()) + 1):
        own = log_likelihood[members == group].reshape(-1, log_likelihood.shape[2])
        found.append(float((logsumexp(own, axis=0) - np.log(len(own))).mean()))
    return tuple(found)


def _apart(
    functions: Arrays, errors: Mapping[str, MeanErrors], second: Mapping[str, np.ndarray]
) -> dict[str, tuple[float, float]]:
    """Mean and 99 % quantile over rows of the distance between the averages of two runs."""
    differences = {}
    for name, each in errors.items():
        theirs = second[name].mean(axis=(0, 1), dtype=np.float64)
        differences[name] = theirs[: len(each.mean)] - each.mean
    rows = row_distances(differences, units_of(functions, errors))
    return {
        unit: (float(each.mean()), float(np.quantile(each, 0.99, method="higher")))
        for unit, each in rows.items()
    }


def weights_to_judge(weights: Mapping[str, np.ndarray]) -> Arrays:
    """Draws `(chain, draw, scalar)` of all sites side by side, at most 10,000 scalars."""
    total = sum(int(np.prod(x.shape[2:])) for x in weights.values())
    every = -(-total // _MOST_WEIGHTS)
    flat = [x.reshape(*x.shape[:2], -1)[:, :, ::every] for x in weights.values()]
    return {"weights": np.concatenate(flat, axis=2)}
