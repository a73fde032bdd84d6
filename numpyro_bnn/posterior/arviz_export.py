"""Converts draws to ArviZ objects, and back.

The only file that imports ArviZ. Groups are assembled as xarray datasets, which both
generations share: ArviZ 0.23 gets an ``InferenceData``, ArviZ 1 and later a ``DataTree``.

A site ``"net/Dense_0.kernel"`` becomes the variable ``"net.Dense_0.kernel"``, because netCDF and
``DataTree`` read a slash as a path; the attribute ``site`` of the variable keeps its own name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import xarray as xr
from numpy.typing import ArrayLike
from numpyro.handlers import seed
from numpyro.infer.util import compute_log_probs

from numpyro_bnn._checks import warn
from numpyro_bnn._types import PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import prepared, restore_units, stored_units, targets_of
from numpyro_bnn.data.units import taken
from numpyro_bnn.posterior.archive import known_predictions, refuse_other_model
from numpyro_bnn.posterior.draws import NOT_READ, Draws, Run, checked_inputs, draws_of
from numpyro_bnn.posterior.leave_one_out import (
    why_densities_are_of_priors,
    why_not_the_posterior,
    why_rows_count_otherwise,
)
from numpyro_bnn.posterior.prediction_sites import VECTOR, flat_draws, structure_at
from numpyro_bnn.posterior.predictions import blocks_of_draws, predictor_of
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.training_data import (
    TrainingData,
    call_with,
    known_rows,
    refuse_moving,
    training_data,
)
from numpyro_bnn.potential.compiled_arguments import Arguments, map_in_blocks
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.sites import all_rows
from numpyro_bnn.priors.hierarchical import Standardized, parameterize
from numpyro_bnn.priors.paths import dims_of, layer_of_site, variable_name
from numpyro_bnn.samplers.suspects import named, named_elsewhere, warn_of_use
from numpyro_bnn.storage.stored_array import StoredArray

# ArviZ's names of sampler statistics; the log joint is the negative potential energy.
_STATS = {
    "accept_prob": "acceptance_rate",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "potential_energy": "lp",
}
# Names of statistics in this package by their names in ArviZ.
_FIELDS = {theirs: ours for ours, theirs in _STATS.items()}
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
    :param predict: further inputs by name, such as ``{"test": x_test}``. Other arguments by row belong into
        them, as a dictionary.
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
        groups.add_log_likelihood(training, made, batch_size)
    if log_prior and training.observed:
        found = log_prior_of(draws, training.x, list(training.observed), training.others)
        for site, value in found.items():
            groups.add("log_prior", site, ["chain", "draw"], value, {"site": site})
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
    """Whether densities of rows are known under each draw; warn where they are not, or are no weights."""
    for name in training.observed:
        given = draws, training.x, training.others
        predictor = predictor_of(*given, owner=_OWNER, batch_size=batch_size, site=name)
        if why := why_densities_are_of_priors(predictor, draws, name):
            warn(
                f"to_inference_data: left out the group `log_likelihood`, since {why} Or pass "
                "`log_likelihood=False`."
            )
            return False
    reasons = [why_not_the_posterior(draws)]
    reasons += [why_rows_count_otherwise(name, training.weighted) for name in training.observed]
    for why in filter(None, reasons):
        warn(
            "to_inference_data: `az.loo`, `az.compare` and `az.psense` take the log likelihood for that of a "
            "posterior in which each row counts once, and would give wrong numbers without a sign of it "
            f"(`check_fit` refuses for the same reason): {why} Or leave it out, `log_likelihood=False`."
        )
    return True


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
    restore_units(model, json.loads(posterior.attrs.get("numpyro_bnn_units", "{}")))
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


_OWNER = "to_inference_data"
# Numbers that the predictions of one block of rows may hold, beside the result.
_BLOCK = 2**26


@named_elsewhere()
def predict_draws(
    draws: Draws, x: PyTree, others: Mapping[Place, PyTree], **options: Any
) -> Predictions:
    """Predictions of draws whose suspect chains the export as a whole has named."""
    return predictor_of(draws, x, others, owner=_OWNER, **options)(draws)


class ArvizGroups:
    """Variables and attributes of the groups of an ArviZ object, added group by group."""

    def __init__(
        self, draws: Draws, chains: np.ndarray, dims: dict[str, Sequence[str]], coords: dict
    ) -> None:
        self.draws = draws
        self.dims = dims
        self.coords = {variable_name(name): labels for name, labels in coords.items()}
        self.sampled = {"chain": chains, "draw": np.arange(draws.num_draws)}
        self.variables: dict[str, dict[str, xr.Variable]] = {}
        # Numbers of the rows along an axis of a group, where these are not all.
        self.numbers: dict[tuple[str, str], np.ndarray] = {}
        self.attrs: dict[str, dict[str, Any]] = {}

    def add(
        self, group: str, name: str, axes: Sequence[str], value: Any, attrs: dict | None = None
    ) -> None:
        """Add a variable to a group that has none of that name; name and axes as files can have them."""
        name, axes = variable_name(name), [variable_name(axis) for axis in axes]
        variables = self.variables.setdefault(group, {})
        if name in variables:
            raise ValueError(
                f"to_inference_data: two quantities of the group {group} would be called {name!r}. Rename "
                "one of these sites in the model, or the inputs in `predict`."
            )
        if isinstance(value, StoredArray) and value.dtype != np.float16:
            variables[name] = _lazily(value, axes, attrs)
        else:
            array = np.asarray(value)
            # netCDF has no shorter floats.
            short = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
            array = array.astype(np.float32) if short else array
            variables[name] = xr.Variable(tuple(axes), array, attrs)

    def add_posterior(self, base_sites: bool) -> None:
        """Add every site, with axes named within its layer."""
        draws = self.draws
        kept = {
            name: v
            for name, v in draws.items()
            if base_sites or not (name.endswith(".base") and name.removesuffix(".base") in draws)
        }
        shapes = {name: tuple(np.shape(value)[2:]) for name, value in kept.items()}
        axes = dims_of(shapes) | {site: list(names) for site, names in self.dims.items()}
        for site, value in kept.items():
            attrs = {"site": site, "axes": json.dumps([variable_name(n) for n in axes[site]])}
            if (layer := layer_of_site(site)) is not None:
                attrs["layer"] = variable_name(layer)
            self.add("posterior", site, ["chain", "draw", *axes[site]], value, attrs)
        run = {name: value for name, value in draws.info.items() if value is not None}
        numbers = self.sampled["chain"].tolist()
        labels = np.asarray(self.coords.get("chain", numbers)).tolist()
        self.attrs["posterior"] = {
            "numpyro_bnn_run": json.dumps(run, default=str),
            "numpyro_bnn_chains": json.dumps(list(zip(labels, numbers)), default=str),
            "numpyro_bnn_predictions": json.dumps(known_predictions(draws)),
        }
        if draws.suspect:
            self.attrs["posterior"]["suspect"] = named(draws.suspect)
        if units := stored_units(draws.model):
            self.attrs["posterior"]["numpyro_bnn_units"] = json.dumps(units)

    def add_sample_stats(self) -> None:
        """Add statistics of the sampler under ArviZ's names."""
        # An energy that is not that of its draw keeps the name of its field: it is no log density of a draw.
        names = dict(_STATS)
        if not self.draws.has_exact_energy:
            del names["potential_energy"]
        for name, value in self.draws.stats.items():
            for suffix, leaf in _leaves(value).items():
                own = f"{name}.{suffix}" if suffix else name
                own = names.get(own, own)
                leaf = -np.asarray(leaf) if own == "lp" else np.asarray(leaf)
                axes = [f"{own}.axis_{i}" for i in range(leaf.ndim - 2)]
                self.add("sample_stats", own, ["chain", "draw", *axes], leaf)
        limit = self.draws.info.get("max_num_steps")
        steps = self.draws.stats.get("num_steps")
        if limit is not None and steps is not None:
            # A tree of depth d has 2^d - 1 steps, fewer where it stopped within its last doubling.
            depth = np.floor(np.log2(np.maximum(np.asarray(steps), 1))).astype(np.int32) + 1
            self.add("sample_stats", "tree_depth", ["chain", "draw"], depth)
            reached = np.asarray(steps) >= limit
            self.add("sample_stats", "reached_max_treedepth", ["chain", "draw"], reached)

    def add_log_likelihood(
        self, training: TrainingData, made: Mapping[str | None, Predictions], batch_size: int | None
    ) -> None:
        """Add the log likelihood of every training row, in nats."""
        # Predictions also hold their parameters. Where these are not exported, blocks of rows are so
        # small that they need little memory.
        total = self.draws.num_chains * self.draws.num_draws
        for target, y in training.observed.items():
            is_counted = training.counted_rows(target)
            y = np.where(is_counted.reshape(-1, *(1,) * (y.ndim - 1)), y, np.zeros((), y.dtype))
            if target in made:
                value = made[target].log_likelihood(y)
            else:
                given = self.draws, training.x, training.others
                predictor = predictor_of(*given, owner=_OWNER, batch_size=batch_size, site=target)
                together = predictor.rows_at_a_time(self.draws)
                rows = min(len(y), max(1, _BLOCK // (total * 16) // together) * together)
                shape = (self.draws.num_chains, self.draws.num_draws, len(y))
                value = np.empty(shape, jnp.result_type(float))
                for begin in range(0, len(y), rows):
                    # The last block repeats some rows, so that one program serves all blocks.
                    block = slice(min(begin, len(y) - rows), begin + rows)
                    x = taken(training.x, block)
                    others = {p: taken(v, block, len(y)) for p, v in training.others.items()}
                    part = predict_draws(self.draws, x, others, batch_size=together, site=target)
                    value[:, :, block] = part.log_likelihood(y[block])
            axes = _row_axes("", value.ndim, 2)
            if not is_counted.all():
                # ArviZ treats a log likelihood of 0 in all draws as an error.
                value = value[:, :, is_counted]
                axes[2] = axes[2] if len(training.observed) == 1 else f"{variable_name(target)}.row"
                self.numbers["log_likelihood", axes[2]] = np.flatnonzero(is_counted)
            self.add("log_likelihood", target, axes, value)

    def add_predictions(
        self,
        group: str,
        prefix: str,
        x: PyTree,
        others: Mapping[Place, PyTree],
        targets: Sequence[str | None],
        key: jax.Array,
        batch_size: int | None,
    ) -> dict[str | None, Predictions]:
        """Add draws of the targets at some inputs, and the predictions of each draw, which are returned."""
        found = {}
        for index, target in enumerate(targets):
            found[target] = predict_draws(self.draws, x, others, batch_size=batch_size, site=target)
            name = target or "y"
            drawn = found[target].sample(jax.random.fold_in(key, index))
            self.add(group, prefix + name, _row_axes(prefix, drawn.ndim, 2), drawn)
            for kind, value in found[target].values.items():
                axes = _row_axes(prefix, value.ndim, 2)
                axes = [*axes[:-1], "class"] if kind == "probs" else axes
                own = f"{name}.{kind}" if len(targets) > 1 else kind
                self.add(group, prefix + own, axes, value)
        return found

    def add_inputs(self, group: str, prefix: str, x: PyTree) -> None:
        """Add inputs of predictions."""
        for suffix, leaf in _leaves(x).items():
            name = f"{prefix}x.{suffix}" if suffix else f"{prefix}x"
            axes = [f"{name}.axis_{i}" for i in range(1, np.ndim(leaf))]
            axes = ["feature"] if np.ndim(leaf) == 2 and not suffix else axes
            self.add(group, name, [f"{prefix}row", *axes], leaf)

    def add_observed(self, training: TrainingData) -> None:
        """Add the observed targets; those that are others in every draw are no data."""
        for name in training.observed.keys() - training.moving:
            value = training.with_gaps(name)
            self.add("observed_data", name, _row_axes("", value.ndim, 0), value)

    def datasets(self) -> dict[str, xr.Dataset]:
        """The finished groups by name, their axes labelled."""
        datasets = {}
        for group, variables in self.variables.items():
            axes: dict[str, int] = {}
            for variable in variables.values():
                axes |= {str(name): size for name, size in variable.sizes.items()}
            labels = {
                name: self.numbers.get((group, name), np.arange(size))
                for name, size in axes.items()
            }
            labels |= {name: self.sampled[name] for name in axes if name in self.sampled}
            labels |= {name: np.asarray(self.coords[name]) for name in axes if name in self.coords}
            attrs = {
                "created_at": datetime.now(UTC).isoformat(),
                "inference_library": "numpyro",
                "inference_library_version": numpyro.__version__,
                **self.attrs.get(group, {}),
            }
            datasets[group] = xr.Dataset(variables, labels, attrs)
        return datasets


def _lazily(array: StoredArray, axes: Sequence[str], attrs: dict | None) -> xr.Variable:
    """Draws on disk as a variable of xarray that is read when it is indexed."""
    array.refuse_other_run()
    group, _, name = array.place.rpartition("/")
    opened = xr.open_zarr(array.path, group=group, chunks=None)[name].isel(chain=array.chains)
    variable = opened.rename(dict(zip(opened.dims, axes))).variable
    variable.attrs = attrs or {}
    return variable


def _row_axes(prefix: str, ndim: int, lead: int) -> list[str]:
    """Names of the axes of a quantity with one value or several for each row."""
    several = [f"{prefix}output"] if ndim == lead + 2 else []
    several = several or [f"{prefix}output_{i}" for i in range(ndim - lead - 1)]
    return [*("chain", "draw")[:lead], f"{prefix}row", *several]


def _leaves(tree: Any) -> dict[str, Any]:
    """Arrays of a pytree by dotted path; a single array has the path ""."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}


_BASE = ".base"


def log_prior_of(
    draws: Draws, x: PyTree, targets: list[str], others: Mapping[Place, PyTree] | None = None
) -> dict[str, np.ndarray]:
    """The log prior density of every random site given those above it, nats, (chain, draw)."""
    # A weight or a precision has its density in centred coordinates under its own name; other sites that only
    # serve a sampler (``….base``, a precision for each row of a t-distributed target) are left out.
    model = parameterize(all_rows(draws.model), "centered")
    args, kwargs = prepared(model, *call_with({0: x, **(others or {})}))
    structure = structure_at(model, *args, **kwargs)
    # A target with missing values (`obs_mask=`) is two sites.
    targets = [n + end for n in targets for end in ("", "_observed", "_unobserved")]
    sites = [n for n in structure.latent if n not in targets and not structure.sites[n].factor]
    if lacking := [name for name in sites if name not in draws]:
        raise ValueError(
            f"to_inference_data: the log prior needs draws of every latent site, and these lack {lacking}. "
            "Give all sites, or pass `log_prior=False`."
        )
    arguments = Arguments.split(args, kwargs)

    def over_draws(block: dict[str, Any], arrays: list[jax.Array]) -> dict[str, jax.Array]:
        given = Arguments.join(arrays, arguments.static)
        flat = jax.tree.map(flat_draws, block)
        return map_in_blocks(lambda draw: _of_one_draw(model, draw, given, sites), flat, VECTOR)

    program = Program(over_draws)
    known = {n: v for n, v in draws.items() if n in structure.shapes}
    lead = (draws.num_chains, draws.num_draws)
    made: dict[str, np.ndarray] = {}
    for drawn in blocks_of_draws(known, lead):
        block = {name: value[:, drawn] for name, value in known.items()}
        for name, found in program(block, arguments.arrays).items():
            values = made.setdefault(name, np.empty(lead, found.dtype))
            values[:, drawn] = np.asarray(found).reshape(lead[0], -1)
    return made


def _of_one_draw(
    model: Callable, draw: dict[str, Any], arguments: tuple[tuple, dict], sites: list[str]
) -> Any:
    """Log prior densities at one draw, by the name of the parameter that a user knows."""
    log_probs, traced = compute_log_probs(seed(model, jax.random.key(0)), *arguments, draw)
    found = {}
    for name in sites:
        density, site = log_probs[name], traced[name]
        standardized = site["infer"].get("hierarchy")
        if isinstance(standardized, Standardized):
            scale = jnp.broadcast_to(standardized.scale, jnp.shape(site["value"]))
            density = density - jnp.sum(jnp.log(scale))
            name = name.removesuffix(_BASE)
        found[name] = density
    return found
