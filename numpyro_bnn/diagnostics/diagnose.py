"""The report on a run, :func:`diagnose`, and on arrays of draws, :func:`diagnose_draws`.

In this order: the arrays are checked, chains that are copies of others are taken out, R-hat and ESS are
computed, chains with NaN or infinities are found, Monte Carlo errors and the agreement of the remaining
chains are measured, and the run is judged.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn._sentences import say
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.units import with_targets
from numpyro_bnn.diagnostics import compare_runs
from numpyro_bnn.diagnostics.checked_draws import (
    Arrays,
    CheckedDraws,
    PredictionDraws,
    bad_chains,
    check_draws,
    copies_in_words,
    copies_of,
    counted_once,
    distinct_chains,
    is_precision,
    named_arrays,
    without_copies,
)
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
from numpyro_bnn.diagnostics.hidden_units import align, find_hidden_layers
from numpyro_bnn.diagnostics.monte_carlo.agreement import halves_differ
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance, checked_tolerance
from numpyro_bnn.diagnostics.report import Report, with_copies, with_suspects, without_errors
from numpyro_bnn.diagnostics.sampler_stats import LIMITS, read
from numpyro_bnn.diagnostics.verdict import judge, verdict_of
from numpyro_bnn.posterior.draws import NOT_READ, Draws, Run, draws_of
from numpyro_bnn.posterior.predictions import Predictor, first_rows, predictor_of
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.training_data import observed_targets
from numpyro_bnn.potential.sites import of_every_row
from numpyro_bnn.priors.paths import is_auxiliary
from numpyro_bnn.samplers.suspects import named_elsewhere
from numpyro_bnn.samplers.tempering.evidence import tempering_of
from numpyro_bnn.storage.stored_array import StoredArray, read_by_scalar

# Weights up to which hidden units are matched unless asked otherwise.
_MOST_MATCHED = 20_000
# Rows at which predictions are compared before and after hidden units are exchanged.
_ROWS_TRIED = 50


def diagnose(
    run: Run,
    x: PyTree,
    y: ArrayLike | None = None,
    *,
    tolerance: Tolerance | None = None,
    model: Callable | None = None,
    second: Run | None = None,
    superchains: int | ArrayLike | None = None,
    align_units: bool | None = None,
    batch_size: int | None = None,
    site: str | None = None,
    parameters: Collection[str] | None = None,
    **by_row: PyTree,
) -> Report:
    """Judge a run by its predictions at given inputs: how precisely are averages known, do chains agree?

    A run with suspect chains (``mcmc.suspect``) gets the verdict ``"chains_disagree"``; a run whose
    chains are all suspect gets ``"invalid"``. Draws that are no time series (of a stacked mixture, of
    :func:`~numpyro_bnn.thin` or of an approximation) have no Monte Carlo error of their own and get
    ``"too_short"``: the run that they come from is to be judged.

    :param run: an ``MCMC`` after `run`, what :func:`~numpyro_bnn.fit` returned, a fitted estimator,
        :class:`~numpyro_bnn.posterior.draws.Draws`, or draws by site with leading axes (chain, draw).
    :param x: inputs at which to predict, such as test rows.
    :param y: their targets, as the model takes them; with them the Monte Carlo error of the log score enters
        the verdict.
    :param tolerance: the Monte Carlo error that is accepted; default ``Tolerance()``.
    :param model: the model, where `run` does not carry one.
    :param second: another run of the same model, by another sampler or from other starts. Where it differs
        by more than the errors of both explain and by more than the tolerance, in predictions or (with `y`)
        in the log score, the verdict is ``"chains_disagree"``.
    :param superchains: for many short chains: the number of groups of consecutive chains that started at
        the same point, or a label for each chain; see :func:`diagnose_draws`.
    :param align_units: whether to match hidden units across draws, which tells how much of the
        non-convergence of weights is relabelling; default: for up to 20,000 weights.
    :param batch_size: rows predicted at a time, see :func:`~numpyro_bnn.predict`.
    :param site: the site that is predicted, see :func:`~numpyro_bnn.predict`; for a model whose
        likelihood is a factor, a deterministic one.
    :param parameters: sites that are judged beside the predictions: mean and standard deviation are to be
        known to ``tolerance.relative`` of the standard deviation. Default: in a model with a network of
        :func:`~numpyro_bnn.random_module`, or NumPyro's own, all sites but those of networks; else none.
    :param by_row: further arguments of the model by name, such as an offset of each row of x.
    :return: numbers, verdict and explanation; see :func:`diagnose_draws`.
    :raises ValueError: without draws or a model, for other columns than the fit had, for a `second` at
        another temperature, or where it is not clear which site is the target.
    :raises TypeError: for arguments in another order.

    >>> report = diagnose(mcmc, x_test)                                     # doctest: +SKIP
    >>> report.verdict                                                      # doctest: +SKIP
    'within_tolerance'
    """
    draws = draws_of(run, model, "diagnose").bound_to(by_row)
    options: dict[str, Any] = {"batch_size": batch_size, "site": site, "owner": "diagnose"}
    predictor = predictor_of(draws, x, **options)
    x = predictor.inputs
    weights, own, predictions = _spaces_of(draws, predictor, parameters)
    num_weights = sum(array[0, 0].size for array in weights.values())
    wanted = num_weights <= _MOST_MATCHED if align_units is None else align_units
    aligned = _aligned(draws, weights, own, predictor, site) if wanted and weights else None
    labels = _labels_of_kept(superchains, draws)
    other: dict[str, Any] | None = None
    if second is not None:
        theirs = distinct_chains(draws_of(second, draws.model, "diagnose"))
        _refuse_another_temperature(draws, theirs)
        values = _spaces_of(theirs, predictor_of(theirs, x, **options), parameters)
        other = {
            "weights": values[0],
            "parameters": values[1],
            "predictions": values[2].values,
            "sample_stats": theirs.stats,
        }
    scored = None
    if y is not None:
        targets = observed_targets("diagnose", run, draws.model, x, y, site)
        rows, targets = with_targets("diagnose", targets)
        scored = predictions.at_rows(rows).log_prob(targets)
        if other is not None:
            other["log_likelihood"] = values[2].at_rows(rows).log_prob(targets)
    energy, no_series = draws.stats.get("potential_energy"), _why_no_series(draws)
    report = diagnose_draws(
        weights,
        predictions.values,
        parameters=own,
        log_likelihood=scored,
        tolerance=tolerance,
        aligned=aligned,
        # An estimate by minibatches has noise that would look like mixing.
        log_joint=-np.asarray(energy) if draws.has_exact_energy and energy is not None else None,
        sample_stats=draws.stats | {name: draws.info.get(name) for name in LIMITS},
        second=other,
        superchains=labels,
        min_draws=100 if no_series is None else draws.num_draws + 1,
    )
    if no_series is not None and report.verdict == "too_short":
        report = without_errors(report, *no_series)
    if draws.suspect:
        # A stacked mixture, and some draws of a file, are one chain made of several.
        several = (len(draws.info.get(name, ())) for name in ("weights", "joined"))
        report = with_suspects(report, draws.suspect, max(draws.num_chains, *several))
    notes = []
    if left_out := draws.left_out:
        note = say("left out", chains=[f"chain {chain} ({why})" for chain, why in left_out.items()])
        notes.append(f"{note} {UNEQUAL}" if superchains is not None and labels is None else note)
    if drawn := predictor.sites_from_priors(draws):
        notes.append(say("from priors", sites=drawn))
    return replace(report, warnings=(*notes, *report.warnings))


def _labels_of_kept(superchains: int | ArrayLike | None, draws: Draws) -> np.ndarray | None:
    """The superchain of each chain with draws; None where chains left out make them unequal."""
    # Labels may be those of all chains of the run, or of the chains with draws.
    if superchains is None:
        return None
    given = draws.num_chains
    # Chains that were not read from a file have no label.
    failed = {chain for chain, why in draws.left_out.items() if why != NOT_READ}
    if np.shape(superchains) == (given,):
        return superchain_labels(superchains, given)
    run = np.setdiff1d(np.arange(given + len(draws.left_out)), list(draws.left_out.keys() - failed))
    labels = superchain_labels(superchains, len(run))
    return labels_of_rest(labels, np.flatnonzero(~np.isin(run, list(failed)))) if failed else labels


def _why_no_series(draws: Draws) -> tuple[str, str] | None:
    """Why draws have no Monte Carlo error of their own, and what to do; None for those of a run."""
    if draws.info.get("approximation"):
        kernel = draws.info.get("kernel", "optimisation")
        return say("of approximation", kernel=kernel), say("approximation")
    made = "stacked from several chains" if "weights" in draws.info else "chosen by `thin`"
    if {"weights", "thinned"} & draws.info.keys():
        return say("of no series", made=made), say("no series")
    return None


def _refuse_another_temperature(draws: Draws, second: Draws) -> None:
    """Refuse a second run at another temperature: the two cannot be compared."""
    own, other = (float(np.mean(some.stats.get("temperature", 1.0))) for some in (draws, second))
    if not np.isclose(own, other, rtol=1e-3):
        raise ValueError(
            f"diagnose: the run is at temperature {own:.3g} and `second` at {other:.3g}. Runs at different "
            "temperatures cannot be compared. Give a second run at the temperature of the first."
        )


def _aligned(
    draws: Draws, weights: Arrays, own: Arrays, predictor: Predictor, site: str | None
) -> Arrays | None:
    """Weights with their hidden units matched across draws; None without hidden units, or for NaN."""
    sites = {name: value for name, value in (weights | own).items() if value.size}
    if not all(np.isfinite(value.min()) and np.isfinite(value.max()) for value in sites.values()):
        return None
    structure = predictor.structure
    if any(structure.sites[name].plates for name in structure.latent if name in draws):
        return None  # A site with a value for each row needs all rows.
    layers = find_hidden_layers(*first_rows(draws, predictor.inputs, _ROWS_TRIED), site=site)
    found = align(sites, layers) if layers else {}
    return {name: found[name] for name in weights if name in found} or None


def _spaces_of(
    draws: Draws, predictor: Predictor, parameters: Collection[str] | None
) -> tuple[Arrays, Arrays, Predictions]:
    """Weights and precisions of networks, other parameters, and predictions of a run."""
    sites = {}
    for name, value in draws.items():
        # Auxiliary sites of a prior are left out.
        if is_precision(name) or not is_auxiliary(name) or name.rpartition(".")[0] not in draws:
            stored = isinstance(value, StoredArray)
            sites[name] = read_by_scalar(value) if stored else np.asarray(value)
    chosen = predictor.structure.parameters_in(sites) if parameters is None else parameters
    others = {*chosen, *of_every_row(sites)}
    weights = {name: value for name, value in sites.items() if name not in others}
    own = {name: sites[name] for name in chosen}
    with named_elsewhere():
        return weights, own, predictor(draws)


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
    if isinstance(second, (tuple, list)):
        second = dict(zip(("weights", "predictions"), second))
    settings = _Settings(accepted, least, sample_stats, second or {}, labels)
    if not (copies := copies_of(checked_draws.by_label.values())):
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
    bad = bad_chains(checked_draws)
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
        some = {name: x[:, :, :: -(-rows // _MOST_ROWS)] for name, x in predictions.items()}
        # Of one chain, its agreement is that of its halves.
        several = not measured.agreement.halves
        return compare_runs.stuck_chains(some), several and halves_differ(some, tolerance)
    weights = checked_draws.weights | checked_draws.precisions | checked_draws.parameters
    return compare_runs.stuck_chains(weights) if weights else (), False


def _second(
    checked_draws: CheckedDraws, second: Mapping[str, Any]
) -> tuple[compare_runs.SecondOpinion | None, Arrays]:
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
    opinion = compare_runs.compare_draws(own | checked_draws.predictions, sites | predictions)
    predictions = counted_once(predictions)
    # With fewer draws no Monte Carlo error of the other run is known.
    least = min((x.shape[1] for x in predictions.values()), default=0)
    return opinion, predictions if least >= _FEWEST else {}


def _relabelling(checked_draws: CheckedDraws) -> Relabelling:
    """The weights after alignment, and the variance between chains before and after."""

    def share(arrays: Arrays) -> float:
        parts = [compare_runs.variance_parts(array) for array in arrays.values()]
        between = sum(float(part.between.sum()) for part in parts)
        return between / max(sum(float(part.within.sum()) for part in parts) + between, 1e-300)

    return Relabelling(
        RhatTable.from_draws("weights, aligned", checked_draws.aligned),
        share(checked_draws.weights),
        share(checked_draws.aligned),
    )
