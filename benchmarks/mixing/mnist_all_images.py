"""The exercise of `mnist_gibbs` on all 60,000 images, on a GPU: where do two starts and two samplers lead?

The same 784-100-10 network with four precisions, the same methods and measures. HMC in non-centred
coordinates with moves runs twice: the reference, from weights trained under N(0, 1), with trajectories half
as long again; and from what `optimize` makes of the precisions, which lie far apart. Gibbs with HMC begins at
the trained weights. Budgets in passes over the images differ, and are stored.

    JAX_DEFAULT_MATMUL_PRECISION=highest python -m benchmarks.mixing.mnist_all_images [--quick | --toy]

A day on a CPU. On a GPU products of single precision are otherwise rounded to TF32.
"""

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.mixing import mnist_gibbs
from benchmarks.mixing.mnist_gibbs_methods import (
    GIBBS_HMC,
    LAYERS,
    NON_CENTRED,
    OPTIMIZE,
    REFERENCE,
    TRAINED,
    Task,
)
from benchmarks.mixing.mnist_gibbs_words import KEYS, START, findings, name_of, summary

ALL = "all images"
SIZES = {
    "full": Task(mnist_gibbs.DIGITS, 60_000, 10_000, 100, 0, 36_000, 800, 1000),
    # With more passes than `mnist_gibbs` has: a quarter of them must do for the last method.
    "toy": Task((3, 5), 200, 50, 5, 0, 400, 5, 50),
}
# Passes over the images a chain, as a share of the reference's, by method and start.
SHARES = {
    (START, TRAINED): 0.0,
    (START, OPTIMIZE): 0.0,
    (REFERENCE, TRAINED): 1.0,
    (NON_CENTRED, OPTIMIZE): 0.75,
    (GIBBS_HMC, TRAINED): 0.25,
}


def budget(task: Task, method: str, start: str) -> Task:
    """The task with as many passes as this run has."""
    return task._replace(gradients=round(task.long * SHARES[method, start]))


def figure(rows: Sequence[Row]) -> Any:
    """Precision of the first kernel, of both chains, and log score of the average, by passes."""
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    made, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for i, (method, start) in enumerate(key for key in SHARES if key[0] != START):
        own = select(rows, method=method, start=start)
        begin = select(rows, method=START, start=start)
        passes, color = [r["gradients"] for r in own], color_at(left, i)
        for chain in ("", ", second chain"):
            values = [r[f"mean {LAYERS[0]}{chain}"] for r in begin + own]
            label = None if chain else name_of(own[0])
            left.plot([0] * len(begin) + passes, values, "o-", ms=3, color=color, label=label)
        scores = [-r["log score, average"] for r in begin + own]
        right.plot([0] * len(begin) + passes, scores, "o-", ms=3, color=color)
    for ax, text in (
        (left, "precision of the first kernel"),
        (right, "negative log score of the average, nats"),
    ):
        ax.set(yscale="log", xlim=(0, None))
        label_axes(ax, "passes over the images", text)
    left.legend(frameon=False, fontsize=8)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    task = SIZES["full" if given.size == "full" else "toy"]
    study = Study(__file__, KEYS, given)
    unfinished = study.folder / "mnist_all_images_runs"

    def compute(**asked: Any) -> Iterator[Row]:
        own = budget(task, asked["method"], asked["start"])
        return mnist_gibbs.cell({ALL: own}, given.data, unfinished, **asked)

    cells = [dict(zip(KEYS, (ALL, method, start, 1.0, 1.0))) for method, start in SHARES]
    study.run(cells, compute)
    shutil.rmtree(unfinished, ignore_errors=True)
    study.publish(summary(study.rows), findings(study.rows), lambda: figure(study.rows))


if __name__ == "__main__":
    main()
