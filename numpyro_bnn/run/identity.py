"""Describes, for the checkpoint of a run, all that decides its draws except for random key and starts."""

from collections.abc import Collection

from jax.sharding import Mesh
from numpyro.infer import MCMC as NumPyroMCMC

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.starts import BoundModel
from numpyro_bnn.storage.changed_by_model import ChangesByModel
from numpyro_bnn.storage.run_identity import Described, describe_all, environment


class Identity:
    """The description of a run; made before the model is called with its data.

    :param settings: settings of the run by name.
    :param parts: kernel and functions by name, which the model may change while it is traced.
    """

    def __init__(self, settings: dict[str, object], parts: dict[str, object]) -> None:
        self._settings = settings
        self._watched = ChangesByModel(parts)

    def described(
        self, data: PyTree, fit: BoundModel | None, left_out: Collection[str] = ()
    ) -> Described:
        """All facts about the run, once the model has been traced.

        :param data: arguments of the model.
        :param fit: the model with these arguments; None for a kernel over a potential function.
        :param left_out: paths that are not compared.
        """
        sites = {} if fit is None else {n: str(s.shape) for n, s in fit.structure.sites.items()}
        facts_of_settings = describe_all(self._settings | {"sites": sites, "data": data}, left_out)
        watched = self._watched.after(left_out)
        facts = facts_of_settings.facts | watched.facts | environment()
        return Described(facts, facts_of_settings.unknown | watched.unknown)


# Attributes of a run that decide its draws, or how they are cut into chunks.
_SETTINGS = ("num_warmup", "num_samples", "num_chains", "thinning", "chain_method", "chunk_size")


def identity_of(run: NumPyroMCMC, disk_settings: dict[str, object], mesh: Mesh | None) -> Identity:
    """The identity of a run that has not traced its model yet.

    :param run: an ``MCMC``.
    :param disk_settings: settings of its storage, by name.
    :param mesh: the devices that share the run, or None.
    """
    settings = {name: getattr(run, name) for name in _SETTINGS} | disk_settings
    settings["mesh"] = None if mesh is None else dict(mesh.shape)
    parts = {"kernel": run.sampler, "postprocess_fn": run.postprocess_fn, "record": run.record}
    return Identity(settings, parts)
