"""Describes kernel, model, settings, data and libraries as plain text, to tell whether two runs are the same.

A checkpoint keeps the :class:`dict` that :func:`describe` makes, one line of text a fact, so that
a resumed run can say *which* fact differs. Two rules keep the text equal in every process:

- no address and no ``repr`` of an unknown object is ever part of it;
- a kernel or ready model is described by the arguments of its constructor, never by what it learned
  later; other objects by everything that a copy of them would keep.

Functions are described by their bytecode, defaults, closures and everything that their code reaches
(:mod:`numpyro_bnn.storage.reached_code`): globals, attributes of modules, functions and classes of the
user's own. Installed packages are described by their version.
"""

import collections
import functools
import hashlib
import platform
import types
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np

from numpyro_bnn._checks import is_typed_key
from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.storage.identity_parts import (
    constant_of_library,
    is_own_class,
    is_read_on_demand,
    left_out_of_state,
    members_of,
    own_attributes,
    state_of,
    traced_state_of,
    wrapped_parts,
)
from numpyro_bnn.storage.reached_code import home_of, reached_from, reads_outside

Facts = dict[str, str]
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (Mapping, list, tuple, set, frozenset, collections.deque)
# Bytes that are hashed at a time: memory-mapped data are never in memory as a whole.
_BLOCK = 2**26
# A longer collection of plain values gets one hash for all of them, and a longer text a hash of its own.
_MOST_ITEMS, _MOST_LETTERS = 100, 200


class Described(NamedTuple):
    """The description of some values.

    - **facts** - text by dotted path
    - **unknown** - the reason by path, for objects that cannot be compared, such as open files
    """

    facts: Facts
    unknown: dict[str, str]


def describe(name: str, value: object) -> Facts:
    """Facts about a value, by dotted path.

    :param name: path of the value itself.
    :param value: a kernel, model, setting or array.
    :return: text by path, equal in every process for the same value.
    """
    return describe_all({name: value}).facts


def describe_all(values: Mapping[str, object], leave_out: Collection[str] = ()) -> Described:
    """Facts about several values, which may share parts.

    :param values: values by path.
    :param leave_out: paths that are not described.
    """
    walk = _Walk(frozenset(leave_out))
    walk.visit(values)
    return Described(walk.facts, walk.unknown)


def describe_traced(values: Mapping[str, object], without_units: object = None) -> Described:
    """Facts about everything that the trace of a compiled program depends on.

    These are more than the facts by which two runs are compared: also the units that a ready model has
    learned, and every attribute of a kernel whose class is the user's own.

    :param values: models, kernels, functions and settings by name.
    :param without_units: a ready model whose trace does not depend on its units.
    """
    walk = _Walk(for_trace=True, without_units=without_units)
    walk.visit(values)
    return Described(walk.facts, walk.unknown)


