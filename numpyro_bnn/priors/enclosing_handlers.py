"""What the handlers around a model will do to a site that it has not sampled yet.

NumPyro's ``condition``, ``do``, ``scale`` and ``mask`` act on sample sites alone. Weights that are computed
from other sites (non-centred ones) or integrated out are not such sites, and would silently escape these
handlers. Code that decides which sites to sample therefore asks here first.
"""

from types import NoneType
from typing import NamedTuple

import numpyro
import numpyro.distributions as dist
from numpyro import primitives
from numpyro.handlers import condition, do, scale, scope


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
