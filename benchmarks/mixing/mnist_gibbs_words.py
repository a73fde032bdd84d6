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


def predictions(rows: Sequence[Row]) -> Iterator[Row]:
    """What every run predicts, and how far that is from the reference."""
    for row in ends(rows):
        alone = row["difference"] == ""
        difference = (
            "" if alone else f"{short(row['difference'], 3)} ± {short(row['its error'], 3)}"
        )
        yield {
            "task": row["task"],
            "method": name_of(row),
            "error, last": short(row["error, last"], 3),
            "error, average": short(row["error, average"], 3),
            "log score, last": short(row["log score, last"], 3),
            "log score, average": short(row["log score, average"], 3),
            "above the reference's": difference,
            "total variation": "" if alone else short(row["total variation"], 3),
            "same class": "" if alone else short(row["same class"], 3),
            "between its chains": short(row["chains apart"], 3),
        }


def sampling(rows: Sequence[Row]) -> Iterator[Row]:
    """How every run moved, and whether its chains agree."""
    for row in ends(rows):
        if row["method"] == START:
            continue
        yield {
            "task": row["task"],
            "method": name_of(row),
            "passes": str(row["gradients"]),
            "draws": str(row["draws"]),
            "precision of the first kernel": both_chains(row, LAYERS[0]),
            "of the second": both_chains(row, LAYERS[2]),
            "acceptance": short(row["accept prob"]),
            "time of a trajectory": "" if row["time"] == "" else f"{row['time']:.2g}",
            "kinetic": short(row["kinetic temperature"]),
            "along gradients": short(row["gradient temperature"], 1),
            "R-hat": worst_and_median(row, ""),
            "R-hat, precisions": worst_and_median(row, ", precisions"),
        }


def summary(rows: Sequence[Row]) -> list[Row]:
    """One line for every run: what it predicts, how it moved, and whether it has converged."""
    moved = {(row["task"], row["method"]): row for row in sampling(rows)}
    blank = dict.fromkeys(next(iter(moved.values())), "")
    made = []
    for row, end in zip(predictions(rows), ends(rows)):
        own = moved.get((row["task"], row["method"]), {})
        made.append({**blank, **own, **row, "verdict": verdict_of(end)})
    return made


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """The precision of the first kernel at both ends of every run, and what averages score."""
    for task in dict.fromkeys(row["task"] for row in rows):
        here = [row for row in ends(rows) if row["task"] == task]
        runs = [row for row in here if row["method"] != START]
        starts = [row for row in here if row["method"] == START]
        told = ", ".join(f"{name_of(r)} {short(r['log score, average'], 3)}" for r in here)
        yield f"{task}, log score of averages: {told}."
        begin = "; ".join(f"{name_of(r)} {both_chains(r, LAYERS[0])}" for r in starts)
        told = "; ".join(f"{name_of(r)} {both_chains(r, LAYERS[0])}" for r in runs)
        yield f"{task}, precision of the first kernel in two chains: {begin}; at the ends {told}."
        hats = [r["worst R-hat"] for r in runs if r["worst R-hat"] > 0]
        yield f"{task}, worst R-hat of test probabilities: {span(hats)}."
