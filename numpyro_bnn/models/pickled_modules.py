"""Pickles Flax modules whose fields hold compiled functions, such as ``activation=jnp.tanh``.

A function that JAX has compiled stands in its module under the name of the function inside it, and pickle
finds that the two are not the same. Here it is kept by that name.
"""

import io
import pickle
import sys
from typing import Any


def by_name(module: str, name: str) -> Any:
    """The object of a name inside a module."""
    __import__(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def name_of(value: Any) -> tuple[str, str] | None:
    """Module and name of a function that JAX has compiled; None of anything else."""
    wrapped = getattr(value, "__wrapped__", None)
    module, name = (getattr(wrapped, key, None) for key in ("__module__", "__qualname__"))
    if module not in sys.modules or name is None or "<" in name:
        return None
    try:
        return (module, name) if by_name(module, name) is value else None
    except AttributeError:
        return None


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        found = name_of(value)
        return NotImplemented if found is None else (by_name, found)


def dumped(module: Any) -> bytes:
    """A module as bytes, which ``pickle.loads`` reads.

    :raises pickle.PicklingError: for modules of classes that cannot be imported by name.
    """
    to = io.BytesIO()
    _Pickler(to).dump(module)
    return to.getvalue()
