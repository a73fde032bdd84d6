"""What `mnist_gibbs_verdict` says of its rows: a table of the ends of all runs, and sentences."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks._shared.mnist_posteriors import said_of
from benchmarks._shared.study import Row
from benchmarks._shared.words import span
from benchmarks.mixing.mnist_gibbs_methods import LAYERS, TRAINED

START = "start"
KEYS = ("task", "method", "start")


def ends(rows: Sequence[Row]) -> list[Row]:
    """The last row of every run; of starts the only one."""
    return list({tuple(row[k] for k in KEYS): row for row in rows}.values())


def short(value: Any, digits: int = 2) -> str:
    """A number of a table; empty where there is none."""
    return "" if value == "" else f"{value:.{digits}f}".replace("-", "−")


def both_chains(row: Row, layer: str) -> str:
    """Conditional means of a precision, of each chain."""
    return f"{row[f'mean {layer}']:.3g}, {row[f'mean {layer}, second chain']:.3g}"


def worst_and_median(row: Row, of: str) -> str:
    """R-hat; empty for chains of fewer than four draws in their later half, which have none."""
    worst, median = row[f"worst R-hat{of}"], row[f"median R-hat{of}"]
    return f"{worst:.2f} ({median:.2f})" if worst > 0 else ""


def verdict_of(row: Row) -> str:
    """Whether a run has converged, by its worst R-hat of test probabilities."""
    return said_of(START if row["method"] == START else "posterior", row["worst R-hat"])


def name_of(row: Row) -> str:
    """The method, and where it begins."""
    own = [row["method"]]
    if row["method"] == START or row["start"] != TRAINED:
        own.append(row["start"])
    return ", ".join(own)


def summary(rows: Sequence[Row]) -> list[Row]:
    """One line for every run: what it predicts, how it moved, and whether it has converged."""
    return [line(row) for row in ends(rows)]


def line(row: Row) -> Row:
    """The end of a run; cells of what it does not have are empty."""
    sampled = row["method"] != START
    gap = row["difference"]
    return {
        "task": row["task"],
        "method": name_of(row),
        "passes": str(row["gradients"]) if sampled else "",
        "draws": str(row["draws"]) if sampled else "",
        "precision of the first kernel": both_chains(row, LAYERS[0]),
        "of the second": both_chains(row, LAYERS[2]),
        "acceptance": short(row["accept prob"]),
        "time of a trajectory": "" if row["time"] == "" else f"{row['time']:.2g}",
        "kinetic": short(row["kinetic temperature"]),
        "along gradients": short(row["gradient temperature"], 1),
        "R-hat": worst_and_median(row, ""),
        "R-hat, precisions": worst_and_median(row, ", precisions"),
        "error, last": short(row["error, last"], 3),
        "error, average": short(row["error, average"], 3),
        "log score, last": short(row["log score, last"], 3),
        "log score, average": short(row["log score, average"], 3),
        "above the reference's": gap and f"{short(gap, 3)} ± {short(row['its error'], 3)}",
        "total variation": short(row["total variation"], 3),
        "same class": short(row["same class"], 3),
        "between its chains": short(row["chains apart"], 3),
        "verdict": verdict_of(row),
    }


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """How far the chains of the runs agree."""
    for task in dict.fromkeys(row["task"] for row in rows):
        here = [r for r in ends(rows) if r["task"] == task and r["method"] != START]
        hats = [r["worst R-hat"] for r in here if r["worst R-hat"] > 0]
        yield f"{task}, worst R-hat of test probabilities: {span(hats)}."
