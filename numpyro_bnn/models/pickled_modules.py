"""Pickles modules whose fields hold functions that pickle refuses, such as ``activation=jnp.tanh``.

A compiled function has the name of the function inside it, and pickle refuses it because the two are not the
same object. Here it is kept by that name. A lambda that is the default of an argument, as in
``equinox.nn.MLP``, is kept as that default.
"""

import inspect
import io
import pickle
import sys
from types import FunctionType
from typing import Any


def by_name(module: str, name: str) -> Any:
    """An object by its module and name."""
    __import__(module)
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def name_of(value: object) -> tuple[str, str] | None:
    """Module and name of a function that JAX has compiled; None of anything else."""
    wrapped = getattr(value, "__wrapped__", None)
    module, name = (getattr(wrapped, key, None) for key in ("__module__", "__qualname__"))
    if module not in sys.modules or name is None or "<" in name:
        return None
    try:
        return (module, name) if by_name(module, name) is value else None
    except AttributeError:
        return None


def _default(module: str, owner: str, argument: str) -> Any:
    return inspect.signature(by_name(module, owner)).parameters[argument].default


def _where_default(value: FunctionType) -> tuple[str, str, str] | None:
    """Module, class and argument of which a function is the default; None where there is none."""
    for name, owner in vars(sys.modules.get(value.__module__)).items():
        if isinstance(owner, type) and owner.__module__ == value.__module__:
            for argument in inspect.signature(owner).parameters.values():
                if argument.default is value:
                    return value.__module__, name, argument.name
    return None


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
            default = _where_default(value)
            return NotImplemented if default is None else (_default, default)
        named = name_of(value)
        return NotImplemented if named is None else (by_name, named)


def dumped(module: object) -> bytes:
    """A module as bytes for ``pickle.loads``; its classes must be importable by name."""
    to = io.BytesIO()
    _Pickler(to).dump(module)
    return to.getvalue()
