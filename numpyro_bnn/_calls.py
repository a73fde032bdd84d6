"""Errors for calls whose arguments are missing, unknown or in another order: they show the right call."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def shows_call(call: str) -> Callable[[Callable[_Given, _Made]], Callable[_Given, _Made]]:
    """A decorator for public functions: an error for arguments that do not fit ends with the right call.

    :param call: the right call and what its arguments are, a sentence.
    """

    def decorate(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}: {error}. Write {call}") from None
            return function(*args, **kwargs)

        return checked

    return decorate
