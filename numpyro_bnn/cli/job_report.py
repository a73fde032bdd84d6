"""Writes the results of the main job: a page of HTML, text with figures, predictions and the posterior."""

import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from numpyro_bnn import plots, scores
from numpyro_bnn._html import bar, escape, page, paragraph, picture, section, strong, table
from numpyro_bnn.cli import saved_fit
from numpyro_bnn.cli.baselines import recalls
from numpyro_bnn.cli.job import POSTERIOR, Outcome, Score
from numpyro_bnn.posterior.arviz_export import to_inference_data
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.posterior.predictive_draws import Average, average
from numpyro_bnn.storage.folders import OWN_PREFIX, require_writable
from numpyro_bnn.workflow.relevance import Relevance, relevance

# All files of a report, and the file by which a folder is recognised as one of a report.
_FIGURES = ("rhat.png", "reliability.png", "band.png", "trace.png")
_FILES = ("report.html", "report.md", "predictions.csv", "posterior.nc", saved_fit.FILE, *_FIGURES)
_MARK = f"{OWN_PREFIX}report"
_MOST_ROWS = 10
_MOST_INPUTS = 20
_PACKAGES = ("numpyro-bnn", "numpyro", "jax", "flax")


class Drawing(NamedTuple):
    """One figure: title, file name, how to read it, size in inches, and what draws it on an empty figure."""

    title: str
    name: str
    caption: str
    size: tuple[float, float]
    draw: Callable[[Figure], object]


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
        f"**Verdict: {outcome.report.verdict.words}.**",
        "",
        "```",
        f"{outcome.report}\n\n{outcome.report.details()}",
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


def html_of(outcome: Outcome) -> str:
    """The report of a job as one HTML page."""
    data = outcome.table
    rows = [data.row_names[i] for i in outcome.test]
    parts = outcome.report.html_sections(rows)
    first, *others = drawings(outcome)
    title = f"{data.name}: {data.target}"
    return page(
        title,
        (
            f"<h1>{escape(title)}</h1>",
            paragraph(_what(outcome), "faint"),
            parts["verdict"],
            parts["evidence"],
            *(paragraph(f"Beware: {said}", "warning") for said in outcome.warnings),
            _scores(outcome),
            _shown(first),
            _classes(outcome),
            _calibration(outcome),
            _relevance(outcome),
            _worst_rows(outcome, rows),
            _check(outcome),
            parts["rows"],
            parts["temperatures"],
            parts["convergence"],
            # The diagnosis has a picture of R-hat of its own.
            *(_shown(drawing) for drawing in others if drawing.name != "rhat.png"),
            _settings(outcome),
        ),
    )


def _what(outcome: Outcome) -> str:
    held = len(outcome.table.y) - len(outcome.train) - len(outcome.test)
    kept = f", {held} for calibration" if held else ""
    return (
        f"{outcome.table.task.capitalize()} of {outcome.table.target} from "
        f"{len(outcome.table.sources)} columns; {len(outcome.train)} rows to fit{kept}, "
        f"{len(outcome.test)} to test."
    )


def _scores(outcome: Outcome) -> str:
    rows = []
    for row in outcome.scores:
        name, *rest = cells(row)
        rows.append((strong(name) if name == POSTERIOR else name, *rest))
    unit = (
        "probability"
        if outcome.table.task == "classification"
        else f"density per unit of {outcome.table.target}"
    )
    return section(
        f"Scores on {len(outcome.test)} test rows",
        table(
            headings(outcome.table.task),
            rows,
            f"The log score is the mean log predictive {unit} in nats; higher is better. The first line "
            "is what guessing without any input scores.",
        ),
    )


def _shown(drawing: Drawing) -> str:
    shown = picture(drawing.draw, drawing.title, drawing.caption, drawing.size)
    return section(drawing.title, shown)


def _classes(outcome: Outcome) -> str:
    if outcome.table.task != "classification":
        return ""
    y = outcome.table.y[outcome.test]
    rows = [
        (name, f"{count:,}", f"{found:.1%}", bar(found), f"{probability:.3f}")
        for name, count, found, probability in recalls(outcome.posterior, y, outcome.table)
    ]
    head = ("class", "test rows", "recall", "", "mean probability")
    caption = "Recall: the share of the rows of a class that is predicted to be of it."
    return section("Class by class", table(head, rows, caption))


def _calibration(outcome: Outcome) -> str:
    if outcome.evaluation is None:
        return ""
    unit = (
        "classes in a set"
        if outcome.table.task == "classification"
        else f"width ({outcome.table.target})"
    )
    rows = [
        (name, f"{m.coverage:.1%} ± {m.coverage_error:.1%}", f"{m.size:.4g} ± {m.size_error:.2g}")
        for name, m in zip(("before calibration", "after"), outcome.evaluation)
    ]
    return section(
        "Coverage of 90 % on the test rows",
        table(("", "inside", unit), rows),
        paragraph(
            "Calibrated on rows that were held out. The share holds on average over rows that are "
            "exchangeable with these; it is no promise about a single row or a group of rows.",
            "faint",
        ),
    )


def _check(outcome: Outcome) -> str:
    if isinstance(outcome.check, str):
        return section("Does the model fit?", paragraph(outcome.check, "warning"))
    return outcome.check.html_section()


