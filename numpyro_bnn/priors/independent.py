"""Priors whose weights are independent: fixed, by fan-in, heavy-tailed, around trained values, by path."""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from numpyro_bnn._checks import check_positive, warn
from numpyro_bnn._text import call_of
from numpyro_bnn._types import PyTree
from numpyro_bnn.distributions import stable_densities
from numpyro_bnn.priors.base import Prior, as_prior
from numpyro_bnn.priors.paths import (
    CallOrder,
    NetworkShapes,
    Shape,
    Shapes,
    fan_in,
    flatten_params,
    layer_of,
    parameter_tree,
    source_axis,
)


class Normal(Prior):
    """Independent normal weights, w ~ Normal(0, scale²).

    :param scale: standard deviation.
    :raises ValueError: if `scale` is not positive.
    """

    _scales = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        check_positive("Normal", scale=scale)
        self.scale = scale

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        return dist.Normal(0.0, self.scale)


class FanIn(Prior):
    """Normal weights of variance ``variance / fan_in``: wide and narrow layers have outputs of equal size.

    :param variance: variance of the sum of `fan_in` inputs of size 1 (1 for tanh, 2 for relu).
    :param fan_in: function of path and shape; the default knows dense and convolution kernels,
        attention projections, embeddings and biases (see :func:`numpyro_bnn.priors.paths.fan_in`).
        A ``DenseGeneral`` with several output axes needs its own.
    :param scale: the former name of `variance`, which works for one more release with a warning: elsewhere a
        scale is a standard deviation.
    :raises ValueError: if `variance` is not positive.
    """

    _scales = ("variance",)

    def __init__(
        self,
        variance: float = 1.0,
        fan_in: Callable[[str, Shape], float] = fan_in,
        *,
        scale: float | None = None,
    ) -> None:
        if scale is not None:
            _warn_of_scale(f"FanIn: scale={scale}", f"variance={scale}")
            variance = scale
        check_positive("FanIn", variance=variance)
        self.variance = variance
        self.fan_in = fan_in

    def __repr__(self) -> str:
        return call_of("FanIn", {"variance": self.variance, "fan_in": self.fan_in})

    @property
    def scale(self) -> float:
        """The former name of `variance`."""
        _warn_of_scale("FanIn.scale", "variance")
        return self.variance

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        return dist.Normal(0.0, (self.variance / self.fan_in(path, shape)) ** 0.5)


def _warn_of_scale(former: str, name: str) -> None:
    """Warn that a variance, which was called a scale, has its own name now."""
    warn(
        f"{former} is a variance and now called so, since elsewhere a scale is a standard deviation: write "
        f"`{name}`. The former name will go with the next release.",
        DeprecationWarning,
    )


class StudentT(Prior):
    """Independent heavy-tailed weights, w = scale · t with `df` degrees of freedom.

    :param df: degrees of freedom; the variance is ``scale² df / (df - 2)`` above 2, else infinite.
    :param scale: scale, not standard deviation.
    :raises ValueError: if a number is not positive.
    """

    _scales = ("scale",)

    def __init__(self, df: float = 3.0, scale: float = 1.0) -> None:
        check_positive("StudentT", df=df, scale=scale)
        self.df = df
        self.scale = scale

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        return stable_densities.StudentT(self.df, 0.0, self.scale)


class Laplace(Prior):
    """Independent double-exponential weights, density exp(-|w| / scale) / (2 scale).

    :param scale: mean absolute value; the variance is 2 scale².
    :raises ValueError: if `scale` is not positive.
    """

    _scales = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        check_positive("Laplace", scale=scale)
        self.scale = scale

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        return dist.Laplace(0.0, self.scale)


