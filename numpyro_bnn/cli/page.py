"""The report of the main job as one page of HTML: the verdict first, then scores, inputs and rows."""

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np

from numpyro_bnn import scores
from numpyro_bnn._html import bar, escape, page, paragraph, picture, section, strong, table
from numpyro_bnn.cli.baselines import recalls
from numpyro_bnn.cli.figures import Drawing, drawings
from numpyro_bnn.cli.job import POSTERIOR, Outcome
from numpyro_bnn.cli.job_tables import cells, headings, setting
from numpyro_bnn.posterior.draws import draws_of
from numpyro_bnn.posterior.predictive_draws import Average, average
from numpyro_bnn.workflow.relevance import Relevance, relevance

_MOST_ROWS = 10
_MOST_INPUTS = 20
_PACKAGES = ("numpyro-bnn", "numpyro", "jax", "flax")


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
