"""Complete models: a network, a prior and a likelihood, which standardise their data.

Inputs and a continuous target are standardised with the statistics of the training data, on the
host and in double precision (:mod:`numpyro_bnn.data.units`). The device sees standardised inputs and a
target without its mean; its likelihood is per unit of y. Predictions get the mean back on the host,
so that they are in the user's units whatever the offset.

Called by NumPyro itself, with data that were not standardised before, the model keeps the target in the
user's units: the posterior is the same, and ``Predictive`` gives the user's units.
"""

import pickle
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from flax import linen, nnx
from numpyro.util import not_jax_tracer

from numpyro_bnn._text import call_of
from numpyro_bnn._types import PyTree, Values
from numpyro_bnn.compilation.program_identity import form_of
from numpyro_bnn.data.arguments import as_array
from numpyro_bnn.data.columns import check_columns, column_names, refuse_row_shape
from numpyro_bnn.data.fingerprints import fingerprint, is_same
from numpyro_bnn.data.units import (
    Column,
    Prepared,
    check_range,
    check_resolution,
    known_targets,
    moments,
    rows_with_targets,
    standardized,
    taken,
)
from numpyro_bnn.likelihoods.families import (
    Noise,
    bernoulli,
    categorical,
    gaussian,
    heteroscedastic,
    noise_for_each,
    student_t,
)
from numpyro_bnn.likelihoods.observe import check_finite, check_weights
from numpyro_bnn.models import integrated_output
from numpyro_bnn.models.random_module import dumped, network_of, sampled
from numpyro_bnn.priors.base import Prior, as_prior


class Standardization(NamedTuple):
    """Means and scales of the training data, in the user's units, in double precision."""

    # Mean and scale by column of the inputs; a constant column has scale 1.
    x_mean: np.ndarray
    x_scale: np.ndarray
    # Mean and scale of the target, of each where there are several; 0 and 1 for classes.
    y_mean: np.ndarray
    y_scale: np.ndarray
    checksum: np.ndarray  # Fingerprint of the data that they come from, a text
    # Names of the columns of the inputs, where these were a table.
    columns: np.ndarray = np.empty(0, np.str_)


def is_given(values: Any) -> bool:
    """Whether values come from the user: not None, traced, or standardised before."""
    return values is not None and not isinstance(values, Prepared) and bool(not_jax_tracer(values))


def prepared_rows(rows: np.ndarray, units: Standardization, **beside: Any) -> Prepared:
    """Standardised rows, with the scale of the target."""
    scale = np.asarray(units.y_scale, rows.dtype)
    return Prepared(rows, tuple(map(np.asarray, scale)) if scale.ndim else scale, **beside)


def number_or_array(values: Any) -> Any:
    """A number for one target, an array for several."""
    if isinstance(values, tuple):
        return jnp.stack(values)
    return float(values) if isinstance(values, np.ndarray) and values.ndim == 0 else values


def check_target(y: Any) -> None:
    """Refuse targets of regression that are neither (N,) nor (N, several)."""
    shape = jnp.shape(y)
    if len(shape) not in (1, 2) or shape[1:] == (1,):
        raise ValueError(
            f"regression: y has shape {shape}, expected (N,), or (N, outputs) for several targets. Use "
            "`y.squeeze(-1)` for one column."
        )


def units_needed(owner: str, shape: tuple[int, ...], rows: Any, wanted: str) -> str:
    """The message for a network of other output units."""
    hint = " Return a column, without `.squeeze(-1)`." if len(shape) < 2 else ""
    return (
        f"{owner}: the network gives shape {shape} for {jnp.shape(rows)[0]} rows; this likelihood "
        f"needs {wanted} a row, as (rows, units).{hint}"
    )


_ARGUMENTS = ("x", "y", "weights")
# The last kind is an Equinox module or another callable pytree.
Module: TypeAlias = linen.Module | nnx.Module | Callable
PriorLike: TypeAlias = Prior | dist.Distribution | Callable


