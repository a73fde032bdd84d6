"""Handlers of the networks inside a model: linearise them, or keep their outputs.

:func:`numpyro_bnn.random_module` sends a message for each network to the handlers around the model, which
may replace the function from weights and inputs to outputs.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike
from numpyro.primitives import Messenger

from numpyro_bnn.priors.paths import site_name


class linearize(Messenger):
    """Replace each network by its first-order expansion f(x, w*) + J(x) (w - w*) around weights `at`."""

    # Source: Immer, Korzepa and Bauer, *Improving predictions of Bayesian neural nets via
    # local linearization* (2021), eq. 9. Costs one forward-mode derivative a call.

    def __init__(
        self, fn: Callable | None = None, at: Mapping[str, ArrayLike] | None = None
    ) -> None:
        self.at = dict(at or {})
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace the call of a network by its expansion in the weights."""
        if msg["type"] == "network":
            msg["apply"] = partial(self._expanded, msg["name"], msg["apply"])

    def _expanded(
        self, name: str, apply: Callable, values: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        at = {
            path: jnp.asarray(self.at[site_name(name, path)])
            for path in values
            if site_name(name, path) in self.at
        }
        steps = {path: values[path] - at[path] for path in at}
        primal, tangent = jax.jvp(
            lambda some: apply(values | some, *args, **kwargs), (at,), (steps,)
        )
        return jax.tree.map(jnp.add, primal, tangent)


class outputs(Messenger):
    """Keep what each network returns when it is called: ``handler.seen[name]``."""

    def __init__(self, fn: Callable | None = None) -> None:
        self.seen: dict[str, Any] = {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Keep the outputs of a network in each call."""
        if msg["type"] == "network":
            msg["apply"] = partial(self._kept, msg["name"], msg["apply"])

    def _kept(self, name: str, apply: Callable, *args: Any, **kwargs: Any) -> Any:
        self.seen[name] = apply(*args, **kwargs)
        return self.seen[name]
