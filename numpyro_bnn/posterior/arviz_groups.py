"""Assembles the groups of an ArviZ object (``posterior``, ``log_likelihood``, …) as xarray datasets."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import xarray as xr
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._types import PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import prepared, units_of
from numpyro_bnn.data.units import taken
from numpyro_bnn.posterior.archive import known_predictions
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.prediction_programs import VECTOR, flat_draws
from numpyro_bnn.posterior.prediction_sites import structure_at
from numpyro_bnn.posterior.predictions import blocks_of_draws, predictor_of
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.posterior.training_data import TrainingData, call_with
from numpyro_bnn.potential.compiled_arguments import Arguments, map_in_blocks
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.sites import all_rows
from numpyro_bnn.priors.hierarchical import Standardized, parameterize
from numpyro_bnn.priors.paths import dims_of, layer_of_site, variable_name
from numpyro_bnn.samplers.suspects import named, named_elsewhere
from numpyro_bnn.storage.draw_store import refuse_names
from numpyro_bnn.storage.stored_array import StoredArray

# ArviZ's names of sampler statistics; the log joint is the negative potential energy.
STATS = {
    "accept_prob": "acceptance_rate",
    "adapt_state.step_size": "step_size",
    "num_steps": "n_steps",
    "potential_energy": "lp",
}
OWNER = "to_inference_data"
# Numbers that the predictions of one block of rows may hold, beside the result.
_BLOCK = 2**26


@named_elsewhere()
def predict_draws(
    draws: Draws, x: PyTree, others: Mapping[Place, PyTree], **options: Any
) -> Predictions:
    """Predictions of draws whose suspect chains the export as a whole has named."""
    return predictor_of(draws, x, others, owner=OWNER, **options)(draws)


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
        units = units_of(draws.model)
        if units is not None:
            listed = {k: (np.asarray(v).tolist(), str(v.dtype)) for k, v in units._asdict().items()}
            self.attrs["posterior"]["numpyro_bnn_units"] = json.dumps(listed)

    def add_sample_stats(self) -> None:
        """Add statistics of the sampler under ArviZ's names."""
        # An energy that is not that of its draw keeps the name of its field: it is no log density of a draw.
        names = dict(STATS)
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
                predictor = predictor_of(*given, owner=OWNER, batch_size=batch_size, site=target)
                together = predictor.rows_at_a_time(self.draws)
                rows = max(1, _BLOCK // (total * 16) // together) * together
                pieces = []
                for begin in range(0, len(y), rows):
                    block = slice(begin, begin + rows)
                    x = taken(training.x, block)
                    others = {p: taken(v, block, len(y)) for p, v in training.others.items()}
                    part = predict_draws(self.draws, x, others, batch_size=together, site=target)
                    pieces.append(part.log_likelihood(y[block]))
                value = np.concatenate(pieces, axis=2)
            axes = _row_axes("", value.ndim, 2)
            if not is_counted.all():
                # ArviZ treats a log likelihood of 0 in all draws as an error.
                value = value[:, :, is_counted]
                axes[2] = axes[2] if len(training.observed) == 1 else f"{variable_name(target)}.row"
                self.numbers["log_likelihood", axes[2]] = np.flatnonzero(is_counted)
            self.add("log_likelihood", target, axes, value)

    def add_log_prior(self, training: TrainingData) -> None:
        """Add the log density of every latent site under its prior, in nats."""
        found = log_prior(self.draws, training.x, list(training.observed), training.others)
        for site, value in found.items():
            self.add("log_prior", site, ["chain", "draw"], value, {"site": site})

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
            value = training.observed[name]
            self.add("observed_data", name, _row_axes("", value.ndim, 0), value)

    def datasets(self) -> dict[str, xr.Dataset]:
        """The finished groups by name, their axes labelled."""
        datasets = {}
        for group, variables in self.variables.items():
            axes: dict[str, int] = {}
            for variable in variables.values():
                axes |= {str(name): size for name, size in variable.sizes.items()}
            sites = {str(v.attrs.get("site", name)): name for name, v in variables.items()}
            refuse_names(f"to_inference_data ({group})", sites, axes)
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


def log_prior(
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
    lacking = [name for name in sites if name not in draws]
    if lacking:
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
    for drawn in blocks_of_draws(known):
        block = {name: value[:, drawn] for name, value in known.items()}
        for name, found in program(block, arguments.arrays).items():
            values = made.setdefault(name, np.empty(lead, found.dtype))
            values[:, drawn] = np.asarray(found).reshape(lead[0], -1)
    return made


def _of_one_draw(
    model: Callable, draw: dict[str, Any], arguments: tuple[tuple, dict], sites: list[str]
) -> Any:
    """Log prior densities at one draw, by the name of the parameter that a user knows."""
    args, kwargs = arguments
    traced = trace(substitute(seed(model, jax.random.key(0)), data=draw)).get_trace(*args, **kwargs)
    found = {}
    for name in sites:
        site = traced[name]
        density = site["fn"].log_prob(site["value"])
        if site["scale"] is not None:
            # A scale may have the axes of the plates around the site, an entry for each value.
            density = site["scale"] * density
        density = jnp.sum(density)
        standardized = site["infer"].get("hierarchy")
        if isinstance(standardized, Standardized):
            scale = jnp.broadcast_to(standardized.scale, jnp.shape(site["value"]))
            density = density - jnp.sum(jnp.log(scale))
            name = name.removesuffix(_BASE)
        found[name] = density
    return found
