"""Checks of predictions and targets, and the data plate around them; all likelihoods share these."""

from collections.abc import Callable
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.primitives import Messenger
from numpyro.util import not_jax_tracer

from numpyro_bnn._types import Array, PyTree, Values
from numpyro_bnn.data.arguments import check_labels
from numpyro_bnn.data.units import check_range
from numpyro_bnn.distributions.unwrap import of_known, unwrapped


def check_array(owner: str, label: str, values: Any) -> None:
    """Refuse everything but numeric arrays (lists, tables, …), and arrays without rows."""
    if tuple(getattr(values, "shape", ()))[:1] == (0,):
        raise ValueError(
            f"{owner}: {label} has shape {tuple(values.shape)} and no rows, expected at least one. "
            "Check what selected the rows."
        )
    is_bfloat = getattr(values, "dtype", None) == jnp.bfloat16
    if values is None or isinstance(values, jax.Array) or is_bfloat:
        return
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        dtype = f" of {values.dtype}" if isinstance(values, np.ndarray) else ""
        raise TypeError(
            f"{owner}: {label} is of type {type(values).__name__}{dtype}, expected an array of numbers. "
            f"Convert lists with `np.asarray({label})`, tables with `.to_numpy()`, and text to numbers."
        )


def check_finite(owner: str, label: str, values: PyTree) -> None:
    """Refuse NaN and infinite values in concrete data."""
    if values is None or not not_jax_tracer(values):
        return
    bad = ~np.isfinite(np.asarray(values))
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{owner}: {label} has {int(bad.sum())} NaN or infinite values, the first at index "
            f"{first}. Remove or impute those rows."
        )


def check_classes(site: str, distribution: dist.Distribution, values: Array) -> None:
    """Refuse observed values that cannot be classes of the distribution of their site."""
    base = unwrapped(distribution)
    two = isinstance(base, (dist.BernoulliProbs, dist.BernoulliLogits))
    if not two and not isinstance(base, (dist.CategoricalProbs, dist.CategoricalLogits)):
        return
    shape = jnp.shape(values)
    if not two and len(shape) > len(distribution.shape()) and shape[-1] == base.probs.shape[-1]:
        raise ValueError(
            f"The observed site '{site}' is Categorical, and its values have shape {shape}, which looks "
            "one-hot. Pass class numbers, for example `y.argmax(-1)`."
        )
    # The log density of a Bernoulli distribution is linear in its value, of any type; a categorical one uses
    # it as an index.
    count, kinds = (2, "biufV") if two else (base.probs.shape[-1], "iu")
    what = f"The observed site '{site}' ({'Bernoulli' if two else 'Categorical'})"
    check_labels(what, np.reshape(values, -1), count, kinds)


def check_dtype(site: str, distribution: dist.Distribution, values: Array) -> None:
    """Refuse an observed site with log densities in half precision, whose sum would be rounded."""
    # The value of a factor is an empty array.
    leaves = [leaf for leaf in (*jax.tree.leaves(distribution), values) if jnp.size(leaf)]
    kinds = [jnp.result_type(leaf) for leaf in leaves]
    floating = [kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)]
    kind = jnp.result_type(*floating) if floating else jnp.dtype(float)
    if jnp.finfo(kind).bits < 32:
        steps = 1000 * float(jnp.finfo(kind).eps)
        raise TypeError(
            f"The observed site '{site}' is computed in {kind}, in which a sum of log densities of 1000 "
            f"nats is known to {steps:.0f} nats. Convert what its distribution gets to float32, for example "
            "`net(x).astype(jnp.float32)`; inside the network any type will do."
        )


def check_shape(owner: str, f: Values, y: Values | None, trailing: tuple[int, ...] = ()) -> None:
    """Refuse predictions and targets that would broadcast against each other."""
    if y is None:
        return
    have, expected = jnp.shape(f), (*jnp.shape(y), *trailing)
    if have == expected:
        return
    raise ValueError(
        f"{owner}: f has shape {have} and y {jnp.shape(y)}; f must have shape {expected}, because "
        "anything else compares every prediction with every target or drops some. Drop an axis of one "
        "by `f.squeeze(-1)`, and give as many targets as inputs."
    )


class RowOptions(TypedDict, total=False):
    """Options that every likelihood takes; :func:`observe` describes them."""

    x: PyTree
    name: str
    plate: str


class WeightOptions(RowOptions, total=False):
    """Those of likelihoods whose rows may have weights."""

    weights: Values | None


class MaskOptions(WeightOptions, total=False):
    """Those of likelihoods whose targets may be missing."""

    obs_mask: Values | None


