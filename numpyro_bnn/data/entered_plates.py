"""Finds the plates around a ``numpyro.subsample``, whose message does not name them.

Data of two plates may have as many rows, and a minibatch of one must leave the other alone: shapes cannot
tell them apart. NumPyro writes the plates around a sample site into its message; this asks them in the same
way.
"""

from typing import Any

from numpyro import primitives
from numpyro.handlers import scope
from numpyro.primitives import Messenger


def axis_of_plate(plate: str, handler: Messenger) -> int | None:
    """The axis of a plate around the running code, counted from the right; None where it is not inside."""
    # `handler` is the one that asks while it processes a message; plates around it do not count.
    message: dict[str, Any] = {"type": "deterministic", "name": "", "cond_indep_stack": []}
    for inner in reversed(primitives._PYRO_STACK):
        if inner is handler:
            break
        # A `scope` renames the plates inside it.
        if isinstance(inner, (primitives.plate, scope)):
            inner.process_message(message)
    return {frame.name: frame.dim for frame in message["cond_indep_stack"]}.get(plate)