class pretrained(Prior):
    """Normal weights around trained values, w ~ Normal(params[path], scale²).

    :param params: trained parameters (nested dicts or an ``nnx.State``).
    :param scale: standard deviation around them.
    :raises ValueError: if `scale` is not positive, or, in the model, if a value is missing or has
        another shape.
    """

    _scales = ("scale",)

    def __init__(self, params: PyTree, scale: float = 0.1) -> None:
        check_positive("pretrained", scale=scale)
        self.params = flatten_params(params)
        self.scale = scale

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        if path not in self.params:
            given = parameter_tree({p: jnp.shape(v) for p, v in self.params.items()})
            raise ValueError(
                f"pretrained: no trained value for '{path}' {shape}. Trained values are:\n{given}\n"
                "Combine with `ByPath` to give the remaining parameters another prior."
            )
        value = jnp.asarray(self.params[path])
        if value.shape != shape:
            raise ValueError(
                f"pretrained: the trained value for '{path}' has shape {value.shape}, the network "
                f"needs {shape}."
            )
        return dist.Normal(value, self.scale)


class ByPath(Prior):
    """Different priors for different parameters, by glob patterns over their paths.

    The first pattern that matches a path decides; ``"*"`` at the end catches the rest. ``None``
    leaves a parameter deterministic: its value comes from ``random_module(…, params=…)``.

    Flax numbers layers in the order in which they are made, and ``Dense_0`` may be the last that is called.
    ``"layer[0].kernel"`` means the layer that is called first, ``"layer[-1].*"`` the last;
    :func:`numpyro_bnn.describe` shows the order. Precisions by unit (``unit=``) that reach no layer that the
    data enter get a warning.

    :param rules: ordered mapping ``{pattern: prior or None}``; a prior may be anything that
        :func:`numpyro_bnn.random_module` takes.
    :raises ValueError: in the model, if a parameter matches no pattern, a pattern matches nothing or only
        what earlier ones took, or asks for a layer that is not called.

    >>> import numpyro_bnn as bnn
    >>> prior = bnn.priors.ByPath({"*.bias": bnn.priors.Normal(1.0), "*": bnn.priors.FanIn(2.0)})
    """

    def __init__(self, rules: Mapping[str, object]) -> None:
        self.rules = {
            pattern: None if prior is None else as_prior(prior) for pattern, prior in rules.items()
        }

    @property
    def shared_scales(self) -> tuple[float, ...]:
        """The scales of all its priors."""
        return tuple(scale for rule in self.rules.values() if rule for scale in rule.shared_scales)

    def with_shared_scales(self, scales: Iterator[Any]) -> "ByPath":
        """The prior with other scales."""
        other: Any = super().with_shared_scales(scales)
        rules = self.rules.items()
        other.rules = {path: rule and rule.with_shared_scales(scales) for path, rule in rules}
        return other

    def _match(self, path: str, shapes: Shapes) -> str:
        for pattern in self.rules:
            if matches(path, pattern, shapes):
                return pattern
        raise ValueError(
            f"ByPath: no pattern matches the parameter '{path}' {shapes[path]}. The patterns are "
            f"{list(self.rules)}; the parameters are:\n{parameter_tree(shapes)}\n"
            "Add a pattern for it, or '*' at the end for all the rest."
        )

    def _assign(self, shapes: Shapes) -> dict[str, Shapes]:
        taken: dict[str, Shapes] = {pattern: {} for pattern in self.rules}
        for path, shape in shapes.items():
            taken[self._match(path, shapes)][path] = shape
        for pattern, paths in taken.items():
            if paths:
                continue
            shadowed = [path for path in shapes if matches(path, pattern, shapes)]
            if shadowed:
                reason = f"matches only {shadowed}, all taken by patterns before it; move it up"
            else:
                reason = "matches no parameter; correct or drop it"
            raise ValueError(
                f"ByPath: the pattern '{pattern}' {reason}. The parameters are:\n"
                f"{parameter_tree(shapes)}"
            )
        return taken

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        for pattern in filter(_LAYER.fullmatch, self.rules):
            raise ValueError(
                f"ByPath: {pattern!r} goes by the order of calls, which a path alone does not tell. Use the "
                "prior in `random_module`."
            )
        prior = self.rules[self._match(path, {path: shape})]
        if prior is None:
            raise ValueError(f"ByPath: '{path}' is left deterministic and has no distribution.")
        return prior(path, shape)

    def sample(self, name: str, shapes: Shapes) -> dict[str, jax.Array]:
        """Sample each parameter by the prior of the first pattern that fits its path.

        :param name: name of the network, the first part of the names of sites.
        :param shapes: shape of each parameter, by path.
        :return: values of the random parameters, by path.
        """
        values: dict[str, jax.Array] = {}
        taken = self._assign(shapes)
        with_units = [p for p in taken if getattr(self.rules[p], "unit", None) is not None]
        by_unit = {pattern: taken[pattern] for pattern in with_units}
        warn_of_hidden_units(name, by_unit, shapes)
        for pattern, paths in taken.items():
            if (prior := self.rules[pattern]) is not None:
                values |= prior.sample(name, same_order(paths, shapes))
        return values


