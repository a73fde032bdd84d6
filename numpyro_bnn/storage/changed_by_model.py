"""What decides a run, looked at before and after its model is traced for the first time.

What differs between the two is the model's own doing: a counter, a cache, a log. A run that is
resumed would differ in it from the one that was broken off, though its draws are the same; such
things are named in a warning when the run begins, and left out of all comparisons.
"""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from numpyro.util import find_stack_level

from numpyro_bnn.storage.run_identity import Described, Facts, describe_all, is_within

_MOST_NAMES = 8


class Watched:
    """Values that decide a run; made before the model is traced.

    :param values: by the name that they have in messages.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)
        self._before = describe_all(self.values).facts

    def after(self, left_out: Collection[str] = ()) -> Described:
        """What there is to compare, once the model has been traced.

        :param left_out: paths that the run which is to be continued left out.
        :return: facts, and the paths that are left out, with the reason.
        """
        changed: list[str] = []
        # An object that is reached in two ways is described where it is met first, and named by that
        # path where it is met again. If the first way is what the model changed, the object moves
        # to the second: a second round, without the first way, tells whether it differs itself.
        for _ in range(2):
            found = describe_all(self.values, (*left_out, *changed))
            skipped = (*left_out, *changed)
            differ = [n for n in self._changed(found.facts) if not is_within(n, skipped)]
            real = [n for n in differ if not self._is_alias(n, found.facts)]
            changed += real if real and not changed else differ
            if not differ:
                break
        changed = _topmost(changed)
        found = describe_all(self.values, (*left_out, *changed))
        reasons = dict.fromkeys(changed, "changes when the model is called")
        return Described(found.facts, reasons | found.unknown)

    def _changed(self, now: Facts) -> list[str]:
        before = self._before
        differ = [n for n in {**before, **now} if before.get(n) != now.get(n)]
        # A module that the model itself imports is not there before.
        return [n for n in differ if n in before or ".import " not in n]

    def _is_alias(self, name: str, now: Facts) -> bool:
        return any(text.get(name, "").startswith("as ") for text in (self._before, now))


def _topmost(names: list[str]) -> list[str]:
    """Those that are no part of another."""
    kept: list[str] = []
    for name in sorted(names, key=len):
        if not is_within(name, kept):
            kept.append(name)
    return kept


def warn_of_left_out(owner: str, left_out: Mapping[str, str]) -> None:
    """Say what a resumed run will not be compared in.

    :param owner: the caller.
    :param left_out: paths and reasons.
    """
    if not left_out:
        return
    named = [f"{name} {why}" for name, why in left_out.items()]
    if len(named) > _MOST_NAMES:
        named = [*named[:_MOST_NAMES], f"and {len(named) - _MOST_NAMES} more"]
    warnings.warn(
        f"{owner}: a resumed run will not be compared in what follows: {'; '.join(named)}. If any of "
        "it decides the draws, pass it to the model as an argument instead.",
        stacklevel=find_stack_level(),
    )
