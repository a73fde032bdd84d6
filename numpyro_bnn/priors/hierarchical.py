"""Hierarchical Gamma precisions over groups of weights, and the regularised horseshoe.

Weights are Gaussian (or t-distributed) given a precision, which has a Gamma prior:

    τ ~ Gamma(concentration, rate),    w | τ ~ Normal(0, τ^(-1/2)),

and in R. M. Neal's form up to three levels of them: one precision for a group of arrays, one for
each unit that weights come from, one for each weight. The same posterior can be sampled in several
coordinates (centred, non-centred or collapsed); :class:`parameterize`, a handler around the model, chooses
them. Every precision is a site of its own under each of them.

NumPyro's ``condition``, ``do``, ``scale`` and ``mask`` act on sample sites alone. Weights that are computed
from other sites (non-centred ones) or integrated out are not such sites, and would silently escape these
handlers: code that decides which sites to sample asks :func:`enclosing_handlers` first.
"""

import math
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import primitives
from numpyro.handlers import condition, do, scale, scope, seed, substitute, trace
from numpyro.primitives import Messenger, apply_stack

from numpyro_bnn._checks import check_positive
from numpyro_bnn._text import call_of
from numpyro_bnn.distributions.stable_densities import Gamma, StudentT
from numpyro_bnn.priors.base import Prior, parameter
from numpyro_bnn.priors.paths import Shape, Shapes, fan_in, site_name, summed_axes, unit_axes
from numpyro_bnn.priors.precision_conditionals import (
    UNITS,
    Array,
    Child,
    GammaScaleMixture,
    Level,
    drawn_back,
)

Parameterization = Literal["noncentered", "centered", "collapsed"]
PARAMETERIZATIONS = ("noncentered", "centered", "collapsed")


class Standardized(NamedTuple):
    """A note in the site ``"{site}.base"``: the parameter is ``scale`` times its value."""

    scale: jax.Array


