"""Writes a fit of the command line to disk, with a checksum, and reads it to predict new rows."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from numpyro_bnn.cli.job import Options, Outcome, model_of
from numpyro_bnn.cli.tables import Source, Table, absent, inputs_of, listed, misfits, refuse
from numpyro_bnn.posterior.arviz_export import from_inference_data
from numpyro_bnn.posterior.draws import Draws
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.predictive_draws import Average, Predictions, average

FILE = "model.json"
_FORMAT = "numpyro_bnn fit 2"
_KEPT = ("name", "task", "columns", "target", "classes", "sources", "fill")
_INTERVAL = (0.05, 0.95)
_BATCH = 4096


class SavedFit(NamedTuple):
    """A fit that was read from a folder: its table without rows, and its draws with the model."""

    table: Table
    draws: Draws


def write(outcome: Outcome, folder: Path) -> Path:
    """Write what :func:`read` needs beside ``posterior.nc``; return the path written."""
    options = {"hidden": outcome.options.hidden, "prior": outcome.options.prior}
    table = {name: getattr(outcome.table, name) for name in _KEPT}
    path = folder / FILE
    content = {"format": _FORMAT, "options": options, "table": table}
    content["checksum"] = _checksum(content, folder / "posterior.nc")
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    return path


def read(folder: Path) -> SavedFit:
    """Read a fit from the folder that the main job wrote."""
    path, posterior = folder / FILE, folder / "posterior.nc"
    for file in (path, posterior):
        if not file.is_file():
            raise ValueError(
                f"{folder} holds no fit: {file.name} is missing. Give the folder that "
                "`python -m numpyro_bnn` wrote (--output)."
            )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        if content.pop("checksum") != _checksum(content, posterior):
            raise ValueError(f"it or {posterior.name} was changed since: their checksum is another")
        table = _table_of(content["table"])
        options = Options(
            hidden=tuple(content["options"]["hidden"]), prior=content["options"]["prior"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged, or of another version ({error}); expected {_FORMAT!r}. Fit again."
        ) from error
    import xarray as xr

    with xr.open_datatree(posterior, engine="h5netcdf") as tree:
        draws = from_inference_data(tree.load(), model_of(table, options))
    return SavedFit(table, draws)


def _checksum(content: dict[str, Any], posterior: Path) -> str:
    """A digest of both files: of what `model.json` tells, and of the draws."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode() + posterior.read_bytes()).hexdigest()


def _table_of(kept: dict[str, Any]) -> Table:
    """A table without rows, as it was written to JSON."""
    fields: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()
    }
    fields["sources"] = tuple(Source(n, k, tuple(lv), m) for n, k, lv, m in kept["sources"])
    nothing = np.zeros((0, len(kept["columns"])))
    return Table(x=nothing, y=nothing[:, 0], row_names=(), **fields)


def predict_csv(
    fit: SavedFit, path: Path, every: pd.DataFrame, skip: bool = False
) -> tuple[pd.DataFrame, dict[str, list[int]]]:
    """Predictions of the rows of a new file, and the rows that `skip` left out for unknown texts."""
    sources = fit.table.sources
    refuse(path, [absent(s.name, list(every.columns)) for s in sources if s.name not in every])
    fields = every[[source.name for source in sources]]
    if fields.empty:
        raise ValueError(f"{path} has a header and no rows. Give at least one row to predict.")
    found = misfits(fields, sources)
    if found and not skip:
        advice = "Correct it, or leave such rows out by --unknown skip."
        refuse(path, [f"{said} (rows {listed(rows, 5)}). {advice}" for said, rows in found.items()])
    fields = fields.drop(index=[row for rows in found.values() for row in rows])
    if fields.empty:
        refuse(path, [*found, "no row is left to predict."])
    inputs = inputs_of(path, fields, sources)
    x = inputs[list(fit.table.columns)].to_numpy()
    x = np.where(np.isnan(x), fit.table.fill, x)
    names = [f"row {row}" for row in fields.index]
    return frame_of(fit.table, names, predict(None, fit.draws, x, batch_size=_BATCH)), found


def frame_of(
    table: Table, names: Sequence[str], predictions: Predictions, y: np.ndarray | None = None
) -> pd.DataFrame:
    """Predictions as a table: mean, sd and central 90 % interval, or likeliest class and probabilities."""
    frame = pd.DataFrame({"row": list(names)})
    mean = average(predictions)
    if isinstance(mean, Average):
        frame = frame if y is None else frame.assign(observed=y)
        low, high = predictions.quantiles(_INTERVAL)
        decimals = max(0, 4 - int(np.floor(np.log10(mean.sd.min()))))
        found = {"mean": mean.mean, "sd": mean.sd, "5 %": low, "95 %": high}
        return frame.assign(**{k: np.round(np.float64(v), decimals) for k, v in found.items()})
    labels = np.asarray(table.classes)
    frame = frame if y is None else frame.assign(observed=labels[y])
    frame = frame.assign(predicted=labels[mean.argmax(-1)])
    rounded = np.vectorize(lambda p: float(f"{p:.6g}"))(mean)
    return frame.assign(**{f"p({label})": rounded[:, i] for i, label in enumerate(labels)})
