"""Does the posterior average fail under covariate shift where MAP does not, why, and what repairs it?

Izmailov, Nicholson, Lotfi and Wilson (2021, *Dangers of Bayesian model averaging under covariate shift*)
found posterior averages worse than MAP on corrupted images. Their reason: along directions of the
inputs that no training row has (pixels that are always zero; principal components of least variance)
the data say nothing, so that weights keep their prior spread in the posterior and are zero at MAP; a
shift along them then adds noise to every draw and leaves MAP alone.

Here: MNIST, a 784-50-10 relu network (`benchmarks._shared.mnist_posteriors`), MAP, a deep ensemble and
HMC under each of three priors. Test images under six corruptions at five severities (`corruptions`),
and under shifts made for the purpose: uniform noise on the dead pixels and, for
comparison, on as many others; Gaussian steps of one length along the principal components that have no
variance in the training rows, and along as many of most variance.

Printed: error and log score of every method by severity, whether chains agree on the predictions of
clean images, root mean square weights of dead and of other pixels over the prior scale α, and what
follows from them.

    python -m benchmarks.predictions.covariate_shift [--quick | --toy]
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    principal,
    quality,
    three,
)
from benchmarks._shared.study import Row, Study, parser
from benchmarks._shared.words import number, with_error
from benchmarks.predictions.corruptions import CORRUPTIONS, SEVERITIES, along, corrupted, on_pixels
from numpyro_bnn.plots.style import legend_above

LENGTHS = {
    "full": Length(1000, 1000, 1000, 3, 40, 100),
    "quick": Length(300, 300, 500, 2, 15, 30),
    "toy": Length(60, 40, 20, 2, 2, 4),
}
SEEDS = {"full": 2, "quick": 1, "toy": 1}
PRIORS = ("normal", "EmpCov", "ARD")
METHODS = tuple((m, p) for p in PRIORS for m in ("MAP", "ensemble", "posterior"))
MADE = ("dead pixels", "as many live pixels", "null components", "first components")
KINDS = (*CORRUPTIONS, *MADE)
# Below this share of the largest, the variance of a component is rounding.
NULL = 1e-6


def null_and_first(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Principal directions without variance in the rows of ``x``, and as many of the most."""
    moments, directions = principal(x)
    null = directions[moments < NULL * moments[0]]
    return null, directions[: min(len(null), len(directions) - len(null))]


def shifts(data: data_sets.Split) -> Iterator[tuple[str, int, np.ndarray]]:
    """Kind, severity and test images of every shift, some made from the training images."""
    dead = data.x.max(0) == 0
    null, first = null_and_first(data.x)
    made = {
        "dead pixels": lambda s: on_pixels(data.x_test, dead, s),
        "as many live pixels": lambda s: on_pixels(
            data.x_test, ~dead, s, count=min(dead.sum(), (~dead).sum())
        ),
        "null components": lambda s: along(data.x_test, null, s),
        "first components": lambda s: along(data.x_test, first, s),
    }
    for kind in KINDS:
        for severity in SEVERITIES[1:]:
            if kind in CORRUPTIONS:
                yield kind, severity, corrupted(data.x_test, kind, severity)
            else:
                yield kind, severity, made[kind](severity)


def mechanism(fitted: Fitted, x: np.ndarray) -> Row:
    """Root mean square of the weights over α: of dead pixels, of others, along null components."""
    weights = fitted.weights() / SCALE
    dead = x.max(0) == 0
    null, _ = null_and_first(x)

    def size(values: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(values))))

    return {
        "dead weights": size(weights[:, dead]),
        "live weights": size(weights[:, ~dead]),
        "null weights": size(null.astype(np.float32) @ weights),
    }


def cell(lengths: Length, folder: Path | None, prior: str, seed: int) -> Iterator[Row]:
    """All methods under one prior, on every shift at every severity."""
    data = data_sets.mnist(folder, lengths.rows, lengths.tests, seed=seed)
    kinds, severities, images = zip(*shifts(data))
    for method, fitted in three(Task.of(prior, data, lengths, seed)):
        clean, *others = fitted.probs(data.x_test, *images)
        facts = fitted.facts | mechanism(fitted, data.x) | convergence(clean)
        facts |= {"dead pixels": int((data.x.max(0) == 0).sum()), "tests": len(data.y_test)}
        for kind, severity, probs in (("none", 0, clean), *zip(kinds, severities, others)):
            found = quality(probs.mean((0, 1)), data.y_test)
            yield {"method": method, "kind": kind, "severity": severity, **found, **facts}


def log_scores(rows: list[Row], lengths: Length) -> Iterator[Row]:
    """A line for each method: its log score by kind of shift, a mean over severities and subsets."""
    for method, prior in METHODS:
        where = {"method": method, "prior": prior}
        scores = {k: mean_of(rows, "log score", kind=k, **where) for k in ("none", *KINDS)}
        told = {k: f"{v:.3f}".replace("-", "−") for k, v in scores.items()}
        name = f"N(0, {SCALE:g}²)" if prior == "normal" else prior
        networks = str(averaged_over(method, lengths))
        yield {"method": method, "prior": name, "networks averaged": networks, **told}