class parameterize(Messenger):
    """Handler that puts every hierarchical prior of a model into other coordinates.

    The posterior over weights and precisions is the same; only the variables that are sampled change.

    :param fn: the model.
    :param parameterization: ``"noncentered"``, ``"centered"`` or ``"collapsed"``; see
        :class:`~numpyro_bnn.priors.hierarchical.Hierarchical`.
    :raises ValueError: for another name.

    >>> from functools import partial
    >>> import jax, numpyro_bnn as bnn
    >>> from numpyro.handlers import seed, trace
    >>> prior = bnn.priors.Hierarchical(1.0, 1.0)
    >>> model = partial(prior.sample, "net", {"kernel": (2, 3)})
    >>> list(trace(seed(bnn.parameterize(model, "centered"), 0)).get_trace())
    ['net/kernel.precision', 'net/kernel']
    """

    def __init__(self, fn: Callable | None = None, parameterization: str = "noncentered") -> None:
        self.parameterization = _known(parameterization)
        super().__init__(fn)

    def __repr__(self) -> str:
        return call_of("parameterize", {}, (self.fn, self.parameterization))

    def _model(self) -> Any:
        """The model without this handler and inner ones of this class, which this one overrides."""
        model = self.fn
        while isinstance(model, parameterize):
            model = model.fn
        return model

    # NumPyro's Gibbs requires the models of its blocks to be equal.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, parameterize):
            return NotImplemented
        same = self.parameterization == other.parameterization
        return self is other or (same and self.fn is not None and self._model() == other._model())

    def __hash__(self) -> int:
        return hash((self.parameterization, self._model()))

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the coordinates for a prior that asks for them."""
        if msg["type"] == "parameterization":
            # Inner handlers process a message first, so that the outermost one decides.
            msg["value"] = self.parameterization


def _known(parameterization: str) -> str:
    if parameterization not in PARAMETERIZATIONS:
        raise ValueError(
            f"Unknown parameterization {parameterization!r}; choose one of {PARAMETERIZATIONS}."
        )
    return parameterization


def to_own_coordinates(
    model: Callable, args: Iterable, kwargs: dict[str, object], centered: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Translate constrained values of the sites of centred coordinates into those of the model's own."""

    def value_of(site: dict[str, Any]) -> jax.Array | None:
        if site["type"] != "sample":
            return None
        standardized = site["infer"].get("hierarchy")
        if isinstance(standardized, Standardized) and site["name"] not in centered:
            return centered[site["name"].removesuffix(".base")] / standardized.scale
        return centered.get(site["name"])

    # The seed is used only for sites without a given value (discrete or local ones).
    own = trace(substitute(seed(model, 0), substitute_fn=value_of)).get_trace(*args, **kwargs)
    return {
        name: site["value"]
        for name, site in own.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


class EnclosingHandlers(NamedTuple):
    """What handlers around a model do to one of its sites."""

    is_given: bool  # Whether one gives the site its value (`condition`, `do`)
    is_altered: bool  # Whether one changes its log density (`scale`, or `mask` with an array)


def enclosing_handlers(site: str) -> EnclosingHandlers:
    """What the handlers around the calling code do to a sample site of this name."""
    # Handlers that hide sites (``block``) are ignored, so that a model has the same
    # coordinates when it is traced for its shapes alone.
    message = {
        "type": "sample",
        "name": site,
        "fn": dist.Normal(),
        "args": (),
        "kwargs": {},
        "value": None,
        "scale": None,
        "is_observed": False,
        "infer": {},
        "cond_indep_stack": [],
    }
    for handler in reversed(primitives._PYRO_STACK):
        if isinstance(handler, do):
            message["is_observed"] |= message["name"] in (handler.data or {})
        elif isinstance(handler, (condition, scale, scope)):
            handler.process_message(message)
    # NumPyro's `Predictive` masks every model with the constant False, and uses no density.
    is_masked = not isinstance(numpyro.get_mask(), (bool, NoneType))
    is_altered = message["scale"] is not None or is_masked
    return EnclosingHandlers(bool(message["is_observed"]), is_altered)


GroupRule = Literal["array", "layer"] | Callable[[str], str]


class Hierarchical(Prior):
    """Gamma precisions over groups of weights, and Gaussian or t-distributed weights given them.

    ``Hierarchical(concentration, rate)`` has one precision τ ~ Gamma(concentration, rate) a group;
    :meth:`width` is Neal's form with up to three levels.

    Sites: ``"{name}/{path}"`` for the weights, ``"{name}/{path}.precision"`` for the precision of a
    group of one array (``"{name}/{layer}.precision"``, ``"{name}/{label}.precision"`` for larger
    groups) and ``"{name}/{path}.unit_precision"`` for the precisions of source units. In the non-centred
    coordinates the sampled sites are ``"{name}/{path}.base"``, standard normal (or t), and
    ``"{name}/{path}.unit_precision.base"``, Gamma with mean 1; in the collapsed ones the lowest
    precisions above the weights are integrated out (they are sampled where a handler scales or masks the
    prior, or gives a value). Weights and precisions that are not sampled themselves are deterministic
    sites, so that they are always in the draws. What ``numpyro.handlers.condition`` gives a value is a sample
    site in all coordinates.

    :param concentration: shape of the Gamma prior of the precisions.
    :param rate: its rate, so that the prior mean of a precision is concentration / rate.
    :param parameterization: ``"noncentered"`` (default: no funnel where the data determine little),
        ``"centered"`` or ``"collapsed"``; :func:`parameterize` overrides it.
    :param groups: which arrays share a group precision: ``"array"`` (each its own), ``"layer"``
        (kernel and bias together) or a function from a path to the name of its group.
    :raises ValueError: if a number is not positive and finite or a name is unknown.

    Source: R. M. Neal, *Bayesian Learning for Neural Networks* (1996), §3.2 and appendix A; the
    scaling by fan-in is that of his Flexible Bayesian Modelling software.
    """

    _scales = ("rate",)

    def __init__(
        self,
        concentration: float = 1.0,
        rate: float = 1.0,
        parameterization: Parameterization = "noncentered",
        groups: GroupRule = "array",
    ) -> None:
        check_positive("Hierarchical", concentration=concentration, rate=rate)
        if not callable(groups) and groups not in ("array", "layer"):
            raise ValueError(
                f"Hierarchical: groups must be 'array', 'layer' or a function from a path to the name of "
                f"its group, got {groups!r}."
            )
        # Of the group precision, the top of the hierarchy; where that is known, None and one over it.
        self.concentration: float | None = float(concentration)
        self.rate = float(rate)
        self.unit: float | None = None
        self.weight: float | None = None
        self.scale_by_fan_in = False
        self.groups = groups
        self.parameterization = _known(parameterization)

    def __repr__(self) -> str:
        top = {"concentration": self.concentration, "rate": self.rate}
        if self.concentration is None:
            top = {"precision": 1 / self.rate}
        levels = {"unit": self.unit, "weight": self.weight}
        levels |= {"scale_by_fan_in": self.scale_by_fan_in or None}
        given = {name: value for name, value in levels.items() if value is not None}
        rest = {"parameterization": self.parameterization, "groups": self.groups}
        return call_of("Hierarchical", {**top, **given, **rest})

    @classmethod
    def width(
        cls,
        width: float,
        group: float | None = None,
        unit: float | None = None,
        weight: float | None = None,
        scale_by_fan_in: bool = False,
        parameterization: Parameterization = "noncentered",
        groups: GroupRule = "array",
    ) -> "Hierarchical":
        """Neal's form of the prior: a width, and a shape number for each level that is used.

            τ ~ Gamma(a₀/2, a₀ W²/2)            one for a group, group=a₀
            τ_i | τ ~ Gamma(a₁/2, a₁/(2τ))      one for a source unit, unit=a₁
            τ_ij | τ_i ~ Gamma(a₂/2, a₂/(2τ_i)) one for a weight, weight=a₂
            w_ij ~ Normal(0, 1/τ_ij)

        A level that is left out has the precision of the level above; without any level, weights are
        Normal(0, W²). The lower the shape number of a level, the more its precisions vary; 0.5 is vague.
        Source units are rows of a dense kernel and input channels of a convolution (automatic relevance
        determination of inputs); biases, scales and embeddings come from no unit and have no unit level.
        A layer that reads several axes has a unit for each entry, and precisions of their shape: (rows,
        columns) of ``DenseGeneral(axis=(-2, -1))``, (heads, features of a head) where attention joins its
        heads. A convolution in groups has precisions (groups, input channels of a group): (8, 1) where each
        of eight channels is a group. Positions of a convolution share the precisions of their channels.
        The weight level is integrated out always: w_ij = τ_i^(-1/2) t, with a₂ degrees of freedom.

        :param width: W, in units of the weights: τ^(-1/2) is about W a priori.
        :param group: shape number of the group level.
        :param unit: shape number of the level of source units.
        :param weight: shape number of the level of single weights: the degrees of freedom of their t.
        :param scale_by_fan_in: divide W² of kernels, so that wide layers get no larger sums: with n
            the fan-in and a = a₂ (a₁ where that is left out) by n where a is infinite, n a/(a - 2)
            above 2, n log n at 2 (n below 3 inputs), n^(2/a) below 2. In a group of arrays whose
            divisors differ, the group precision has width W, and each array its own multiple.
        :param parameterization: as in :class:`Hierarchical`.
        :param groups: as in :class:`Hierarchical`.
        :raises ValueError: if a number is not positive and finite or a name is unknown.

        >>> import numpyro_bnn as bnn
        >>> prior = bnn.priors.ByPath({
        ...     "*.bias": bnn.priors.Hierarchical.width(0.2, group=0.5),
        ...     "*": bnn.priors.Hierarchical.width(0.2, group=0.5, unit=1.0, scale_by_fan_in=True),
        ... })
        """
        given = {"group": group, "unit": unit, "weight": weight}
        given = {label: number for label, number in given.items() if number is not None}
        check_positive("Hierarchical.width", width=width, **given)
        prior = cls(1.0, 1.0, parameterization, groups)
        prior.concentration, prior.rate = None, width**2
        if group is not None:
            prior.concentration, prior.rate = group / 2, group * width**2 / 2
        prior.unit, prior.weight = (None if a is None else float(a) for a in (unit, weight))
        prior.scale_by_fan_in = bool(scale_by_fan_in)
        return prior

    def sample(self, name: str, shapes: Shapes) -> dict[str, jax.Array]:
        """Sample all parameters of a network, and the precisions above them.

        :param name: name of the network, the first part of the names of sites.
        :param shapes: shape of each parameter, by path.
        :return: values by path.
        """
        message = apply_stack({"type": "parameterization", "value": self.parameterization})
        labels: dict[str, list[str]] = {}
        for path in shapes:
            labels.setdefault(self._label(path), []).append(path)
        values: dict[str, jax.Array] = {}
        for label, paths in labels.items():
            group = {path: shapes[path] for path in paths}
            values |= self._sample_group(name, site_name(name, label), group, message["value"])
        return {path: values[site_name(name, path)] for path in shapes}

    def _sample_group(
        self, name: str, label: str, shapes: Shapes, parameterization: str
    ) -> dict[str, jax.Array]:
        """Sample the arrays that share a group precision, and all precisions above them."""
        divisors = [self.divisor(path, shape) for path, shape in shapes.items()]
        common = divisors[0] if len(set(divisors)) == 1 else 1.0
        direct: list[Array] = []
        by_unit: list[tuple[Array, float]] = []
        sizes: dict[str, Shape] = {}
        for (path, shape), divisor in zip(shapes.items(), divisors):
            site, factor = site_name(name, path), divisor / common
            units = () if self.unit is None else unit_axes(path, shape)
            sizes[site] = shape
            if self.unit is None or not units:
                direct.append(Array(site, (), factor, self.weight))
            else:
                by_unit.append((Array(site, units, factor, self.weight), self.unit / 2))
        values: dict[str, jax.Array] = {}
        precision, parent = common / self.rate, None
        if self.concentration is not None:
            parent = f"{label}.precision"
            children = tuple(Child(_units_of(array), k) for array, k in by_unit)
            top = parent, self.concentration, self.rate
            level = Level(*top, None, tuple(direct), children, divisor=common)
            values, precision = _sample_level(level, sizes, None, parameterization)
        else:
            for array in direct:
                values[array.site] = _weights(array, sizes[array.site], precision, "centered")
        for array, k in by_unit:
            # With a known group precision the unit precisions are the top level.
            rate = self.rate if parent is None else None
            level = Level(_units_of(array), k, rate, parent, (array,), divisor=common / k)
            values |= _sample_level(level, sizes, precision, parameterization)[0]
        return values

    def _label(self, path: str) -> str:
        if self.groups == "array":
            return path
        if self.groups == "layer":
            return path.rpartition(".")[0] or path
        assert callable(self.groups)
        return self.groups(path)

    def divisor(self, path: str, shape: Shape) -> float:
        """The number by which W² is divided for an array; see :meth:`width`."""
        if not self.scale_by_fan_in or not summed_axes(path, shape):
            return 1.0
        n = fan_in(path, shape)
        a = self.unit if self.weight is None else self.weight
        if a is None:
            return float(n)
        if a > 2:
            return n * a / (a - 2)
        if a == 2:
            return n * math.log(n) if n >= 3 else float(n)
        return float(n ** (2 / a))


def _units_of(array: Array) -> str:
    return f"{array.site}{UNITS}"


def _sample_level(
    level: Level, sizes: dict[str, Shape], above: Any, parameterization: str
) -> tuple[dict[str, jax.Array], Any]:
    """Sample the precisions of a level and the weights, by site, that they govern."""
    if (
        parameterization == "collapsed"
        and level.conjugate
        # The integral holds for the unaltered density only, without given values.
        and not any(any(enclosing_handlers(site)) for site in (level.site, *level.members))
    ):
        return _integrated(level, sizes, above)
    precision = _precisions(level, sizes, above, parameterization)
    return {
        array.site: _weights(array, sizes[array.site], precision, parameterization)
        for array in level.arrays
    }, precision


def _precisions(
    level: Level, sizes: dict[str, Shape], above: Any, parameterization: str
) -> jax.Array:
    k = level.concentration
    first = level.arrays[0] if level.arrays else None
    units = () if first is None else first.unit_shape(sizes[first.site])
    relative = level.parent is not None and parameterization == "noncentered"
    if relative and not any(enclosing_handlers(level.site)):
        base = numpyro.sample(
            f"{level.site}.base",
            Gamma(k, k).expand(units).to_event(len(units)),
            infer={"hierarchy": Standardized(above)},
        )
        return parameter(level.site, base * above)
    rate = level.rate if level.parent is None else k / above
    distribution = Gamma(k, rate).expand(units).to_event(len(units))
    return numpyro.sample(level.site, distribution, infer={"hierarchy": level})


def _integrated(
    level: Level, sizes: dict[str, Shape], above: Any
) -> tuple[dict[str, jax.Array], Any]:
    """Sample weights with their precision integrated out, and draw the precision back."""
    # With several arrays, each is sampled conditionally on those before it: p(w₁) p(w₂ | w₁) ….
    values: dict[str, Any] = {} if level.parent is None else {level.parent: above}
    weights = {}
    for i, array in enumerate(level.arrays):
        conditional = level._replace(arrays=level.arrays[:i]).conditional(values)
        distribution = GammaScaleMixture(
            conditional.concentration, conditional.rate, sizes[array.site], array
        )
        values[array.site] = weights[array.site] = numpyro.sample(array.site, distribution)
    drawn = drawn_back(level.site, level.conditional(values), list(weights.values()))
    return weights, parameter(level.site, drawn)


def _weights(array: Array, shape: Shape, precision: Any, parameterization: str) -> jax.Array:
    """Sample weights given their precisions, in some coordinates."""
    scale = 1 / jnp.sqrt(array.factor * array.spread(precision, len(shape)))

    def distribution(scale: Any) -> dist.Distribution:
        each = dist.Normal(0.0, scale) if array.df is None else StudentT(array.df, 0.0, scale)
        return each.expand(shape).to_event(len(shape))

    if parameterization != "noncentered" or any(enclosing_handlers(array.site)):
        return numpyro.sample(array.site, distribution(scale))
    infer = {"hierarchy": Standardized(scale)}
    base = numpyro.sample(f"{array.site}.base", distribution(1.0), infer=infer)
    return parameter(array.site, base * scale)


class Horseshoe(Prior):
    """Regularised horseshoe: most weights are near zero, and a few as large as the slab allows.

    For each array, with z standard normal and λ a local scale a weight,

        w = z τ λ̃,   λ̃² = c² λ² / (c² + τ² λ²),   λ ~ HalfCauchy(1),   τ ~ HalfCauchy(global_scale),
        c² ~ InverseGamma(slab_df / 2, slab_df slab_scale² / 2).

    Sites beside ``"{name}/{path}"``: ``.global_scale``, ``.local_scale``, ``.slab_variance`` and
    ``.base`` (z).

    :param global_scale: scale of τ.
    :param slab_scale: scale of the t distribution that large weights follow.
    :param slab_df: its degrees of freedom.
    :raises ValueError: if a number is not positive.

    Source: Piironen and Vehtari, *Sparsity information and regularization in the horseshoe and
    other shrinkage priors* (2017), eqs. (2.8) and (2.11).
    """

    _scales = ("global_scale", "slab_scale")

    def __init__(
        self, global_scale: float = 1.0, slab_scale: float = 2.0, slab_df: float = 4.0
    ) -> None:
        check_positive(
            "Horseshoe", global_scale=global_scale, slab_scale=slab_scale, slab_df=slab_df
        )
        self.global_scale = global_scale
        self.slab_scale = slab_scale
        self.slab_df = slab_df

    def sample(self, name: str, shapes: Shapes) -> dict[str, jax.Array]:
        """Sample all parameters of a network, and the scales above them.

        :param name: name of the network, the first part of the names of sites.
        :param shapes: shape of each parameter, by path.
        :return: values by path.
        """
        return {path: self._array(site_name(name, path), shape) for path, shape in shapes.items()}

    def _array(self, site: str, shape: Shape) -> jax.Array:
        def each(distribution: dist.Distribution) -> dist.Distribution:
            return distribution.expand(shape).to_event(len(shape))

        tau = numpyro.sample(f"{site}.global_scale", dist.HalfCauchy(self.global_scale))
        local = numpyro.sample(f"{site}.local_scale", each(dist.HalfCauchy(1.0)))
        half_df = self.slab_df / 2
        slab = numpyro.sample(
            f"{site}.slab_variance", dist.InverseGamma(half_df, half_df * self.slab_scale**2)
        )
        scale = tau * local * jnp.sqrt(slab / (slab + (tau * local) ** 2))
        if any(enclosing_handlers(site)):
            return numpyro.sample(site, each(dist.Normal(0.0, scale)))
        base = numpyro.sample(
            f"{site}.base", each(dist.Normal(0.0, 1.0)), infer={"hierarchy": Standardized(scale)}
        )
        return parameter(site, base * scale)
