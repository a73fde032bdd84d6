"""Finds objects that a model changes when it is called, such as a counter: they are not compared on resuming.

Kernel, model and data are described before and after the model is traced for the first time. Whatever
differs between the two was changed by the model itself. In a resumed run such an object may have another
value although the draws are the same. So it is left out when the resumed run is compared with the stored
one, and a warning names it when the run begins.
"""

import warnings
from collections.abc import Collection, Mapping

from numpyro.util import find_stack_level

from numpyro_bnn.storage.run_identity import Described, Facts, describe_all, is_within

_MOST_NAMES = 8


class ChangesByModel:
    """A description of kernel, model and data before the model is traced; :meth:`after` finds changes.

    :param values: everything that decides the draws of a run, by the name that it has in messages.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = dict(values)
        self._before = describe_all(self.values).facts

    def after(self, left_out: Collection[str] = ()) -> Described:
        """Describe the values again, without what has changed; called once the model has been traced.

        :param left_out: paths that the stored run left out of the comparison already.
        :return: facts to compare, and the paths that are left out, with the reason.
        """
        changed: list[str] = []
        # An object that can be reached by two paths is described under the first, and the second refers
        # to it ("as …"). If the model changed the first path, the description moves to the second path
        # and looks new there: a second round, without the first path, tells whether the object differs.
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
        # A module that the model itself imports is not loaded before the trace.
        return [n for n in differ if n in before or ".import " not in n]

    def _is_alias(self, name: str, now: Facts) -> bool:
        return any(text.get(name, "").startswith("as ") for text in (self._before, now))


def _topmost(names: list[str]) -> list[str]:
    """Paths that are not inside another of these paths."""
    kept: list[str] = []
    for name in sorted(names, key=len):
        if not is_within(name, kept):
            kept.append(name)
    return kept


def warn_of_left_out(owner: str, left_out: Mapping[str, str]) -> None:
    """Warn of the objects in which a resumed run will not be compared with the stored one.

    :param owner: the caller, for the message.
    :param left_out: the reason by path; without any there is no warning.
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
