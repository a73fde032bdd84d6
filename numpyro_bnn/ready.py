"""Complete models: a network, a prior, a likelihood, and the data's units kept inside.

Inputs and a continuous target are standardised with the statistics of the training data,
and predictions come back in the user's units, so that log scores are per unit of y.
"""

import zlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.util import not_jax_tracer

from numpyro_bnn.families import bernoulli, categorical, gaussian, heteroscedastic, student_t
from numpyro_bnn.modules import random_module
from numpyro_bnn.observations import check_array, check_finite


class Standardization(NamedTuple):
    """Means and scales of the training data, in the user's units.

    - **x_mean**, **x_scale** - by column of the inputs; a constant column has scale 1
    - **y_mean**, **y_scale** - of the target; 0 and 1 for classes
    - **checksum** - of the data that they come from
    """

    x_mean: np.ndarray
    x_scale: np.ndarray
    y_mean: np.ndarray
    y_scale: np.ndarray
    checksum: np.ndarray


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = values.mean(0), values.std(0)
    return mean.astype(np.float32), np.where(scale == 0, 1, scale).astype(np.float32)


class ReadyModel:
    """A NumPyro model ``model(x, y=None)`` that remembers the units of its training data.

    - **standardization** - None until the model has seen its training data
    """

    def __init__(self, module: Any, prior: Any, kind: str, observe: Callable) -> None:
        self.module = module
        self.prior = prior
        self.kind = kind
        self.standardization: Standardization | None = None
        self._observe = observe

    def learn(self, x: Any, y: Any = None, **_: Any) -> bool:
        """Take the units of the training data; called when a fit begins.

        :param x: inputs (N, D).
        :param y: targets (N,).
        :return: whether the units are new.
        :raises ValueError: if the model was already fitted to other data, or for NaN.
        """
        if x is None or y is None or not (not_jax_tracer(x) and not_jax_tracer(y)):
            return False
        check_array(self.kind, "x", x)
        check_array(self.kind, "y", y)
        x, y = np.asarray(x), np.asarray(y)
        check_finite(self.kind, "x", x)
        check_finite(self.kind, "y", y)
        if x.ndim < 2:
            raise ValueError(
                f"{self.kind}: x has shape {x.shape}, expected (N, columns). For one input column "
                "use `x[:, None]`."
            )
        # In one precision, so that NumPy's and JAX's copies of the same data are the same.
        single = [values.astype(np.float32).tobytes() for values in (y, x)]
        checksum = np.asarray(zlib.crc32(single[1], zlib.crc32(single[0])), np.uint32)
        if self.standardization is not None:
            if checksum != self.standardization.checksum:
                raise ValueError(
                    f"{self.kind}: this model keeps the units of the data it was first fitted to, "
                    f"and these are others. Make a new one with `{self.kind}(module, prior, …)`."
                )
            return False
        continuous = self.kind == "regression"
        x_mean, x_scale = _moments(x)
        y_mean, y_scale = _moments(y) if continuous else (np.zeros((), "f"), np.ones((), "f"))
        self.standardization = Standardization(x_mean, x_scale, y_mean, y_scale, checksum)
        return True

    def forget(self) -> None:
        """Drop the units again; called when a fit was refused."""
        self.standardization = None

    def restore(self, units: dict[str, np.ndarray]) -> None:
        """Take the units that were saved with a posterior.

        :raises ValueError: if the model already keeps those of other data.
        """
        saved = Standardization(**units)
        if self.standardization is not None and saved.checksum != self.standardization.checksum:
            raise ValueError(
                f"{self.kind}: this model keeps the units of other data than the saved draws. "
                f"Make a new one with `{self.kind}(module, prior)`."
            )
        self.standardization = saved

    def __call__(self, x: Any, y: Any = None) -> Any:
        if self.standardization is None:
            self.learn(x, y)
        units = self.standardization
        if units is None:
            raise ValueError(
                f"{self.kind}: the model has not seen its training data. Fit it first (`MCMC.run`, "
                f"`optimize`), or pass them to `{self.kind}(module, prior, x, y)`."
            )
        check_array(self.kind, "x", x)
        if jnp.shape(x)[1:] != units.x_mean.shape:
            raise ValueError(
                f"{self.kind}: x has shape {jnp.shape(x)}, but the training data had rows of shape "
                f"{units.x_mean.shape}."
            )
        net = random_module("net", self.module, self.prior, jnp.zeros((1, *units.x_mean.shape)))
        return self._observe(net, x, y, units)