def excess(rows: list[Row], kind: str, method: str, prior: str, than: tuple) -> tuple[float, float]:
    """Mean error over severities 1 to 5 beyond that of another method, and its standard error.

    As if the two made their errors independently, which overstates it, and an image counts
    once, however many severities it is seen at.
    """
    own = mean_of(rows, "error", kind=kind, method=method, prior=prior)
    other = mean_of(rows, "error", kind=kind, method=than[0], prior=than[1])
    images = rows[0]["tests"] * len({r["seed"] for r in rows})
    return own - other, math.sqrt((own * (1 - own) + other * (1 - other)) / images)


def findings(rows: list[Row]) -> Iterator[str]:
    """What noise at dead pixels costs, where error rates differ, and how large weights are there."""

    def cost(method: str, prior: str, kind: str) -> float:
        scores = (
            mean_of(rows, "log score", kind=k, method=method, prior=prior) for k in ("none", kind)
        )
        return float(np.subtract(*scores))

    for prior in PRIORS:
        costs = [number(cost(m, prior, "dead pixels"), 3) for m in ("posterior", "MAP", "ensemble")]
        yield (
            f"Noise at dead pixels costs the log score of the posterior {costs[0]} nats, of MAP {costs[1]} "
            f"and of an ensemble of 3 {costs[2]} (prior {prior})."
        )
    for kind in ("noise", "as many live pixels"):
        costs = [number(cost(m, "normal", kind), 3) for m in ("posterior", "MAP")]
        yield f"Noise ({kind}) costs the posterior {costs[0]} nats and MAP {costs[1]} (prior normal)."
    for prior in PRIORS:
        gaps = {k: excess(rows, k, "posterior", prior, ("MAP", "normal")) for k in KINDS}
        clear = [f"{k} {with_error(g, 3)}" for k, g in gaps.items() if g[0] > 2 * g[1]]
        told = ", ".join(clear) or "nowhere"
        yield f"Error rate of the posterior ({prior}) above that of MAP (normal), beyond two errors: {told}."
    sizes = (
        mean_of(rows, f"{k} weights", method="posterior", prior="normal") for k in ("dead", "live")
    )
    yield "Weights of the posterior over α: {:.2f} at dead pixels, {:.2f} at others.".format(*sizes)


def figure(rows: list[Row]) -> Any:
    import matplotlib.pyplot as plt

    colors = dict(zip(PRIORS, bnn.plots.PALETTE))
    styles = {"MAP": "o--", "ensemble": "s:", "posterior": "^-"}
    fig, axes = plt.subplots(3, 4, figsize=(15, 10), layout="constrained")
    for ax, kind in zip(axes.flat, KINDS):
        for method, prior in METHODS:
            where = {"method": method, "prior": prior}
            errors = [
                mean_of(rows, "error", severity=s, kind=kind if s else "none", **where)
                for s in SEVERITIES
            ]
            label = f"{method}, {prior}"
            ax.plot(SEVERITIES, errors, styles[method], color=colors[prior], ms=4, label=label)
        ax.set(title=kind, xlabel="severity", ylabel="error", ylim=(0, None))
    axes.flat[-2].axis("off")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    axes.flat[-2].legend(handles, labels, frameon=False, loc="center", fontsize=12)
    _sizes(axes.flat[-1], rows)
    # Names between two panels would set all columns apart.
    axes.flat[-1].yaxis.tick_right()
    return fig


def _sizes(ax: Any, rows: list[Row]) -> None:
    """Bars: how large the weights are, by what they see."""
    seen = {"dead": "dead pixels", "live": "other pixels", "null": "null components"}
    for i, (what, label) in enumerate(seen.items()):
        sizes = [mean_of(rows, f"{what} weights", method=m, prior=p) for m, p in METHODS]
        place = np.arange(len(METHODS)) + 0.25 * (i - 1)
        ax.barh(place, sizes, 0.25, label=label, color=bnn.plots.PALETTE[3 + i])
    ax.set_yticks(range(len(METHODS)), [f"{m}, {p}" for m, p in METHODS])
    ax.invert_yaxis()
    ax.set_xlabel("root mean square weight / α")
    legend_above(ax)


def main(argv: list[str] | None = None) -> None:
    given = parser(__doc__).parse_args(argv)
    lengths = LENGTHS[given.size]
    study = Study(__file__, ("method", "prior", "seed", "kind", "severity"), given)
    cells = [{"prior": p, "seed": seed} for seed in range(SEEDS[given.size]) for p in PRIORS]
    study.run(cells, lambda **c: cell(lengths, given.data, **c))
    study.publish(
        list(log_scores(study.rows, lengths)), findings(study.rows), lambda: figure(study.rows)
    )


if __name__ == "__main__":
    main()
