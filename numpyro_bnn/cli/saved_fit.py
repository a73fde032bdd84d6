"""Writes a fit of the command line to disk, with a checksum, and reads it to predict or to add new rows."""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from numpyro_bnn import scores
from numpyro_bnn._types import PyTree
from numpyro_bnn.cli import tables
from numpyro_bnn.cli.job import Options, model_of
from numpyro_bnn.data.fingerprints import row_hashes
from numpyro_bnn.diagnostics.diagnose import diagnose
from numpyro_bnn.posterior.arviz_export import from_inference_data, to_inference_data
from numpyro_bnn.posterior.draws import Draws, Run
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.predictive_draws import Average, Predictions, average
from numpyro_bnn.workflow.calibration import Calibrated
from numpyro_bnn.workflow.fit import MOST_JUDGED
from numpyro_bnn.workflow.update import update

FILE = "model.json"
_FORMAT = "numpyro_bnn fit 2"
_KEPT = ("name", "task", "columns", "target", "classes", "sources", "fill", "named_by")
_INTERVAL = (0.05, 0.95)
_OF_CALIBRATION = ("method", "coverage", "temperature")
_BATCH = 4096


class SavedFit(NamedTuple):
    """A fit that was read from a folder: its table without rows, and its draws with the model."""

    table: tables.Table
    draws: Draws
    options: Options
    calibrated: Calibrated | None = None


