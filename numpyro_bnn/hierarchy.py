"""Hierarchical Gamma precisions over groups of weights.

One precision τ per group, and weights that are Gaussian given it:

    τ ~ Gamma(concentration, rate),    w | τ ~ Normal(0, τ^(-1/2)),

so that τ | w ~ Gamma(concentration + n/2, rate + ‖w‖²/2) for the n weights of the group. The
same posterior can be sampled in several coordinates; :func:`parameterize` chooses them from
outside the model. Every precision is a site of its own under each of them.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger, apply_stack

from numpyro_bnn.rules import Prior, Shapes, site_name

Parameterization = Literal["noncentered", "centered"]
PARAMETERIZATIONS = ("noncentered", "centered")


class Group(NamedTuple):
    """What a precision site is the precision of; kept in its ``infer`` dict.

    - **site** - name of the precision site, as the model calls it: a ``scope`` around the model
      prefixes names, and :func:`groups_of` gives the members the same prefix
    - **members** - names of the weight sites that share the precision
    - **size** - number of weights in all members
    - **concentration**, **rate** - of the Gamma prior
    """

    site: str
    members: tuple[str, ...]
    size: int
    concentration: float
    rate: float

    def conditional(self, weights: dict[str, jax.Array]) -> dist.Gamma:
        """τ | w, conjugate: Gamma(concentration + n/2, rate + ‖w‖²/2)."""
        square = sum(jnp.sum(weights[site] ** 2) for site in self.members)
        return dist.Gamma(self.concentration + self.size / 2, self.rate + square / 2)


class _Standardized(NamedTuple):
    """On a standardised site ``"{weight}.base"``: the weights are ``scale`` times its value."""

    scale: jax.Array


class Hierarchical(Prior):
    """A Gamma precision for every parameter array, and Gaussian weights given it.

    Sites: ``"{name}/{path}"`` for the weights and ``"{name}/{path}.precision"`` for the
    precision. In the non-centred coordinates the sampled site is ``"{name}/{path}.base"``,
    standard normal, and the weights are a deterministic site.

    :param concentration: shape of the Gamma prior of the precisions.
    :param rate: its rate, so that the prior mean of a precision is concentration / rate.
    :param parameterization: ``"noncentered"`` (default: no funnel where the data say little)
        or ``"centered"``; :func:`parameterize` overrides it.
    :raises ValueError: if a number is not positive and finite or the name is unknown.

    Source: the conjugate form of R. M. Neal, *Bayesian Learning for Neural Networks* (1996),
    §3.2, with one precision a group.
    """

    def __init__(
        self,
        concentration: float = 1.0,
        rate: float = 1.0,
        parameterization: Parameterization = "noncentered",
    ) -> None:
        for label, value in (("concentration", concentration), ("rate", rate)):
            if not isinstance(value, (int, float, np.number)):
                raise TypeError(f"Hierarchical: {label} must be a number, got {label}={value!r}.")
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(
                    f"Hierarchical: {label} must be positive and finite, got {label}={value}."
                )
        self.concentration = float(concentration)
        self.rate = float(rate)
        self.parameterization = _known(parameterization)

    def sample(self, name: str, shapes: Shapes) -> dict[str, jax.Array]:
        values = {}
        for path, shape in shapes.items():
            site = site_name(name, path)
            own = f"{site}.precision"
            group = Group(own, (site,), math.prod(shape), self.concentration, self.rate)
            precision = numpyro.sample(
                own,
                dist.Gamma(self.concentration, self.rate),
                infer={"hierarchy": group},
            )
            values[path] = _weights(site, shape, 1 / jnp.sqrt(precision), self.parameterization)
        return values


def _weights(
    site: str, shape: tuple[int, ...], scale: jax.Array, parameterization: str
) -> jax.Array:
    """Gaussian weights of a given scale, in the coordinates asked for."""
    message = apply_stack({"type": "parameterization", "value": parameterization})
    if message["value"] == "centered":
        return numpyro.sample(site, dist.Normal(0.0, scale).expand(shape).to_event(len(shape)))
    base = numpyro.sample(
        f"{site}.base",
        dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)),
        infer={"hierarchy": _Standardized(scale)},
    )
    return numpyro.deterministic(site, base * scale)


class parameterize(Messenger):
    """Handler that puts every hierarchical prior of a model into other coordinates.

    The posterior over weights and precisions is the same; only what the sampler moves changes.

    :param fn: the model.
    :param parameterization: ``"noncentered"`` or ``"centered"``.
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

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "parameterization":
            # The handler nearest to the model speaks first; the outermost has the last word.
            msg["value"] = self.parameterization


def _known(parameterization: str) -> str:
    if parameterization not in PARAMETERIZATIONS:
        raise ValueError(
            f"Unknown parameterization {parameterization!r}; choose one of {PARAMETERIZATIONS}."
        )
    return parameterization


def groups_of(model_trace: dict[str, Any]) -> dict[str, Group]:
    """The hierarchical precisions in a trace: site name to :class:`Group`."""
    groups = {}
    for name, site in model_trace.items():
        if site["type"] == "sample" and isinstance(site["infer"].get("hierarchy"), Group):
            group = site["infer"]["hierarchy"]
            prefix = name.removesuffix(group.site)
            members = tuple(prefix + member for member in group.members)
            groups[name] = group._replace(site=name, members=members)
    return groups


def standardized_sites(model_trace: dict[str, Any]) -> set[str]:
    """Names of the standard-normal sites that stand for weights in non-centred coordinates."""
    return {
        name
        for name, site in model_trace.items()
        if site["type"] == "sample" and isinstance(site["infer"].get("hierarchy"), _Standardized)
    }


def to_own_coordinates(
    model: Callable, args: Iterable, kwargs: dict[str, Any], centered: dict[str, jax.Array]
) -> dict[str, jax.Array]:
    """Translate values of weights and precisions into the latent sites of a model.

    :param model: the model, in whatever coordinates it has.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param centered: constrained values of the sites that the model has in centred coordinates.
    :return: constrained values of the model's own latent sites.
    """

    def value_of(site: dict[str, Any]) -> jax.Array | None:
        if site["type"] != "sample":
            return None
        standardized = site["infer"].get("hierarchy")
        if isinstance(standardized, _Standardized) and site["name"] not in centered:
            return centered[site["name"].removesuffix(".base")] / standardized.scale
        return centered.get(site["name"])

    # The seed only serves sites that no value is given for (discrete or local ones).
    own = trace(substitute(seed(model, 0), substitute_fn=value_of)).get_trace(*args, **kwargs)
    return {
        name: site["value"]
        for name, site in own.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
