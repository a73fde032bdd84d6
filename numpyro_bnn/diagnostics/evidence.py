"""Everything that is measured on the draws of a run before a verdict.

:func:`measure` gives the Monte Carlo errors of the averages and the agreement of the chains;
:class:`Evidence` holds these beside R-hat (:class:`RhatTable`), the sampler's own record and the comparison
with a second run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from numpyro_bnn._sentences import percent, say
from numpyro_bnn.diagnostics.compare_runs import SecondOpinion, label_of, limit_of_errors
from numpyro_bnn.diagnostics.convergence.rhat import (
    nested_rhat,
    nested_rhat_limit,
    rhat_limit,
    summarize,
)
from numpyro_bnn.diagnostics.monte_carlo.agreement import SIGNIFICANT, Agreement, agreement
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import (
    MeanErrors,
    mean_errors,
    row_distances,
    units_of,
)
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import (
    MEAN_ABSOLUTE,
    Check,
    MonteCarloError,
    check_of,
    log_score_errors,
    monte_carlo_error,
)
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.sampler_stats import SamplerStats
from numpyro_bnn.samplers.tempering.evidence import Tempering

Arrays = dict[str, np.ndarray]
# Without predictions, at most this many weights are judged, evenly spaced over their sites.
_MOST_WEIGHTS = 10_000
# Most rows that are named.
_NAMED_ROWS = 5
# The moment that the target lacks, by the first prediction that is not finite, with examples.
_MOMENTS = {
    "mean": "no finite mean (Student's t with df up to 1, Cauchy)",
    "scale": "no finite variance (Student's t with df up to 2, Cauchy)",
}


class Worst(NamedTuple):
    """One of the scalars of largest R-hat: `site` with its index, its R-hat and its bulk ESS."""

    site: str
    rhat: float
    ess: float


def _summary(function: Any, values: np.ndarray) -> float:
    """`function` of the values that are not NaN; NaN when there are none."""
    values = values[~np.isnan(values)]
    return float(function(values)) if values.size else float("nan")


@dataclass(frozen=True)
class Numbers:
    """R-hat and ESS of a set of scalars, and their summaries, which leave out constant and bad scalars."""

    name: str
    rhat: np.ndarray
    ess: np.ndarray
    ess_tail: np.ndarray

    @property
    def num_scalars(self) -> int:
        """Scalars, constant and bad ones included."""
        return self.rhat.size

    @property
    def max_rhat(self) -> float:
        """Largest R-hat."""
        return _summary(np.max, self.rhat)

    @property
    def median_rhat(self) -> float:
        """Median R-hat."""
        return _summary(np.median, self.rhat)

    @property
    def min_ess(self) -> float:
        """Smallest bulk ESS, all chains together."""
        return _summary(np.min, self._moving(self.ess))

    @property
    def median_ess(self) -> float:
        """Median bulk ESS."""
        return _summary(np.median, self._moving(self.ess))

    def _moving(self, values: np.ndarray) -> np.ndarray:
        """Values of the scalars that have an R-hat: those that are neither constant nor bad."""
        return values[~np.isnan(self.rhat)]

    def row(self) -> tuple[float, ...]:
        """A row of the report's table: numbers of scalars, R-hat, bulk ESS and tail ESS."""
        return (
            self.num_scalars,
            self.max_rhat,
            self.median_rhat,
            self.min_ess,
            self.median_ess,
            _summary(np.min, self._moving(self.ess_tail)),
        )


