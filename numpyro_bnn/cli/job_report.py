"""Writes the results of the main job: a report with figures, predictions and the posterior."""

import os
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from numpyro_bnn.cli import saved_fit
from numpyro_bnn.cli.figures import drawings
from numpyro_bnn.cli.job import Outcome
from numpyro_bnn.cli.job_tables import cells, headings, setting
from numpyro_bnn.cli.page import html_of
from numpyro_bnn.posterior.arviz_export import to_inference_data
from numpyro_bnn.storage.folders import require_writable
from numpyro_bnn.storage.locks import OWN_PREFIX

# All files of a report, and the file by which a folder is recognised as one of a report.
_FIGURES = ("rhat.png", "reliability.png", "band.png", "trace.png")
_FILES = ("report.html", "report.md", "predictions.csv", "posterior.nc", saved_fit.FILE, *_FIGURES)
_MARK = f"{OWN_PREFIX}report"


def require_folder(folder: Path) -> None:
    """Refuse a folder that the report cannot be written to; called before hours of sampling."""
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
    """Write the report: one page, text with figures, predictions, the posterior; return the files."""
    require_folder(folder)
    (folder / _MARK).touch()
    figures = _figures(outcome, folder)
    table = outcome.table
    predictions = folder / "predictions.csv"
    names = [table.row_names[i] for i in outcome.test]
    frame = saved_fit.frame_of(table, names, outcome.posterior, table.y[outcome.test])
    frame.to_csv(predictions, index=False)
    posterior = folder / "posterior.nc"
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
    page = folder / "report.html"
    page.write_text(html_of(outcome), encoding="utf-8")
    model = saved_fit.write(outcome, folder)
    return [page, report, predictions, posterior, model, *figures.values()]


def _figures(outcome: Outcome, folder: Path) -> dict[str, Path]:
    paths = {}
    with mpl.rc_context({"backend": "agg"}):
        for drawing in drawings(outcome):
            figure = Figure(figsize=drawing.size)
            drawing.draw(figure)
            paths[drawing.title] = folder / drawing.name
            figure.savefig(paths[drawing.title], dpi=120, bbox_inches="tight")
    return paths


def _markdown(outcome: Outcome, figures: dict[str, Path]) -> str:
    table = outcome.table
    head = headings(table.task)
    lines = [
        f"# {table.name}: {table.target}",
        "",
        f"{len(outcome.train)} training and {len(outcome.test)} test rows, {table.x.shape[1]} inputs. "
        + setting(outcome),
        "",
        *(f"**Beware:** {said}\n" for said in outcome.warnings),
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
        f"**Verdict: {outcome.report.verdict.words}.** {outcome.report.explanation}",
        "",
        "```",
        str(outcome.report),
        "```",
        "",
        "## Does the model fit?",
        "",
        "```",
        str(outcome.check),
        "```",
        "",
    ]
    for title, path in figures.items():
        lines += [f"## {title}", "", f"![{title}]({path.name})", ""]
    return "\n".join(lines)
