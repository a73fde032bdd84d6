"""Writes the results of the main job: a report with figures, predictions and the posterior."""

import os
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from numpyro_bnn import plots
from numpyro_bnn.cli.job import Outcome, Score
from numpyro_bnn.posterior.arviz_export import to_inference_data
from numpyro_bnn.posterior.predictive_draws import Average, average
from numpyro_bnn.storage.folders import require_writable
from numpyro_bnn.storage.locks import OWN_PREFIX

POSTERIOR = "posterior average"
# Everything that a report consists of, and the file that tells that its folder is ours.
_FIGURES = ("rhat.png", "reliability.png", "band.png", "trace.png")
_FILES = ("report.md", "predictions.csv", "posterior.nc", *_FIGURES)
_MARK = f"{OWN_PREFIX}report"


def headings(task: str) -> tuple[str, ...]:
    """Column names of the table of scores."""
    if task == "classification":
        return ("method", "log score", "± s.e.", "error", "calibration error", "seconds")
    return ("method", "log score", "± s.e.", "RMSE", "coverage of 90 %", "seconds")


def cells(row: Score) -> tuple[str, ...]:
    """One row of the table of scores, formatted."""
    return (
        row.method,
        f"{row.log_score:.4f}",
        f"{row.log_score_error:.4f}",
        f"{row.error:.4f}",
        f"{row.calibration:.4f}",
        f"{row.seconds:.0f}",
    )


def require_folder(folder: Path) -> None:
    """Refuse a folder that the report cannot be written to; called before hours of sampling.

    :param folder: made where it does not exist.
    :raises FileExistsError: if a report would replace files that are not of an earlier one.
    :raises OSError: if it cannot be written, or a file in it cannot be replaced.
    """
    require_writable(
        folder,
        "--output: the folder {folder} cannot be written ({why}). Give one that can.",
    )
    present = [name for name in _FILES if (folder / name).exists()]
    for name in present:
        if (folder / name).is_dir() or not os.access(folder / name, os.W_OK):
            raise PermissionError(
                f"--output: {folder / name} cannot be replaced. Give another folder, or remove it."
            )
    if present and not (folder / _MARK).exists():
        raise FileExistsError(
            f"--output: {folder} holds {', '.join(present)}, which no report of this version wrote. "
            "Give another folder, or move these files."
        )


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Write ``report.md`` with its figures, ``predictions.csv`` and ``posterior.nc``.

    :param outcome: results of the job.
    :param folder: made where it does not exist; an earlier report in it is replaced.
    :return: the files written.
    :raises OSError: if that fails, see :func:`require_folder`.
    """
    require_folder(folder)
    (folder / _MARK).touch()
    figures = _figures(outcome, folder)
    predictions = folder / "predictions.csv"
    _predictions(outcome).to_csv(predictions, index=False, float_format="%.6g")
    posterior = folder / "posterior.nc"
    table = outcome.table
    idata = to_inference_data(
        outcome.mcmc,
        table.x[outcome.train],
        table.y[outcome.train],
        predict={"test": table.x[outcome.test]},
        report=outcome.report,
    )
    idata.to_netcdf(str(posterior), engine="h5netcdf")
    report = folder / "report.md"
    report.write_text(_markdown(outcome, figures), encoding="utf-8")
    return [report, predictions, posterior, *figures.values()]


def _figures(outcome: Outcome, folder: Path) -> dict[str, Path]:
    predictions = outcome.predictions[POSTERIOR]
    y = outcome.table.y[outcome.test]
    paths = {}

    def save(title: str, name: str, figure: Figure) -> None:
        paths[title] = folder / name
        figure.savefig(paths[title], dpi=120, bbox_inches="tight")

    with mpl.rc_context({"backend": "agg"}):
        # An interrupted run may hold too few draws for any R-hat.
        spaces = (outcome.report.weights.rhat, outcome.report.predictions.rhat)
        if all(np.isfinite(rhat).any() for rhat in spaces):
            figure = Figure(figsize=(7, 3.6))
            plots.plot_rhat(*spaces, ax=figure.subplots())
            save("R-hat of weights and of predictions", "rhat.png", figure)
        figure = Figure(figsize=(6, 4))
        if outcome.table.task == "classification":
            plots.plot_reliability(predictions.probs, y, ax=figure.subplots())
            save("Reliability of the posterior average", "reliability.png", figure)
        else:
            ax = figure.subplots()
            order = np.argsort(average(predictions).mean)
            plots.plot_predictive_band(
                np.arange(len(y)),
                predictions.mean[:, :, order],
                predictions.scale[:, :, order],
                data=(np.arange(len(y)), y[order]),
                ax=ax,
            )
            ax.set_xlabel("test rows, in the order of their predicted mean")
            ax.set_ylabel(outcome.table.target)
            save("Predictive band over the test rows", "band.png", figure)
        figure = Figure(figsize=(7, 3.2))
        energy = outcome.mcmc.get_extra_fields(group_by_chain=True)["potential_energy"]
        plots.plot_trace(-np.asarray(energy), ax=figure.subplots())
        save("Log joint density of each chain", "trace.png", figure)
    return paths


def _predictions(outcome: Outcome) -> pd.DataFrame:
    table = outcome.table
    y = table.y[outcome.test]
    mean = average(outcome.predictions[POSTERIOR])
    frame = pd.DataFrame({"row": outcome.test})
    if isinstance(mean, Average):
        return frame.assign(observed=y, mean=mean.mean, sd=mean.scale)
    labels = np.asarray(table.classes)
    frame = frame.assign(observed=labels[y], predicted=labels[mean.argmax(-1)])
    return frame.assign(**{f"p({label})": mean[:, i] for i, label in enumerate(labels)})


def _markdown(outcome: Outcome, figures: dict[str, Path]) -> str:
    table, options = outcome.table, outcome.options
    head = headings(table.task)
    lines = [
        f"# {table.name}: {table.target}",
        "",
        f"{len(outcome.train)} training and {len(outcome.test)} test rows, {table.x.shape[1]} inputs. "
        f"Network {table.x.shape[1]}-{'-'.join(map(str, options.hidden))}-"
        f"{len(table.classes) or 1} (tanh), prior: {options.prior}. "
        f"Sampler: {type(outcome.mcmc.sampler).__name__}, "
        f"{options.num_chains} chains of "
        f"{outcome.mcmc.num_warmup} steps of warm-up and draws of {outcome.mcmc.thinning} steps each, "
        f"seed {options.seed}. {outcome.mcmc.stopped}",
        "",
        "## Scores on the test rows",
        "",
        "| " + " | ".join(head) + " |",
        "| --- " * len(head) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in outcome.scores),
        "",
        "The log score is the mean log predictive "
        + (
            "probability"
            if table.task == "classification"
            else f"density (per unit of {table.target})"
        )
        + " in nats; higher is better.",
        "",
        "## Can the posterior be believed?",
        "",
        f"**Verdict: {outcome.report.verdict}.** {outcome.report.explanation}",
        "",
        "```",
        str(outcome.report),
        "```",
        "",
    ]
    for title, path in figures.items():
        lines += [f"## {title}", "", f"![{title}]({path.name})", ""]
    return "\n".join(lines)
