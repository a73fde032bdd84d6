"""The coordinates of a hierarchical prior (centred, non-centred or collapsed), set from outside the model.

:class:`parameterize` is a handler around a model; :func:`to_own_coordinates` converts values of weights and
precisions to the coordinates in which the model samples them.

NumPyro's ``condition``, ``do``, ``scale`` and ``mask`` act on sample sites alone. Weights that are computed
from other sites (non-centred ones) or integrated out are not such sites, and would silently escape these
handlers: code that decides which sites to sample asks :func:`enclosing_handlers` first.
"""

from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any, Literal, NamedTuple

import jax
import numpyro
import numpyro.distributions as dist
from numpyro import primitives
from numpyro.handlers import condition, do, scale, scope, seed, substitute, trace
from numpyro.primitives import Messenger

from numpyro_bnn._text import call_of

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
    return EnclosingHandlers(
        bool(message["is_observed"]), message["scale"] is not None or is_masked
    )
