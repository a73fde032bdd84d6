"""Gives each thread a stack of NumPyro's handlers of its own, so that models may run in several threads.

NumPyro 0.22 has one list for the whole process: a site of one thread lands in the trace of another. The list
is replaced in every module that has imported it, once, so that NumPyro's own samplers are safe as well.
"""

import sys
import threading
from collections import UserList
from typing import Any

import numpyro


class HandlerStack(threading.local, UserList):
    """A list with other items in every thread; a new thread begins with none."""

    def __getitem__(self, index: Any) -> Any:
        # The slices of a `UserList` would be stacks too, which cost more.
        return self.data[index]


def separate_threads() -> None:
    """Put a :class:`HandlerStack` in the place of NumPyro's list; the handlers of this thread stay active."""
    shared = numpyro.primitives._PYRO_STACK
    if type(shared) is not list:
        return
    stack = HandlerStack()
    stack.extend(shared)
    for module in list(sys.modules.values()):
        if vars(module).get("_PYRO_STACK") is shared:
            vars(module)["_PYRO_STACK"] = stack
