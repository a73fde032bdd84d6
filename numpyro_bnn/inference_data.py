"""To ArviZ and back.

The only file that imports ArviZ. Groups are assembled as xarray datasets, which both
generations share: ArviZ 0.23 gets an ``InferenceData``, ArviZ 1 and later a ``DataTree``.

A site ``"net/Dense_0.kernel"`` becomes the variable ``"net.Dense_0.kernel"``, because netCDF and
``DataTree`` read a slash as a path; the attribute ``site`` of the variable keeps its own name.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import xarray as xr
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn.chains import Arguments
from numpyro_bnn.draws import Draws, draws_of
from numpyro_bnn.drawstore import StoredArray
from numpyro_bnn.predictions import Predictions
from numpyro_bnn.predictions import predict as predict_draws
from numpyro_bnn.site_dims import class_layer, dims_of, layer_of, variable_name
from numpyro_bnn.structure import innermost, structure_of

# ArviZ's names for what samplers report; the log joint is the negative potential energy.
_STATS = {
    "accept_prob": "acceptance_rate",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "potential_energy": "lp",
}
_FIELDS = {theirs: ours for ours, theirs in _STATS.items()}
# Made here from the number of steps.
_DERIVED = ("tree_depth", "reached_max_treedepth")

# Values that the parameters of the predictions of one block of rows may hold, beside the result.
_BLOCK = 2**26


class _Training(NamedTuple):
    """What a run was trained on.

    - **x** - the inputs; None where they are not known
    - **observed** - values of the observed sites
    """

    x: Any
    observed: dict[str, np.ndarray]


def to_inference_data(
    run: Any,
    x: Any = None,
    y: Any = None,
    *,
    model: Callable | None = None,
    predict: Mapping[str, Any] | None = None,
    log_likelihood: bool = True,
    posterior_predictive: bool = True,
    rng_key: jax.Array | None = None,
    batch_size: int = 1000,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence] | None = None,
    base_sites: bool = False,
) -> Any:
    """Everything about a run as one ArviZ object.

    Groups:

    - ``posterior``: every site, slashes as dots, with the axes of weights named within their layer:
      ``net.Dense_0.unit_in``, ``net.Dense_0.unit_out``, and ``class`` for the outputs of a layer
      that gives the logits of classes.
    - ``sample_stats``: ``diverging``, ``lp``, ``energy``, ``acceptance_rate``, ``step_size``,
      ``n_steps``, ``tree_depth``, ``reached_max_treedepth``, and whatever else the run collected.
    - ``log_likelihood``: of each row, by observed site (nats).
    - ``observed_data``, ``constant_data`` (the inputs, ``x``).
    - ``posterior_predictive``: draws of the target at the training inputs under the target's own
      name, and what each draw says in function space: ``probs``, or ``mean`` and ``scale`` (the
      standard deviation of the noise), in units of the target.
    - ``predictions``: the same for each name in `predict`, as ``test.y``, ``test.probs``, …, over
      ``test.row``; their inputs in ``predictions_constant_data``.

    Memory: the result, which for R rows takes ``chains × draws × R`` numbers for the log
    likelihood and `(C + 1)` times that for the predictions of C classes (3 for a continuous
    target), and not more than a few hundred MB beside it.

    :param run: an ``MCMC`` after `run`, or draws.
    :param x: training inputs, where `run` does not know them (or other rows to judge it on).
    :param y: training target.
    :param model: the model, where `run` does not carry one.
    :param predict: further inputs by name, such as ``{"test": x_test}``.
    :param log_likelihood: whether to compute it; ``az.loo`` and ``az.compare`` need it.
    :param posterior_predictive: whether to predict at the training inputs, where they are known.
    :param rng_key: for the draws of the target; by default ``jax.random.key(0)``.
    :param batch_size: rows that are predicted at a time.
    :param dims: other names for the axes of a site, by site.
    :param coords: labels along an axis by its name, such as ``{"class": ["cat", "dog"]}``.
    :param base_sites: whether to keep the standardised values (``….base``) of non-centred
        coordinates, which only a sampler needs.
    :return: ``arviz.InferenceData``, or ``xarray.DataTree`` with ArviZ 1 and later.
    :raises ValueError: if a model or training data are needed and not known, if names clash, or
        if `dims` or `coords` do not fit.
    :raises TypeError: if `run` or `predict` is something else.
    """
    if predict is not None and not isinstance(predict, Mapping):
        raise TypeError(
            f"to_inference_data: predict must map names to inputs, such as {{'test': x_test}}, got "
            f"{type(predict).__name__}."
        )
    predict = dict(predict or {})
    draws = draws_of(run, model, "to_inference_data")
    if draws.model is None and (predict or log_likelihood):
        raise ValueError(
            "to_inference_data: these draws carry no model, which predictions and the log "
            "likelihood need. Pass `model=`, or `log_likelihood=False` and no `predict`."
        )
    training = _training(run, draws, x, y)
    if log_likelihood and not (training.x is not None and training.observed):
        raise ValueError(
            "to_inference_data: the log likelihood needs the training data, and these draws do not "
            "know them. Pass `x` and `y`, or `log_likelihood=False`."
        )
    key = jax.random.key(0) if rng_key is None else rng_key
    groups = _Groups(draws, _chain_labels(run, draws), dict(dims or {}), dict(coords or {}))
    known_x = training.x if training.x is not None else next(iter(predict.values()), None)
    groups.add_posterior(known_x, list(training.observed), base_sites)
    groups.add_sample_stats()
    targets: list[str | None] = list(training.observed) or [None]
    made: dict[str | None, Predictions] = {}
    if training.x is not None:
        if posterior_predictive and draws.model is not None:
            made = groups.add_predictions(
                "posterior_predictive", "", training.x, targets, key, batch_size
            )
        groups.add_inputs("constant_data", "", training.x)
    if log_likelihood:
        groups.add_log_likelihood(training, made, batch_size)
    if training.observed:
        groups.add_observed(training)
    for index, (name, inputs) in enumerate(predict.items()):
        own_key = jax.random.fold_in(key, index + 1)
        groups.add_predictions("predictions", f"{name}.", inputs, targets, own_key, batch_size)
        groups.add_inputs("predictions_constant_data", f"{name}.", inputs)
    return groups.assemble()


def from_inference_data(idata: Any, model: Callable | None = None) -> Draws:
    """Draws from an ArviZ object, for :func:`numpyro_bnn.predict` and everything else.

    :param idata: what :func:`to_inference_data` made, also after a round trip through a file; any
        other ``InferenceData`` or ``DataTree`` works where its variables are named like the sites.
    :param model: the model that they are draws of; a ready model gets its units back.
    :return: the draws under their site names, with the statistics of the sampler.
    :raises ValueError: if there is no posterior, two variables stand for one site, or `model`
        keeps the units of other data.
    """
    try:
        posterior = idata["posterior"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"from_inference_data: {type(idata).__name__} has no group `posterior`."
        ) from error
    values: dict[str, np.ndarray] = {}
    for name, variable in posterior.data_vars.items():
        site = variable.attrs.get("site", name)
        if site in values:
            raise ValueError(
                f"from_inference_data: two variables stand for the site {site!r}; rename one or "
                "drop its attribute `site`."
            )
        values[site] = variable.transpose("chain", "draw", ...).values
    stats: dict[str, np.ndarray] = {}
    if "sample_stats" in _names(idata):
        for name, variable in idata["sample_stats"].data_vars.items():
            value = variable.transpose("chain", "draw", ...).values
            if name not in _DERIVED:
                stats[_FIELDS.get(str(name), str(name))] = -value if name == "lp" else value
    units = json.loads(posterior.attrs.get("numpyro_bnn_units", "null"))
    ready = innermost(model)
    if units is not None and hasattr(ready, "restore"):
        ready.restore({k: np.asarray(value, kind) for k, (value, kind) in units.items()})
    return Draws(values, model, stats, json.loads(posterior.attrs.get("numpyro_bnn_run", "{}")))


def _names(idata: Any) -> list[str]:
    return list(idata.children) if hasattr(idata, "children") else list(idata.groups())


def _chain_labels(run: Any, draws: Draws) -> np.ndarray:
    """Chains keep their number where others were left out."""
    left_out = getattr(run, "left_out", {})
    labels = np.arange(draws.num_chains + len(left_out))
    return np.setdiff1d(labels, list(left_out))


def _training(run: Any, draws: Draws, x: Any, y: Any) -> _Training:
    if x is None and y is not None:
        raise ValueError("to_inference_data: `y` was given without `x`.")
    args, kwargs = getattr(run, "_args", None) or (), getattr(run, "_kwargs", None) or {}
    if x is not None:
        args, kwargs = (x,) if y is None else (x, y), {}
    if args:
        x = args[0]
    elif kwargs and draws.model is not None:
        first = next(iter(inspect.signature(innermost(draws.model)).parameters), None)
        x = kwargs.get(first)
    if x is None or draws.model is None:
        return _Training(x, {})
    structure = structure_of(draws.model, args, kwargs)
    sites = [name for name in structure.observed if not structure.sites[name].factor]
    # The data are arguments, so that nothing but the targets is computed or kept.
    arguments = Arguments.split(args, kwargs)
    draw = {name: np.asarray(value[0, 0]) for name, value in draws.items()}

    def observed(arrays: list) -> dict[str, jax.Array]:
        args, kwargs = Arguments.join(arrays, arguments.static)
        bound = substitute(seed(draws.model, jax.random.key(0)), data=draw)
        values = trace(bound).get_trace(*args, **kwargs)
        return {name: values[name]["value"] for name in sites}

    values = jax.jit(observed)(arguments.arrays) if sites else {}
    return _Training(x, {name: np.asarray(value) for name, value in values.items()})


class _Groups:
    """The groups as they grow."""

    def __init__(
        self, draws: Draws, chains: np.ndarray, dims: dict[str, Sequence[str]], coords: dict
    ) -> None:
        self.draws = draws
        self.dims = dims
        self.coords = coords
        self.sampled = {"chain": chains, "draw": np.arange(draws.num_draws)}
        self.variables: dict[str, dict[str, xr.Variable]] = {}
        self.attrs: dict[str, dict[str, str]] = {}
        unknown = [site for site in dims if site not in draws]
        if unknown:
            raise ValueError(
                f"to_inference_data: `dims` names the sites {unknown}; there are {list(draws)}."
            )

    def add(
        self, group: str, name: str, axes: Sequence[str], value: Any, attrs: dict | None = None
    ) -> None:
        variables = self.variables.setdefault(group, {})
        if name in variables:
            raise ValueError(
                f"to_inference_data: two quantities of the group {group} would be called {name!r}. "
                "Rename the site of that name in the model, or the inputs in `predict`."
            )
        if isinstance(value, StoredArray):
            variables[name] = _lazily(value, axes, attrs)
        else:
            variables[name] = xr.Variable(tuple(axes), np.asarray(value), attrs)

    def add_posterior(self, x: Any, targets: list[str], base_sites: bool) -> None:
        draws = self.draws
        kept = {name: v for name, v in draws.items() if base_sites or not name.endswith(".base")}
        classes = None
        if draws.model is not None and x is not None and len(targets) == 1:
            draw = {name: jnp.asarray(value[0, 0]) for name, value in draws.items()}
            classes = class_layer(draws.model, x, targets[0], draw)
        shapes = {name: tuple(np.shape(value)[2:]) for name, value in kept.items()}
        axes = dims_of(shapes, classes) | {site: list(names) for site, names in self.dims.items()}
        for site, value in kept.items():
            if len(axes[site]) != len(shapes[site]):
                raise ValueError(
                    f"to_inference_data: `dims` gives {axes[site]} for the site '{site}' of shape "
                    f"{shapes[site]}; give one name for each axis."
                )
            layer = layer_of(site)
            attrs = {"site": site} | ({} if layer is None else {"layer": variable_name(layer)})
            self.add("posterior", variable_name(site), ["chain", "draw", *axes[site]], value, attrs)
        run = {name: value for name, value in draws.info.items() if value is not None}
        self.attrs["posterior"] = {"numpyro_bnn_run": json.dumps(run, default=str)}
        units = getattr(innermost(draws.model), "standardization", None)
        if units is not None:
            listed = {k: (np.asarray(v).tolist(), str(v.dtype)) for k, v in units._asdict().items()}
            self.attrs["posterior"]["numpyro_bnn_units"] = json.dumps(listed)

    def add_sample_stats(self) -> None:
        for name, value in self.draws.stats.items():
            for suffix, leaf in _leaves(value).items():
                own = f"{name}.{suffix}" if suffix else name
                own = variable_name(_STATS.get(own, own))
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
        self, training: _Training, made: Mapping[str | None, Predictions], batch_size: int
    ) -> None:
        # Predictions come with their parameters: where nobody asked for these, so few rows at a
        # time that they stay small.
        total = self.draws.num_chains * self.draws.num_draws
        rows = max(1, _BLOCK // (total * 16) // batch_size) * batch_size
        for target, y in training.observed.items():
            if target in made:
                value = made[target].log_prob(y)
            else:
                blocks = [slice(begin, begin + rows) for begin in range(0, len(y), rows)]
                pieces = []
                for block in blocks:
                    x = jax.tree.map(lambda leaf, block=block: leaf[block], training.x)
                    part = predict_draws(None, self.draws, x, batch_size=batch_size, site=target)
                    pieces.append(part.log_prob(y[block]))
                value = np.concatenate(pieces, axis=2)
            axes = _row_axes("", value.ndim, 2)
            self.add("log_likelihood", variable_name(target), axes, value)

    def add_predictions(
        self,
        group: str,
        prefix: str,
        x: Any,
        targets: Sequence[str | None],
        key: jax.Array,
        batch_size: int,
    ) -> dict[str | None, Predictions]:
        found = {}
        for index, target in enumerate(targets):
            found[target] = predict_draws(None, self.draws, x, batch_size=batch_size, site=target)
            name = variable_name(target or "y")
            drawn = found[target].sample(jax.random.fold_in(key, index))
            self.add(group, prefix + name, _row_axes(prefix, drawn.ndim, 2), drawn)
            for kind, value in found[target].values.items():
                axes = _row_axes(prefix, value.ndim, 2)
                axes = [*axes[:-1], "class"] if kind == "probs" else axes
                own = f"{name}.{kind}" if len(targets) > 1 else kind
                self.add(group, prefix + own, axes, value)
        return found

    def add_inputs(self, group: str, prefix: str, x: Any) -> None:
        for suffix, leaf in _leaves(x).items():
            name = f"{prefix}x.{suffix}" if suffix else f"{prefix}x"
            axes = [f"{name}.axis_{i}" for i in range(1, np.ndim(leaf))]
            axes = ["feature"] if np.ndim(leaf) == 2 and not suffix else axes
            self.add(group, name, [f"{prefix}row", *axes], leaf)

    def add_observed(self, training: _Training) -> None:
        for name, value in training.observed.items():
            self.add("observed_data", variable_name(name), _row_axes("", value.ndim, 0), value)

    def assemble(self) -> Any:
        datasets = {}
        sizes: dict[str, int] = {}
        for group, variables in self.variables.items():
            axes: dict[str, int] = {}
            for variable in variables.values():
                axes |= {str(name): size for name, size in variable.sizes.items()}
            sizes |= axes
            labels = {name: np.arange(size) for name, size in axes.items()}
            labels |= {name: self.sampled[name] for name in axes if name in self.sampled}
            for name in axes:
                if name in self.coords:
                    labels[name] = self._labels(name, axes[name])
            attrs = {
                "created_at": datetime.now(UTC).isoformat(),
                "inference_library": "numpyro",
                "inference_library_version": numpyro.__version__,
                **self.attrs.get(group, {}),
            }
            datasets[group] = xr.Dataset(variables, labels, attrs)
        unknown = [name for name in self.coords if name not in sizes]
        if unknown:
            raise ValueError(
                f"to_inference_data: `coords` labels the axes {unknown}; there are {sorted(sizes)}."
            )
        # ArviZ 1 answers to the old name with a warning and the tree of xarray.
        own = vars(az).get("InferenceData")
        return xr.DataTree.from_dict(datasets) if own is None else own(**datasets)

    def _labels(self, name: str, size: int) -> np.ndarray:
        labels = np.asarray(self.coords[name])
        if labels.shape != (size,):
            raise ValueError(
                f"to_inference_data: `coords` has {labels.shape} labels for the axis '{name}' of "
                f"size {size}."
            )
        return labels


def _lazily(array: StoredArray, axes: Sequence[str], attrs: dict | None) -> xr.Variable:
    """Draws on disk as xarray reads them: where they are looked at."""
    group, _, name = array.place.rpartition("/")
    opened = xr.open_zarr(array.path, group=group, chunks=None)[name].isel(chain=array.chains)
    variable = opened.rename(dict(zip(opened.dims, axes))).variable
    variable.attrs = attrs or {}
    return variable


def _row_axes(prefix: str, ndim: int, lead: int) -> list[str]:
    """Axes of something that has one value, or several, a row."""
    several = [f"{prefix}output"] if ndim == lead + 2 else []
    several = several or [f"{prefix}output_{i}" for i in range(ndim - lead - 1)]
    return [*("chain", "draw")[:lead], f"{prefix}row", *several]


def _leaves(tree: Any) -> dict[str, Any]:
    """Arrays of a pytree by dotted path; a single array has the path ""."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}
