"""Writes the results of the main job: a page of HTML, predictions and the posterior."""

import os
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import (
    ConfusionMatrixDisplay,
    PrecisionRecallDisplay,
    RocCurveDisplay,
    confusion_matrix,
)

from numpyro_bnn import plots, scores
from numpyro_bnn._html import Grid, Note, Picture, Section, page, picture
from numpyro_bnn._sentences import say
from numpyro_bnn.cli import saved_fit
from numpyro_bnn.cli.job import POSTERIOR, Outcome, Score, guess_name
from numpyro_bnn.posterior.draws import Draws, draws_of
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.posterior.predictive_draws import mean_over_draws
from numpyro_bnn.storage.folders import OWN_PREFIX, require_writable
from numpyro_bnn.workflow.fit import Fit

# Draws used of each chain: the average of a hundred or so is known well enough.
_DRAWS = 25


def relevance(
    draws: Draws,
    x: np.ndarray,
    y: np.ndarray,
    groups: Sequence[tuple[str, Sequence[int]]],
    *,
    num_shuffles: int = 3,
    seed: int = 0,
) -> Iterator[tuple[str, float, float]]:
    """Relevance of groups of columns to the average (Breiman, *Random forests*, 2001, section 10).

    Of each its name, the fall of the log score when it is shuffled among the rows, nats a row, and its error.
    """
    # Shuffling a column breaks its tie to the target and to the other columns. Of columns that say the same
    # each alone seems irrelevant.
    chosen = np.unique(np.linspace(0, draws.num_draws - 1, _DRAWS).round().astype(int))
    values = {name: np.asarray(value)[:, chosen] for name, value in draws.items()}
    few = Draws(values, draws.model, info=draws.info)
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(y)) for _ in range(num_shuffles)]
    whole = _log_scores(few, x, y)
    for name, columns in groups:
        falls = []
        for order in orders:
            shuffled = np.array(x)
            shuffled[:, columns] = shuffled[order][:, columns]
            falls.append(whole - _log_scores(few, shuffled, y))
        by_row = np.mean(falls, 0)
        yield name, float(by_row.mean()), scores.standard_error(by_row)


