"""Saves draws and loads them in another process, without pickle, and refuses another model than was saved.

Names and shapes of sites do not tell tanh from relu, or one likelihood from another: such a model would
take the draws, and all that it predicts would be wrong. So predictions of the first draw at made-up inputs
are stored with the draws.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import is_zipfile

import jax
import numpy as np

from numpyro_bnn._calls import result_or_error
from numpyro_bnn._checks import require_extra
from numpyro_bnn.data.arguments import innermost, restore_units, units_of
from numpyro_bnn.data.columns import probe_inputs
from numpyro_bnn.posterior.draws import Draws, Run, draws_of
from numpyro_bnn.posterior.prediction_sites import targets_without_draws
from numpyro_bnn.posterior.predictions import Predictor
from numpyro_bnn.posterior.training_data import known_rows
from numpyro_bnn.potential.compiled_arguments import fixed_in, with_values
from numpyro_bnn.samplers.suspects import suspect_chains, warn_of_failed
from numpyro_bnn.storage.draw_store import POSTERIOR, DrawStore
from numpyro_bnn.storage.folders import UNREADABLE, require_writable

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
    path = Path(path)
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    # Before any draws are gathered.
    require_writable(path.parent, "save: the folder {folder} cannot be written ({why}).")
    units = units_of(draws.model)
    header = {
        "format": _FORMAT,
        "info": draws.info | known_rows(run),
        "sites": list(draws),
        "stats": list(draws.stats),
        "predictions": known_predictions(draws),
    }
    sites = {name: np.asarray(value) for name, value in draws.items()}
    # Files of NumPy do not know bfloat16: float32 rounds nothing.
    arrays = {f"site:{n}": v.astype("f4") if v.dtype.kind == "V" else v for n, v in sites.items()}
    arrays |= {f"stat:{name}": np.asarray(value) for name, value in draws.stats.items()}
    if units is not None:
        arrays |= {f"units:{name}": np.asarray(value) for name, value in units._asdict().items()}
    values = jax.tree.leaves(fixed_in(draws.model))
    arrays |= {f"fixed:{i}": np.asarray(value) for i, value in enumerate(values)}
    header["arrays"] = list(arrays)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
    partial.replace(path)
    return path


def load(path: str | Path, model: Callable | None = None) -> Draws:
    """Read draws that :func:`save` or ``MCMC(…, draws=path)`` wrote, to predict with.

    Draws in a folder stay on disk: predictions and diagnoses read the part that they need. The folder of
    a run that has not ended gives the draws so far. Chains that the run left out, or would leave out
    if it ended now, are left out here too, with a warning (:attr:`Draws.left_out`).

    :param path: the file or folder.
    :param model: the model that they are draws of; a ready model gets its units back. Without one, draws
        of a model of your own carry none: ``predict(model, draws, x)``.
    :return: the draws.
    :raises ValueError: if the file was not written by this package, or is damaged; if the model predicts
        something else than the one that was saved, as with another activation or likelihood. Not compared
        are draws of a model that cannot be called as ``model(x)``, of an unfinished run, and made by hand.
    :raises RuntimeError: if every chain was left out.
    """
    path = Path(path)
    if path.is_dir():
        require_extra("load: a folder of draws", "storage")
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
    if fixed:
        if model is None:
            raise ValueError(f"load: {path} has fixed parameters of its model. Pass the model.")
        if noted := header["info"].get("input_ranges"):
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
        if lost := set(header.get("arrays", ())).difference(file.files):
            raise ValueError(f"it lacks {sorted(lost)}")
        sites = {name: file[f"site:{name}"] for name in header["sites"]}
        stats = {name: file[f"stat:{name}"] for name in header["stats"]}
        units, fixed = (
            {k.removeprefix(prefix): file[k] for k in file.files if k.startswith(prefix)}
            for prefix in ("units:", "fixed:")
        )
    return header, sites, stats, units, fixed


def _from_store(store: DrawStore, model: Callable | None) -> Draws:
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
    restore_units(model, store.about.get("units", {}))
    draws = Draws(values, model, stats, info or None)
    refuse_other_model("load", draws, store.about.get("predictions"))
    return draws


# "of", the sum of all numbers of the draw; "targets", by target "probs", or "mean" and "scale", as lists.
Known = dict[str, Any]
# The same model differs by less between devices, in standard deviations or probabilities.
_TOLERANCE = 0.01


def known_predictions(draws: Draws) -> Known | None:
    """What the model predicts at probe inputs with the first draw; None where it cannot be called."""
    noted = draws.info.get("input_ranges")
    if draws.model is None or noted is None:
        return None
    first = _first(draws)
    found = result_or_error(partial(_predicted, draws.model, first, probe_inputs(noted)))
    if isinstance(found, Exception):
        return None
    if not all(np.isfinite(v).all() for values in found.values() for v in values.values()):
        return None
    targets = {n: {k: v.tolist() for k, v in of.items()} for n, of in found.items()}
    return {"of": _sum(first), "targets": targets}


def _first(draws: Draws) -> dict[str, np.ndarray]:
    """The first draw, with axes of one chain and one draw."""
    return {name: np.asarray(value[:1, :1]) for name, value in draws.items()}


def _sum(draw: Mapping[str, np.ndarray]) -> float:
    return sum(float(value.astype(np.float64).sum()) for value in draw.values())


def _predicted(
    model: Callable, draw: Mapping[str, np.ndarray], x: Any
) -> dict[str, dict[str, np.ndarray]]:
    predictor = Predictor(model, x)
    targets = targets_without_draws(predictor.structure, draw)
    found = {target: predictor.at_site(target)(draw).values for target in targets}
    return {target: {k: v[0, 0] for k, v in values.items()} for target, values in found.items()}


def refuse_other_model(owner: str, draws: Draws, known: Known | None) -> None:
    """Refuse draws whose model predicts something else than :func:`known_predictions` had found."""
    noted = draws.info.get("input_ranges")
    if known is None or draws.model is None or noted is None:
        return
    first = _first(draws)
    # The first draw of a subset cannot be checked.
    if not np.isclose(_sum(first), known["of"], rtol=1e-5):
        return
    expected = {n: {k: np.asarray(v) for k, v in of.items()} for n, of in known["targets"].items()}
    found = result_or_error(partial(_predicted, draws.model, first, probe_inputs(noted)))
    if isinstance(found, Exception):
        differs = f"with these draws it fails: {str(found).partition('. ')[0].rstrip('.')}"
    elif set(found) != set(expected):
        differs = f"its targets are {sorted(found)}, and were {sorted(expected)}"
    else:
        each = (_difference(target, values, found[target]) for target, values in expected.items())
        differs = next(filter(None, each), "")
    if differs:
        raise ValueError(
            f"{owner}: this model is not the one that the draws are of: {differs}. Give the model that was "
            "run: the same network with the same activation, the same likelihood and the same constants. If "
            "another is meant, load with the first and write `bnn.Draws(draws, other_model)`."
        ) from (found if isinstance(found, Exception) else None)


def _difference(
    target: str, expected: dict[str, np.ndarray], found: dict[str, np.ndarray]
) -> str | None:
    """What differs between predictions of a target, in words; None where nothing does."""
    kinds = tuple({k: v.shape for k, v in sorted(of.items())} for of in (found, expected))
    if kinds[0] != kinds[1]:
        return f"it predicts {kinds[0]} for '{target}', where the draws' own predicted {kinds[1]}"
    for name, values in expected.items():
        size: Any = 1.0
        if name != "probs":
            noise = expected.get("scale", 0.0)
            # Rounding is in proportion to what varies and, much smaller, to the numbers themselves.
            size = np.mean(noise) + np.std(values) + 1e-3 * np.abs(values)
        apart = np.abs(found[name] - values)
        if (apart > _TOLERANCE * size).any():
            at = np.unravel_index(np.argmax(apart / size), values.shape)
            return (
                f"for '{target}' at made-up inputs the first draw has {name} {found[name][at]:.6g} under "
                f"it, and {values[at]:.6g} under the draws' own"
            )
    return None
