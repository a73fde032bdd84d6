"""Does noise on pixels cost the posterior more than MAP because its weights there are those of the prior?

`shift_by_prior` finds that noise on dead pixels costs the posterior log score and MAP none, and that noise on
as many others costs it nearly as much. The reason given, weights that the images say nothing of, is varied
here by the number of hidden units: with fewer, the same images say more of each weight. 3000 rows of MNIST,
N(0, α²) for weights of the pixels, full-batch HMC of four chains from the networks of an ensemble of four,
MAP the first of them. Noise is put on all dead pixels, on as many others, and on as many *bright* ones, which
a third of the training images or more have; a cost is the log score of clean test images minus that of noisy
ones, paired by image, a mean over five severities.

How much the images say of a weight is its spread over the draws of a chain, over that of the prior. The size
of weights cannot say it: it is a spread and a mean together, and stays near the prior's where the mean grows
as the spread falls.

    python -m benchmarks.predictions.shift_by_width [--quick | --toy]

Source: Izmailov, Nicholson, Lotfi and Wilson (2021, *Dangers of Bayesian model averaging under covariate
shift*).
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._shared.chain_errors import jackknife_error
from benchmarks._shared.data_sets import mnist
from benchmarks._shared.gaps import Gap
from benchmarks._shared.sampled_runs import RHAT_LIMIT, paired, select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.predictions import shift_by_prior
from benchmarks.predictions.corruptions import SEVERITIES, on_pixels
from benchmarks.predictions.shift_by_prior_words import ENSEMBLE, MAP, POSTERIOR, ByImage

KEYS = ("units", "prior", "method", "pixels")
DEAD, LIVE, BRIGHT = "dead", "live", "bright"
# Share of the training images that have a bright pixel.
OFTEN = 1 / 3
METHODS = (POSTERIOR, MAP, ENSEMBLE)


class Size(NamedTuple):
    """Hidden units, and what is run for each of them: as in `shift_by_prior`, of one subset."""

    units: tuple[int, ...]
    each: shift_by_prior.Size


SIZES = {
    "full": Size(
        (4, 12, 50), shift_by_prior.Size(((3000, 1),), (0.1, 0.3, 1.0), 2000, 4, (80, 10, 25), 2000)
    ),
    "quick": Size((4, 20), shift_by_prior.Size(((300, 1),), (0.3,), 200, 2, (40, 5, 10), 300)),
    "toy": Size((2,), shift_by_prior.Size(((40, 1),), (0.3,), 20, 2, (10, 2, 4), 20)),
}


def spread_of(kernels: np.ndarray) -> float:
    """Root mean square over weights of their standard deviation over the draws of a chain.

    :param kernels: (chain, draw, pixel, unit).
    """
    return float(np.sqrt(np.var(kernels.astype(np.float64), axis=1, ddof=1).mean()))


def groups_of(x: np.ndarray) -> dict[str, np.ndarray]:
    """Pixels, a mask each, by how many training images (row, pixel) have them."""
    often = (x > 0).mean(0)
    return {DEAD: often == 0, LIVE: often > 0, BRIGHT: often >= OFTEN}


def over_chains(clean: ByImage, noisy: ByImage) -> float:
    """Monte Carlo error of the mean cost of noise, over chains or networks; none of a single network."""
    return jackknife_error(clean.without - noisy.without) if len(clean.without) else 0.0


def cell(
    units: int, prior: float, *, size: shift_by_prior.Size, folder: Path | None
) -> Iterator[Row]:
    """Costs of noise to each method, and the spread of the posterior's weights at the pixels that have it."""
    ((rows, _),) = size.subsets
    data = mnist(folder, rows, size.tests, seed=0)
    run = shift_by_prior.fitted(data, 0, prior, size=size, units=units)
    groups = groups_of(data.x)
    count = int(groups[DEAD].sum())
    # In units of the prior's spread: inputs carry α.
    kernels = np.asarray(run.networks[POSTERIOR]["net/Dense_0.kernel"])
    clean = shift_by_prior.scores_of(run, [data.x_test], data.y_test)
    for name, pixels in groups.items():
        noisy = [on_pixels(data.x_test, pixels, s, count=count) for s in SEVERITIES[1:]]
        found = shift_by_prior.scores_of(run, noisy, data.y_test)
        costs = {method: clean[method].scores - found[method].scores for method in METHODS}
        by_chain = {method: over_chains(clean[method], found[method]) for method in METHODS}
        there = kernels[:, :, pixels]
        weights = {"spread": spread_of(there), "size": float(np.sqrt(np.mean(there**2)))}
        for method, own in costs.items():
            cost = paired(clean[method].scores, found[method].scores)
            beyond = paired(own, costs[MAP])
            yield {
                "method": method,
                "pixels": name,
                "number": int(min(count, pixels.sum())),
                "clean": float(clean[method].scores.mean()),
                "cost": cost["difference"],
                "cost, se": cost["difference_se"],
                "cost, chains": by_chain[method],
                "beyond MAP": beyond["difference"],
                "beyond MAP, se": beyond["difference_se"],
                "beyond MAP, chains": by_chain[method],
                "error": float(found[method].wrong.mean()),
                **weights,
                **run.facts,
            }


