"""Converts draws to ArviZ objects, and back.

The only file that imports ArviZ. Groups are assembled as xarray datasets, which both
generations share: ArviZ 0.23 gets an ``InferenceData``, ArviZ 1 and later a ``DataTree``.

A site ``"net/Dense_0.kernel"`` becomes the variable ``"net.Dense_0.kernel"``, because netCDF and
``DataTree`` read a slash as a path; the attribute ``site`` of the variable keeps its own name.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import arviz as az
import jax
import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from numpyro.util import find_stack_level

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import innermost, targets_of
from numpyro_bnn.posterior.archive import refuse_other_model
from numpyro_bnn.posterior.arviz_groups import OWNER, STATS, ArvizGroups
from numpyro_bnn.posterior.draws import NOT_READ, Draws, Run, checked_inputs, draws_of
from numpyro_bnn.posterior.leave_one_out import (
    why_densities_are_of_priors,
    why_not_the_posterior,
    why_rows_count_otherwise,
)
from numpyro_bnn.posterior.predictions import predictor_of
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.training_data import (
    TrainingData,
    known_rows,
    refuse_moving,
    training_data,
)
from numpyro_bnn.samplers.suspects import warn_of_use

# Names of statistics in this package by their names in ArviZ.
_FIELDS = {theirs: ours for ours, theirs in STATS.items()}
# Facts that say that chains were made of several chains of the run.
_JOINED = ("weights", "thinned", "joined")
# Statistics that are computed from the number of steps, at every export.
_DERIVED = ("tree_depth", "reached_max_treedepth")


def to_inference_data(
    run: Run,
    x: PyTree = None,
    y: ArrayLike | None = None,
    *,
    model: Callable | None = None,
    predict: Mapping[str, PyTree] | None = None,
    log_likelihood: bool = True,
    log_prior: bool = True,
    posterior_predictive: bool = True,
    key: jax.Array | None = None,
    batch_size: int | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence] | None = None,
    base_sites: bool = False,
) -> "az.InferenceData | xr.DataTree":
    """Everything about a run as one ArviZ object.

    Groups:

    - ``posterior``: every site, slashes as dots, with the axes of weights named within their layer,
      ``net.Dense_0.unit_in``, ``net.Dense_0.unit_out``, or as `dims` says.
    - ``sample_stats``: ``diverging``, ``lp``, ``energy``, ``acceptance_rate``, ``step_size``,
      ``n_steps``, ``tree_depth``, ``reached_max_treedepth``, and whatever else the run collected. ``lp`` is
      the log joint density of the draw. A kernel that knows it for the draw before alone, as SGLD and BAOAB
      do, or for a minibatch, has ``potential_energy`` in its place.
    - ``log_likelihood``: of each row, by observed site (nats), counted once whatever the weight of the row.
    - ``log_prior``: of each random site, given those above it (nats), for ``az.psense``: of a weight or a
      precision its density in the coordinates in which the prior is written, whatever coordinates were
      sampled. In a hierarchy scale the prior of the top alone:
      ``az.psense(idata, group_var_names=["net.Dense_0.kernel.precision"])``.
    - ``observed_data``, ``constant_data`` (the inputs, ``x``).
    - ``posterior_predictive``: draws of the target at the training inputs under the target's own
      name, and the predictions of each draw: ``probs``, or ``mean`` and ``scale`` (the
      standard deviation of the noise), in units of the target.
    - ``predictions``: draws of the target and predictions for each name in `predict`, as ``test.y``,
      ``test.probs``, …, over ``test.row``; their inputs in ``predictions_constant_data``.

    Memory: the result, which for R rows takes ``chains × draws × R`` numbers for the log
    likelihood and `(C + 1)` times that for the predictions of C classes (3 for a continuous
    target), and not more than a few hundred MB beside it.

    :param run: an ``MCMC`` after `run`, what `fit` returned, a fitted estimator, or draws.
    :param x: training inputs, where `run` does not know them (or other rows to judge it on).
    :param y: training target.
    :param model: the model, where `run` does not carry one.
    :param predict: further inputs by name, such as ``{"test": x_test}``.
    :param log_likelihood: whether to compute it; ``az.loo`` and ``az.compare`` need it.
    :param log_prior: whether to compute it, where the training data are known.
    :param posterior_predictive: whether to predict at the training inputs, where they are known.
    :param key: random key for the draws of the target; by default ``jax.random.key(0)``.
    :param batch_size: rows that are predicted at a time, see :func:`~numpyro_bnn.predict`.
    :param dims: other names for the axes of a site, by site, such as ``{"net/Dense_1.bias": ["class"]}``.
    :param coords: labels along an axis by its name, such as ``{"class": ["cat", "dog"]}``.
    :param base_sites: whether to keep the standardised values (``….base``) of non-centred
        coordinates, which only a sampler needs.
    :return: ``arviz.InferenceData``, or ``xarray.DataTree`` with ArviZ 1 and later.
    :raises ValueError: if a model or training data are needed and not known, if names clash, or
        if `dims` or `coords` do not fit.
    :raises TypeError: if `run` or `predict` is something else.
    :warns UserWarning: of a log likelihood that ``az.loo`` would misread: of rows with weights, of draws at
        another temperature than 1, of a stacked mixture, and of draws that `thin` chose; and of one that is
        left out, since latent sites that the target is computed from have no draws.
    """
    predict = dict(predict or {})
    draws = draws_of(run, model, "to_inference_data")
    draws = Draws(draws, draws.model, draws.stats, draws.info | known_rows(run))
    warn_of_use("to_inference_data", draws.suspect)
    if draws.model is None and (predict or log_likelihood):
        raise ValueError(
            "to_inference_data: these draws carry no model, which predictions and the log "
            "likelihood need. Pass `model=`, or `log_likelihood=False` and no `predict`."
        )
    if x is None and y is not None:
        raise ValueError("to_inference_data: `y` was given without `x`.")
    inputs = None if x is None else checked_inputs("to_inference_data", draws.model, draws.info, x)
    target = None if y is None else targets_of(run, y, "to_inference_data")
    training = training_data("to_inference_data", draws.model, run, inputs, target)
    if log_likelihood and not training.observed:
        raise ValueError(
            "to_inference_data: the log likelihood needs the training data, and a model that observes a site "
            "when it gets them. Pass `x` and `y`, or `log_likelihood=False` (of a `numpyro.factor`)."
        )
    for site in training.observed if log_likelihood else ():
        refuse_moving("to_inference_data", training, site)
    key = jax.random.key(0) if key is None else key
    # Chains keep their number where others were left out; a chain that was made of several is the first.
    left_out = {} if set(_JOINED) & set(draws.info) else draws.left_out
    labels = np.setdiff1d(np.arange(draws.num_chains + len(left_out)), list(left_out))
    labels = labels[: draws.num_chains]
    groups = ArvizGroups(draws, labels, dict(dims or {}), dict(coords or {}))
    groups.add_posterior(base_sites)
    groups.add_sample_stats()
    targets: list[str | None] = list(training.observed) or [None]
    made: dict[str | None, Predictions] = {}
    if training.x is not None:
        if posterior_predictive and draws.model is not None:
            made = groups.add_predictions(
                "posterior_predictive", "", training.x, training.others, targets, key, batch_size
            )
        groups.add_inputs("constant_data", "", training.x)
    if log_likelihood and _has_densities(draws, training, batch_size):
        _warn_of_other_distributions(draws, training)
        groups.add_log_likelihood(training, made, batch_size)
    if log_prior and training.observed:
        groups.add_log_prior(training)
    if training.observed:
        groups.add_observed(training)
    for index, (name, x) in enumerate(predict.items()):
        own_key = jax.random.fold_in(key, index + 1)
        groups.add_predictions("predictions", f"{name}.", x, {}, targets, own_key, batch_size)
        groups.add_inputs("predictions_constant_data", f"{name}.", x)
    datasets = groups.datasets()
    # ArviZ 1 warns at the old name and returns xarray's tree.
    own = vars(az).get("InferenceData")
    return xr.DataTree.from_dict(datasets) if own is None else own(**datasets)


def _has_densities(draws: Draws, training: TrainingData, batch_size: int | None) -> bool:
    """Whether the densities of all rows are known under each draw; if not, warn that they are left out."""
    for name in training.observed:
        given = draws, training.x, training.others
        predictor = predictor_of(*given, owner=OWNER, batch_size=batch_size, site=name)
        if why := why_densities_are_of_priors(predictor, draws, name):
            warnings.warn(
                f"to_inference_data: left out the group `log_likelihood`, since {why} Or pass "
                "`log_likelihood=False`.",
                stacklevel=find_stack_level(),
            )
            return False
    return True


def _warn_of_other_distributions(draws: Draws, training: TrainingData) -> None:
    """Warn of a log likelihood that is no weight for the posterior without a row."""
    reasons = [why_not_the_posterior(draws)]
    reasons += [why_rows_count_otherwise(name, training.weighted) for name in training.observed]
    for why in filter(None, reasons):
        warnings.warn(
            "to_inference_data: `az.loo`, `az.compare` and `az.psense` take the log likelihood for that of a "
            "posterior in which each row counts once, and would give wrong numbers without a sign of it "
            f"(`check_fit` refuses for the same reason): {why} Or leave it out, `log_likelihood=False`.",
            stacklevel=find_stack_level(),
        )


def from_inference_data(idata: Any, model: Callable | None = None) -> Draws:
    """Draws from an ArviZ object, for :func:`numpyro_bnn.predict` and everything else.

    :param idata: a result of :func:`to_inference_data`, also after a round trip through a file, with axes in
        any order, of some chains, or with ``sample`` in place of chains and draws, which are one chain where
        they are not all draws of some chains (``az.extract(idata, num_samples=20)``); any other
        ``InferenceData`` or ``DataTree`` works where its variables are named like the sites. Chains keep
        their numbers, by the coordinate ``chain``: those that are absent are named in ``left_out``.
    :param model: the model that they are draws of; a ready model gets its units back.
    :return: the draws under their site names, with the statistics of the sampler.
    :raises ValueError: if there is no axis of draws, two variables stand for one site, or
        `model` keeps the units of other data or predicts something else than the one that was exported
        (:func:`numpyro_bnn.load` says what is compared).
    """
    posterior = idata["posterior"]
    labels = _labels_of_chains(posterior)
    # Numbers in the run of the chains that were exported, by their labels.
    numbers: dict[Any, int] = dict(json.loads(posterior.attrs.get("numpyro_bnn_chains", "[]")))
    posterior = _by_chain(posterior, numbers)
    info = json.loads(posterior.attrs.get("numpyro_bnn_run", "{}"))
    count = posterior.sizes["chain"]
    is_known = len(labels) >= count and set(labels) <= set(numbers)
    if is_known and not set(_JOINED) & set(info):
        info |= _about_chains(info, labels, numbers, count)
    values: dict[str, np.ndarray] = {}
    for name, variable in posterior.data_vars.items():
        site = variable.attrs.get("site", name)
        if site in values:
            raise ValueError(
                f"from_inference_data: two variables stand for the site {site!r}; rename one or "
                "drop its attribute `site`."
            )
        values[site] = _as_stored(variable).values
    stats: dict[str, np.ndarray] = {}
    if "sample_stats" in idata:
        for name, variable in _by_chain(idata["sample_stats"], numbers).data_vars.items():
            value = variable.transpose("chain", "draw", ...).values
            if name not in _DERIVED:
                stats[_FIELDS.get(str(name), str(name))] = -value if name == "lp" else value
    units = json.loads(posterior.attrs.get("numpyro_bnn_units", "null"))
    ready = innermost(model)
    if units is not None and hasattr(ready, "restore"):
        ready.restore({k: np.asarray(value, kind) for k, (value, kind) in units.items()})
    draws = Draws(values, model, stats, info)
    known = json.loads(posterior.attrs.get("numpyro_bnn_predictions", "null"))
    refuse_other_model("from_inference_data", draws, known)
    return draws


def _by_chain(group: Any, numbers: Mapping[Any, int]) -> Any:
    """A group with axes of chains, in the order of their numbers, and draws."""
    # ``az.extract`` joins these axes, and selecting one chain drops the first.
    group = group.to_dataset() if hasattr(group, "to_dataset") else group
    pairs = group.indexes.get("sample")
    # Whether chains and draws are joined to one axis.
    if pairs is not None and {"chain", "draw"} <= set(pairs.names):
        grid = np.prod([pairs.get_level_values(axis).nunique() for axis in ("chain", "draw")])
        if pairs.is_unique and len(pairs) == grid:
            group = group.unstack("sample")
        else:
            # Some draws of each chain: as a grid they would have gaps.
            group = group.drop_vars(["sample", "chain", "draw"]).rename(sample="draw")
    if "chain" not in group.sizes:
        return group.drop_vars("chain", errors="ignore").expand_dims("chain")
    labels = _labels_of_chains(group)
    if len(labels) < group.sizes["chain"] or not set(labels) <= set(numbers):
        return group
    return group.isel(chain=np.argsort([numbers[label] for label in labels]))


def _labels_of_chains(group: Any) -> list:
    """Labels of the chains of a group, each once; none where it has no such coordinate."""
    if "chain" not in group.coords:
        return []
    return list(dict.fromkeys(np.ravel(group.coords["chain"].values).tolist()))


def _about_chains(
    info: Mapping[str, Any], labels: Sequence, numbers: Mapping[Any, int], count: int
) -> dict[str, Any]:
    """Facts about a run that are about the chains which are still there, by label."""
    # One chain is left where some draws of several were made one.
    kept = {numbers[label] for label in labels}
    absent = sorted(set(numbers.values()) - kept)
    facts = {
        "suspect": {n: why for n, why in info.get("suspect", {}).items() if int(n) in kept},
        "left_out": {**info.get("left_out", {}), **{str(n): NOT_READ for n in absent}},
        "joined": sorted(kept) if len(kept) > count else [],
    }
    return {name: fact for name, fact in facts.items() if fact or name in info}


def _as_stored(variable: xr.DataArray) -> xr.DataArray:
    """A variable with the axes of its site in their own order, and the places along them too."""
    axes = json.loads(variable.attrs.get("axes", "[]"))
    others = axes if set(axes) == set(variable.dims) - {"chain", "draw"} else [...]
    for axis in axes:
        places = variable.coords.get(axis)
        # Labels that the user chose have no order.
        if places is not None and set(places.values.tolist()) == set(range(places.size)):
            variable = variable.sortby(axis)
    return variable.transpose("chain", "draw", *others)