@dataclass(frozen=True)
class RhatTable(Numbers):
    """R-hat and ESS of all scalars of one kind: weights, predictions, precisions or the log joint.

    :param groups: R-hat and ESS of each site, shaped as the site.
    """

    groups: tuple[Numbers, ...] = ()

    @classmethod
    def from_draws(cls, name: str, arrays: Mapping[str, np.ndarray]) -> "RhatTable":
        """R-hat and ESS of all scalars of one kind, from draws (chain, draw, …) by site."""
        found = {site: summarize(array) for site, array in arrays.items()}
        kinds = zip(*found.values()) if found else [()] * 3
        rhat, ess, tail = (np.concatenate([np.empty(0), *map(np.ravel, kind)]) for kind in kinds)
        groups = tuple(Numbers(site, *each) for site, each in found.items())
        return cls(name, rhat, ess, tail, groups)

    def __bool__(self) -> bool:
        return bool(self.groups)

    def within(self, rhat_limit: float, ess_limit: float) -> bool:
        """Whether every scalar is within both limits; False if all are constant."""
        return bool(self.max_rhat <= rhat_limit and self.min_ess >= ess_limit)

    def worst(self, num: int = 5) -> list[Worst]:
        """The scalars of largest R-hat.

        :param num: how many.
        :return: site with index, R-hat and bulk ESS, the worst first.
        """
        # NaN (constant or bad) sorts last.
        order = np.argsort(-np.where(np.isnan(self.rhat), -1.0, self.rhat), kind="stable")
        starts = np.cumsum([0, *(g.num_scalars for g in self.groups)])
        found = []
        for flat in order[:num]:
            k = int(np.searchsorted(starts, flat, side="right")) - 1
            group = self.groups[k]
            index = np.unravel_index(int(flat - starts[k]), group.rhat.shape)
            site = label_of(group.name, index)
            found.append(Worst(site, float(self.rhat[flat]), float(self.ess[flat])))
        return found


class Relabelling(NamedTuple):
    """Convergence of the weights before and after the hidden units of all draws are matched.

    - **space** - R-hat and ESS of the weights after matching.
    - **before** - share of the weights' variance that lies between chains, before matching.
    - **after** - that share after matching.
    """

    space: RhatTable
    before: float
    after: float


class ParameterErrors(NamedTuple):
    """Averages and standard deviations of the parameters that are no weights, with their errors."""

    names: tuple[str, ...]  # Site and index of each, (scalar,)
    mean: np.ndarray  # Of all draws, as the standard deviation, (scalar,)
    sd: np.ndarray
    mean_error: np.ndarray  # Monte Carlo standard errors of both, (scalar,)
    sd_error: np.ndarray
    # The larger of both errors over `sd`; infinite where it is not known, (scalar,)
    relative: np.ndarray
    ess: np.ndarray  # Effective draws, (scalar,)
    apart: np.ndarray  # How far the averages of chains are apart, in standard deviations, (scalar,)
    agreement: Agreement  # The test of whether chains agree on them
    needed_to_know: float  # Factor by which to lengthen the run so that all errors are known

    def checks(self, tolerance: Tolerance) -> tuple[Check, ...]:
        """The parameter that is known worst, beside its limit."""
        worst, known = int(np.argmax(self.relative)), self.relative[np.isfinite(self.relative)]
        what = f"error of {self.names[worst]} in its sd"
        finite = float(known.max()) if known.size else 0.0
        value, limit = float(self.relative[worst]), tolerance.relative
        return (check_of(what, value, limit, False, finite, self.needed_to_know),)

    def needed(self, tolerance: Tolerance) -> tuple[float, str]:
        """Factor by which to lengthen the run until all are known and chains can be compared; for what."""
        (check,) = self.checks(tolerance)
        if self.agreement.needed > max(1.0, check.needed):
            return float(self.agreement.needed), "the test of chains"
        return check.needed, check.what.removesuffix(" (unknown)")