def cost_of(row: Row) -> Gap:
    """What noise costs a method, with the error over images and over chains."""
    return Gap(row["cost"], math.hypot(row["cost, se"], row["cost, chains"]))


def beyond_map(row: Row) -> Gap:
    """The same beyond MAP, which is one network and has no error over chains."""
    return Gap(row["beyond MAP"], math.hypot(row["beyond MAP, se"], row["beyond MAP, chains"]))


def averaged(rows: Sequence[Row]) -> list[Row]:
    """What noise costs each method, a line for each network, prior and kind of pixel."""
    made = []
    for own in select(rows, method=POSTERIOR):
        here = {k: own[k] for k in ("units", "prior", "pixels")}
        others = {m: select(rows, method=m, **here)[0] for m in (MAP, ENSEMBLE)}
        made.append(
            {
                "units": f"{own['units']:g}",
                "α": f"{own['prior']:g}",
                "pixels": own["pixels"],
                "spread of weights": f"{own['spread']:.2f}",
                "costs the posterior": str(cost_of(own)),
                "MAP": str(cost_of(others[MAP])),
                "the ensemble": str(cost_of(others[ENSEMBLE])),
                "the posterior beyond MAP": str(beyond_map(own)),
            }
        )
    return made


def summary(rows: Sequence[Row]) -> list[Row]:
    """The same, with the size of the weights and how far chains agree."""
    return [
        row
        | {
            "size of weights": f"{own['size']:.2f}",
            "R-hat, worst": f"{own['worst R-hat']:.2f}",
            "R-hat, median": f"{own['median R-hat']:.2f}",
            "verdict": "converged" if own["worst R-hat"] <= RHAT_LIMIT else "not converged",
        }
        for row, own in zip(averaged(rows), select(rows, method=POSTERIOR))
    ]


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Where noise costs the posterior more than MAP, and where less."""
    for name in (DEAD, LIVE, BRIGHT):
        own = select(rows, method=POSTERIOR, pixels=name)
        gaps = [beyond_map(r) for r in own]
        more = sum(g.value > 0 and g.is_sure for g in gaps)
        less = sum(g.value < 0 and g.is_sure for g in gaps)
        spreads = [r["spread"] for r in own]
        yield (
            f"Noise on {name} pixels, where weights have {min(spreads):.2f} to {max(spreads):.2f} of "
            f"the prior's spread, costs the posterior more than MAP in {more} of {len(own)} settings, "
            f"less in {less}."
        )


def picture(rows: Sequence[Row]) -> Any:
    """What noise costs the posterior beyond MAP, against the spread of weights at those pixels."""
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import MARKERS, color_at, label_axes

    figure, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
    units = list(dict.fromkeys(r["units"] for r in rows))
    for i, name in enumerate((DEAD, LIVE, BRIGHT)):
        for count, marker in zip(units, MARKERS):
            own = select(rows, method=POSTERIOR, pixels=name, units=count)
            ax.errorbar(
                [r["spread"] for r in own],
                [r["beyond MAP"] for r in own],
                [2 * beyond_map(r).error for r in own],
                marker=marker,
                linestyle="none",
                color=color_at(ax, i),
                label=f"{name} pixels, {count:g} units",
            )
    ax.axhline(0, color="0.5", linewidth=1)
    ax.set_yscale("symlog", linthresh=0.1)
    label_axes(
        ax,
        "spread of weights over the draws of a chain, over the prior's",
        "cost of noise to the posterior beyond MAP, nats",
    )
    ax.legend(frameon=False, fontsize=8, ncols=1, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main(argv: list[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    size = SIZES[given.size]
    study = Study(__file__, KEYS, given)
    cells = [{"units": units, "prior": a} for units in size.units for a in size.each.priors]
    study.run(cells, partial(cell, size=size.each, folder=given.data))
    study.publish(summary(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
