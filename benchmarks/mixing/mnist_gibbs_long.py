"""The exercise of `mnist_gibbs` on two digits, carried as far as an hour goes: do two starts agree?

HMC in non-centred coordinates with moves, as in that study, along the principal axes of the images: weights
of one variance are independent in any axes, so the posterior is the same, and a diagonal metric sees that
images have more in common along some axes than along others. Two chains begin at weights trained under
N(0, 1), two at what `optimize` makes of the precisions. A fifth of the passes is warm-up, and all draws after
it count. The same again along axes that images share with an input that is always 1, whose weights are the
biases (`mnist_gibbs_axes`): a diagonal metric then also sees that biases do what the mean image does.

The methods of `mnist_gibbs` run again, with its budget, and their averages are compared with that of the four
chains.

    python -m benchmarks.mixing.mnist_gibbs_long [--quick | --toy]
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.mixing import mnist_gibbs, mnist_gibbs_axes
from benchmarks.mixing import mnist_gibbs_methods as methods
from benchmarks.mixing.mnist_gibbs import START_KINDS
from benchmarks.mixing.mnist_gibbs_methods import AXES, LAYERS, TRAINED, Draws, Task
from benchmarks.mixing.mnist_gibbs_words import (
    KEYS,
    START,
    ends,
    findings,
    summary,
    worst_and_median,
)
from numpyro_bnn.diagnostics.convergence.rhat import rhat

BOTH = "both starts"
SHARED = mnist_gibbs_axes.METHOD
LONG_METHODS = (AXES, SHARED)
NAMED = {AXES: "of images", SHARED: "shared with biases"}
LONG = {"method": AXES, "start": BOTH}
SIZES = {
    "full": {mnist_gibbs.TWO: Task((3, 5), 2000, 2000, 100, 3500, 40_000, 100, 300)},
    "quick": {mnist_gibbs.TWO: Task((3, 5), 500, 500, 20, 240, 1000, 20, 100)},
    "toy": {mnist_gibbs.TWO: Task((3, 5), 200, 50, 5, 60, 80, 5, 50)},
}
COMPARED = (methods.NON_CENTRED, methods.GIBBS_HMC, methods.COLLAPSED, methods.GIBBS_SGHMC)


def cells_of(size: str) -> list[Row]:
    """The four chains of each task, what is compared with them, and four along other axes."""
    runs = [(AXES, start) for start in (*START_KINDS, BOTH)]
    shared = [(SHARED, start) for start in (*START_KINDS, BOTH)]
    others = [(method, TRAINED) for method in COMPARED] + [(START, s) for s in START_KINDS]
    return [
        dict(zip(KEYS, (task, *run, 1.0, 1.0)))
        for task in SIZES[size]
        for run in runs + others + shared
    ]


def judged(found: Mapping[str, np.ndarray], y: np.ndarray, images: int | None = None) -> Row:
    """The verdict of a report on all draws, the error over chains of the average's log score, and R-hats.

    :param found: by name, (chain, draw, …): test probabilities, and conditional means of precisions.
    :param images: of the test images, the first, whose probabilities have the verdict; all by default.
    """
    probs = found["probs"]
    averages = np.maximum(probs.mean(1)[:, np.arange(len(y)), y], 1e-30)
    return {
        "verdict": bnn.diagnostics.diagnose_draws(
            predictions={"probs": probs[:, :, :images]}
        ).verdict.words,
        "its error, chains": jackknife_error(without_each(np.log(averages)).mean(1)),
        **{f"R-hat {layer}": float(rhat(np.log(found[f"mean {layer}"]))) for layer in LAYERS},
    }


NOT_JUDGED: Row = {"verdict": "", "its error, chains": ""}
NOT_JUDGED |= {f"R-hat {layer}": "" for layer in LAYERS}


def in_turn(*parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The chains of all parts, (chain, …) by name, so that the first two are of different parts."""
    return {
        name: np.stack([part[name] for part in parts], 1).reshape(-1, *first.shape[1:])
        for name, first in parts[0].items()
    }


def rows_with_verdict(
    drawn: Draws, data: data_sets.Split, pace: methods.Pace, images: int | None = None
) -> Iterator[Row]:
    """Rows of a run of which all draws count, the last with its verdict.

    :param images: of the test images, the first, that are judged; all by default.
    """
    y = data.y_test
    rows = list(mnist_gibbs.rows_of(drawn, y, pace, None, left_out=0.0, images=images))
    yield from ({"rows": len(data.x)} | row | NOT_JUDGED for row in rows[:-1])
    yield {"rows": len(data.x)} | rows[-1] | judged(drawn.found, y, images)


