"""A model is the program that it lowers to.

JAX traces a function into a program and lowers it to text (StableHLO), which the compiler takes. All that
decides the numbers is in this text: code, constants of any size, arrays of an enclosing function, globals,
settings of a kernel. So two functions with equal texts share one executable (:class:`Program`): a model that
is built anew is traced again, which takes a second at most, and not compiled again. Ready models of equal
settings are not even traced again (:func:`form_of`). A stored run goes on with the text that began it
(:mod:`numpyro_bnn.storage.same_run`).

A function that JAX calls on the host is no part of the text. A program with such a call is never shared, and
its identity (:meth:`Program.text`) has the name of that function.
"""

import hashlib
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache
from numpyro import primitives

# Number of entries to keep: those of some ten models. The least recently used one is dropped first.
_MOST = 256
# Packages of models and priors, whose code does not change while Python runs.
_LIBRARIES = ("numpyro.", "numpyro_bnn.", "flax.")
# Large constants, written as hexadecimal digits.
_LARGE = re.compile(r'dense<"0x([0-9A-Fa-f]{64,})">')
# A call of a function on the host, in the text of a program and in its jaxpr.
_HOST_CALL, _HOST_FUNCTION = "callback", re.compile(r"callback_func=(.*?)(?: at 0x|, in_tree|\n)")
# Settings of JAX that another executable depends on, and that the text does not show.
_SETTINGS = ("jax_default_device", "jax_default_matmul_precision", "jax_enable_x64")
# For programs that run once: optimising them takes longer than they run.
_ONCE = {"xla_backend_optimization_level": 0}
# Letters of a line that a message shows.
_LETTERS = 120


class LastUsed(OrderedDict[Hashable, Future]):
    """The values of the keys that were used last; threads share it, and none makes what another is making."""

    lock = threading.Lock()

    def made(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, which `make` gives where it is not kept; `make` runs outside of the lock."""
        if key is None:
            return make()
        with self.lock:
            is_new = key not in self
            future = self.setdefault(key, Future())
            self.move_to_end(key)
            while len(self) > _MOST:
                self.popitem(last=False)
        if is_new:
            try:
                future.set_result(make())
            except BaseException as error:
                with self.lock:
                    self.pop(key, None)
                future.set_exception(error)
        return future.result()


# Executables, and what else tracing found out.
traced_once = LastUsed()


class Program:
    """``jax.jit(function)``, whose executables are shared with all programs of the same text.

    Those of equal `same_as` are known to have the same text for equal arguments: only the first is traced.
    With None among the entries of `same_as` nothing is known.
    """

    def __init__(
        self, function: Callable, runs_once: bool = False, same_as: tuple = (None,), **options: Any
    ) -> None:
        self._jitted = jax.jit(function, **options)
        # Handlers around this code change what is traced.
        self._same_as = None if None in same_as or primitives._PYRO_STACK else same_as
        self._compiler_options = _ONCE if runs_once else None
        self._options = (runs_once, *sorted(options.items()))
        self._executables: dict[Hashable, Callable] = {}
        self.calls_host = False  # Whether it was found to call functions on the host

    def __call__(self, *args: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return self._jitted(*args)
        call = self.bound(*args)
        # Also where the caller is being traced.
        with jax.ensure_compile_time_eval():
            return call()

    def bound(self, *args: Any) -> Callable[[], Any]:
        """A call of the executable, which another thread may make: it traces and compiles nothing."""
        # Results have strong types: with arrays of weak ones the first call would have a program of its own.
        args = jax.tree.map(strong, args)
        signature = _signature(args)
        if signature not in self._executables:
            known = self._same_as and (self._same_as, signature, self._options)
            make = partial(self._executable, args, signature)
            self._executables[signature] = traced_once.made(known, make)
        return partial(self._executables[signature], *args)

    def _executable(self, args: tuple, signature: Hashable) -> Callable:
        """The executable for arguments, or that of a program of the same text."""
        lowered = self._jitted.lower(*args)
        make = partial(lowered.compile, self._compiler_options)
        return traced_once.made(self._key(lowered, signature), make)

    def _key(self, lowered: jax.stages.Lowered, signature: Hashable) -> Hashable:
        """What is equal for programs that share an executable; None for a program that shares none."""
        text = lowered.as_text()
        self.calls_host = _HOST_CALL in text
        # In the second case constants are no part of the text.
        if self.calls_host or getattr(jax.config, "jax_use_simplified_jaxpr_constants", False):
            return None
        key = (_hashed(text), signature, lowered.out_tree, self._options)
        try:
            hash(key)
        except TypeError:  # a pytree with a part that has no hash
            return None
        return key

    def text(self, *args: Any) -> str:
        """The text that the function lowers to, with hashes in place of large constants."""
        traced = self._jitted.trace(*args)
        text = _LARGE.sub(lambda found: f"dense<#{_hashed(found[1])}>", traced.lower().as_text())
        if _HOST_CALL in text:
            text += "\n".join(["", *_HOST_FUNCTION.findall(str(traced.jaxpr))])
        return text


def form_of(value: Any) -> Hashable:
    """What is equal for objects that trace alike; None where that is not known."""
    # Scales of priors are data. Arrays may differ, and code of a user may read what has changed since.
    if value is None or isinstance(value, (str, int, float)):
        return type(value), value
    if hasattr(value, "traced_as"):
        return value.traced_as
    kind = type(value)
    if isinstance(value, (list, tuple, Mapping)):
        forms = kind, *map(form_of, value.items() if isinstance(value, Mapping) else value)
    elif _is_of_library(kind, _LIBRARIES) and hasattr(value, "__dict__"):
        left_out = {"parent", *vars(kind).get("_scales", ())}
        names = [n for n in getattr(kind, "__dataclass_fields__", vars(value)) if n not in left_out]
        forms = kind, *names, *(form_of(getattr(value, name)) for name in names)
    else:
        return value if _is_of_library(value) else None
    return None if None in forms else forms


def _is_of_library(value: Any, libraries: tuple[str, ...] = (*_LIBRARIES, "jax.")) -> bool:
    """Whether it is code of a library alone: what wraps code of a user may carry the name of a library."""
    if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
        return value.__globals__["__name__"].startswith(libraries)
    home, name = (getattr(value, part, None) or "" for part in ("__module__", "__name__"))
    return home.startswith(libraries) and getattr(sys.modules[home], name, None) is value


def strong(leaf: Any) -> Any:
    """An array whose type does not yield to those of others; Python's numbers stay as they are."""
    is_weak = isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)
    return jax.lax.convert_element_type(leaf, leaf.dtype) if is_weak else leaf


