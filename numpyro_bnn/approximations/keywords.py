"""Refuses keywords that neither the called function nor the model takes."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from numpyro_bnn.data.arguments import innermost


def check_keywords(
    owner: str, options: Iterable[str], model: Callable, given: Mapping[str, object]
) -> None:
    """Refuse keywords that the model does not take; a model with ``**kwargs`` takes any."""
    takes = _keywords_of(model)
    unknown = [] if takes is None else [name for name in given if name not in takes]
    if takes is None or not unknown:
        return
    options = [name for name in options if name not in takes]
    close = {name: get_close_matches(name, [*options, *takes], 1) for name in unknown}
    meant = ", ".join(f"{name} → {found[0]}" for name, found in close.items() if found)
    raise TypeError(
        f"{owner}: unknown keyword{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}. "
        f"{f'Did you mean {meant}? ' if meant else ''}"
        f"The options of {owner} are {', '.join(options)}; other keywords go to the model, which "
        f"takes {', '.join(takes) if takes else 'none'}."
    )


def keyword_options(function: Callable) -> list[str]:
    """The names that a function takes by keyword only."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _keywords_of(model: Callable) -> list[str] | None:
    """Arguments that a model takes by name; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(innermost(model)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
