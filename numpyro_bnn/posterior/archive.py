"""Save draws and load them in another process, without pickle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import is_zipfile

import jax
import numpy as np

from numpyro_bnn.data.arguments import innermost
from numpyro_bnn.data.probe_inputs import probe_inputs
from numpyro_bnn.posterior.draws import Draws, Run, draws_of
from numpyro_bnn.posterior.saved_model_check import known_predictions, refuse_other_model
from numpyro_bnn.posterior.training_data import known_rows
from numpyro_bnn.potential.fixed_parameters import fixed_in, with_values
from numpyro_bnn.samplers.failed_chains import warn_of_failed
from numpyro_bnn.samplers.suspects import suspect_chains
from numpyro_bnn.storage.draw_store import DrawStore
from numpyro_bnn.storage.draw_variables import POSTERIOR
from numpyro_bnn.storage.folders import UNREADABLE, require_storage, require_writable

_FORMAT = "numpyro_bnn draws 1"


def save(run: Run, path: str | Path) -> Path:
    """Write draws to one file (a NumPy archive).

    Beside the draws it holds what :func:`load` compares a model with, and fingerprints of at most 1000
    training rows, by which :func:`numpyro_bnn.calibrate` and :func:`numpyro_bnn.check_fit` know them.

    :param run: an ``MCMC`` after `run`, what `fit` returned, a fitted estimator, or draws.
    :param path: path of the file; the ending ``.npz`` is added where it lacks.
    :return: the path written.
    :raises ValueError: if there are no draws.
    :raises OSError: if the folder, which is made with its parents, cannot be written.
    """
    draws = draws_of(run, owner="save")
    path = _archive(path)
    units = getattr(innermost(draws.model), "standardization", None)
    header = {
        "format": _FORMAT,
        "info": draws.info | known_rows(run),
        "sites": list(draws),
        "stats": list(draws.stats),
        "predictions": known_predictions(draws),
    }
    arrays = {f"site:{name}": _storable(value) for name, value in draws.items()}
    arrays |= {f"stat:{name}": np.asarray(value) for name, value in draws.stats.items()}
    if units is not None:
        arrays |= {f"units:{name}": np.asarray(value) for name, value in units._asdict().items()}
    values = jax.tree.leaves(fixed_in(draws.model))
    arrays |= {f"fixed:{i}": np.asarray(value) for i, value in enumerate(values)}
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
    partial.replace(path)
    return path


def _storable(value: Any) -> np.ndarray:
    """An array of a type that files of NumPy know: bfloat16 becomes float32, which rounds nothing."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _archive(path: str | Path) -> Path:
    """The path of a new archive, checked to be writable before any draws are gathered."""
    if not isinstance(path, (str, Path)):
        raise TypeError(f"save: path must name a file, got {path!r}.")
    if not Path(path).name:
        raise ValueError(
            f"save: path must name a file, got {str(path)!r}. Give one such as 'run.npz'."
        )
    path = Path(path)
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    require_writable(
        path.parent,
        "save: the folder {folder} cannot be written ({why}). Give a path in one that can.",
    )
    if path.is_dir():
        raise IsADirectoryError(f"save: {path} is a folder. Give the path of a file.")
    return path


def load(path: str | Path, model: Callable) -> Draws:
    """Read draws that :func:`save` or ``MCMC(…, draws=path)`` wrote, to predict with.

    Draws in a folder stay on disk: predictions and diagnoses read the part that they need. The folder of
    a run that has not ended gives the draws so far. Chains that the run left out, or would leave out
    if it ended now, are left out here too, with a warning (:attr:`Draws.left_out`).

    :param path: the file or folder.
    :param model: the model that they are draws of; a ready model gets its units back.
    :return: the draws.
    :raises ValueError: if the file was not written by this package, or is damaged; if the model predicts
        something else than the one that was saved, as with another activation or likelihood. Draws of a model
        that cannot be called as ``model(x)`` are not compared, and neither are those of an unfinished run.
    :raises RuntimeError: if every chain was left out.
    """
    path = Path(path)
    if path.is_dir():
        require_storage("load: a folder of draws")
        return _from_store(DrawStore(path), model)
    # NumPy leaves a broken archive open unless it was given an open file.
    with path.open("rb") as opened:
        try:
            if not is_zipfile(opened):
                raise ValueError("it is no NumPy archive, or was cut off")
            opened.seek(0)
            header, sites, stats, units, fixed = _read(opened)
        except UNREADABLE as error:
            raise ValueError(
                f"load: {path} does not hold draws written by `bnn.save`: {error}."
            ) from error
    ready = innermost(model)
    if units:
        if not hasattr(ready, "restore"):
            raise ValueError(
                f"load: {path} was saved from `bnn.regression` or `bnn.classification`; pass such a "
                "model, made with the same module and prior."
            )
        ready.restore(units)
    if fixed and (noted := header["info"].get("input_ranges")):
        model = with_values(model, (probe_inputs(noted),), list(fixed.values()))
    draws = Draws(sites, model, stats, header["info"])
    refuse_other_model("load", draws, header.get("predictions"))
    return draws


def _read(opened: BinaryIO) -> tuple[dict, dict, dict, dict, dict]:
    """Header, sites, statistics, units and fixed parameters of an archive."""
    with np.load(opened, allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
        if header.get("format") != _FORMAT:
            raise ValueError(f"its format is {header.get('format')!r}, not {_FORMAT!r}")
        sites = {name: file[f"site:{name}"] for name in header["sites"]}
        stats = {name: file[f"stat:{name}"] for name in header["stats"]}
        units, fixed = (
            {k.removeprefix(prefix): file[k] for k in file.files if k.startswith(prefix)}
            for prefix in ("units:", "fixed:")
        )
    return header, sites, stats, units, fixed


def _from_store(store: DrawStore, model: Callable) -> Draws:
    values: dict[str, Any] = {}
    stats: dict[str, Any] = {}
    for (group, source), array in store.arrays().items():
        (values if group == POSTERIOR else stats)[source] = array
    failed = store.failed
    # A run that has not ended, or was killed, has not recorded its suspect chains.
    suspect = store.about.get("suspect") or suspect_chains(values, stats)
    # Facts about the inputs are written when a run ends.
    info: dict[str, Any] = dict(store.about.get("inputs", {}))
    info |= {"left_out": failed} if failed else {}
    if suspect := {int(c): why for c, why in suspect.items() if int(c) not in failed}:
        info["suspect"] = suspect
    if failed:
        num_chains = len(next(iter(values.values())))
        warn_of_failed(failed, num_chains)
        good = np.setdiff1d(np.arange(num_chains), list(failed))
        values, stats = (
            {source: array.take_chains(good) for source, array in group.items()}
            for group in (values, stats)
        )
    draws = Draws(values, model, stats, info or None)
    refuse_other_model("load", draws, store.about.get("predictions"))
    return draws
