"""The parts of an object by name, by which it can be compared with one in another process.

- a class of the user's own: its members and bases;
- a kernel or ready model: the arguments of its constructor, and never what it learned later;
- anything else: the values from which :mod:`copy` would make another one.
"""

import contextlib
import copyreg
import dataclasses
import enum
import functools
import inspect
import logging
import sys
import types
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpyro.infer import MCMC as NumPyroMCMC
from numpyro.infer.mcmc import MCMCKernel
from numpyro.primitives import Messenger

from numpyro_bnn.storage.reached_code import home_of, is_library_function, stores

# Members of classes that Python makes, or that do not affect what the class does.
_IGNORED_MEMBERS = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__"}
_IGNORED_MEMBERS |= {
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
}
_IGNORED_MEMBERS |= {"__firstlineno__", "__static_attributes__", "__match_args__", "__parameters__"}
_IGNORED_MEMBERS |= {"__orig_bases__", "__abstractmethods__", "_abc_impl", "__dataclass_params__"}
_IGNORED_MEMBERS |= {"__dataclass_fields__", "__hash__", "__classdictcell__", "__type_params__"}
# Packages whose arrays and tables are in memory.
_IN_MEMORY = ("python", "numpy", "jax", "jaxlib", "numpyro_bnn", "pandas", "polars")
# Types of attributes that are computed from others on first use.
_DERIVED = ("cached_property", "lazy_property")
_MAKERS = (copyreg.__newobj__, copyreg._reconstructor)  # type: ignore[attr-defined]


def members_of(kind: type) -> dict[str, object]:
    """Members and bases of a class by name; empty for a class of a library, whose version identifies it."""
    if not is_own_class(kind):
        return {}
    parts: dict[str, Any] = {
        f"base {base.__qualname__}": base for base in kind.__bases__ if base is not object
    }
    generated = "__dataclass_fields__" in vars(kind)
    for name, member in vars(kind).items():
        if isinstance(member, property):
            parts |= {f"{name}.{k}": f for k in ("fget", "fset") if (f := getattr(member, k))}
            continue
        if isinstance(member, (staticmethod, classmethod, functools.cached_property)):
            member = member.func if hasattr(member, "func") else member.__func__
        if callable(member):
            member = inspect.unwrap(member)
        if name in _IGNORED_MEMBERS or isinstance(member, types.MemberDescriptorType):
            continue
        if isinstance(member, types.GetSetDescriptorType) or member is kind:
            continue
        if not (generated and _is_generated(member)):
            parts[name] = member
    return parts


def is_own_class(kind: type) -> bool:
    """Whether a class may change although the versions of all libraries remain the same.

    True for the user's own classes, and for those that a library makes at run time, as `nn.scan` does.
    """
    home = home_of(kind.__module__)
    return home is None or (home != "python" and constant_of_library(kind) is None)


def own_attributes(value: object) -> dict[str, Any]:
    """Attributes and class of an object of the user's own class; empty for objects of libraries."""
    kind = type(value)
    if not is_own_class(kind):
        return {}
    slots = (name for base in kind.__mro__ for name in _slots_of(base) if hasattr(value, name))
    named = {name: getattr(value, name) for name in slots} | getattr(value, "__dict__", {})
    return _without_derived(kind, named) | {"class": kind}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))


