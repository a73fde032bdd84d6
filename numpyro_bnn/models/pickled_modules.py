"""Pickles Flax modules whose fields hold compiled functions, such as ``activation=jnp.tanh``.

A function that JAX has compiled stands in its module under the name of the function inside it, and pickle
finds that the two are not the same. Here it is kept by that name.
"""

import io
import pickle
import sys
from typing import Any


def _by_name(module: str, name: str) -> Any:
    __import__(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        wrapped = getattr(value, "__wrapped__", None)
        module, name = (getattr(wrapped, key, None) for key in ("__module__", "__qualname__"))
        if module in sys.modules and name is not None and "<" not in name:
            try:
                if _by_name(module, name) is value:
                    return _by_name, (module, name)
            except AttributeError:
                pass
        return NotImplemented


def dumped(module: Any) -> bytes:
    """A module as bytes, which ``pickle.loads`` reads.

    :raises pickle.PicklingError: for modules of classes that cannot be imported by name.
    """
    to = io.BytesIO()
    _Pickler(to).dump(module)
    return to.getvalue()