def regression(
    module: Any,
    prior: Any,
    x: Any = None,
    y: Any = None,
    *,
    likelihood: Literal["gaussian", "heteroscedastic", "student_t"] = "gaussian",
    noise: Any = None,
    df: float | dist.Distribution = 4.0,
    link: Literal["softplus", "exp"] = "softplus",
) -> ReadyModel:
    """A complete regression model ``model(x, y=None)`` with standardisation inside.

    :param module: a Flax module with one output (two for ``"heteroscedastic"``).
    :param prior: prior over its weights, for standardised inputs and target.
    :param x: training inputs (N, D), if they are to be fixed now; otherwise those of the first
        fit are.
    :param y: training targets (N,).
    :param likelihood: form of the noise.
    :param noise: noise scale in units of the target's standard deviation: a number, a prior
        (default HalfNormal(1)) or :class:`numpyro_bnn.likelihoods.Precision`.
    :param df: degrees of freedom of ``"student_t"``.
    :param link: from the second output to the scale, for ``"heteroscedastic"``.
    :return: a model whose target, predictions and log scores are in the units of `y`.
    :raises ValueError: for an unknown likelihood.
    """
    families = ("gaussian", "heteroscedastic", "student_t")
    if likelihood not in families:
        raise ValueError(f"regression: likelihood must be one of {families}, got {likelihood!r}.")
    noise = dist.HalfNormal(1.0) if noise is None else noise

    def observe(net: Callable, x: Any, y: Any, units: Standardization) -> Any:
        if y is not None and jnp.ndim(y) != 1:
            raise ValueError(
                f"regression: y has shape {jnp.shape(y)}, expected (N,). Use `y.squeeze(-1)`."
            )
        shift_and_scale = (units.y_mean, units.y_scale)

        def outputs(rows: Any) -> jax.Array:
            f = net((rows - units.x_mean) / units.x_scale)
            _check_units("regression", f, rows, 2 if likelihood == "heteroscedastic" else 1)
            return f if likelihood == "heteroscedastic" else f.squeeze(-1)

        if likelihood == "heteroscedastic":
            return heteroscedastic(outputs, y, x=x, link=link, units=shift_and_scale)
        if likelihood == "student_t":
            return student_t(outputs, y, x=x, noise=noise, df=df, units=shift_and_scale)
        return gaussian(outputs, y, x=x, noise=noise, units=shift_and_scale)

    model = ReadyModel(module, prior, "regression", observe)
    model.learn(x, y)
    return model


def classification(module: Any, prior: Any, x: Any = None, y: Any = None) -> ReadyModel:
    """A complete classification model ``model(x, y=None)`` with standardised inputs.

    :param module: a Flax module with one output a class, or a single one for two classes.
    :param prior: prior over its weights, for standardised inputs.
    :param x: training inputs (N, D), if they are to be fixed now; otherwise those of the first
        fit are.
    :param y: training classes (N,), integers from 0.
    :return: a model of the class of each row.
    """

    def observe(net: Callable, x: Any, y: Any, units: Standardization) -> Any:
        def outputs(rows: Any) -> jax.Array:
            return net((rows - units.x_mean) / units.x_scale)

        example = jnp.zeros((2, *units.x_mean.shape))
        shape = jax.eval_shape(outputs, example).shape
        if len(shape) != 2:
            raise ValueError(
                _needs("classification", shape, example, "an output unit for each class")
            )
        width = shape[-1]
        if width == 1:
            return bernoulli(lambda rows: outputs(rows).squeeze(-1), y, x=x)
        return categorical(outputs, y, x=x)

    model = ReadyModel(module, prior, "classification", observe)
    model.learn(x, y)
    return model


def _check_units(owner: str, f: jax.Array, rows: Any, wanted: int) -> None:
    if jnp.ndim(f) != 2 or jnp.shape(f)[-1] != wanted:
        raise ValueError(_needs(owner, jnp.shape(f), rows, f"{wanted} output unit(s)"))


def _needs(owner: str, shape: tuple[int, ...], rows: Any, wanted: str) -> str:
    hint = " Return a column, without `.squeeze(-1)`." if len(shape) < 2 else ""
    return (
        f"{owner}: the network gives shape {shape} for {jnp.shape(rows)[0]} rows; this likelihood "
        f"needs {wanted} a row, as (rows, units).{hint}"
    )
