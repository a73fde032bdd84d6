"""The report on a run: :func:`diagnose`."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from numpyro_bnn._sentences import say
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.units import with_targets
from numpyro_bnn.diagnostics.checked_draws import Arrays, distinct_chains, is_precision
from numpyro_bnn.diagnostics.convergence.rhat import labels_of_rest, superchain_labels
from numpyro_bnn.diagnostics.diagnose_draws import UNEQUAL, diagnose_draws
from numpyro_bnn.diagnostics.hidden_units import align, find_hidden_layers
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.report import Report, with_suspects, without_errors
from numpyro_bnn.diagnostics.sampler_stats import LIMITS
from numpyro_bnn.posterior.draws import NOT_READ, Draws, Run, draws_of
from numpyro_bnn.posterior.predictions import Predictor, first_rows, predictor_of
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.training_data import observed_targets
from numpyro_bnn.potential.sites import of_every_row
from numpyro_bnn.priors.paths import is_auxiliary
from numpyro_bnn.samplers.suspects import named_elsewhere
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
    if draws.model is None:
        raise ValueError(
            "diagnose: these draws carry no model to predict with. Pass `model=`; for a run over a "
            "`potential_fn` give its draws to `bnn.diagnostics.diagnose_draws`."
        )
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
        names = [f"chain {chain} ({why})" for chain, why in left_out.items()]
        note = say("left out", chains=names)
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