def parameter_errors(
    sites: Mapping[str, np.ndarray], tolerance: Tolerance
) -> ParameterErrors | None:
    """Averages of parameters (chain, draw, …) with their errors; None without any that moves."""
    if not sites:
        return None
    draws, every = scalars_of(sites), _every(sites)
    index = {name: list(np.ndindex(x.shape[2:]))[::every] for name, x in sites.items()}
    names = [label_of(name, place) for name, places in index.items() for place in places]
    # Values that are given, such as those of rows where nothing is missing, do not move.
    moves = (draws != draws[:1, :1]).any((0, 1))
    if not moves.any():
        return None
    draws = draws[:, :, moves]
    found = mean_errors(draws)
    squares = mean_errors((draws.astype(np.float64) - found.mean) ** 2)
    of_sd = squares.error / (2 * found.sd)
    known = found.known & squares.known
    return ParameterErrors(
        tuple(np.array(names)[moves].tolist()),
        found.mean,
        found.sd,
        found.error,
        of_sd,
        np.where(known, np.maximum(found.error, of_sd) / found.sd, np.inf),
        found.ess,
        np.ptp(found.chain_means, axis=0) / found.sd,
        agreement({"": draws}, errors={"": found}, tolerance=tolerance),
        float(np.maximum(found.needed, squares.needed).max()),
    )


class SecondRun(NamedTuple):
    """How far the averages of a second run are from those of the run that is judged."""

    # Mean and 99 % quantile over rows, by "total_variation" or "relative"
    apart: Mapping[str, tuple[float, float]]
    # What the mean would be by the Monte Carlo errors of both runs alone
    by_chance: Mapping[str, float]
    differs: bool  # whether any average differs by more than its joint error explains
    score: float  # by how much its mean log score is higher, nats; NaN without targets
    score_error: float  # joint Monte Carlo error

    @property
    def scores_differ(self) -> bool:
        """Whether the log scores differ by more than their joint error explains (p < 0.01)."""
        return abs(self.score) > norm.isf(SIGNIFICANT / 2) * self.score_error


class ErrorsAndAgreement(NamedTuple):
    """Monte Carlo errors of averages, agreement of chains, beside what is accepted."""

    error: MonteCarloError
    agreement: Agreement
    tolerance: Tolerance
    num_scalars: int
    # For the largest R-hat of num_scalars stationary scalars, at the median effective size
    rhat_limit: float
    # Scalars with R-hat above the limit for their own effective size; None for weights
    num_above: int | None
    scores: tuple[float, ...]  # mean log score of each group of chains, nats, where chains disagree
    # Rows whose target no draw gives any probability: no log score, which is -inf
    num_impossible: int
    second: SecondRun | None

    @property
    def nothing_moves(self) -> bool:
        """Whether all draws of all chains are the same."""
        return not self.agreement.tested and self.agreement.needed <= 1

    @property
    def second_disagrees(self) -> bool:
        """Whether a second run differs by more than the errors of both, and by more than the tolerance."""
        second, accepted = self.second, self.tolerance
        if second is None:
            return False
        far = any(
            found > limit
            for unit, apart in second.apart.items()
            for found, limit in zip(apart, accepted.limits[unit])
        )
        score_limit = accepted.log_score_limit(self.error.log_score_rows or 0.0)
        scores_far = second.scores_differ and abs(second.score) > score_limit
        return (second.differs and far) or scores_far

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
    """Everything that is measured on a run before it is judged; see the fields of `Report`."""

    # R-hat and ESS by kind of scalar; a kind without draws is empty
    spaces: Mapping[str, RhatTable]
    num_chains: int
    num_draws: int
    min_draws: int
    sampler: SamplerStats
    bad_chains: Mapping[int, tuple[int, str]]  # first draw and site of NaN or infinities, by chain
    # The verdict on the other chains in words, where some hold NaN or infinities
    verdict_without: str | None
    measured: ErrorsAndAgreement | None  # None for draws that are invalid or too few
    parameters: ParameterErrors | None  # None without such parameters, and likewise
    what: str  # is judged: "predictions", or "weights" without predictions
    stuck: tuple[int, ...]  # chains that do not move
    drifts: bool  # whether the halves of all chains together predict differently
    second: SecondOpinion | None
    relabelling: Relabelling | None = None
    second_tempering: Tempering | None = None  # the record of a second run by parallel tempering
    not_finite: str = ""  # why predictions are not finite while the weights are; empty otherwise


