"""Calls: options that functions share, methods that learn all or nothing, models that may raise."""

import functools
import inspect
import re
from collections.abc import Callable, Container
from typing import Any, Concatenate, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
# The description of a parameter in a docstring.
_DESCRIPTION = re.compile(r"^:param (\w+): .*(?:\n    .*)*", re.M)
_Function = TypeVar("_Function", bound=Callable)


def all_or_nothing(
    method: Callable[Concatenate[Any, _Given], _Made],
) -> Callable[Concatenate[Any, _Given], _Made]:
    """A method that changes its object only at its end: not at all if it raises or is interrupted."""

    @functools.wraps(method)
    def whole(self: Any, *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        fresh = object.__new__(type(self))
        fresh.__dict__ = dict(vars(self))
        result = method(fresh, *args, **kwargs)
        self.__dict__ = vars(fresh)
        return self if result is fresh else result

    return whole


def show_options(function: Any, source: Callable, names: Container[str]) -> None:
    """Show in the signature of a function which options of another it takes by ``**``, in their order."""
    own, taken = inspect.signature(function), inspect.signature(source).parameters
    first = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    shown = [p.replace(kind=p.KEYWORD_ONLY) for name, p in taken.items() if name in names]
    last = [p for p in own.parameters.values() if p.name == "kwargs"]
    function.__signature__ = own.replace(parameters=[*first, *shown, *last])


def with_descriptions(function: Any, source: Callable) -> str:
    """The docstring of a function, with parameters that it does not describe as another one does."""
    texts = [inspect.getdoc(described) or "" for described in (source, function)]
    known, own = ({found[1]: found[0] for found in _DESCRIPTION.finditer(text)} for text in texts)
    names = inspect.signature(function).parameters
    listed = "".join((known | own)[name] + "\n" for name in names if name in known | own)
    # They stand where the first of its own did.
    head, *_ = _DESCRIPTION.split(texts[1], maxsplit=1)
    end = _DESCRIPTION.sub("", texts[1][len(head) :]).strip()
    gap = "" if end.startswith(":") else "\n"
    return f"{head}{listed}{gap}{end}\n"


def options_of(source: Callable) -> Callable[[_Function], _Function]:
    """A decorator that shows and describes the options of another function, taken by ``**options``."""

    def shown(function: _Function) -> _Function:
        names = function.__annotations__["options"].__args__[0].__annotations__
        show_options(function, source, names)
        function.__doc__ = with_descriptions(function, source)
        return function

    return shown


def result_or_error(call: Callable[[], _Made]) -> _Made | Exception:
    """What a call of a user's model gives, or what it raises, which may be anything."""
    try:
        return call()
    except Exception as error:
        return error
