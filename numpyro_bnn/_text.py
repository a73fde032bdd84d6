"""Short texts of objects: what ``repr`` of kernels, priors, schedules and models is made of."""

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpyro.distributions import Distribution

# An array of more entries is shown by its shape.
_FEW = 4
# Characters of a line of a report, and of a name in a table.
_WIDTH, _NAME = 88, 34


def text_of(value: object) -> str:
    """A setting in one line: functions by their name, large arrays by their shape."""
    if isinstance(value, type) or inspect.isroutine(value):
        return str(value.__name__)
    if isinstance(value, functools.partial):
        return f"partial({text_of(value.func)})"
    if isinstance(value, Distribution):
        named = {name: getattr(value, name, None) for name in type(value).arg_constraints}
        return call_of(type(value).__name__, {k: v for k, v in named.items() if v is not None})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        inside = ", ".join(text_of(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        if int(np.prod(value.shape)) > _FEW or not isinstance(value, (np.ndarray, np.generic)):
            return f"array{tuple(value.shape)}"
        return " ".join(str(np.asarray(value).tolist()).split())
    if dataclasses.is_dataclass(value) and "\n" in repr(value):
        # Fields of a Flax module that its author declared.
        fields = (f.name for f in dataclasses.fields(value) if f.name not in ("parent", "name"))
        return call_of(type(value).__name__, {name: getattr(value, name) for name in fields})
    text = re.sub(r" at 0x\w+", "", repr(value))
    # The `repr` of an NNX module writes out all of its arrays.
    return f"{type(value).__name__}(…)" if "\n" in text else " ".join(text.split())


def call_of(name: str, settings: Mapping[str, object], first: Sequence[object] = ()) -> str:
    """``name(first, …, setting=value, …)``."""
    parts = [text_of(value) for value in first]
    parts += [f"{key}={text_of(value)}" for key, value in settings.items()]
    return f"{name}({', '.join(parts)})"


def constructor_of(value: object) -> str:
    """The call of its class that makes an object like this one."""
    # Arguments are read from attributes of the same name, with or without an underscore.
    first, settings = [], {}
    for name, parameter in inspect.signature(type(value)).parameters.items():
        attribute = name if hasattr(value, name) else f"_{name}"
        if not hasattr(value, attribute):
            continue
        given = getattr(value, attribute)
        if parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY:
            first.append(given)
        else:
            settings[name] = given
    return call_of(type(value).__name__, settings, first)


class ReprMixin:
    """An object whose ``repr`` is the call that makes one like it."""

    def __repr__(self) -> str:
        return constructor_of(self)


def wrapped(text: str, most: int) -> list[str]:
    """A text as lines of a report, at most so many."""
    # No line breaks before a per cent sign, nor within "p = 0.5" and "1 ± 2".
    joined = re.sub(" (?=[%=±])|(?<=[=±]) ", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(joined, _WIDTH, max_lines=most, placeholder=" …")
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def first_of(text: str) -> str:
    """The first sentence of a text."""
    first, dot, _ = text.partition(". ")
    return first + dot.rstrip()


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table as lines of text, its first column to the left."""
    filled = [(*map(str, row), *[""] * (len(head) - len(row))) for row in (head, *rows)]
    # Long names are cut at their beginning: the end of a site's name is more telling.
    cells = [(n if len(n) <= _NAME else "…" + n[1 - _NAME :], *rest) for n, *rest in filled]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [
        (row[0].ljust(widths[0]) + "".join(f"{c:>{w + 2}}" for c, w in zip(row[1:], widths[1:])))
        for row in cells
    ]
    return [lines[0].rstrip(), "─" * len(lines[0]), *(line.rstrip() for line in lines[1:])]
