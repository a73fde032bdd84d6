"""What makes a run on disk this run: all that decides its draws, beside the key and the starts."""

from collections.abc import Collection
from typing import Any

from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.storage.changed_by_model import ChangesByModel
from numpyro_bnn.storage.run_identity import Described, describe_all, environment


class Identity:
    """Describes a run, of which the model must not have seen its data yet.

    :param settings: of the run, by name.
    :param parts: that may change while the model is looked at, by name: kernel and functions.
    """

    def __init__(self, settings: dict[str, Any], parts: dict[str, Any]) -> None:
        self._settings = settings
        self._watched = ChangesByModel(parts)

    def described(
        self, data: Any, fit: BoundModel | None, left_out: Collection[str] = ()
    ) -> Described:
        """All facts about the run.

        :param data: arguments of the model.
        :param fit: the model on them.
        :param left_out: paths that are no part of it.
        """
        sites = {} if fit is None else {n: str(s.shape) for n, s in fit.structure.sites.items()}
        given = describe_all(self._settings | {"sites": sites, "data": data}, left_out)
        found = self._watched.after(left_out)
        facts = given.facts | found.facts | environment()
        return Described(facts, given.unknown | found.unknown)