def _relevance(outcome: Outcome) -> str:
    x, y = outcome.table.x[outcome.test], outcome.table.y[outcome.test]
    found = relevance(draws_of(outcome.mcmc), x, y, outcome.table.groups, seed=outcome.options.seed)
    found.sort(key=lambda one: -one.drop)
    top = max(found[0].drop, 1e-12)
    rows = [(one.name, bar(one.drop / top), _interval(one)) for one in found[:_MOST_INPUTS]]
    left = len(found) - len(rows)
    more = f" {left} inputs matter less and are not shown." if left else ""
    return section(
        "Relevance of inputs",
        table(
            ("input", "", "fall of the log score (90 % interval)"),
            rows,
            "How much the mean log score falls, in nats a row, when an input is shuffled among the test "
            f"rows. Of inputs that say the same, each alone seems to matter little.{more}",
        ),
    )


def _interval(found: Relevance) -> str:
    half = 1.645 * found.error
    return f"{found.drop:.4f} ({found.drop - half:.4f} to {found.drop + half:.4f})"


def _worst_rows(outcome: Outcome, names: list[str]) -> str:
    y = outcome.table.y[outcome.test]
    by_row = np.asarray(scores.lppd(outcome.posterior, y, pointwise=True))
    order = np.argsort(by_row, kind="stable")[:_MOST_ROWS]
    columns = list(_predicted(outcome))
    rows = [(names[i], *columns[i], f"{by_row[i]:.3f}") for i in order]
    return section(
        "Rows that are predicted worst", table(("row", "observed", "predicted", "log score"), rows)
    )


def _predicted(outcome: Outcome) -> Iterator[tuple[str, str]]:
    mean, y = average(outcome.posterior), outcome.table.y[outcome.test]
    if isinstance(mean, Average):
        for value, center, scale in zip(y, mean.mean, mean.sd):
            yield f"{value:.5g}", f"{center:.5g} ± {scale:.2g}"
    else:
        names = outcome.table.classes
        for value, probs in zip(y, mean):
            best = int(probs.argmax())
            yield names[value], f"{names[best]} ({probs[best]:.0%})"


def _settings(outcome: Outcome) -> str:
    made_with = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return section(
        "What was fitted",
        paragraph(setting(outcome)),
        paragraph(
            "Plain training is one of the optimised starts, stopped by rows that it held out, the ensemble "
            "their average, the posterior average that of all draws of the chains that began from them."
        ),
        paragraph(made_with, "faint"),
    )


def drawings(outcome: Outcome) -> list[Drawing]:
    """The figures of a report, the most important first."""
    classes = outcome.table.task == "classification"
    found = [_reliability(outcome) if classes else _band(outcome)]
    # An interrupted run may hold too few draws for any R-hat.
    spaces = (outcome.report.weights.rhat, outcome.report.predictions.rhat)
    if all(np.isfinite(rhat).any() for rhat in spaces):
        found.append(
            Drawing(
                "R-hat of weights and of predictions",
                "rhat.png",
                "Hidden units can exchange their weights, so that only the predictions must be near 1.",
                (7, 3.6),
                lambda figure: plots.plot_rhat(*spaces, ax=figure.subplots()),
            )
        )
    found.append(
        Drawing(
            "Log joint density of each chain",
            "trace.png",
            "Chains that have arrived look alike, and do not climb.",
            (7, 3.2),
            lambda figure: plots.plot_trace(outcome.mcmc, ax=figure.subplots()),
        )
    )
    return found


def _reliability(outcome: Outcome) -> Drawing:
    y = outcome.table.y[outcome.test]
    return Drawing(
        "Reliability of the posterior average",
        "reliability.png",
        "How often rows are right, by how sure the prediction is; on the line where that is so.",
        (6, 4.6),
        lambda figure: plots.plot_reliability(outcome.posterior.probs, y, ax=figure.subplots()),
    )


def _band(outcome: Outcome) -> Drawing:
    y = outcome.table.y[outcome.test]
    order = np.argsort(average(outcome.posterior).mean)

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        plots.plot_predictive_band(
            np.arange(len(y)),
            outcome.posterior.mean[:, :, order],
            outcome.posterior.scale[:, :, order],
            data=(np.arange(len(y)), y[order]),
            ax=ax,
        )
        ax.set_xlabel("test rows, in the order of their predicted mean")
        ax.set_ylabel(outcome.table.target)

    caption = "The wide band should hold 95 % of the test rows."
    return Drawing("Predictive band over the test rows", "band.png", caption, (6, 4), draw)


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


def setting(outcome: Outcome) -> str:
    """Network, prior, sampler and lengths in words."""
    table, options = outcome.table, outcome.options
    return (
        f"Network {table.x.shape[1]}-{'-'.join(map(str, options.hidden))}-"
        f"{len(table.classes) or 1} (tanh), prior: {options.prior}. "
        f"Sampler: {type(outcome.mcmc.sampler).__name__}, "
        f"{options.num_chains} chains of "
        f"{outcome.mcmc.num_warmup} steps of warm-up and draws of {outcome.mcmc.thinning} steps each, "
        f"seed {options.seed}. {outcome.mcmc.stopped}"
    )
