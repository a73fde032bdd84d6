"""The interface of a prior: a rule from the path and shape of a parameter to a distribution.

A *path* is the dotted name of a parameter inside its network (``"Dense_0.kernel"``). A prior
is called once for all parameters of a network (:meth:`Prior.sample`), so that a hierarchical
prior can share precisions between arrays; priors that treat each array by itself only define
``(path, shape) -> Distribution``.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, TypeAlias

import jax
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.primitives import apply_stack

from numpyro_bnn._text import ReprMixin
from numpyro_bnn.priors.paths import Shape, Shapes, site_name

Rule = Callable[[str, Shape], dist.Distribution]


def parameter(site: str, value: jax.Array) -> jax.Array:
    """``numpyro.deterministic`` for a parameter that is computed from other sites."""
    # Predictions take its value from the draws. Other deterministic sites may depend on the
    # inputs, and are computed again.
    message = {
        "type": "deterministic",
        "name": site,
        "value": value,
        "cond_indep_stack": [],
        "infer": {"parameter": True},
    }
    return apply_stack(message)["value"]


def is_parameter(site: Mapping[str, Any]) -> bool:
    """Whether a deterministic site of a trace was made by :func:`parameter`."""
    return bool(site.get("infer", {}).get("parameter"))


class Prior(ReprMixin):
    """A rule ``(path, shape) -> Distribution`` over the parameters of a network."""

    # Attributes that are scales of weights, or powers of such: data of the programs of ready models, so that
    # a search over them compiles once. Subclasses, whose code may need plain numbers, name their own.
    _scales: ClassVar[tuple[str, ...]] = ()

    @property
    def shared_scales(self) -> tuple[float, ...]:
        """The scales of the prior, of which the programs of ready models hold no values."""
        return tuple(getattr(self, name) for name in vars(type(self)).get("_scales", ()))

    def with_shared_scales(self, scales: Iterator[Any]) -> "Prior":
        """The prior with other scales, which may be traced, in the order of :attr:`shared_scales`."""
        other = copy.copy(self)
        vars(other).update(zip(vars(type(self)).get("_scales", ()), scales))
        return other

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        """The distribution of one parameter; its batch shape may broadcast to `shape`."""
        raise TypeError(
            f"{type(self).__name__} ties several sites together and has no single distribution "
            "for a path; use it inside `random_module`."
        )

    def sample(self, name: str, shapes: Shapes) -> dict[str, jax.Array]:
        """Draw every parameter inside a NumPyro model.

        :param name: name of the network; site names are ``"{name}/{path}"``.
        :param shapes: the parameters to draw.
        :return: a value for each path that the prior makes random (a path may be missing:
            that parameter is left deterministic).
        """
        return {
            path: numpyro.sample(
                site_name(name, path), fit_distribution(self(path, shape), path, shape)
            )
            for path, shape in shapes.items()
        }


class FromFunction(Prior):
    """A prior given as a plain function ``(path, shape) -> Distribution``.

    :param rule: the function, of a dotted parameter path and a shape.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __call__(self, path: str, shape: Shape) -> dist.Distribution:
        return self.rule(path, shape)


# What may be given for a prior; see :func:`as_prior`.
PriorLike: TypeAlias = Prior | dist.Distribution | Callable


def fit_distribution(distribution: Any, path: str, shape: Shape) -> dist.Distribution:
    """Expand a distribution over the reals to one parameter and make all its axes event axes."""
    support = distribution.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is not constraints.real:
        raise ValueError(
            f"The prior for '{path}' is {type(distribution).__name__} with support "
            f"{distribution.support}, but a weight of a network is any real number. Use a "
            "distribution over the reals and put the constraint into the module."
        )
    batch = shape[: len(shape) - distribution.event_dim]
    own = tuple(distribution.shape())
    fits = len(own) <= len(shape) and tuple(distribution.event_shape) == shape[len(batch) :]
    if fits:
        pairs = zip(distribution.batch_shape[::-1], batch[::-1])
        fits = all(a in (1, b) for a, b in pairs)
    if not fits:
        raise ValueError(
            f"The prior for '{path}' has shape {own}, which does not broadcast to the "
            f"parameter's shape {shape}. Return a scalar distribution or one of that shape."
        )
    if tuple(distribution.batch_shape) != batch:
        distribution = distribution.expand(batch)
    return distribution.to_event(len(batch)) if batch else distribution


def _of_each(distribution: dist.Distribution, path: str, shape: Shape) -> dist.Distribution:
    return distribution


def as_prior(prior: object) -> Prior:
    """A prior from a :class:`Prior`, a distribution or a function of path and shape."""
    if isinstance(prior, Prior):
        return prior
    if isinstance(prior, dist.Distribution):
        return FromFunction(partial(_of_each, prior))
    if callable(prior) and not isinstance(prior, type):
        return FromFunction(prior)
    raise TypeError(
        f"A prior is one of `bnn.priors`, a Distribution, or a function (path, shape) -> "
        f"Distribution; got {prior!r}. For a mapping of patterns use `bnn.priors.ByPath`."
    )