class ReadyModel:
    """A NumPyro model ``model(x, y=None, weights=None)`` that remembers the units of its training data.

    A row of weight w counts as w equal rows: its log density is multiplied by w, and so is its share in means
    and scales. Predictions have no weights.

    Targets that are NaN are missing: a row counts with the density of its other targets, and not at all where
    it has none (a warning says how many there are); means and scales are those of known targets.

    - **standardization** - None until the model has seen its training data
    """

    def __init__(
        self,
        module: Any,
        prior: Any,
        kind: str,
        observe: Callable,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.module = module
        self.prior = prior
        self.kind = kind
        self.standardization: Standardization | None = None
        self._fits = 0
        # What tracing found out about the module, until the next fit; see `_found`.
        self._shapes: dict[tuple, Any] = {}
        self._observe = observe
        self.options = dict(options or {})
        # Whether rows have weights, so that rows of weight 0 can be added.
        self.weighs_rows = not self.options.get("integrate_output")
        self._sites: Callable = self._sampled
        if self.options.get("integrate_output"):
            self._sites = integrated_output.integrate_output(self._sampled)

    def __repr__(self) -> str:
        units = self.standardization
        seen = "no data yet" if units is None else f"units of {units.x_mean.size} inputs"
        return f"<{call_of(self.kind, self.options, (self.module, self.prior))}, {seen}>"

    def __reduce__(self) -> tuple[Callable, tuple]:
        network = dumped(self.module)
        return _remade, (self.kind, network, self.prior, self.options, self.standardization)

    @property
    def traced_as(self) -> Hashable:
        """Equal for models that trace alike, at least in one fit; None if the module can change (NNX)."""
        intercepted = linen.module._global_interceptor_stack
        if intercepted or not isinstance(self.module, linen.Module):
            return None
        settings = type(self), self.kind, self.module, self.prior, self.options
        return form_of(settings) or (self, self._fits)

    @property
    def shift(self) -> float | np.ndarray | None:
        """The mean that a standardised target lacks, added to its predictions; None for classes."""
        if self.kind != "regression" or self.standardization is None:
            return None
        return number_or_array(self.standardization.y_mean)

    def learn(
        self, x: PyTree = None, y: Values | None = None, weights: Values | None = None
    ) -> bool:
        """Compute means and scales when a fit begins; returns whether they are new."""
        if not (is_given(x) and is_given(y)):
            return False
        self._fits += 1
        self._shapes = {}
        column, names = Column("x", x), column_names(x)
        x, (y, known) = self._checked("x", x), self._known_targets(y)
        if x.ndim < 2 or not len(x) or y.shape[:1] != x.shape[:1]:
            raise ValueError(
                f"{self.kind}: x has shape {x.shape} and y {y.shape}, expected (N, columns) and (N,). Use "
                "`x[:, None]` for one input column, and give as many targets as inputs, at least one."
            )
        if weights is not None:
            weights = self._checked("weights", weights).astype(np.float64)
            check_weights(self.kind, weights, len(x))
        # Rows without any target say nothing, and `fit` has left them out.
        rows = None if known is None else known.reshape(len(known), -1).any(1)
        told = (y if known is None else np.where(known, y, np.nan), x, weights)
        checksum = np.array(fingerprint(told if rows is None else taken(told, rows)))
        if self.standardization is not None:
            if not is_same(str(checksum), str(self.standardization.checksum)):
                raise ValueError(
                    f"{self.kind}: this model keeps the units of the data it was first fitted to, "
                    f"and these are others. Make a new one with `{self.kind}(module, prior, …)`."
                )
            return False
        if known is not None:
            rows_with_targets(self.kind, known)
        y_mean, y_scale = np.zeros(()), np.ones(())
        if self.kind == "regression":
            check_target(y)
            y_mean, y_scale = moments(self.kind, Column("y"), y, weights, known)
        x_mean, x_scale = moments(self.kind, column, x, weights, rows)
        self.standardization = Standardization(
            x_mean, x_scale, y_mean, y_scale, checksum, np.array(names, np.str_)
        )
        return True

    def _checked(self, label: str, values: Any) -> np.ndarray:
        array = np.asarray(as_array(self.kind, label, values))
        check_finite(self.kind, label, array)
        return array

    def _known_targets(self, y: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Targets with 0 in place of missing ones, and which are known; None where all are."""
        y = np.asarray(as_array(self.kind, "y", y))
        if (known := known_targets(y)) is None:
            return self._checked("y", y), None
        y = self._checked("y", np.where(known, y, np.zeros((), y.dtype)))
        is_label = self.kind != "regression" and (y == np.round(y)).all()
        return y.astype(np.int32) if is_label else y, known

    def forget(self) -> None:
        """Forget means and scales; called when a fit was refused."""
        self.standardization = None

    def restore(self, units: dict[str, np.ndarray]) -> None:
        """Set means and scales to those that were saved with a posterior."""
        saved = Standardization(**units)
        known = self.standardization
        if known is not None and not is_same(str(saved.checksum), str(known.checksum)):
            raise ValueError(
                f"{self.kind}: this model keeps the units of other data than the saved draws. "
                f"Make a new one with `{self.kind}(module, prior)`."
            )
        self.standardization = saved

    def prepare(self, args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments for the device: concrete inputs and target, standardised."""
        given = dict(zip(_ARGUMENTS, args)) | dict(kwargs)
        if self.standardization is None:
            self.learn(**given)
        units = self.standardization
        own = {"x": self._inputs, "y": self._target, "weights": self._row_weights}
        made = {
            name: own[name](value, units)
            if name in own and units is not None and is_given(value)
            else value
            for name, value in given.items()
        }
        positional = tuple(made[name] for name in _ARGUMENTS[: len(args)])
        return (*positional, *args[3:]), {name: made[name] for name in kwargs}

    def _inputs(self, x: Any, units: Standardization) -> Prepared:
        column = Column("x", x)
        check_columns(self.kind, "x", units.columns.tolist(), x)
        x = self._checked("x", x)
        self._check_columns(x.shape, units)
        check_resolution(self.kind, column, x.dtype, units.x_mean, units.x_scale)
        rows = standardized(self.kind, column, x, units.x_mean, units.x_scale)
        scales = tuple(np.asarray(s, rows.dtype) for s in as_prior(self.prior).shared_scales)
        return prepared_rows(rows, units, prior_scales=scales)

    def _target(self, y: Any, units: Standardization) -> Any:
        y, known = self._known_targets(y)
        if self.kind != "regression":
            check_range(self.kind, "y", y)
            return y if known is None else Prepared(y, known=known)
        check_target(y)
        check_resolution(self.kind, Column("y"), y.dtype, units.y_mean, units.y_scale)
        rows = standardized(self.kind, Column("y"), y, units.y_mean, np.ones(()))
        return prepared_rows(rows, units, known=known)

    def _row_weights(self, weights: Any, units: Standardization) -> np.ndarray:
        weights = self._checked("weights", weights)
        check_range(self.kind, "weights", weights)
        return weights.astype(jax.dtypes.canonicalize_dtype(np.float64))

    def _check_columns(self, shape: tuple[int, ...], units: Standardization) -> None:
        if shape[1:] != units.x_mean.shape:
            refuse_row_shape(self.kind, "x", shape, units.x_mean.shape)

    def __call__(
        self, x: PyTree, y: Values | None = None, weights: Values | None = None
    ) -> jax.Array:
        if self.standardization is None:
            self.learn(x, y, weights)
        units: Any = self.standardization
        if units is None and not isinstance(x, Prepared):
            raise ValueError(
                f"{self.kind}: the model has not seen its training data. Fit it first (`MCMC.run`, "
                f"`optimize`), or pass them to `{self.kind}(module, prior, x, y)`."
            )
        # A target that is not standardised, or is to be drawn, is in the user's units.
        is_prepared = isinstance(x if y is None else y, Prepared)
        shift = 0.0 if is_prepared else self._shift_on_device(units)
        # A trace over data that were standardised before depends on no value of `units`, see `Prepared`.
        y_scale = number_or_array(x.y_scale if isinstance(x, Prepared) else units.y_scale)
        known = None
        if isinstance(y, Prepared):
            y, known = y.rows, y.known
        elif is_given(y):
            y, known = self._known_targets(y)
        by_row = {"weights": weights, "obs_mask": known}
        prior = as_prior(self.prior)
        if scales := getattr(x, "prior_scales", ()):
            prior = prior.with_shared_scales(map(number_or_array, scales))
        return self._sites(self._rows(x, units), y, prior, (shift, y_scale), by_row)

    def _sampled(self, rows: Any, y: Any, prior: Prior, units: Any, by_row: dict[str, Any]) -> Any:
        """Sample the sites of the model, in standardised units."""
        columns = jnp.shape(rows)[1:]
        example = np.zeros((1, *columns), jax.dtypes.canonicalize_dtype(float))
        network = self._found(
            "network",
            columns,
            lambda: network_of(self.module, None, None, (example,), {}).over_rows(),
        )
        net = sampled("net", network, prior, (example,), {})
        return self._observe(net, rows, y, units, by_row)

    def output_shape(self, net: Callable, columns: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what the network gives for two rows."""
        example = np.zeros((2, *columns), jax.dtypes.canonicalize_dtype(float))
        return self._found("output", columns, lambda: jax.eval_shape(net, example).shape)

    def _found(self, what: str, columns: tuple[int, ...], find: Callable[[], Any]) -> Any:
        """What tracing the module finds out, once a fit; anew each time if the module can change."""
        key = (what, columns, jax.config.jax_enable_x64)
        if self.traced_as is None:
            return find()
        # Another thread that begins the same fit has a new dict.
        shapes = self._shapes
        if key not in shapes:
            shapes[key] = find()
        return shapes[key]

    def _rows(self, x: Any, units: Standardization) -> Any:
        """Standardised inputs, whether given standardised, as values, or traced."""
        if is_given(x):
            x = self._inputs(x, units)
        if isinstance(x, Prepared):
            # Checked when prepared. Nothing here may depend on `units`, see `Prepared`.
            return x.rows
        self._check_columns(jnp.shape(x), units)
        kind = jax.dtypes.canonicalize_dtype(np.float64)
        check_resolution(self.kind, Column("x"), kind, units.x_mean, units.x_scale)
        return (x - units.x_mean.astype(kind)) / units.x_scale.astype(kind)

    def _shift_on_device(self, units: Standardization) -> float | np.ndarray:
        """The target's mean; refused where the device's float type cannot tell targets apart around it."""
        if self.kind == "regression":
            kind = jax.dtypes.canonicalize_dtype(np.float64)
            owner = f"{self.kind}, called without `numpyro_bnn.MCMC` or `predict`"
            check_resolution(owner, Column("y"), kind, units.y_mean, units.y_scale)
        return number_or_array(units.y_mean)


def regression(
    module: Module,
    prior: PriorLike,
    x: PyTree = None,
    y: Values | None = None,
    *,
    likelihood: Literal["gaussian", "heteroscedastic", "student_t"] = "gaussian",
    noise: Noise | None = None,
    df: float | dist.Distribution = 4.0,
    integrate_output: bool = False,
    correlation: float | None = None,
) -> ReadyModel:
    """A complete regression model ``model(x, y=None)`` with standardisation inside.

    :param module: a Flax or Equinox module with an output for every target (two for
        ``"heteroscedastic"``, which takes one target, as ``"student_t"`` does).
    :param prior: prior over its weights, for standardised inputs and target.
    :param x: training inputs (N, D), if they are to be fixed now; otherwise those of the first
        fit are.
    :param y: training targets (N,), or (N, K) for K targets, each standardised by itself; NaN where missing.
    :param likelihood: form of the noise.
    :param noise: noise scale in units of the target's standard deviation: a number, a prior
        (default HalfNormal(1)) or :class:`numpyro_bnn.likelihoods.families.Precision`. Of several targets
        each has its own, with this prior.
    :param df: degrees of freedom of ``"student_t"``.
    :param integrate_output: integrate the output layer out, see
        :class:`numpyro_bnn.integrate_output`.
    :param correlation: concentration of an LKJ prior on the correlations of the noise of several targets,
        see :func:`numpyro_bnn.likelihoods.gaussian`; None for independent noise.
    :return: a model whose target, predictions and log scores are in the units of `y`.
    :raises ValueError: for an unknown likelihood.
    """
    families = ("gaussian", "heteroscedastic", "student_t")
    if likelihood not in families:
        said = f"regression: likelihood must be one of {families}, got {likelihood!r}."
        raise ValueError(f"{said} Counts and others: `bnn.likelihoods`, in a model of your own.")
    if correlation is not None and likelihood != "gaussian":
        raise ValueError(
            f"regression: correlation={correlation!r} is of Gaussian noise, and likelihood={likelihood!r}. "
            "Leave one of them out."
        )
    noise = dist.HalfNormal(1.0) if noise is None else noise

    def observe(net: Callable, x: Any, y: Any, units: tuple[Any, Any], by_row: dict) -> Any:
        if y is not None:
            check_target(y)
        several = jnp.size(units[1]) if jnp.ndim(units[1]) else None
        if several and likelihood != "gaussian":
            raise ValueError(
                f"regression: likelihood={likelihood!r} takes one target, and y has {several} columns. Use "
                "'gaussian', with noise=bnn.likelihoods.Precision(case=4.) for t-distributed noise."
            )

        def outputs(rows: Any) -> jax.Array:
            f = net(rows)
            wanted = 2 if likelihood == "heteroscedastic" else several or 1
            if jnp.ndim(f) != 2 or jnp.shape(f)[-1] != wanted:
                units = f"{wanted} output unit(s)"
                raise ValueError(units_needed("regression", jnp.shape(f), rows, units))
            return f if wanted > 1 else f.squeeze(-1)

        if likelihood == "heteroscedastic":
            return heteroscedastic(outputs, y, x=x, units=units, **by_row)
        shared: dict[str, Any] = {"x": x, "noise": noise, "units": units, **by_row}
        if likelihood == "student_t":
            return student_t(outputs, y, df=df, **shared)
        if several:
            shared["noise"] = noise_for_each(noise, several)
        return gaussian(outputs, y, **shared, correlation=correlation)

    options = {
        "likelihood": likelihood,
        "noise": None if likelihood == "heteroscedastic" else noise,
        "df": df if likelihood == "student_t" else None,
        "integrate_output": integrate_output or None,
        "correlation": correlation,
    }
    given = {name: value for name, value in options.items() if value is not None}
    model = ReadyModel(module, prior, "regression", observe, given)
    model.learn(x, y)
    return model


def classification(
    module: Module, prior: PriorLike, x: PyTree = None, y: Values | None = None
) -> ReadyModel:
    """A complete classification model ``model(x, y=None)`` with standardised inputs.

    :param module: a Flax or Equinox module with one output a class, or a single one for two classes.
    :param prior: prior over its weights, for standardised inputs.
    :param x: training inputs (N, D), if they are to be fixed now; otherwise those of the first
        fit are.
    :param y: training classes (N,), integers from 0; NaN where the class of a row is missing.
    :return: a model of the class of each row.
    """

    def observe(net: Callable, x: Any, y: Any, _: tuple[float, Any], by_row: dict) -> Any:
        shape = model.output_shape(net, jnp.shape(x)[1:])
        if len(shape) != 2:
            raise ValueError(
                units_needed("classification", shape, np.zeros(2), "an output unit for each class")
            )
        if shape[-1] == 1:
            return bernoulli(lambda rows: net(rows).squeeze(-1), y, x=x, **by_row)
        return categorical(net, y, x=x, **by_row)

    model = ReadyModel(module, prior, "classification", observe)
    model.learn(x, y)
    return model


def _remade(
    kind: str, network: bytes, prior: PriorLike, options: Mapping[str, Any], units: Any
) -> ReadyModel:
    """A model from its pickled parts."""
    make = regression if kind == "regression" else classification
    model = make(pickle.loads(network), prior, **options)
    model.standardization = units
    return model