_LAYER = re.compile(r"layer\[(-?\d+)\]\.(.+)")
# Layers that were warned of: every trace of a model calls its prior again.
_WARNED: set[tuple[str, ...]] = set()


def matches(path: str, pattern: str, shapes: Shapes) -> bool:
    """Whether a path matches a glob pattern, or ``"layer[i]."`` and one over what follows the layer."""
    if (found := _LAYER.fullmatch(pattern)) is None:
        return fnmatchcase(path, pattern)
    layers = _order_of(shapes, pattern).layers
    number = int(found[1])
    if not -len(layers) <= number < len(layers):
        named = ", ".join(f"layer[{i}] is {layer!r}" for i, layer in enumerate(layers))
        raise ValueError(
            f"ByPath: the pattern {pattern!r} asks for a layer that is not there; the network calls "
            f"{len(layers)}: {named}. Count from 0, or from -1 at the end."
        )
    return layer_of(path) == layers[number] and fnmatchcase(path.rpartition(".")[2], found[2])


def same_order(paths: Shapes, shapes: Shapes) -> NetworkShapes:
    """Some of the parameters of a network, with the order of its calls."""
    return NetworkShapes(paths, shapes.find if isinstance(shapes, NetworkShapes) else None)


def warn_of_hidden_units(name: str, by_unit: Mapping[str, Shapes], shapes: Shapes) -> None:
    """Warn if precisions by unit, which show relevant inputs, are on hidden layers only."""
    # Patterns by call order name a layer on purpose, so they do not warn.
    patterns = tuple(pattern for pattern in by_unit if _LAYER.fullmatch(pattern) is None)
    arrays = [pair for pattern in patterns for pair in by_unit[pattern].items()]
    reached = (path for path, shape in arrays if source_axis(path, shape) is not None)
    layers = tuple(dict.fromkeys(map(layer_of, reached)))
    if not layers or getattr(shapes, "find", None) is None or len(patterns) < len(by_unit):
        return
    order = _order_of(shapes, patterns[0])
    if order.from_data & set(layers) or (name, *layers) in _WARNED:
        return
    _WARNED.add((name, *layers))
    places = " and ".join(
        f"{layer!r} is layer[{order.layers.index(layer)}]" if layer in order.layers else repr(layer)
        for layer in layers
    )
    first = ", ".join(sorted(map(repr, order.from_data)))
    warn(
        f"ByPath: {', '.join(map(repr, patterns))} has a prior with precisions by unit (`unit=`), and the "
        f"data enter the network '{name}' elsewhere: in order of calls {places} of {len(order.layers)}, "
        f"and the data enter {first}. For the relevance of inputs write 'layer[0].kernel'; if hidden "
        "units are meant, name them so too, such as 'layer[-1].kernel'."
    )


def _order_of(shapes: Shapes, pattern: str) -> CallOrder:
    find = getattr(shapes, "find", None)
    if find is None:
        raise ValueError(
            f"ByPath: the pattern {pattern!r} goes by the order in which layers are called, which needs "
            "an example input. Give it after the prior: `random_module(name, module, prior, x[:1])`."
        )
    return find()
