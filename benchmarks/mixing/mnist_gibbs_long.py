"""The exercise of `mnist_gibbs` on two digits, carried as far as an hour goes: do two starts agree?

HMC in non-centred coordinates with moves, as in that study, along the principal axes of the images: weights
of one variance are independent in any axes, so the posterior is the same, and a diagonal metric sees that
images have more in common along some axes than along others. Two chains begin at weights trained under
N(0, 1), two at what `optimize` makes of the precisions. A fifth of the passes is warm-up, and all draws after
it count.

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
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.mixing import mnist_gibbs
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

BOTH = "both starts"
LONG = {"method": AXES, "start": BOTH}
SIZES = {
    "full": {mnist_gibbs.TWO: Task((3, 5), 2000, 2000, 100, 3500, 40_000, 100, 300)},
    "quick": {mnist_gibbs.TWO: Task((3, 5), 500, 500, 20, 240, 1000, 20, 100)},
    "toy": {mnist_gibbs.TWO: Task((3, 5), 200, 50, 5, 60, 80, 5, 50)},
}
COMPARED = (methods.NON_CENTRED, methods.GIBBS_HMC, methods.COLLAPSED, methods.GIBBS_SGHMC)


def cells_of(size: str) -> list[Row]:
    """The four chains of each task, and what is compared with them."""
    runs = [(AXES, start) for start in (*START_KINDS, BOTH)]
    others = [(method, TRAINED) for method in COMPARED] + [(START, s) for s in START_KINDS]
    return [
        dict(zip(KEYS, (task, *run, 1.0, 1.0))) for task in SIZES[size] for run in runs + others
    ]


def judged(probs: np.ndarray, y: np.ndarray) -> Row:
    """The verdict of a report on all draws, and the error over chains of the average's log score, nats.

    :param probs: (chain, draw, image, class).
    """
    averages = np.maximum(probs.mean(1)[:, np.arange(len(y)), y], 1e-30)
    return {
        "verdict": bnn.diagnostics.diagnose_draws(predictions={"probs": probs}).verdict.words,
        "its error, chains": jackknife_error(without_each(np.log(averages)).mean(1)),
    }


NOT_JUDGED: Row = {"verdict": "", "its error, chains": ""}


def in_turn(*parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The chains of all parts, (chain, …) by name, so that the first two are of different parts."""
    return {
        name: np.stack([part[name] for part in parts], 1).reshape(-1, *first.shape[1:])
        for name, first in parts[0].items()
    }


def long_run(
    tasks: dict[str, Task], data_folder: Path | None, folder: Path, **asked: Any
) -> Iterator[Row]:
    """The chains of one start, or those of both together, turn by turn."""
    task = tasks[asked["task"]]
    data = methods.load(task, data_folder)

    def file(start: str, what: str) -> Path:
        return folder / f"{mnist_gibbs.kept_as({**asked, 'start': start})}{what}.npz"

    if asked["start"] == BOTH:
        parts = []
        for start in START_KINDS:
            with np.load(file(start, "_draws")) as kept:
                parts.append(dict(kept))
        found = in_turn(*parts)
        facts = methods.NO_FACTS
        np.savez(file(BOTH, ""), average=found["probs"].mean((0, 1)))
    else:
        weights = methods.trained(task, data_folder, asked["start"])
        found, facts, _ = methods.run(task, AXES, data, weights)
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file(asked["start"], "_draws"), **found)
    pace = methods.pace(AXES, task, len(data.x))
    rows = list(mnist_gibbs.rows_of(Draws(found, facts, {}), data.y_test, pace, None, left_out=0.0))
    yield from ({"rows": len(data.x)} | row | NOT_JUDGED for row in rows[:-1])
    yield {"rows": len(data.x)} | rows[-1] | judged(found["probs"], data.y_test)


def agreement(rows: Sequence[Row]) -> Iterator[Row]:
    """Whether the chains of each start agree, and those of both."""
    for row in select(ends(rows), method=AXES):
        score = f"{row['log score, average']:.4f} ± {row['its error, chains']:.4f}"
        yield {
            "task": row["task"],
            "chains from": row["start"],
            "passes": str(row["gradients"]),
            "draws of a chain": str(row["draws"]),
            "R-hat": worst_and_median(row, ""),
            "least ESS": f"{row['least ESS']:.0f}",
            "R-hat, precisions": worst_and_median(row, ", precisions"),
            "log score of the average": score.replace("-", "−"),
            "verdict": row["verdict"],
        }


def figure(rows: Sequence[Row]) -> Any:
    """Precisions of both kernels by passes, a line a chain, and worst R-hat by passes."""
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    tasks = list(dict.fromkeys(r["task"] for r in rows))
    made, axes = plt.subplots(
        len(tasks), 3, figsize=(13, 3.6 * len(tasks)), layout="constrained", squeeze=False
    )
    for line, task in zip(axes, tasks):
        for i, start in enumerate(START_KINDS):
            own = select(rows, task=task, method=AXES, start=start)
            passes, color = [r["gradients"] for r in own], color_at(line[0], i)
            for ax, layer in zip(line, (LAYERS[0], LAYERS[2])):
                for chain in ("", ", second chain"):
                    values = [r[f"mean {layer}{chain}"] for r in own]
                    label = None if chain else f"from {start}"
                    ax.plot(passes, values, "o-", ms=3, color=color, label=label)
        own = select(rows, task=task, **LONG)
        for name, label in (
            ("worst R-hat", "test probabilities"),
            ("worst R-hat, precisions", "log precisions"),
        ):
            line[2].plot(
                [r["gradients"] for r in own], [r[name] - 1 for r in own], "o-", ms=3, label=label
            )
        for ax, text in zip(
            line, ("precision of the first kernel", "of the second", "worst R-hat - 1, four chains")
        ):
            ax.set(yscale="log", title=task, xlim=(0, None))
            label_axes(ax, "passes over the images, a chain", text)
            ax.legend(frameon=False, fontsize=8)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    tasks = SIZES[given.size]
    study = Study(__file__, KEYS, given)
    unfinished = study.folder / "mnist_gibbs_long_runs"

    def compute(**asked: Any) -> Iterator[Row]:
        if asked["method"] == AXES:
            yield from long_run(tasks, given.data, unfinished, **asked)
            return
        for row in mnist_gibbs.cell(tasks, given.data, unfinished, LONG, **asked):
            yield row | NOT_JUDGED

    study.run(cells_of(given.size), compute)
    shutil.rmtree(unfinished, ignore_errors=True)
    study.publish(summary(study.rows), findings(study.rows), figure(study.rows))


if __name__ == "__main__":
    main()