class _Walk:
    """Visits values and their parts breadth first, so that a shared part is named by its shortest path."""

    def __init__(
        self,
        leave_out: frozenset[str] = frozenset(),
        inside_a_set: bool = False,
        for_trace: bool = False,
        without_units: Any = None,
    ) -> None:
        self.facts: Facts = {}
        self.unknown: dict[str, str] = {}
        self._leave_out = leave_out
        # Objects that contain each other in sets would be visited without end.
        self._inside_a_set = inside_a_set
        self._for_trace, self._without_units = for_trace, without_units
        # Objects seen, by id; kept alive so that no other object gets the same id.
        self._seen: dict[int, tuple[str, Any]] = {}

    def visit(self, values: Mapping[str, Any]) -> None:
        waiting = collections.deque(values.items())
        while waiting:
            name, value = waiting.popleft()
            if name not in self._leave_out:
                try:
                    parts = self._fact(name, value)
                except Exception as error:  # objects may raise anything when their parts are read
                    parts = self._unknown(name, _why(value, error))
                waiting.extend((f"{name}.{key}", parts[key]) for key in sorted(parts))

    def _fact(self, name: str, value: Any) -> Mapping[str, Any]:
        """Record the fact about a value itself, and return its parts, which are visited later."""
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self.facts[name] = _shortened(repr(value))
            return {}
        if id(value) in self._seen and not isinstance(value, tuple):
            self.facts[name] = f"as {self._seen[id(value)][0]}"
            return {}
        self._seen[id(value)] = (name, value)
        if isinstance(value, OnHost):
            if self._for_trace:
                return self._unknown(name, "is read from the host while a program runs")
            value = value.array
        if is_read_on_demand(value):
            if self._for_trace:
                return self._unknown(name, "reads its numbers from elsewhere")
            self.facts[name] = digest(value)
            return {}
        if isinstance(value, (np.ndarray, np.generic, jax.Array)):
            if isinstance(value, jax.core.Tracer):
                return self._unknown(name, "is a value of a trace that has ended")
            if value.dtype == object:
                return self._container(name, value.ravel().tolist())
            self.facts[name] = digest(value)
            return own_attributes(value)
        if isinstance(value, _CONTAINERS):
            return self._container(name, value)
        if isinstance(value, _PLAIN):
            # A class of one's own may hold more than the number or text.
            kind: Any = next(k for k in _PLAIN if isinstance(value, k))
            self.facts[name] = f"{type(value).__qualname__} {_shortened(repr(kind(value)))}"
            return own_attributes(value)
        self._version_of(value)
        return self._parts(name, value)

    def _unknown(self, name: str, why: str) -> dict[str, Any]:
        self.unknown[name] = why
        self.facts[name] = "not compared"
        return {}

    def _version_of(self, value: Any) -> None:
        """Record the version of the package that a value, or its class, belongs to."""
        owner = value.__name__ if isinstance(value, types.ModuleType) else None
        if owner is None:
            named = isinstance(value, (type, types.FunctionType))
            owner = (value if named else type(value)).__module__
        home = home_of(owner) if isinstance(owner, str) else None
        if home is not None and home not in ("python", *_LIBRARIES):
            self.facts[f"library.{home}"] = version(home)

    def _container(self, name: str, value: Any) -> Mapping[str, Any]:
        kind = type(value)
        text = f"{kind.__name__} of {len(value)}"
        parts: dict[str, Any] = {}
        if is_own_class(kind):
            parts = own_attributes(value)
        elif isinstance(value, collections.defaultdict):
            parts = {"default": value.default_factory}
        if isinstance(value, (set, frozenset)):
            if self._for_trace and not all(isinstance(item, _PLAIN) for item in value):
                return self._unknown(name, "is a set of objects")
            in_order = not self._inside_a_set or all(isinstance(item, _PLAIN) for item in value)
            self.facts[name] = f"{text} {_hash_of_set(value)}" if in_order else text
            return parts
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        items = dict(_labelled(pairs))
        if len(items) > _MOST_ITEMS and all(isinstance(item, _PLAIN) for item in items.values()):
            text, items = f"{text} {_hashed(repr(sorted(items.items())))}", {}
        self.facts[name] = text
        return parts | items

    def _parts(self, name: str, value: Any) -> Mapping[str, Any]:
        if isinstance(value, types.ModuleType):
            self.facts[name] = f"module {value.__name__}"
            known = vars(value) if home_of(value.__name__) is None else {}
            return {k: v for k, v in known.items() if not k.startswith("__")}
        if isinstance(value, functools.partial):
            return {"function": value.func, "args": value.args, "kwargs": value.keywords}
        if isinstance(value, types.MethodType):
            return {"method": value.__func__, "self": value.__self__}
        if isinstance(value, types.FunctionType):
            if self._for_trace and reads_outside(value):
                return self._unknown(
                    name, "reads files, the environment, the clock or random numbers"
                )
            text = f"{value.__module__}.{value.__qualname__} {_code_digest(value.__code__)}"
            self.facts[name] = text
            return reached_from(value)
        if isinstance(value, type):
            self.facts[name] = f"{value.__module__}.{value.__qualname__}"
            return members_of(value)
        if (constant := constant_of_library(value)) is not None:
            self.facts[name] = constant
            return {}
        return self._object(name, value)

    def _object(self, name: str, value: Any) -> Mapping[str, Any]:
        kind = type(value)
        if (inside := wrapped_parts(value)) is not None:
            self.facts[name] = f"{kind.__module__}.{kind.__qualname__}"
            return inside
        state = traced_state_of(value) if self._for_trace else state_of(value)
        if value is self._without_units:
            state = {k: v for k, v in state.items() if k != "standardization"}
        self.facts[name] = f"{kind.__module__}.{kind.__qualname__}"
        return state | left_out_of_state(value, state)