def _signature(args: tuple) -> Hashable:
    """Shapes, types and places of arguments, and the settings of JAX that an executable depends on."""
    leaves, form = jax.tree.flatten(args)
    kinds = [(jax.typeof(x), getattr(x, "committed", False) and x.sharding) for x in leaves]
    settings = [getattr(jax.config, name) for name in _SETTINGS]
    settings.append(jax.config.read("jax_disable_most_optimizations"))
    return form, tuple(kinds), tuple(settings)


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def first_differences(before: str, now: str, most: int = 2) -> str:
    """The first lines in which two texts differ, in words."""
    lines = (text.splitlines() for text in (before, now))
    pairs = [pair for pair in zip_longest(*lines, fillvalue="(no line)") if pair[0] != pair[1]]
    shown = [[line.strip()[:_LETTERS] for line in pair] for pair in pairs[:most]]
    return "; ".join(f"there `{there}`, here `{here}`" for there, here in shown)


# Programs that compile faster than this are not worth a file.
_LEAST_SECONDS = 0.1


def cache(folder: str | Path | None) -> Path | None:
    """Keep compiled programs in a folder, so that the next process need not compile them again.

    The setting holds for this process: call it before the first fit. A program is found again for the same
    versions of JAX and of this package, the same model and arrays of the same shapes. Tracing (a second or
    two) is done in any case. The folder is JAX's compilation cache and can be deleted at any time.

    :param folder: the folder, which is made where it is not there; None switches the cache off.
    :return: the folder, absolute.
    :raises FileExistsError: if there is a file of that name.

    >>> import numpyro_bnn as bnn
    >>> bnn.cache("~/.cache/numpyro_bnn")                                   # doctest: +SKIP
    """
    path = None if folder is None else Path(folder).expanduser().absolute()
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_dir", path and str(path))
    # JAX opens its cache once, at the first compilation.
    compilation_cache.reset_cache()
    return path
