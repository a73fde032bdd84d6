"""The exercise of `mnist_gibbs` on 2000 images, where passes are cheap: which posteriors does a GPU settle?

HMC in non-centred coordinates with moves along axes that images share with biases (`mnist_gibbs_axes`), four
chains from weights trained under N(0, 1) and four from what `optimize` makes of the precisions, all as one
program; two digits and ten. A fifth of the passes is warm-up, and all draws after it count. The methods of
`mnist_gibbs` run again from the former start, with its budget, and their averages are compared with that of
all chains.

R-hat and verdict are of the probabilities of the first 500 test images; scores are of all.

    JAX_DEFAULT_MATMUL_PRECISION=highest python -m benchmarks.mixing.mnist_gibbs_verdict [--quick | --toy]

Some twenty hours on a core. On a GPU products of single precision are otherwise rounded to TF32.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.mixing import mnist_gibbs, mnist_gibbs_axes
from benchmarks.mixing import mnist_gibbs_methods as methods
from benchmarks.mixing.mnist_gibbs import START_KINDS
from benchmarks.mixing.mnist_gibbs_methods import LAYERS, TRAINED, Draws, Task
from benchmarks.mixing.mnist_gibbs_words import KEYS, START, findings, summary
from numpyro_bnn.diagnostics.convergence.rhat import rhat

BOTH = "both starts"
SHARED = mnist_gibbs_axes.METHOD
COMPARED = (methods.NON_CENTRED, methods.GIBBS_HMC, methods.COLLAPSED, methods.GIBBS_SGHMC)
# Test images whose probabilities have an R-hat and a verdict.
JUDGED = 500
LONG = {"method": SHARED, "start": BOTH}


class Run(NamedTuple):
    """A task, chains from each start, trajectories of a draw that is kept, and methods to compare."""

    task: Task
    chains: int
    thinning: int
    compared: tuple[str, ...]


SIZES = {
    "full": {
        mnist_gibbs.TWO: Run(
            Task((3, 5), 2000, 2000, 100, 3500, 160_000, 100, 300), 4, 4, COMPARED
        ),
        mnist_gibbs.TEN: Run(
            Task(mnist_gibbs.DIGITS, 2000, 2000, 100, 3500, 160_000, 100, 300), 4, 4, COMPARED
        ),
    },
    "quick": {mnist_gibbs.TWO: Run(Task((3, 5), 500, 500, 20, 240, 2000, 20, 100), 2, 2, COMPARED)},
    "toy": {
        mnist_gibbs.TWO: Run(Task((3, 5), 200, 50, 5, 60, 80, 5, 50), 2, 1, (methods.GIBBS_HMC,)),
    },
}


def cells_of(size: str) -> list[Row]:
    """The chains of each task, what is compared with them, and the starts."""
    made: list[Row] = []
    for task, run in SIZES[size].items():
        # Rows of each start and of both.
        made.append({"task": task, "method": SHARED, "temperature": 1.0, "mass": 1.0})
        others = [(method, TRAINED) for method in run.compared] + [(START, s) for s in START_KINDS]
        made += [dict(zip(KEYS, (task, *other, 1.0, 1.0))) for other in others]
    return made


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
    name: str, run: Run, data_folder: Path | None, folder: Path, number_of_key: int
) -> Iterator[Row]:
    """The chains of one task: rows of those from each start, and of all, turn by turn."""
    task = run.task
    data = methods.load(task, data_folder)
    begin = [methods.trained(task, data_folder, start, run.chains) for start in START_KINDS]
    drawn = mnist_gibbs_axes.run(
        task, data, in_turn(*begin), number_of_key, run.thinning, "vectorized"
    )
    asked = dict(zip(KEYS, (name, SHARED, BOTH, 1.0, 1.0)))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / f"{mnist_gibbs.kept_as(asked)}.npz", average=drawn.found["probs"].mean((0, 1))
    )
    pace = mnist_gibbs_axes.pace_of(task, run.thinning)
    own = [slice(i, None, len(START_KINDS)) for i in range(len(START_KINDS))]
    for start, chains in zip((*START_KINDS, BOTH), (*own, slice(None))):
        found = {what: value[chains] for what, value in drawn.found.items()}
        facts = drawn.facts if start == BOTH else methods.NO_FACTS
        for row in rows_with_verdict(Draws(found, facts, {}), data, pace, JUDGED):
            yield {"start": start} | row


def figure(rows: Sequence[Row]) -> Any:
    """Precisions of the hidden layer by passes, a line for each of two chains, and worst R-hat by passes."""
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    tasks = list(dict.fromkeys(r["task"] for r in rows))
    made, axes = plt.subplots(
        len(tasks), 3, figsize=(13, 3.6 * len(tasks)), layout="constrained", squeeze=False
    )
    for line, task in zip(axes, tasks):
        for i, start in enumerate(START_KINDS):
            own = select(rows, task=task, method=SHARED, start=start)
            passes, color = [r["gradients"] / 1000 for r in own], color_at(line[0], i)
            for ax, layer in zip(line, (LAYERS[0], LAYERS[1])):
                for chain in ("", ", second chain"):
                    values = [r[f"mean {layer}{chain}"] for r in own]
                    label = None if chain else f"from {start}"
                    ax.plot(passes, values, "o-", ms=3, color=color, label=label)
        own = select(rows, task=task, method=SHARED, start=BOTH)
        for name, what, look in (
            ("worst R-hat", "test probabilities", "o-"),
            ("worst R-hat, precisions", "log precisions", "o:"),
        ):
            passes = [r["gradients"] / 1000 for r in own]
            values = [r[name] - 1 for r in own]
            line[2].plot(passes, values, look, ms=3, color=color_at(line[2], 2), label=what)
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
    runs = SIZES[given.size]
    tasks = {name: run.task for name, run in runs.items()}
    study = Study(__file__, KEYS, given)
    unfinished = study.folder / "mnist_gibbs_verdict_runs"

    def compute(**asked: Any) -> Iterator[Row]:
        name = asked["task"]
        if asked["method"] == SHARED:
            number = list(runs).index(name)
            yield from long_run(name, runs[name], given.data, unfinished, number)
            return
        for row in mnist_gibbs.cell(tasks, given.data, unfinished, LONG, **asked):
            yield row | NOT_JUDGED

    study.run(cells_of(given.size), compute)
    shutil.rmtree(unfinished, ignore_errors=True)
    study.publish(summary(study.rows), findings(study.rows), lambda: figure(study.rows))


if __name__ == "__main__":
    main()
