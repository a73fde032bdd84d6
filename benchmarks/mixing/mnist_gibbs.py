"""MNIST with precisions drawn by Gibbs, as in a course assignment: who samples that posterior?

A 784-100-10 network with four precisions on 2000 and on 10,000 images of ten digits, and 784-100-2 on 2000
of the digits 3 and 5, and of 4 and 9. In the exercise one sweep draws the four precisions from their
conditionals, λ | w ~ Gamma(α + n/2, β + |w|²/2), and then moves all weights given them, by a trajectory of
HMC or by SGHMC on minibatches. Beside these two: HMC in non-centred coordinates, with a redraw of the
precisions and a step along their ridges after each trajectory; HMC with the precisions integrated out;
BAOAB on minibatches whose noise is reduced (SVRG) and taken off. All begin at the same trained weights and
have as many passes over the images; three times as many has the reference. Weights under Gibbs draws may
have a temperature T, so that they follow exp(-U/T) given the precisions, and momenta a mass; both are
varied for SGHMC and HMC on the digits 3 and 5. One run begins at the end of SGHMC, with half of the passes.

Error and log score on test images by passes, of the last draw and of the average over the later half of the
draws so far; precisions with their conditional means; and how far average probabilities are from those of
the reference. A cell that is finished is kept, and so is what others need of it until all are.

    python -m benchmarks.mixing.mnist_gibbs [--quick | --toy]

Source of the scheme: R. M. Neal, *Bayesian Learning for Neural Networks* (1996), section 3.2; of the
other sampler: Chen, Fox and Guestrin, *Stochastic gradient Hamiltonian Monte Carlo* (2014).
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.mnist_posteriors import convergence, quality
from benchmarks._shared.study import Row, Study, parser
from benchmarks.mixing import mnist_gibbs_methods as methods
from benchmarks.mixing.mnist_gibbs_methods import LAYERS, Draws, Pace, Task
from benchmarks.mixing.mnist_gibbs_words import KEYS, START, figure, findings, summary

TEN, MORE, TWO = "ten digits", "ten digits, 10,000 images", "two digits"
OTHER_TWO = "two digits, 4 and 9"
DIGITS = tuple(range(10))
SIZES = {
    "full": {
        TEN: Task(DIGITS, 2000, 2000, 100, 3500, 10_500, 100, 300),
        MORE: Task(DIGITS, 10_000, 2000, 100, 3500, 10_500, 100, 300),
        TWO: Task((3, 5), 2000, 2000, 100, 3500, 10_500, 100, 300),
        OTHER_TWO: Task((4, 9), 2000, 2000, 100, 3500, 10_500, 100, 300),
    },
    "quick": {TWO: Task((3, 5), 500, 500, 20, 240, 480, 20, 100)},
    "toy": {TWO: Task((3, 5), 200, 50, 5, 60, 120, 5, 50)},
}
SGHMC_END = "end of SGHMC"
ROWS = 6
START_KINDS = (methods.TRAINED, methods.OPTIMIZE)
REFERENCE_CELL = {"method": methods.REFERENCE, "start": methods.TRAINED}


def cells_of(size: str) -> list[Row]:
    """Starts, then methods from the same start (the reference first), then what is varied."""

    def one(
        task: str, method: str, start: str = methods.TRAINED, T: float = 1.0, mass: float = 1.0
    ):
        return dict(zip(KEYS, (task, method, start, T, mass)))

    tasks = list(SIZES[size])
    made = [one(task, method) for task in tasks for method in methods.METHODS]
    # Takes three times as long as the others of its budget.
    for task in tasks[1:]:
        made.remove(one(task, methods.SVRG))
    made += [one(task, START, start) for task in tasks for start in START_KINDS]
    made.append(one(TWO, methods.NON_CENTRED, SGHMC_END))
    if size == "toy":
        made.remove(one(TWO, methods.NON_CENTRED))
        return made
    for method in (methods.GIBBS_SGHMC, methods.GIBBS_HMC):
        made += [one(TWO, method, T=0.1), one(TWO, method, mass=4.0)]
    return made


def later(draw: int, left_out: float = 0.5) -> slice:
    """The draws up to this one, without a share of them at the beginning."""
    return slice(int((draw + 1) * left_out), draw + 1)


def later_half(values: np.ndarray, draw: int) -> np.ndarray:
    """Mean over chains and over the later half of the draws up to this one, of (chain, draw, …)."""
    return values[:, later(draw)].mean((0, 1))


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
    """A row for each sixth of the draws, or for each draw of less than six.

    :param reference: average probabilities (image, class) that averages are compared with.
    :param left_out: share of the draws so far that averages and R-hat leave out.
    :param images: of the test images, the first, whose probabilities have an R-hat; all by default.
    """
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


def kept_as(cell: Mapping[str, Any]) -> str:
    return "_".join(str(cell[k]) for k in KEYS).replace(" ", "_").replace(",", "").replace("/", "")


def cell(
    tasks: dict[str, Task],
    data_folder: Path | None,
    folder: Path,
    reference: Mapping[str, str] = REFERENCE_CELL,
    **asked: Any,
) -> Iterator[Row]:
    """The rows of one run; what other cells need of it is kept in the folder.

    :param reference: method and start of the run whose average others are compared with, once it is known.
    """
    task = tasks[asked["task"]]
    if asked["start"] == SGHMC_END:
        task = task._replace(gradients=task.gradients // 2)
    data = methods.load(task, data_folder)

    def file(**other: Any) -> Path:
        return folder / f"{kept_as({**asked, **other})}.npz"

    plain = {"start": methods.TRAINED, "temperature": 1.0, "mass": 1.0}
    if asked["start"] == SGHMC_END:
        with np.load(file(**plain, method=methods.GIBBS_SGHMC)) as kept:
            weights = {f"net/{layer}": kept[layer] for layer in LAYERS}
    else:
        weights = methods.trained(task, data_folder, asked["start"])
    if asked["method"] == START:
        drawn, pace = methods.start_alone(task, data, weights)
    else:
        options = asked["temperature"], asked["mass"]
        drawn = methods.run(task, asked["method"], data, weights, *options)
        pace = methods.pace(asked["method"], task, len(data.x))
    probs = drawn.found["probs"]
    average = later_half(probs, probs.shape[1] - 1)
    folder.mkdir(parents=True, exist_ok=True)
    parts = {layer: drawn.last[f"net/{layer}"] for layer in LAYERS}
    np.savez(file(), average=average, **parts)
    long = file(**(plain | reference))
    known = None
    if long.is_file():
        with np.load(long) as kept:
            known = kept["average"]
    rows = list(rows_of(drawn, data.y_test, pace, known))
    for row in rows if asked["method"] != START else rows[-1:]:
        yield {"rows": len(data.x)} | row


def main(argv: Sequence[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    study = Study(__file__, KEYS, given)
    unfinished = study.folder / "mnist_gibbs_runs"

    def compute(**asked: Any) -> Iterator[Row]:
        return cell(SIZES[given.size], given.data, unfinished, **asked)

    study.run(cells_of(given.size), compute)
    shutil.rmtree(unfinished, ignore_errors=True)
    study.publish(summary(study.rows), findings(study.rows), lambda: figure(study.rows))


if __name__ == "__main__":
    main()
