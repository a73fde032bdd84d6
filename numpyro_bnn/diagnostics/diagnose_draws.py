"""The report on arrays of draws: :func:`diagnose_draws`.

In this order: the arrays are checked, chains that are copies of others are taken out, R-hat and ESS are
computed, chains with NaN or infinities are found, Monte Carlo errors and the agreement of the remaining
chains are measured, and the run is judged.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn._sentences import say
from numpyro_bnn.diagnostics.checked_draws import (
    Arrays,
    CheckedDraws,
    PredictionDraws,
    bad_chains,
    check_draws,
    copies_in_words,
    copies_of,
    counted_once,
    is_precision,
    named_arrays,
    without_copies,
)
from numpyro_bnn.diagnostics.compare_runs import SecondOpinion, compare_draws, stuck_chains
from numpyro_bnn.diagnostics.convergence.rhat import labels_of_rest, superchain_labels
from numpyro_bnn.diagnostics.evidence import (
    ErrorsAndAgreement,
    Evidence,
    ParameterErrors,
    Relabelling,
    RhatTable,
    measure,
    parameter_errors,
    predictions_not_finite,
    scalars_of,
)
from numpyro_bnn.diagnostics.monte_carlo.agreement import halves_differ
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance, checked_tolerance
from numpyro_bnn.diagnostics.report import Report, with_copies
from numpyro_bnn.diagnostics.sampler_stats import read
from numpyro_bnn.diagnostics.variance_parts import variance_parts
from numpyro_bnn.diagnostics.verdict import judge, verdict_of
from numpyro_bnn.samplers.tempering.evidence import tempering_of

# With fewer draws there is no Monte Carlo error at all: each half of a chain needs four.
_FEWEST = 8
# Most rows whose predictions are compared between the halves of chains, evenly spaced.
_MOST_ROWS = 500
# Why nested R-hat is missing where superchains were given.
UNEQUAL = say("unequal superchains")


def diagnose_draws(
    weights: Mapping[str, ArrayLike] | None = None,
    predictions: PredictionDraws | None = None,
    *,
    parameters: Mapping[str, ArrayLike] | None = None,
    log_likelihood: ArrayLike | None = None,
    tolerance: Tolerance | None = None,
    aligned: Mapping[str, ArrayLike] | None = None,
    log_joint: ArrayLike | None = None,
    sample_stats: Mapping[str, ArrayLike | None] | None = None,
    second: tuple[Mapping[str, ArrayLike] | None, PredictionDraws | None]
    | Mapping[str, object]
    | None = None,
    superchains: int | ArrayLike | None = None,
    min_draws: int = 100,
) -> Report:
    """Judge a run from its draws: how precisely are averages known, and do the chains agree?

    Chains disagree when a permutation test of all predictions together says so (p < 0.01) and their
    averages are farther apart than the tolerance; otherwise the Monte Carlo errors of the averages are
    compared with it. The same is asked of parameters of the model: mean and standard deviation are to be
    known to ``tolerance.relative`` of the standard deviation. Weights, precisions (sites whose names end in
    "precision") and the log joint are reported apart, and judged only where there are no predictions. Chains
    that equal each other bit for bit count once, and the report says so.

    :param weights: name to draws `(chain, draw, ...)`.
    :param predictions: name to `(chain, draw, input, ...)`, one such array, or predictions with
        `"probs"` or `"mean"` and `"scale"`.
    :param parameters: name to draws of what is no weight of a network, such as group offsets or a noise.
    :param log_likelihood: log density or probability of the targets under each draw,
        `(chain, draw, input)` in nats: ``predictions.log_prob(y)``. With it the error of the log score
        enters the verdict.
    :param tolerance: the Monte Carlo error that is accepted; default ``Tolerance()``.
    :param aligned: the weights after :func:`align`, to tell relabelling from the rest.
    :param log_joint: log joint density `(chain, draw)` in nats.
    :param sample_stats: statistics of the sampler, `(chain, draw)` each, under NumPyro's or
        ArviZ's names: `diverging`, `accept_prob`, `energy`, `num_steps` with the number
        `max_num_steps` (of NUTS) or `trajectory_limit` (of trajectories of a length), or `tree_saturated`.
    :param second: `(weights, predictions)` of another run of the same model, or a mapping with
        these two keys, `"parameters"`, `"log_likelihood"` and `"sample_stats"`: precisions, parameters,
        predictions and log scores are compared with it in joint Monte Carlo errors, and the log evidence of
        two runs of parallel tempering.
        A second run that differs by more than the errors of both and the tolerance counts as
        `"chains_disagree"`.
    :param superchains: for many short chains, those that started at the same point: the number of groups
        of consecutive chains, or a label for each chain. Nested R-hat (Margossian et al. 2024) then says
        whether the chains have forgotten their starts; where they have not, the verdict is
        `"run_longer"` at best.
    :param min_draws: draws a chain below which nothing is judged.
    :return: numbers, verdict and explanation; constants have no R-hat and are left out.
    :raises ValueError: without any draws, or for chains or draws that differ in number.
    :raises TypeError: for a `tolerance` that is no `Tolerance`.

    >>> draws = np.random.default_rng(0).normal(size=(4, 1000, 3))
    >>> diagnose_draws({"w": draws}, draws).verdict
    'within_tolerance'
    """
    accepted = checked_tolerance("diagnose: tolerance", tolerance)
    checked_draws = check_draws(
        weights, predictions, log_joint, log_likelihood, aligned, parameters
    )
    chains = checked_draws.shape[0]
    # Labels stay with their chains when others are dropped.
    labels = None if superchains is None else superchain_labels(superchains, chains)
    least = max(_FEWEST, min_draws)
    other = (
        dict(zip(("weights", "predictions"), second))
        if isinstance(second, (tuple, list))
        else second
    )
    settings = _Settings(accepted, least, sample_stats, other or {}, labels)
    copies = copies_of(checked_draws.by_label.values())
    if not copies:
        return _report_on(checked_draws, settings)
    kept = checked_draws.without(copies)
    stats = without_copies(sample_stats, copies, chains)
    alone = settings.without_chains(copies)._replace(sample_stats=stats)
    said = copies_in_words(copies, chains)
    if labels is not None and alone.superchains is None:
        said = f"{said} {UNEQUAL}"
    return with_copies(_report_on(kept, alone), said)


class _Settings(NamedTuple):
    """The arguments of `diagnose_draws` other than draws."""

    tolerance: Tolerance
    min_draws: int
    sample_stats: Mapping[str, Any] | None
    second: Mapping[str, Any]
    superchains: np.ndarray | None = None

    def without_chains(self, chains: Collection[int]) -> "_Settings":
        """These settings for the other chains, whose superchains are compared only if of equal size."""
        if self.superchains is None:
            return self
        kept = np.setdiff1d(np.arange(len(self.superchains)), list(chains))
        return self._replace(superchains=labels_of_rest(self.superchains, kept))


def _report_on(checked_draws: CheckedDraws, settings: _Settings) -> Report:
    """The report on chains that are no copies of each other."""
    evidence = _evidence(checked_draws, settings)
    spaces, measured = evidence.spaces, evidence.measured
    return Report(
        weights=spaces["weights"],
        predictions=spaces["predictions"],
        precisions=spaces["precisions"],
        log_joint=spaces["log joint"],
        parameters=spaces["parameters"],
        parameter_errors=evidence.parameters,
        num_chains=evidence.num_chains,
        num_draws=evidence.num_draws,
        rhat_limit=float("nan") if measured is None else measured.rhat_limit,
        sampler=evidence.sampler,
        stuck=evidence.stuck,
        second=evidence.second,
        relabelling=evidence.relabelling,
        monte_carlo_error=None if measured is None else measured.error,
        agreement=None if measured is None else measured.agreement,
        tolerance=settings.tolerance,
        **judge(evidence)._asdict(),
    )


def _evidence(checked_draws: CheckedDraws, settings: _Settings) -> Evidence:
    """Everything that is measured before the verdict."""
    chains, draws = checked_draws.shape
    functions = {name: _without_repeats(array) for name, array in checked_draws.predictions.items()}
    spaces = {
        "weights": RhatTable.from_draws("weights", checked_draws.weights),
        "precisions": RhatTable.from_draws("precisions", checked_draws.precisions),
        "parameters": RhatTable.from_draws("parameters", checked_draws.parameters),
        "log joint": RhatTable.from_draws("log joint", checked_draws.log_joint),
        "predictions": RhatTable.from_draws("predictions", functions),
    }
    bad = _broken(checked_draws, spaces)
    judgeable = not bad and draws >= settings.min_draws
    opinion, theirs = _second(checked_draws, settings.second) if judgeable else (None, {})
    measured = _measure(checked_draws, functions, spaces, settings, theirs) if judgeable else None
    own = parameter_errors(checked_draws.parameters, settings.tolerance) if judgeable else None
    stuck, drifts = _single_chains(checked_draws, measured, own, settings.tolerance)
    return Evidence(
        spaces=spaces,
        num_chains=chains,
        num_draws=draws,
        min_draws=settings.min_draws,
        sampler=read(settings.sample_stats, (chains, draws)),
        bad_chains=bad,
        verdict_without=_verdict_without(bad, checked_draws, settings),
        measured=measured,
        parameters=own,
        what="predictions" if checked_draws.predictions else "weights",
        stuck=stuck,
        drifts=drifts,
        second=opinion,
        relabelling=_relabelling(checked_draws) if judgeable and checked_draws.aligned else None,
        second_tempering=tempering_of(settings.second.get("sample_stats", {})),
        not_finite=_not_finite(checked_draws, bad),
    )


def _without_repeats(functions: np.ndarray) -> np.ndarray:
    """Predictions (chain, draw, input), with one input where all are the same, as of a noise scale."""
    first = functions[:, :, :1]
    # One draw is compared first: it mostly differs already.
    if functions.ndim == 3 and (functions[:, :1] == first[:, :1]).all():
        return first if (functions == first).all() else functions
    return functions


def _broken(
    checked_draws: CheckedDraws, spaces: Mapping[str, RhatTable]
) -> dict[int, tuple[int, str]]:
    """First draw and site of NaN or infinities, by chain."""
    # All draws are searched only where R-hat, ESS or a minimum shows that there are any.
    # An ESS is NaN for a bad scalar and for fewer than 4 draws.
    doubtful = any(space.num_bad for space in spaces.values())
    scored = checked_draws.scored
    # A target may have no probability, but not an infinite density. A maximum is NaN where any value is.
    if doubtful or (scored is not None and not scored.max() < np.inf):
        return bad_chains(checked_draws)
    return {}


def _not_finite(checked_draws: CheckedDraws, bad: Mapping[int, Any]) -> str:
    """Why predictions are not finite, where the weights of the same chains are; empty otherwise."""
    kinds = (checked_draws.weights, checked_draws.precisions, checked_draws.parameters)
    sites = [array for kind in kinds for array in kind.values()]
    if not (bad and sites and all(np.isfinite(x[list(bad)]).all() for x in sites)):
        return ""
    return predictions_not_finite(checked_draws.predictions)


def _verdict_without(
    bad: Mapping[int, Any], checked_draws: CheckedDraws, settings: _Settings
) -> str | None:
    """The verdict in words on the chains that are finite, where only some are."""
    if not 0 < len(bad) < checked_draws.shape[0]:
        return None
    alone = settings.without_chains(bad)._replace(sample_stats=None, second={})
    return _report_on(checked_draws.without(bad), alone).verdict.words


def _measure(
    checked_draws: CheckedDraws,
    functions: Arrays,
    spaces: Mapping[str, RhatTable],
    settings: _Settings,
    theirs: Arrays,
) -> ErrorsAndAgreement:
    """Errors and agreement of the predictions; of the weights where there are no predictions."""
    if functions:
        space: RhatTable | None = spaces["predictions"]
        other = theirs or None
    else:
        weights = checked_draws.weights | checked_draws.precisions | checked_draws.parameters
        functions = {"weights": scalars_of(weights | checked_draws.log_joint)}
        space, other = None, None
    measured = measure(
        functions,
        checked_draws.scored,
        settings.tolerance,
        space=space,
        second=other,
        second_log_likelihood=settings.second.get("log_likelihood"),
        superchains=settings.superchains,
    )
    if not checked_draws.predictions:
        return measured
    # Predictions that are the same at all inputs were measured at one.
    inputs = next(iter(checked_draws.predictions.values())).shape[2]
    by_row = {unit: np.broadcast_to(row, inputs) for unit, row in measured.error.by_row.items()}
    return measured._replace(error=replace(measured.error, by_row=by_row))


def _single_chains(
    checked_draws: CheckedDraws,
    measured: ErrorsAndAgreement | None,
    own: ParameterErrors | None,
    tolerance: Tolerance,
) -> tuple[tuple[int, ...], bool]:
    """Chains that do not move, and whether all chains drift; of a run within tolerance it is not asked."""
    if measured is None or verdict_of(measured, own).startswith("within"):
        return (), False
    if predictions := checked_draws.predictions:
        rows = next(iter(predictions.values())).shape[2]
        used = np.arange(0, rows, -(-rows // _MOST_ROWS))
        some = {name: x[:, :, used] for name, x in predictions.items()}
        # Of one chain, its agreement is that of its halves.
        several = not measured.agreement.halves
        return stuck_chains(some), several and halves_differ(some, tolerance)
    weights = checked_draws.weights | checked_draws.precisions | checked_draws.parameters
    return stuck_chains(weights) if weights else (), False


def _second(
    checked_draws: CheckedDraws, second: Mapping[str, Any]
) -> tuple[SecondOpinion | None, Arrays]:
    """The comparison with another run of the model, and the predictions of that run."""
    if not second:
        return None, {}
    own = checked_draws.precisions | checked_draws.parameters
    if not (own or checked_draws.predictions):
        raise ValueError(
            "diagnose_draws: second has nothing to be compared with: got weights alone, whose "
            "labelling is arbitrary. Pass the predictions of both runs at the same inputs."
        )
    sites = named_arrays("second weights", second.get("weights"), "weights")
    # Single weights of two runs cannot be compared: their hidden units are numbered differently.
    sites = {name: array for name, array in sites.items() if is_precision(name)}
    sites |= named_arrays("second parameters", second.get("parameters"), "parameters")
    predictions = named_arrays("second predictions", second.get("predictions"), "predictions")
    opinion = compare_draws(own | checked_draws.predictions, sites | predictions)
    predictions = counted_once(predictions)
    # With fewer draws no Monte Carlo error of the other run is known.
    least = min((x.shape[1] for x in predictions.values()), default=0)
    return opinion, predictions if least >= _FEWEST else {}


def _relabelling(checked_draws: CheckedDraws) -> Relabelling:
    """The weights after alignment, and the variance between chains before and after."""

    def share(arrays: Arrays) -> float:
        parts = [variance_parts(array) for array in arrays.values()]
        between = sum(float(part.between.sum()) for part in parts)
        return between / max(sum(float(part.within.sum()) for part in parts) + between, 1e-300)

    return Relabelling(
        RhatTable.from_draws("weights, aligned", checked_draws.aligned),
        share(checked_draws.weights),
        share(checked_draws.aligned),
    )
