"""Describes everything that decides the draws of a run, beside random key and starts, for its checkpoint."""

from collections.abc import Collection
from typing import Any

from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.storage.changed_by_model import ChangesByModel
from numpyro_bnn.storage.run_identity import Described, describe_all, environment


class Identity:
    """The description of a run; made before the model is called with its data.

    :param settings: settings of the run by name.
    :param parts: kernel and functions by name, which the model may change while it is traced.
    """

    def __init__(self, settings: dict[str, Any], parts: dict[str, Any]) -> None:
        self._settings = settings
        self._watched = ChangesByModel(parts)

    def described(
        self, data: Any, fit: BoundModel | None, left_out: Collection[str] = ()
    ) -> Described:
        """All facts about the run, once the model has been traced.

        :param data: arguments of the model.
        :param fit: the model with these arguments; None for a kernel over a potential function.
        :param left_out: paths that are not compared.
        """
        sites = {} if fit is None else {n: str(s.shape) for n, s in fit.structure.sites.items()}
        given = describe_all(self._settings | {"sites": sites, "data": data}, left_out)
        found = self._watched.after(left_out)
        facts = given.facts | found.facts | environment()
        return Described(facts, given.unknown | found.unknown)
