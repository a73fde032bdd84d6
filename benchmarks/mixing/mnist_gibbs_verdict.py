"""MNIST with precisions drawn by Gibbs, as in a course assignment: which posteriors does a GPU settle?

Long chains of HMC along axes that images share with biases (`mnist_gibbs_axes`), from two starts, and the
methods of the exercise beside their average. Hours on a core.

    JAX_DEFAULT_MATMUL_PRECISION=highest python -m benchmarks.mixing.mnist_gibbs_verdict [--quick | --toy]

Source of the scheme: R. M. Neal, *Bayesian Learning for Neural Networks* (1996), section 3.2; of the
other sampler: Chen, Fox and Guestrin, *Stochastic gradient Hamiltonian Monte Carlo* (2014).
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.mnist_posteriors import convergence, quality
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.mixing import mnist_gibbs_axes
from benchmarks.mixing import mnist_gibbs_methods as methods
from benchmarks.mixing.mnist_gibbs_methods import LAYERS, START_KINDS, TRAINED, Draws, Pace, Task
from benchmarks.mixing.mnist_gibbs_words import KEYS, START, findings, summary
from numpyro_bnn.diagnostics.convergence.rhat import rhat
from numpyro_bnn.plots.style import color_at, label_axes

BOTH = "both starts"
SHARED = mnist_gibbs_axes.METHOD
TEN, TWO = "ten digits", "two digits"
ROWS = 6
# Test images whose probabilities have an R-hat and a verdict.
JUDGED = 500


class Run(NamedTuple):
    """A task, chains from each start, trajectories of a draw that is kept, and methods to compare."""

    task: Task
    chains: int
    thinning: int
    compared: tuple[str, ...]


SIZES = {
    "full": {
        TWO: Run(Task((3, 5), 2000, 2000, 100, 3500, 160_000, 100, 300), 4, 4, methods.METHODS),
        TEN: Run(
            Task(tuple(range(10)), 2000, 2000, 100, 3500, 160_000, 100, 300), 4, 4, methods.METHODS
        ),
    },
    "quick": {TWO: Run(Task((3, 5), 500, 500, 20, 240, 2000, 20, 100), 2, 2, methods.METHODS)},
    "toy": {TWO: Run(Task((3, 5), 200, 50, 5, 60, 80, 5, 50), 2, 1, (methods.GIBBS_HMC,))},
}


def cells_of(size: str) -> list[Row]:
    """The chains of each task, what is compared with them, and the starts."""
    made: list[Row] = []
    for task, run in SIZES[size].items():
        # Rows of each start and of both.
        made.append({"task": task, "method": SHARED})
        others = [(method, TRAINED) for method in run.compared] + [(START, s) for s in START_KINDS]
        made += [dict(zip(KEYS, (task, *other))) for other in others]
    return made


def judged(found: Mapping[str, np.ndarray], y: np.ndarray, images: int | None = None) -> Row:
    """The verdict on probabilities of the first images, the error over chains of the score, and R-hats."""
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


def later(draw: int, left_out: float = 0.5) -> slice:
    """The draws up to this one, without a share of them at the beginning."""
    return slice(int((draw + 1) * left_out), draw + 1)


# What is known of a run only while the average of its reference is.
APART = ("total variation", "same class", "difference", "its error")


def apart(probs: np.ndarray, other: np.ndarray, y: np.ndarray) -> Row:
    """How far two sets of probabilities (image, class) are apart; log scores image by image."""
    scores = [np.log(np.maximum(p[np.arange(len(y)), y], 1e-30)) for p in (probs, other)]
    gap = bnn.scores.paired_difference(*scores)
    variation = float(np.abs(probs - other).sum(1).mean() / 2)
    same = float(np.mean(probs.argmax(1) == other.argmax(1)))
    return dict(zip(APART, (variation, same, gap.difference, gap.standard_error)))


def rows_of(
    drawn: Draws,
    y: np.ndarray,
    pace: Pace,
    reference: np.ndarray | None,
    left_out: float = 0.5,
    images: int | None = None,
) -> Iterator[Row]:
    """A row for each sixth of the draws; R-hats of the first images, averages without a share of draws."""
    probs = drawn.found["probs"]
    number = probs.shape[1]
    for draw in sorted({max(1, round(number * part / ROWS)) - 1 for part in range(1, ROWS + 1)}):
        kept = later(draw, left_out)
        average = probs[:, kept].mean((0, 1))
        row: Row = {
            "gradients": round((pace.warmup + (draw + 1) * pace.thinning) * pace.gradients),
            "draws": draw + 1,
        }
        last = [quality(p[draw], y) for p in probs]
        for name in ("error", "log score"):
            row[f"{name}, last"] = float(np.mean([one[name] for one in last]))
            row[f"{name}, average"] = quality(average, y)[name]
        for layer in LAYERS:
            sampled = drawn.found.get(f"λ {layer}")
            row[f"λ {layer}"] = "" if sampled is None else float(sampled[0, draw])
            row[f"mean {layer}"] = float(drawn.found[f"mean {layer}"][0, draw])
            row[f"mean {layer}, second chain"] = float(drawn.found[f"mean {layer}"][1, draw])
        logs = np.log(np.stack([drawn.found[f"mean {layer}"] for layer in LAYERS], -1))
        row |= convergence(probs[:, kept, :images])
        of_precisions = convergence(logs[:, kept])
        row["worst R-hat, precisions"] = of_precisions["worst R-hat"]
        row["median R-hat, precisions"] = of_precisions["median R-hat"]
        chains = probs[:, kept].mean(1)
        row["chains apart"] = float(np.abs(chains[0] - chains[1]).sum(1).mean() / 2)
        row |= dict.fromkeys(APART, "") if reference is None else apart(average, reference, y)
        yield row | drawn.facts


def rows_with_verdict(
    drawn: Draws, data: data_sets.Split, pace: Pace, images: int | None = None
) -> Iterator[Row]:
    """Rows of a run of which all draws count, the last with its verdict on the first images."""
    y = data.y_test
    rows = list(rows_of(drawn, y, pace, None, left_out=0.0, images=images))
    yield from ({"rows": len(data.x)} | row | NOT_JUDGED for row in rows[:-1])
    yield {"rows": len(data.x)} | rows[-1] | judged(drawn.found, y, images)


def long_run(
    name: str, run: Run, data_folder: Path | None, folder: Path, number_of_key: int
) -> Iterator[Row]:
    """The chains of one task: rows of those from each start, and of all, turn by turn."""
    task = run.task
    data = methods.load(task, data_folder)
    begin = [methods.trained(task, data_folder, start, run.chains) for start in START_KINDS]
    drawn = mnist_gibbs_axes.run(task, data, in_turn(*begin), number_of_key, run.thinning)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", drawn.found["probs"].mean((0, 1)))
    pace = mnist_gibbs_axes.pace_of(task, run.thinning)
    own = [slice(i, None, len(START_KINDS)) for i in range(len(START_KINDS))]
    for start, chains in zip((*START_KINDS, BOTH), (*own, slice(None))):
        found = {what: value[chains] for what, value in drawn.found.items()}
        facts = drawn.facts if start == BOTH else methods.NO_FACTS
        for row in rows_with_verdict(Draws(found, facts), data, pace, JUDGED):
            yield {"start": start} | row


def compared(
    given: Task, data_folder: Path | None, folder: Path, *, task: str, method: str, start: str
) -> Iterator[Row]:
    """The rows of a method, or of a start alone, beside the average of all long chains."""
    data = methods.load(given, data_folder)
    weights = methods.trained(given, data_folder, start)
    if method == START:
        drawn, pace = methods.start_alone(given, data, weights)
    else:
        drawn = methods.run(given, method, data, weights)
        pace = methods.pace(method, given, len(data.x))
    long = folder / f"{task}.npy"
    known = np.load(long) if long.is_file() else None
    rows = list(rows_of(drawn, data.y_test, pace, known))
    for row in rows if method != START else rows[-1:]:
        yield {"rows": len(data.x)} | row | NOT_JUDGED


def figure(rows: Sequence[Row]) -> Any:
    """Precisions of the hidden layer by passes, a line for each of two chains, and worst R-hat by passes."""
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
    study = Study(__file__, KEYS, given)
    unfinished = study.folder / "mnist_gibbs_verdict_runs"

    def compute(**asked: Any) -> Iterator[Row]:
        name = asked["task"]
        if asked["method"] == SHARED:
            number = list(runs).index(name)
            yield from long_run(name, runs[name], given.data, unfinished, number)
            return
        yield from compared(runs[name].task, given.data, unfinished, **asked)

    study.run(cells_of(given.size), compute)
    shutil.rmtree(unfinished, ignore_errors=True)
    study.publish(summary(study.rows), findings(study.rows), lambda: figure(study.rows))


if __name__ == "__main__":
    main()
