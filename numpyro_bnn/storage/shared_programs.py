"""Compiled programs, shared by calls that would compile the same.

Compiling takes seconds, while a small network is sampled in one second. Two calls compile the same program
if everything that is traced is equal: the code and all values that it reaches, which
:mod:`numpyro_bnn.storage.run_identity` describes. So a program is kept under a hash of that description,
and a later call with an equal description uses it, also for another, equal model object. A program is never
shared if its code cannot be described, or if it is called under one of NumPyro's handlers, which would
change the trace.

Shapes are not part of the hash: ``jax.jit`` compiles for each shape. When it traces again for other shapes,
the objects of the first caller are described again, because they may have changed since.
"""

import functools
import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from numpyro import primitives

from numpyro_bnn.data.arguments import innermost
from numpyro_bnn.data.units import Prepared
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.storage.run_identity import describe_traced

# Number of programs to keep: those of some ten models. The least recently used one is dropped first.
_MOST = 128
# Stands for any array, whose shape and dtype ``jax.jit`` looks at itself.
_ARRAY = "array"
_programs: "OrderedDict[tuple, Callable]" = OrderedDict()
_lock = threading.Lock()


class _Changed(Exception):
    """An object in the description of a program has changed, so that the program is not traced again."""


class Traced:
    """What the trace of some programs depends on, beside the shapes of their arguments.

    :param model: the model, or None.
    :param static: description of its arguments, see
        :class:`~numpyro_bnn.potential.compiled_arguments.Arguments`. A ready model whose units come with
        them (:class:`~numpyro_bnn.data.units.Prepared`) is not told apart by its units.
    :param parts: everything else by name: kernels, functions, settings.
    """

    def __init__(self, model: Callable | None, static: tuple, **parts: object) -> None:
        arguments = Arguments.join([_ARRAY] * sum(static[1]), static)
        self._parts = {"model": model, "arguments": arguments, **parts}
        leaves = jax.tree.leaves(arguments, is_leaf=lambda leaf: isinstance(leaf, Prepared))
        prepared = any(isinstance(leaf, Prepared) for leaf in leaves)
        self._without_units = innermost(model) if prepared else None
        self.hash = self._described()

    def _described(self) -> str | None:
        """A hash of all that the trace depends on; None where something cannot be compared."""
        if _under_handlers():
            return None
        found = describe_traced(self._parts, self._without_units)
        if found.unknown:
            return None
        text = repr(sorted(found.facts.items()))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def check(self) -> None:
        """Describe the parts again.

        :raises _Changed: if they have changed.
        """
        if self._described() != self.hash:
            raise _Changed


def _under_handlers() -> bool:
    """Whether a handler of NumPyro, or an interceptor of Flax, is active around this call."""
    linen = sys.modules.get("flax.linen.module")
    interceptors = getattr(linen, "_global_interceptor_stack", ())
    return bool(primitives._PYRO_STACK) or bool(interceptors)


def compiled(function: Callable, traced: Traced, **options: Any) -> Callable:
    """``jax.jit(function)``, whose compiled program is shared with earlier and later equal calls.

    :param function: a function of this package, or a method, that depends on nothing but its arguments and
        `traced`. It is kept, with all objects that it refers to: it must not refer to data.
    :param traced: what its trace depends on.
    :param options: options of ``jax.jit``.
    """
    own = jax.jit(function, **options)
    if traced.hash is None:
        return own
    key = (traced.hash, function.__module__, function.__qualname__, repr(sorted(options.items())))
    with _lock:
        if key not in _programs:
            _programs[key] = jax.jit(_checked(function, traced), **options)
            while len(_programs) > _MOST:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        shared = _programs[key]
    return _Shared(shared, own)


def _checked(function: Callable, traced: Traced) -> Callable:
    """`function`, which refuses to be traced after its description has changed."""

    @functools.wraps(function)
    def checked(*args: Any) -> Any:
        traced.check()
        return function(*args)

    return checked


class _Shared:
    """A shared program, with a program of the caller's own for when the shared one cannot be traced again."""

    def __init__(self, shared: Callable, own: Callable) -> None:
        self._program, self._own = shared, own

    def __call__(self, *args: Any) -> Any:
        try:
            return self._program(*args)
        except _Changed:
            self._program = self._own
            return self._own(*args)

    def __getattr__(self, name: str) -> Any:
        # Other attributes of a function from `jax.jit`, such as `lower`.
        return getattr(self._program, name)


def is_compiled(program: object) -> bool:
    """Whether a program that :func:`compiled` gave has been compiled, for arguments of some shapes."""
    size = getattr(program, "_cache_size", None)
    return size is not None and size() > 0


@contextmanager
def separate_programs() -> Iterator[None]:
    """Share no program with what runs outside of this context, before, during or after it."""
    with _lock:
        outside = OrderedDict(_programs)
        _programs.clear()
    try:
        yield
    finally:
        with _lock:
            _programs.clear()
            _programs.update(outside)