def observe(
    owner: str,
    f: Any,
    y: Values | None,
    likelihood: Callable[[jax.Array, jax.Array | None], dist.Distribution],
    event_dim: int,
    x: PyTree = None,
    name: str = "y",
    plate: str = "data",
    weights: Values | None = None,
    obs_mask: Values | None = None,
) -> jax.Array:
    """Sample a target inside its plate, from predictions or from a network and its inputs.

    :param x: inputs (N, …), or a dictionary of columns.
    :param name: site name of the target.
    :param plate: name of the data plate.
    :param weights: (N,), how often each row counts; None for once.
    :param obs_mask: (N,), which targets are known; others may hold anything. None where all are.
    """
    y = filled(owner, y, obs_mask)
    inputs, label = (f, "f") if x is None else (x, "x")
    if inputs is None:
        raise TypeError(f"{owner}: f is None, expected predictions, or the network with `x=`.")
    if x is not None and not callable(f):
        raise TypeError(f"{owner}: f holds predictions. Leave `x=` out, or give the network for f.")
    parts = {label: inputs}
    if isinstance(inputs, dict) and inputs:
        parts = {f"{label}[{key!r}]": values for key, values in inputs.items()}
    for what, values in (*parts.items(), ("y", y), ("weights", weights)):
        if what != "weights":
            check_array(owner, what, values)
            check_finite(owner, what, values)
        if isinstance(values, np.ndarray):
            check_range(owner, what, values)
    size = jnp.shape(next(iter(parts.values())) if y is None else y)[:1]
    for what, values in parts.items():
        if not size or jnp.shape(values)[:1] != size:
            targets = "" if y is None else f" and y {jnp.shape(y)}"
            raise ValueError(
                f"{owner}: {what} has shape {jnp.shape(values)}{targets}, expected (N, …) with a row for "
                "every target. Give as many targets as inputs."
            )
    check_weights(owner, weights, *size)
    with numpyro.plate(plate, *size), _Weighted(weights):
        given = y, x, None if y is None else obs_mask
        taken = jax.tree.map(lambda a: numpyro.subsample(a, event_dim=jnp.ndim(a) - 1), given)
        rows, own, known = taken
        predictions = numpyro.subsample(f, event_dim=event_dim) if x is None else f(own)
        distribution = likelihood(predictions, rows)
        if known is None:
            return numpyro.sample(name, distribution, obs=rows)
        return numpyro.sample(name, of_known(distribution, known), obs=rows, infer={"known": known})


def filled(owner: str, y: Any, obs_mask: Any) -> Any:
    """Targets with 0 where a mask says that they are missing."""
    if y is None or obs_mask is None:
        return y
    kind = getattr(obs_mask, "dtype", None)
    if kind is None or kind.kind != "b" or jnp.shape(obs_mask) != jnp.shape(y):
        raise ValueError(
            f"{owner}: obs_mask has shape {jnp.shape(obs_mask)} and dtype {kind}, expected booleans of the "
            f"shape of y, {jnp.shape(y)}. Say of each target whether it is known, `~np.isnan(y)`."
        )
    # In NumPy where values are known: they are checked afterwards.
    where: Any = np.where if not_jax_tracer(y) and not_jax_tracer(obs_mask) else jnp.where
    return where(obs_mask, y, np.zeros((), y.dtype))


def check_weights(owner: str, weights: Values | None, size: int) -> None:
    """Refuse weights of rows that are not one finite number of at least 0 a row."""
    if weights is None:
        return
    if jnp.shape(weights) != (size,):
        raise ValueError(
            f"{owner}: weights has shape {jnp.shape(weights)}, expected {(size,)}: a number for every row."
        )
    if not not_jax_tracer(weights):
        return
    values = np.asarray(weights)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size or not values.any():
        found = f"{values[bad[0]]} in row {bad[0]}" if bad.size else "zeros alone"
        raise ValueError(
            f"{owner}: weights must be finite numbers of at least 0, some of them positive, got {found}. "
            "A row of weight 2 counts as two equal rows, and one of weight 0 not at all."
        )


class _Weighted(Messenger):
    """Multiplies log densities in a plate by weights of its rows, (N,); NumPyro's `scale` refuses zeros."""

    def __init__(self, weights: Any) -> None:
        super().__init__()
        self.weights = weights

    def process_message(self, msg: dict[str, Any]) -> None:
        if self.weights is None or msg["type"] != "sample":
            return
        weights = numpyro.subsample(self.weights, event_dim=0)
        # What overflows in a row of weight 0 would leave NaN.
        msg["fn"] = msg["fn"].mask(weights > 0)
        msg["scale"] = weights if msg["scale"] is None else msg["scale"] * weights