def write(
    table: tables.Table,
    options: Options,
    folder: Path,
    run: Run,
    *data: PyTree,
    calibrated: Calibrated | None = None,
    **groups: Any,
) -> Path:
    """Write ``posterior.nc`` and beside it what :func:`read` needs; return the latter's path."""
    # An update moves the draws in the coordinates that they were sampled in. Predictions of each draw would
    # be the largest part of the file by far.
    groups = {"posterior_predictive": False, **groups}
    idata = to_inference_data(run, *data, base_sites=True, **groups)
    idata.to_netcdf(str(folder / "posterior.nc"), engine="h5netcdf")
    kept = {name: getattr(table, name) for name in _KEPT}
    made = {"hidden": options.hidden, "prior": options.prior}
    path = folder / FILE
    content: dict[str, Any] = {"format": _FORMAT, "options": made, "table": kept}
    if calibrated is not None:
        content["calibration"] = {name: getattr(calibrated, name) for name in _OF_CALIBRATION}
        content["calibration"]["scores"] = calibrated.scores.tolist()
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
        kept, made = content["table"], content["options"]
        fields: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in kept.items()
        }
        columns = (tables.Source(n, k, tuple(lv), m) for n, k, lv, m in kept["sources"])
        nothing = np.zeros((0, len(kept["columns"])))
        fields |= {"x": nothing, "y": nothing[:, 0], "sources": tuple(columns), "row_names": ()}
        table = tables.Table(**fields)
        options = Options(hidden=tuple(made["hidden"]), prior=made["prior"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged, or of another version ({error}); expected {_FORMAT!r}. Fit again."
        ) from error
    import xarray as xr

    with xr.open_datatree(posterior, engine="h5netcdf") as tree:
        draws = from_inference_data(tree.load(), model_of(table, options))
        data = {"constant_data": "x", "observed_data": "y"}
        if data.keys() <= set(tree.children):
            draws._args = tuple(np.asarray(tree[group][name]) for group, name in data.items())
    calibrated = None
    if kept := content.get("calibration"):
        calibrated = Calibrated(draws, **kept | {"scores": np.asarray(kept["scores"])})
    return SavedFit(table, draws, options, calibrated)


def _checksum(content: dict[str, Any], posterior: Path) -> str:
    """A digest of both files: of what `model.json` tells, and of the draws."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode() + posterior.read_bytes()).hexdigest()


def _new_rows(
    fit: SavedFit, path: Path, every: pd.DataFrame, skip: bool, goals: Sequence[tables.Source] = ()
) -> tuple[pd.DataFrame, np.ndarray, dict[str, list[int]]]:
    """Fields of the rows of a new file, their inputs, and the rows that `skip` left out."""
    sources = [*fit.table.sources, *goals]
    absent = [source.name for source in sources if source.name not in every]
    tables.refuse(path, [tables.absent(name, list(every.columns)) for name in absent])
    fields = every[[source.name for source in sources]]
    if fields.empty:
        raise ValueError(f"{path} has a header and no rows. Give at least one row.")
    gaps = {
        f"no value of {s.name!r}": list(fields.index[tables.is_missing(fields[s.name])])
        for s in goals
    }
    fields = fields.drop(index=[row for rows in gaps.values() for row in rows])
    found = tables.misfits(fields, sources)
    if found and not skip:
        advice = "Correct it, or leave such rows out by --unknown skip."
        tables.refuse(
            path,
            [f"{said} (rows {tables.listed(rows, 5)}). {advice}" for said, rows in found.items()],
        )
    fields = fields.drop(index=[row for rows in found.values() for row in rows])
    found |= {said: rows for said, rows in gaps.items() if rows}
    if fields.empty:
        tables.refuse(path, [*found, "no row is left."])
    x = tables.inputs_of(path, fields, fit.table.sources)[list(fit.table.columns)].to_numpy()
    return fields, np.where(np.isnan(x), fit.table.fill, x), found


def predict_fields(
    fit: SavedFit, path: Path, every: pd.DataFrame, skip: bool = False
) -> tuple[pd.DataFrame, dict[str, list[int]]]:
    """Predictions of the rows of a new file, and the rows that `skip` left out for unknown texts."""
    fields, x, found = _new_rows(fit, path, every, skip)
    names = tables.row_names(every.loc[fields.index], fit.table.named_by)
    predictions = predict(None, fit.draws, x, batch_size=_BATCH)
    frame = frame_of(fit.table, names, predictions)
    return with_calibrated(frame, fit.table, fit.calibrated, predictions, x), found


def update_by_fields(
    folder: Path, path: Path, every: pd.DataFrame, skip: bool, output: Path
) -> Iterator[str]:
    """Write the fit given the rows of a new file too, and say what they changed, in a few lines."""
    fit = read(folder)
    if not fit.draws._args:
        raise ValueError(f"{folder} does not hold the rows of its fit. Fit again on all rows.")
    name, classes = fit.table.target, fit.table.classes
    goal = tables.Source(name, "texts" if classes else "numbers", classes)
    if classes and name in every:
        every = every.copy()
        every[name] = _as_classes(every[name], classes)
    fields, x, found = _new_rows(fit, path, every, skip, (goal,))
    y = tables.parsed(fields[name], goal.kind).to_numpy()
    y = np.array([classes.index(text) for text in y], np.int32) if classes else y
    old, new = row_hashes(list(fit.draws._args), [x, y])
    repeated = sum(map(set(old).__contains__, new))
    before = predict(None, fit.draws, x, batch_size=_BATCH)
    score = np.asarray(scores.lppd(before, y, pointwise=True))
    try:
        run = update(fit.draws, x, y)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    report = diagnose(run, x[:MOST_JUDGED])
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as place:
        whole = Path(place) / "fit"
        whole.mkdir()
        write(fit.table, fit.options, whole, run)
        whole.rename(output)
    for said, rows in found.items():
        yield f"Left out rows {tables.listed(rows, 10)}: {said}"
    yield f"{len(y)} new rows of '{name}' beside {len(old)} that were fitted."
    if repeated:
        yield f"Beware: {repeated} of them equal rows that were fitted. Rows that come twice count twice."
    known_to = f" ± {scores.standard_error(score):.4f}" if len(score) > 1 else ""
    yield f"Log score of the new rows before they were used: {score.mean():.4f}{known_to} nats a row."
    together = f"{run.log_evidence:.2f} ± {run.log_evidence_error:.2f} nats"
    if np.isinf(run.log_evidence_error):
        together = "not known, as one chain or few draws decide it"
    yield f"Their log density together, given the rows before: {together}."
    how = f"{run.moves} trajectories of each draw" if run.moves else "resampling alone"
    if fit.calibrated is not None:
        yield "Intervals of the updated fit are not calibrated: hold rows out of another fit for that."
    yield f"By {how}: Pareto k̂ {run.k_hat:.2f}, {run.effective_size:.0f} effective draws."
    verdict = report.in_one_line()
    yield f"{verdict.bold} {verdict.text}"


def _as_classes(fields: pd.Series, classes: Sequence[str]) -> pd.Series:
    """Texts of a target by the names of the classes: 3.0 is 3, and true is True."""
    whole = tables.parsed(fields, "numbers").map(tables.class_name)
    made = fields
    for other in (fields.str.capitalize(), whole):
        made = made.where(made.isin(classes) | ~other.isin(classes), other)
    return made


def frame_of(
    table: tables.Table, names: Sequence[str], predictions: Predictions, y: np.ndarray | None = None
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


def with_calibrated(
    frame: pd.DataFrame,
    table: tables.Table,
    calibrated: Calibrated | None,
    predictions: Predictions,
    x: np.ndarray,
) -> pd.DataFrame:
    """The table with calibrated intervals or sets of classes at its rows, where a fit has them."""
    if calibrated is None:
        return frame
    share = f"{calibrated.coverage * 100:g} %"
    if table.classes:
        labels = np.asarray(table.classes)
        sets = [" | ".join(labels[inside]) for inside in calibrated.sets_of(predictions, x)]
        return frame.assign(**{f"calibrated {share} set": sets})
    low, high = calibrated.intervals_of(predictions).astype(np.float64).T
    decimals = max(0, 4 - int(np.floor(np.log10((high - low).min()))))
    ends = {"low": low.round(decimals), "high": high.round(decimals)}
    return frame.assign(**{f"calibrated {share} {name}": end for name, end in ends.items()})