def measure(
    functions: Arrays,
    log_likelihood: np.ndarray | None,
    tolerance: Tolerance,
    *,
    space: RhatTable | None = None,
    second: Mapping[str, np.ndarray] | None = None,
    second_log_likelihood: np.ndarray | None = None,
    superchains: np.ndarray | None = None,
) -> ErrorsAndAgreement:
    """Monte Carlo errors and agreement of chains, from finite predictions (chain, draw, input, …)."""
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
        None
        if second is None
        else _second_run(functions, errors, second, (log_likelihood, second_log_likelihood)),
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


def _second_run(
    functions: Arrays,
    errors: Mapping[str, MeanErrors],
    second: Mapping[str, np.ndarray],
    log_likelihoods: tuple[np.ndarray | None, np.ndarray | None],
) -> SecondRun:
    """Distances between the averages and the log scores of two runs, beside their joint errors."""
    differences, joint = {}, {}
    for name, each in errors.items():
        theirs = mean_errors(second[name][:, :, : len(each.mean)])
        differences[name] = theirs.mean - each.mean
        joint[name] = np.hypot(each.error, theirs.error)
    units = units_of(functions, errors)
    rows, chance = row_distances(differences, units), row_distances(joint, units)
    limit = limit_of_errors(sum(each.size for each in joint.values()))
    score = score_error = float("nan")
    given = [x for x in log_likelihoods if x is not None and np.isfinite(x.max((0, 1))).all()]
    if len(given) == 2:
        found = [log_score_errors(x)[0] for x in given]
        # Finitely many draws lower a score; that bias is added back.
        own, other = (
            _scores(x, np.zeros(len(x), int))[0] - error["log_score_bias"]
            for x, error in zip(given, found)
        )
        score, score_error = other - own, math.hypot(*(error["log_score"] for error in found))
    return SecondRun(
        {
            u: (float(r.mean()), float(np.quantile(r, 0.99, method="higher")))
            for u, r in rows.items()
        },
        {unit: MEAN_ABSOLUTE * float(each.mean()) for unit, each in chance.items()},
        any(bool((np.abs(d) > limit * joint[name]).any()) for name, d in differences.items()),
        score,
        score_error,
    )


def scalars_of(sites: Mapping[str, np.ndarray]) -> np.ndarray:
    """Draws `(chain, draw, scalar)` of all sites side by side, at most 10,000 scalars."""
    every = _every(sites)
    flat = [x.reshape(*x.shape[:2], -1)[:, :, ::every] for x in sites.values()]
    return np.concatenate(flat, axis=2)


def _every(sites: Mapping[str, np.ndarray]) -> int:
    """The step at which scalars of each site are taken, so that there are at most 10,000."""
    return -(-sum(int(np.prod(x.shape[2:])) for x in sites.values()) // _MOST_WEIGHTS)


def predictions_not_finite(predictions: Mapping[str, np.ndarray]) -> str:
    """A sentence on predictions that are NaN or infinite: which, where, how often and why; empty for none."""
    flags = {
        name: ~np.isfinite(x).reshape(*x.shape[:3], -1).all(axis=3)
        for name, x in predictions.items()
        if not (np.isfinite(x.min()) and np.isfinite(x.max()))
    }
    if not flags:
        return ""
    bad = np.any(list(flags.values()), axis=0)
    rows, share = np.flatnonzero(bad.any(axis=(0, 1))), float(bad.any(axis=2).mean())
    often = "in every draw" if share == 1 else f"in {percent(share)} of draws"
    names = f"Predictions ({', '.join(flags)})"
    if rows.size < bad.shape[2]:
        shown = [*rows[:_NAMED_ROWS].tolist(), *["…"] * (rows.size > _NAMED_ROWS)]
        count = {"count": rows.size, "total": bad.shape[2], "rows": shown}
        return say("bad rows", names=names, often=often, **count)
    missing = next((why for name, why in _MOMENTS.items() if name in flags), None)
    key = "bad everywhere" if missing is None else "no moment"
    return say(key, names=names, often=often, missing=missing)