def long_run(
    tasks: dict[str, Task], data_folder: Path | None, folder: Path, **asked: Any
) -> Iterator[Row]:
    """The chains of one start, or those of both together, turn by turn."""
    task = tasks[asked["task"]]
    data = methods.load(task, data_folder)
    shared = asked["method"] == SHARED

    def file(start: str, what: str) -> Path:
        return folder / f"{mnist_gibbs.kept_as({**asked, 'start': start})}{what}.npz"

    if asked["start"] == BOTH:
        parts = []
        for start in START_KINDS:
            with np.load(file(start, "_draws")) as kept:
                parts.append(dict(kept))
        found = in_turn(*parts)
        facts = methods.NO_FACTS
        if not shared:
            np.savez(file(BOTH, ""), average=found["probs"].mean((0, 1)))
    else:
        weights = methods.trained(task, data_folder, asked["start"])
        if shared:
            key = START_KINDS.index(asked["start"])
            found, facts, _ = mnist_gibbs_axes.run(task, data, weights, key)
        else:
            found, facts, _ = methods.run(task, AXES, data, weights)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file(asked["start"], "_draws"), **found)
    pace = mnist_gibbs_axes.pace_of(task) if shared else methods.pace(AXES, task, len(data.x))
    yield from rows_with_verdict(Draws(found, facts, {}), data, pace)


def agreement(rows: Sequence[Row]) -> Iterator[Row]:
    """Whether the chains of each start agree, and those of both."""
    for row in (row for row in ends(rows) if row["method"] in LONG_METHODS):
        each = [row[f"R-hat {layer}"] for layer in LAYERS]
        score = f"{row['log score, average']:.4f} ± {row['its error, chains']:.4f}"
        yield {
            "axes": NAMED[row["method"]],
            "chains from": row["start"],
            "passes": str(row["gradients"]),
            "draws of a chain": str(row["draws"]),
            "R-hat": worst_and_median(row, ""),
            "least ESS": f"{row['least ESS']:.0f}",
            "R-hat, precisions": worst_and_median(row, ", precisions"),
            "log score of the average": score.replace("-", "−"),
            "R-hat of each": ", ".join(f"{v:.2f}" for v in each if v != ""),
            "verdict": row["verdict"],
        }


def figure(rows: Sequence[Row], long_methods: Sequence[str] = LONG_METHODS) -> Any:
    """Precisions of the hidden layer by passes, a line for each of two chains, and worst R-hat by passes."""
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    tasks = list(dict.fromkeys(r["task"] for r in rows))
    made, axes = plt.subplots(
        len(tasks), 3, figsize=(13, 3.6 * len(tasks)), layout="constrained", squeeze=False
    )
    for line, task in zip(axes, tasks):
        runs = [(method, start) for method in long_methods for start in START_KINDS]
        for i, (method, start) in enumerate(runs):
            own = select(rows, task=task, method=method, start=start)
            passes, color = [r["gradients"] / 1000 for r in own], color_at(line[0], i)
            for ax, layer in zip(line, (LAYERS[0], LAYERS[1])):
                for chain in ("", ", second chain"):
                    values = [r[f"mean {layer}{chain}"] for r in own]
                    label = None if chain else f"{NAMED[method]}, from {start}"
                    ax.plot(passes, values, "o-", ms=3, color=color, label=label)
        kinds = ("worst R-hat", "worst R-hat, precisions")
        for i, (method, name) in enumerate((m, kind) for m in long_methods for kind in kinds):
            own = select(rows, task=task, method=method, start=BOTH)
            passes = [r["gradients"] / 1000 for r in own]
            values = [r[name] - 1 for r in own]
            what = "log precisions" if name == kinds[1] else "test probabilities"
            color, label = color_at(line[2], 2 * (i // 2)), f"{NAMED[method]}, {what}"
            line[2].plot(
                passes, values, "o:" if name == kinds[1] else "o-", ms=3, color=color, label=label
            )
        for ax, text in zip(
            line,
            ("precision of the first kernel", "of hidden biases", "worst R-hat - 1, all chains"),
        ):
            ax.set(yscale="log", title=task, xlim=(0, None))
            label_axes(ax, "thousand passes over the images, a chain", text)
        line[2].legend(frameon=False, fontsize=8)
    lines = axes[0][0].get_legend_handles_labels()
    made.legend(*lines, loc="outside upper center", ncols=2, frameon=False)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    tasks = SIZES[given.size]
    study = Study(__file__, KEYS, given)
    unfinished = study.folder / "mnist_gibbs_long_runs"

    def compute(**asked: Any) -> Iterator[Row]:
        if asked["method"] in LONG_METHODS:
            yield from long_run(tasks, given.data, unfinished, **asked)
            return
        for row in mnist_gibbs.cell(tasks, given.data, unfinished, LONG, **asked):
            yield row | NOT_JUDGED

    study.run(cells_of(given.size), compute)
    shutil.rmtree(unfinished, ignore_errors=True)
    study.publish(summary(study.rows), findings(study.rows), lambda: figure(study.rows))


if __name__ == "__main__":
    main()
