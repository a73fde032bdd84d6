"""Which method knows that an image is no digit? MNIST against Fashion-MNIST, noise and turned digits.

Detection is by the entropy of the averaged probabilities and by the mutual information of label and weights
(AUROC: 1 separates, 0.5 is chance; a single network has no mutual information, hence 0.5).

    python -m benchmarks.predictions.out_of_distribution [--quick | --toy]
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.mnist_posteriors import (
    SCALE,
    Fitted,
    Length,
    Task,
    averaged_over,
    convergence,
    mean_of,
    quality,
    said_of,
    three,
)
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row, Study, every_cell, parser
from benchmarks.predictions.corruptions import corrupted

LENGTHS = {
    "full": Length(1000, 1000, 1000, 3, 40, 100),
    "quick": Length(300, 200, 200, 2, 10, 20),
    "toy": Length(60, 40, 20, 2, 2, 4),
}
SEEDS = {"full": 2, "quick": 1, "toy": 1}
# Networks of an ensemble whose average is over as many as those of mean field and SWAG.
LARGE, MEMBERS = "large ensemble", {"full": 100, "quick": 5, "toy": 3}
# The same with the α of its decay that is best for an ensemble of few on a held-out fifth of the rows.
TUNED, DECAYS = "large ensemble, tuned", (0.05, 0.1, 0.2, 0.4, 0.8)
METHODS = (
    ("MAP", "normal"),
    ("ensemble", "normal"),
    (LARGE, "normal"),
    (TUNED, "normal"),
    ("posterior", "normal"),
    ("mean field", "normal"),
    ("SWAG", "normal"),
    ("posterior", "EmpCov"),
)
UNFAMILIAR = ("Fashion-MNIST", "noise", "rotation")
SCORES = ("entropy", "mutual information")


def unfamiliar(kind: str, digits: np.ndarray, folder: Path | None) -> np.ndarray:
    """As many images as there are digits, of a kind that was not trained on."""
    if kind == "Fashion-MNIST":
        return data_sets.fashion(folder, len(digits))
    return corrupted(digits, kind, 5)


def large_ensemble(task: Task, members: int) -> Fitted:
    """Many networks, each trained from a start of its own."""
    return task._replace(length=task.length._replace(members=members)).modes()[1]


def tuned_decay(data: data_sets.Split, lengths: Length, seed: int) -> float:
    """The α of a prior N(0, α²) of the pixels whose few modes together predict held-out rows best."""
    held = len(data.x) // 5
    rest = data._replace(x=data.x[held:], y=data.y[held:])

    def score(scale: float) -> float:
        few = Task.of("normal", rest, lengths, seed, scale).modes()[1]
        (probs,) = few.probs(data.x[:held])
        return quality(probs.mean((0, 1)), data.y[:held])["log score"]

    return max(DECAYS, key=score)


def fits(task: Task, prior: str, members: int) -> Iterator[tuple[str, Fitted]]:
    """All methods under the first prior; under the other what is sampled is enough."""
    for method, fitted in three(task):
        if (method, prior) in METHODS:
            yield method, fitted
    if prior == "normal":
        yield LARGE, large_ensemble(task, members)
        yield "mean field", task.mean_field()
        yield "SWAG", task.swag()


def tuned(
    data: data_sets.Split, lengths: Length, members: int, prior: str, seed: int
) -> Iterator[tuple[str, Fitted, float]]:
    """The ensemble with a decay of its own, and the α of it, beside the methods under the first prior."""
    if prior == "normal":
        scale = tuned_decay(data, lengths, seed)
        yield TUNED, large_ensemble(Task.of(prior, data, lengths, seed, scale), members), scale


def cell(
    lengths: Length, members: int, folder: Path | None, prior: str, seed: int
) -> Iterator[Row]:
    """How well each method under a prior tells each kind of image from digits."""
    # Half of the test images are familiar, the other half are those that are corrupted.
    data = data_sets.mnist(folder, lengths.rows, 2 * lengths.tests, seed=seed)
    inside = data._replace(x_test=data.x_test[: lengths.tests], y_test=data.y_test[: lengths.tests])
    others = data._replace(x_test=data.x_test[lengths.tests :], y_test=data.y_test[lengths.tests :])
    strange = [unfamiliar(kind, others.x_test, folder) for kind in UNFAMILIAR]
    made = ((*one, SCALE) for one in fits(Task.of(prior, inside, lengths, seed), prior, members))
    for method, fitted, scale in chain(made, tuned(inside, lengths, members, prior, seed)):
        probs, *found = fitted.probs(inside.x_test, *strange)
        known = bnn.scores.uncertainty(probs)
        facts = quality(probs.mean((0, 1)), inside.y_test) | fitted.facts | convergence(probs)
        for kind, other in zip(UNFAMILIAR, map(bnn.scores.uncertainty, found)):
            yield {
                "method": method,
                "unfamiliar": kind,
                "scale": scale,
                "entropy": bnn.scores.ood_auroc(known.total, other.total),
                "mutual information": bnn.scores.ood_auroc(known.epistemic, other.epistemic),
                **facts,
            }


def summary(rows: list[Row], lengths: Length, members: int) -> Iterator[Row]:
    """A line for each method."""
    for method, prior in METHODS:
        where = {"method": method, "prior": prior}
        count = members if method in (LARGE, TUNED) else averaged_over(method, lengths)
        line: Row = {**where, "networks averaged": count}
        for kind in UNFAMILIAR:
            for score, short in zip(SCORES, ("H", "MI")):
                line[f"{kind}, {short}"] = mean_of(rows, score, unfamiliar=kind, **where)
        for column in ("error", "log score", "calibration error", "worst R-hat", "least ESS"):
            line[column] = mean_of(rows, column, **where)
        line["verdict"] = said_of(method, line["worst R-hat"])
        yield line


def findings(rows: list[Row]) -> Iterator[str]:
    """AUROC by mutual information for each kind, the best first, and what the posterior leads by."""
    for kind in UNFAMILIAR:
        found = {
            f"{m}" if p == "normal" else f"{m} ({p})": mean_of(
                rows, SCORES[1], unfamiliar=kind, method=m, prior=p
            )
            for m, p in METHODS
        }
        order = sorted(found, key=found.__getitem__, reverse=True)
        told = ", ".join(f"{name} {found[name]:.2f}" for name in order)
        yield f"{kind} against digits, AUROC by mutual information: {told}."


def figure(rows: list[Row]) -> Any:
    fig, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
    names = [f"{m}, {p}" for m, p in METHODS]
    for ax, kind in zip(axes, UNFAMILIAR):
        for i, score in enumerate(SCORES):
            for j, (method, prior) in enumerate(METHODS):
                own = select(rows, unfamiliar=kind, method=method, prior=prior)
                found = [r[score] for r in own]
                ax.scatter(
                    found,
                    [j + 0.16 * (2 * i - 1)] * len(found),
                    color=bnn.plots.PALETTE[i],
                    marker="os"[i],
                    label=score if j == 0 else None,
                )
        ax.axvline(0.5, color="0.6", linestyle="--", linewidth=1)
        ax.set(title=kind, xlabel="AUROC, a mark for each subset")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].legend(frameon=False)
    return fig


def main(argv: list[str] | None = None) -> None:
    given = parser(__doc__).parse_args(argv)
    lengths, members = LENGTHS[given.size], MEMBERS[given.size]
    study = Study(__file__, ("method", "prior", "seed", "unfamiliar"), given)
    cells = every_cell(seed=range(SEEDS[given.size]), prior=("normal", "EmpCov"))
    study.run(cells, lambda **c: cell(lengths, members, given.data, **c))
    study.publish(
        list(summary(study.rows, lengths, members)),
        findings(study.rows),
        lambda: figure(study.rows),
    )


if __name__ == "__main__":
    main()