def _why(value: Any, error: Exception) -> str:
    return f"is a {type(value).__qualname__}, which has no value to compare ({error})"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:40]}… {_hashed(text)}"


def _hashed(text: str) -> str:
    return f"#{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _hash_of_all_facts(value: Any) -> str:
    """A value and all of its parts as one hash."""
    walk = _Walk(inside_a_set=True)
    walk.visit({"": value})
    return _hashed(repr(sorted(walk.facts.items())))


def _hash_of_set(values: Collection[Any]) -> str:
    """A hash of the members of a set that does not depend on their order, which differs by process."""
    return _hashed(repr(sorted(map(_hash_of_all_facts, values))))


def _labelled(pairs: Any) -> Iterator[tuple[str, Any]]:
    """Items of a mapping by a text for their key, which is equal in every process."""
    used: set[str] = set()
    for key, item in pairs:
        label = key if isinstance(key, str) else _label(key)
        # The number 1 and the text "1" are two different keys.
        label = label if label not in used else f"{type(key).__name__} {label}"
        while label in used:
            label += "'"
        used.add(label)
        yield label, item


def _label(key: Any) -> str:
    if isinstance(key, _PLAIN):
        return repr(key)
    if isinstance(key, tuple):
        return f"({', '.join(_label(part) for part in key)})"
    if isinstance(key, (type, types.FunctionType)):
        return f"{key.__module__}.{key.__qualname__}"
    return f"{type(key).__qualname__} {_hash_of_all_facts(key)}"


def _code_digest(code: types.CodeType) -> str:
    summary = hashlib.blake2b(digest_size=6)
    for part in _code_parts(code):
        summary.update(part)
    return summary.hexdigest()


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
    """Dtype, shape and a hash of the values of an array, which is read a block at a time."""
    if isinstance(array, jax.Array) and is_typed_key(array):
        return f"key {digest(jax.random.key_data(array))}"
    if not hasattr(array, "dtype") or isinstance(array, jax.Array):
        array = np.asarray(array)
    summary = hashlib.blake2b(digest_size=16)
    rows = max(1, _BLOCK // max(1, array[:1].nbytes)) if array.shape else 1
    for begin in range(0, array.shape[0] if array.shape else 1, rows):
        block = np.ascontiguousarray(array[begin : begin + rows] if array.shape else array)
        if block.dtype == object:
            raise TypeError(
                f"An array of Python objects, shape {array.shape}, has no data to compare a resumed "
                "run with. Convert it to numbers with `np.asarray(x, float)`."
            )
        summary.update(block.reshape(-1).view(np.uint8))
    return f"{array.dtype}{list(array.shape)} {summary.hexdigest()}"


_LIBRARIES = ("numpyro_bnn", "numpyro", "jax", "jaxlib", "flax", "optax", "numpy")


def environment() -> Facts:
    """Versions of libraries, device and precision: the last bit of a draw may depend on them."""
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


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Paths of the facts that differ, or that one of the two lacks."""
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def difference(before: Mapping[str, str], now: Mapping[str, str], most: int = 8) -> str:
    """The facts that differ, in words; empty where none differs.

    :param before: facts of the stored run.
    :param now: facts of the run that would continue it.
    :param most: the largest number of facts to name.
    """
    names = differing(before, now)
    lines = [
        f"{n}: there {before.get(n, 'absent')}, here {now.get(n, 'absent')}" for n in names[:most]
    ]
    if len(names) > most:
        lines.append(f"and {len(names) - most} more")
    return "; ".join(lines)


def is_within(name: str, paths: Collection[str]) -> bool:
    """Whether a path is one of `paths`, or inside one of them."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)