def left_out_of_state(value: object, state: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an object of the user's own class that a copy of it would lack, and its class.

    What ``__getstate__`` or ``__reduce__`` leaves out is not stored with the object, but a model may read it.
    """
    kind = type(value)
    chooses = any(
        name in vars(base)
        for base in kind.__mro__
        if is_own_class(base)
        for name in ("__getstate__", "__reduce__", "__reduce_ex__")
    )
    if chooses or issubclass(kind, enum.Enum):
        return {k: v for k, v in own_attributes(value).items() if k not in state}
    return {"class": kind} if is_own_class(kind) else {}


def is_read_on_demand(value: object) -> bool:
    """Whether an object of a library is an array that is not in memory, such as one of zarr or h5py.

    A copy of it is the place that it is read from, which may hold other numbers by then.
    """
    module = type(value).__module__
    # Of a function of Cython the module of its type is no text.
    home = home_of(module) if isinstance(module, str) else None
    if home is None or home in _IN_MEMORY or isinstance(value, type):
        return False
    return all(hasattr(value, part) for part in ("shape", "dtype", "__getitem__"))


def _is_generated(member: Any) -> bool:
    """Whether a member is a method that `dataclass` generated from the fields, which are compared anyway."""
    code = getattr(member, "__code__", None)
    return code is not None and (code.co_filename == "<string>" or is_library_function(member))


def wrapped_parts(value: object) -> dict[str, object] | None:
    """The user's functions inside a wrapper of a library, such as `jax.jit`; None for other objects."""
    kind = type(value)
    if home_of(kind.__module__) is None or isinstance(value, Messenger) or not callable(value):
        return None
    inside = getattr(value, "__wrapped__", None)
    if inside is None:
        return None
    known = getattr(value, "__dict__", {}).items()
    more = {k: v for k, v in known if _is_own_function(v) and v is not inside}
    return {"wrapped": inside, **more}


def _is_own_function(value: object) -> bool:
    return isinstance(value, types.FunctionType) and not is_library_function(value)


def state_of(value: object) -> dict[str, object]:
    """The state of an object: values by attribute name.

    :raises Exception: of any kind, for objects that cannot be copied.
    """
    kind = type(value)
    if isinstance(value, (logging.Logger, logging.Handler)):
        raise TypeError("it is written to")
    if isinstance(value, NumPyroMCMC):
        return _constructed_from(value) | {"draws": value._states}
    homes = [home_of(base.__module__) for base in kind.__mro__]
    # Ready models learn the units of their data, and can forget them.
    ready = "numpyro_bnn" in homes and hasattr(kind, "forget")
    if ready or isinstance(value, MCMCKernel):
        return _constructed_from(value)
    if "flax" not in homes:
        return _reduced(value)
    if dataclasses.is_dataclass(value):
        # Linen modules refer to their parent, which is no part of them.
        fields = [f.name for f in dataclasses.fields(value) if f.init and f.name != "parent"]
        return {name: getattr(value, name, None) for name in fields}
    # Modules and variables of NNX, without the attributes in which Flax keeps the state of its traces.
    parts = _reduced(value)
    of_traces = ("_object__", "_pytree__", "_trace_state")
    return {name: part for name, part in parts.items() if not name.startswith(of_traces)}


def traced_state_of(value: object) -> dict[str, object]:
    """The state of an object on which the trace of a compiled program may depend.

    It is the state of :func:`state_of`, and besides that all attributes of a kernel or ready model of the
    user's own class, and the units that a ready model has learned.

    :raises Exception: of any kind, for objects that cannot be copied.
    """
    kind = type(value)
    learns = isinstance(value, MCMCKernel) or hasattr(kind, "forget")
    if learns and is_own_class(kind):
        return dict(vars(value))
    more = {n: getattr(value, n) for n in ("standardization",) if learns and hasattr(value, n)}
    return state_of(value) | more


def _constructed_from(value: object) -> dict[str, Any]:
    """Attributes that only constructors set, and attributes named after an argument of a constructor."""
    known = getattr(value, "__dict__", {})
    found: dict[str, Any] = {}
    at_first: set[str] = set()
    later: set[str] = set()
    for kind in type(value).__mro__[:-1]:
        for name, member in vars(kind).items():
            code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
            # Kernels over another model are copies, made by `wrap_model`.
            if code is None or name == "wrap_model":
                continue
            (at_first if name == "__init__" else later).update(stores(code))
            if name == "__init__":
                arguments = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
                pairs = ((a, own) for a in arguments for own in (a, f"_{a}") if own in known)
                found |= {argument: known[own] for argument, own in pairs}
    given = {own.lstrip("_"): known[own] for own in at_first - later if own in known}
    return given | found


def _reduced(value: object) -> dict[str, Any]:
    """The values from which ``copy`` would make another such object, by name."""
    # Python warns that iterators of `itertools` will not be copyable in future. All threads share the filters
    # of warnings, which are changed for such iterators alone.
    of_itertools = type(value).__module__ == "itertools"
    with warnings.catch_warnings(action="ignore") if of_itertools else contextlib.nullcontext():
        reduce = copyreg.dispatch_table.get(type(value), lambda value: value.__reduce_ex__(4))
        reduced = reduce(value)
    if isinstance(reduced, str):
        return {"name": reduced}
    make, arguments, state, items, pairs = (*reduced, *(None,) * 3)[:5]
    parts: dict[str, Any] = {}
    arguments = tuple(part for part in arguments if part is not type(value))
    if arguments:
        parts["made from"] = arguments
    if make not in _MAKERS:
        parts["made by"] = make
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        parts |= _without_derived(type(value), (state[0] or {}) | state[1])
    elif isinstance(state, dict):
        parts |= _without_derived(type(value), state)
    elif state is not None:
        parts["state"] = state
    if items is not None:
        parts["items"] = list(items)
    if pairs is not None:
        parts["pairs"] = dict(pairs)
    return parts


def _without_derived(kind: type, state: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes without cached properties, which are computed from the others."""

    def derived(name: str) -> bool:
        with contextlib.suppress(AttributeError):
            return type(inspect.getattr_static(kind, name)).__name__ in _DERIVED
        return False

    kept = {str(k): v for k, v in state.items() if not derived(str(k))}
    named = ("__doc__", "__name__", "__qualname__", "__module__", "__annotations__")
    return {name: part for name, part in kept.items() if name not in named}


def constant_of_library(value: object) -> str | None:
    """Dotted name of an object that a library defines at the top level, None for others.

    The version of the library identifies such an object.
    """
    module = getattr(value, "__module__", None)
    if module is None:
        module = getattr(getattr(value, "__objclass__", None), "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(value, np.ufunc):
        module = "numpy"
    if not isinstance(module, str) or not isinstance(name, str) or home_of(module) is None:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None