def _log_scores(draws: Draws, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    predictions = predict(None, draws, x)
    if "probs" not in predictions.values:
        return np.asarray(scores.lppd(predictions, y, pointwise=True))
    # The densities of classes would be computed by the network a second time.
    of_target = mean_over_draws(predictions.probs)[np.arange(len(y)), y]
    return np.log(np.maximum(of_target, np.finfo(np.float32).tiny))


# All files of a report, and the file by which a folder is recognised as one of a report.
_FILES = ("report.html", "predictions.csv", "posterior.nc", saved_fit.FILE)
_MARK = f"{OWN_PREFIX}report"
_MOST_ROWS = 10
_MOST_INPUTS = 20
# The largest number of classes of which each pair is shown.
_MOST_CLASSES = 20
_THRESHOLDS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_PACKAGES = ("numpyro-bnn", "numpyro", "jax", "flax")


def require_folder(folder: Path) -> None:
    """Refuse a folder that the report cannot be written to; called before hours of sampling."""
    require_writable(
        folder, "--output: the folder {folder} cannot be written ({why}). Give one that can."
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


def write(outcome: Outcome, folder: Path) -> Path:
    """Write the report: the page, which is returned, predictions of the test rows, and the posterior."""
    require_folder(folder)
    (folder / _MARK).touch()
    table, y = outcome.table, outcome.table.y[outcome.test]
    posterior, x_test = outcome.posterior, table.x[outcome.test]
    frame = saved_fit.frame_of(table, _test_names(outcome), posterior, y)
    frame = saved_fit.with_calibrated(frame, table, outcome.calibrated, posterior, x_test)
    frame.to_csv(folder / "predictions.csv", index=False)
    data = table.x[outcome.train], table.y[outcome.train]
    save = partial(saved_fit.write, table, outcome.options, folder, outcome.mcmc, *data)
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(save, calibrated=outcome.calibrated)
        page(f"{table.name}: {table.target}", parts_of(outcome, frame), folder / "report.html")
    saved.result()
    return folder / "report.html"


def parts_of(outcome: Outcome, frame: pd.DataFrame) -> list[Any]:
    """The page of a job: how good predictions are, whether they may be used, pictures, the rest folded."""
    report, table = outcome.fitted.report, outcome.table
    classes = table.task == "classification"
    held = len(table.y) - len(outcome.train) - len(outcome.test)
    kept = f", {held} for calibration" if held else ""
    about = (
        f"{table.task.capitalize()} of {table.target} from {len(table.sources)} columns; "
        f"{len(outcome.train)} rows to fit{kept}, {len(outcome.test)} to test."
    )
    names = [table.row_names[i] for i in outcome.train]
    with ThreadPoolExecutor(1) as pool:
        relevant = pool.submit(_relevance, outcome)
        pictures = list(_of_classes(outcome) if classes else _of_a_quantity(outcome))
        checked = _checked(outcome.fitted, names, table.classes)
        trace = picture(
            lambda figure: plots.plot_trace(outcome.mcmc, ax=figure.subplots()),
            "Log joint density of each chain",
            "Chains that have arrived look alike, and do not climb.",
            (7, 3.2),
        )
    beware = [Note(said, "warning", "Beware:") for said in outcome.warnings]
    return [
        Note(about),
        Section("How good are the predictions?", list(_answer(outcome))),
        Section("May they be used as they are?", [report.in_one_line(), *beware]),
        *pictures,
        Section("Relevance of inputs", [relevant.result()]),
        Section("Rows that are predicted worst", [_worst_rows(outcome, frame)], folded=True),
        checked,
        *report.sections(_test_names(outcome), folded=True),
        Section("Log joint density of each chain", [trace], folded=True),
        Section("What was fitted", list(_settings(outcome)), folded=True),
    ]


def _checked(fitted: Fit, names: list[str], classes: tuple[str, ...] = ()) -> Section:
    """The check of the fit; hours of sampling end in a report even where there is none."""
    try:
        return fitted.check(names=names, classes=classes).section(folded=True)
    except ValueError as error:
        return Section("Does the model fit?", [Note(str(error), "warning")], folded=True)


def _test_names(outcome: Outcome) -> list[str]:
    return [outcome.table.row_names[i] for i in outcome.test]


def _answer(outcome: Outcome) -> Iterator[Any]:
    """Scores of the test rows beside those of guessing and of plain training."""
    table = outcome.table
    classes = table.task == "classification"
    by_method = {row.method: row for row in outcome.scores}
    names = (POSTERIOR, guess_name(table), "plain training")
    own, guessed, trained = (by_method[name] for name in names)
    gain = scores.paired_difference(own.by_row, trained.by_row)
    errors = (row.error for row in (own, guessed, trained))
    words = (f"{1 - error:.1%}" if classes else f"{error:.4g}" for error in errors)
    values = dict(zip(("own", "guessed", "trained"), words), rows=len(outcome.test))
    yield Note(say("right on test rows" if classes else "off on test rows", **values), "lead")
    yield say("beside plain training", gain=gain.difference, error=gain.standard_error)
    unit = "probability" if classes else f"density per unit of {table.target}"
    said = f"Log score: the mean log predictive {unit} in nats; higher is better."
    yield Grid(headings(table.task), [cells(row) for row in outcome.scores], said, [POSTERIOR])
    if outcome.one_function:
        yield say("one function", members=outcome.options.num_chains)
    if outcome.evaluation is not None:
        unit = "classes in a set" if classes else f"width ({table.target})"
        rows = [
            (
                name,
                f"{m.coverage:.1%} ± {m.coverage_error:.1%}",
                f"{m.size:.4g} ± {m.size_error:.2g}",
            )
            for name, m in zip(("before calibration", "after"), outcome.evaluation)
        ]
        said = (
            "Calibrated on rows that were held out. The share holds on average over rows that are "
            "exchangeable with these; it is no promise about a single row or a group of rows."
        )
        yield Grid(("90 % on the test rows", "inside", unit), rows, said)


def _of_a_quantity(outcome: Outcome) -> Iterator[Section]:
    y = outcome.table.y[outcome.test]

    def draw(figure: Any) -> None:
        ax = plots.plot_intervals(outcome.posterior, y=y, ax=figure.subplots())
        ax.set_ylabel(outcome.table.target)

    title, said = "Predicted and observed test rows", "The intervals should hold 90 % of the rows."
    yield Section(title, [picture(draw, title, said, (7, 4))])


def _of_classes(outcome: Outcome) -> Iterator[Section]:
    """What classifiers are judged by; for two classes also curves and what a threshold does."""
    table, y = outcome.table, outcome.table.y[outcome.test]
    probs = mean_over_draws(outcome.posterior.probs)
    counts = confusion_matrix(y, probs.argmax(-1), labels=range(len(table.classes)))
    each = zip(table.classes, counts.sum(1), counts.diagonal())
    rows = [(name, f"{n:,}", f"{hit / n:.1%}", hit / n) for name, n, hit in each if n]
    said = "Recall: the share of the rows of a class that is predicted to be of it."
    parts: list[Any] = [Grid(("class", "test rows", "recall", ""), rows, said)]
    if len(table.classes) <= _MOST_CLASSES:
        parts.append(_confusion(counts, table.classes))
    yield Section("Class by class", parts)
    if len(table.classes) == 2:
        title = f"Telling {table.classes[1]} from {table.classes[0]}"
        yield Section(title, _two(y, probs[:, 1], table.classes))
    reliability = picture(
        lambda figure: plots.plot_reliability(outcome.posterior, y, ax=figure.subplots()),
        "Reliability of the posterior average",
        "How often rows are right, by how sure the prediction is; on the line where that is so.",
        (6, 4.6),
    )
    yield Section("Are the probabilities right?", [reliability])


def _confusion(counts: np.ndarray, classes: tuple[str, ...]) -> Picture:
    turned, width = (0, 0.9) if len(classes) <= 5 else (90, 0.45)
    side = 2.5 + width * len(classes)
    names = [textwrap.fill(textwrap.shorten(n, 30, placeholder="…"), 12) for n in classes]

    def draw(figure: Any) -> None:
        display = ConfusionMatrixDisplay(counts, display_labels=names)
        display.plot(ax=figure.subplots(), cmap="cividis", colorbar=False, xticks_rotation=turned)

    said = "Test rows by their class and the predicted one."
    return picture(draw, "Confusion matrix", said, (side + 1, side))


def _two(y: np.ndarray, prob: np.ndarray, classes: tuple[str, ...]) -> list[Any]:
    """Curves of two classes, and what a threshold on the probability of the second does."""
    yes = classes[1]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        color = left.xaxis.label.get_color()
        chance = {
            "plot_chance_level": True,
            "chance_level_kw": {"color": color, "label": "by chance"},
        }
        RocCurveDisplay.from_predictions(y, prob, ax=left, name=yes, **chance)
        PrecisionRecallDisplay.from_predictions(y, prob, ax=right, name=yes, **chance)
        left.set(xlabel="1 - specificity", ylabel="sensitivity")
        right.set(xlabel="sensitivity (recall)", ylabel="precision")
        for ax in (left, right):
            ax.legend(loc="lower center", frameon=False, fontsize="small")

    rows = []
    for threshold in _THRESHOLDS:
        (tn, fp), (fn, tp) = confusion_matrix(y, prob >= threshold, labels=[0, 1])
        shares = ((tp, tp + fn), (tn, tn + fp), (tp, tp + fp))
        rows.append((f"{threshold:.0%}", *(f"{a / b:.1%}" if b else "–" for a, b in shares)))
    said = (
        f"What it does to predict {yes} where its probability is at least the threshold. Sensitivity: found "
        f"among the rows that are {yes}; specificity: left alone among the others; precision: {yes} among "
        "those predicted to be."
    )
    title = "ROC and precision-recall curves"
    curves = picture(draw, title, f"Of {yes}, over all thresholds.", (8, 4))
    return [Grid(("threshold", "sensitivity", "specificity", "precision"), rows, said), curves]


def _relevance(outcome: Outcome) -> Grid:
    x, y = outcome.table.x[outcome.test], outcome.table.y[outcome.test]
    groups, draws = outcome.table.groups, draws_of(outcome.mcmc)
    found = list(relevance(draws, x, y, groups, seed=outcome.options.seed))
    found.sort(key=lambda one: -one[1])
    top = max(found[0][1], 1e-12)
    rows = []
    for name, drop, error in found[:_MOST_INPUTS]:
        low, high = drop - 1.645 * error, drop + 1.645 * error
        rows.append((name, drop / top, f"{drop:.4f} ({low:.4f} to {high:.4f})"))
    left = len(found) - len(rows)
    more = f" {left} inputs matter less and are not shown." if left else ""
    said = (
        "How much the mean log score falls, in nats a row, when an input is shuffled among the test rows. Of "
        f"inputs that say the same, each alone seems to matter little.{more}"
    )
    return Grid(("input", "", "fall of the log score (90 % interval)"), rows, said)


def _worst_rows(outcome: Outcome, frame: pd.DataFrame) -> Grid:
    by_row = outcome.scores[-1].by_row
    order = np.argsort(by_row, kind="stable")[:_MOST_ROWS]
    # Of classes without all of their probabilities.
    frame = frame.iloc[order, : 3 if outcome.table.classes else None]
    frame = frame.assign(**{"log score": [f"{score:.3f}" for score in by_row[order]]})
    return Grid([*map(str, frame)], frame.astype(str).to_numpy().tolist())


def _settings(outcome: Outcome) -> Iterator[Any]:
    """Network, prior, sampler and lengths in words."""
    table, options = outcome.table, outcome.options
    yield (
        f"Network {table.x.shape[1]}-{'-'.join(map(str, options.hidden))}-{len(table.classes) or 1} (tanh), "
        f"prior: {options.prior}. Sampler: {type(outcome.mcmc.sampler).__name__}, {options.num_chains} "
        f"chains of {outcome.mcmc.num_warmup} steps of warm-up and draws of {outcome.mcmc.thinning} steps "
        f"each, seed {options.seed}. {outcome.mcmc.stopped}"
    )
    yield (
        "Plain training is one network, whose length and weight decay held-out rows decide. The ensemble is "
        "the average of the optimised starts, the posterior average that of all draws of their chains."
    )
    yield Note(", ".join(f"{name} {version(name)}" for name in _PACKAGES))


def headings(task: str) -> tuple[str, ...]:
    """Column names of the table of scores."""
    if task == "classification":
        return ("method", "log score", "± s.e.", "error", "calibration error", "seconds")
    return ("method", "log score", "± s.e.", "RMSE", "coverage of 90 %", "seconds")


def cells(row: Score) -> tuple[str, ...]:
    """One row of the table of scores, formatted."""
    return (
        row.method,
        f"{row.by_row.mean():.4f}",
        f"{scores.standard_error(row.by_row):.4f}",
        f"{row.error:.4f}",
        f"{row.calibration:.4f}",
        f"{row.seconds:.0f}",
    )
