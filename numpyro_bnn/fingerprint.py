"""What makes two runs the same run: kernel, model, settings, data and libraries, as plain text.

A checkpoint keeps the :class:`dict` that :func:`describe` makes, one line of text a fact, so that
a resumed run can say *which* fact differs. Two rules keep the text the same in every process:

- no address and no ``repr`` of an unknown object is ever part of it;
- of an object only what its constructor took is looked at, never what it learned later.

Functions are described by their bytecode, defaults, closures, the plain constants that they read
from their file, and the functions and classes of that file that they call.
"""

import dataclasses
import functools
import hashlib
import inspect
import platform
import types
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_bnn.host_rows import OnHost

Facts = dict[str, str]
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Bytes that are hashed at a time: memory-mapped data are never in memory as a whole.
_BLOCK = 2**26


def describe(name: str, value: Any) -> Facts:
    """Facts about a value, by dotted path.

    :param name: path of the value itself.
    :param value: a kernel, model, setting or array.
    :return: text by path, equal in every process for the same value.
    """
    return dict(_facts(name, value, {}))


def _facts(name: str, value: Any, seen: dict[int, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(value, _PLAIN):
        yield name, repr(value)
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        yield name, digest(value)
    elif isinstance(value, OnHost):
        yield name, digest(value.array)
    elif isinstance(value, (Mapping, list, tuple, set, frozenset)):
        yield from _items(name, value, seen)
    elif id(value) in seen:
        yield name, "as above"
    else:
        # Kept alive, so that no other object takes its place in memory.
        seen[id(value)] = value
        yield from _parts(name, value, seen)


def _items(name: str, value: Any, seen: dict[int, Any]) -> Iterator[tuple[str, str]]:
    yield name, f"{type(value).__name__} of {len(value)}"
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in sorted(((str(key), item) for key, item in pairs), key=lambda pair: pair[0]):
        yield from _facts(f"{name}.{key}", item, seen)


def _parts(name: str, value: Any, seen: dict[int, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "args": value.args, "kwargs": value.keywords}
    elif isinstance(value, types.MethodType):
        parts = {"method": value.__func__, "self": value.__self__}
    elif isinstance(value, types.FunctionType):
        yield name, f"{value.__module__}.{value.__qualname__} {_code_digest(value.__code__)}"
        parts = _reached_from(value)
    elif hasattr(value, "__wrapped__"):
        parts = {"wrapped": inspect.unwrap(value)}
    elif isinstance(value, type):
        yield name, f"{value.__module__}.{value.__qualname__}"
        parts = _methods(value)
    else:
        yield name, f"{type(value).__module__}.{type(value).__qualname__}"
        parts = _constructed_from(value) | {"class": type(value)}
        parts = parts if _is_own(type(value)) else {k: parts[k] for k in parts if k != "class"}
    for key in sorted(parts):
        yield from _facts(f"{name}.{key}", parts[key], seen)


def _is_own(kind: type) -> bool:
    """Whether a class may change while the versions of libraries do not."""
    home = kind.__module__.partition(".")[0]
    return home not in _LIBRARIES and home not in ("builtins", "functools")


def _methods(kind: type) -> dict[str, Any]:
    if not _is_own(kind):
        return {}
    found = {name: inspect.unwrap(v) for name, v in vars(kind).items() if callable(v)}
    return {name: v for name, v in found.items() if isinstance(v, types.FunctionType)}


def _constructed_from(value: Any) -> dict[str, Any]:
    """Attributes that are named as an argument of the constructor, underscored or not."""
    if dataclasses.is_dataclass(value):
        # Flax modules know their parent, which says nothing of them.
        names = [f.name for f in dataclasses.fields(value) if f.init and f.name != "parent"]
        return {name: getattr(value, name, None) for name in names}
    known = getattr(value, "__dict__", {})
    found = {}
    for kind in type(value).__mro__[:-1]:
        init = vars(kind).get("__init__")
        code = getattr(inspect.unwrap(init), "__code__", None) if init else None
        if code is None:
            continue
        for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]:
            for own in (name, f"_{name}"):
                if own in known:
                    found[name] = known[own]
    return found


def _reached_from(function: types.FunctionType) -> dict[str, Any]:
    """What a function reads beside its arguments."""
    code = function.__code__
    reached: dict[str, Any] = {}
    if function.__defaults__:
        reached["defaults"] = function.__defaults__
    if function.__kwdefaults__:
        reached["defaults by name"] = function.__kwdefaults__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            reached[name] = cell.cell_contents
        except ValueError:  # a name that is not bound yet
            continue
    if function.__module__.partition(".")[0] in _LIBRARIES:
        return reached
    for name in _names_read(code):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        local = getattr(value, "__module__", None) == function.__module__
        if isinstance(value, _PLAIN) or (local and isinstance(value, (types.FunctionType, type))):
            reached[name] = value
    return reached


def _names_read(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_read(constant)
    return names


def _code_digest(code: types.CodeType) -> str:
    made = hashlib.blake2b(digest_size=6)
    for part in _code_parts(code):
        made.update(part)
    return made.hexdigest()


def _code_parts(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


def digest(array: Any) -> str:
    """Kind, shape and a hash of the values of an array, read a block at a time."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return f"key {digest(jax.random.key_data(array))}"
    if not hasattr(array, "dtype") or isinstance(array, jax.Array):
        array = np.asarray(array)
    made = hashlib.blake2b(digest_size=16)
    rows = max(1, _BLOCK // max(1, array[:1].nbytes)) if array.shape else 1
    for begin in range(0, array.shape[0] if array.shape else 1, rows):
        block = np.ascontiguousarray(array[begin : begin + rows] if array.shape else array)
        if block.dtype == object:
            raise TypeError(
                f"An array of Python objects, shape {array.shape}, has no data to compare a resumed "
                "run with. Convert it to numbers with `np.asarray(x, float)`."
            )
        made.update(block.reshape(-1).view(np.uint8))
    return f"{array.dtype}{list(array.shape)} {made.hexdigest()}"


_LIBRARIES = ("numpyro_bnn", "numpyro", "jax", "jaxlib", "flax", "optax", "numpy")


def environment() -> Facts:
    """Libraries and hardware that the last bit of a draw may depend on."""
    found = {"library.python": ".".join(platform.python_version_tuple()[:2])}
    for name in _LIBRARIES:
        if name == "numpyro_bnn":
            from numpyro_bnn import __version__ as own

            found["library.numpyro_bnn"] = own
        else:
            found[f"library.{name}"] = version(name)
    found["device"] = jax.default_backend()
    found["x64"] = str(bool(jax.config.read("jax_enable_x64")))
    return found


def difference(before: Mapping[str, str], now: Mapping[str, str], most: int = 8) -> str:
    """The facts that differ, in words; empty where none does.

    :param before: of the run that was stored.
    :param now: of the run that would continue it.
    :param most: facts to name at most.
    """
    names = [n for n in {**before, **now} if before.get(n) != now.get(n)]
    lines = [
        f"{n}: there {before.get(n, 'absent')}, here {now.get(n, 'absent')}" for n in names[:most]
    ]
    if len(names) > most:
        lines.append(f"and {len(names) - most} more")
    return "; ".join(lines)
