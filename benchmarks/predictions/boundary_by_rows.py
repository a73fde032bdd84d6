"""From how few rows on does one network's decision boundary differ from the average over the posterior?

All data sets are judged on one grid, with a margin around them, and by the same fresh rows.

    python -m benchmarks.predictions.boundary_by_rows [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.interpolate import RegularGridInterpolator
from scipy.special import logsumexp

import numpyro_bnn as bnn
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.gaps import Gap
from benchmarks._shared.sampled_runs import convergence, paired, sampled
from benchmarks._shared.study import Row, as_text, begin, every_cell, from_text
from benchmarks._shared.words import span
from benchmarks.predictions.step_size import HIDDEN, data, hmc, model_of
from numpyro_bnn import scores

# The first two are those of `step_size`, with prior standard deviations of 2.
MODELS = {
    "logistic": model_of(()),
    "network": model_of((HIDDEN,)),
    "network, prior sd 1": model_of((HIDDEN,), 1.0),
    "network, prior sd 0.5": model_of((HIDDEN,), 0.5),
}
SURE = 0.95
FRESH, FRESH_SEED = 2000, 1000
SIZES: dict[str, Row] = {
    "full": {"rows": (20, 50, 200), "sets": 10, "chains": 8, "draws": 2000},
    "quick": {"rows": (20, 200), "sets": 2, "chains": 4, "draws": 400},
    "toy": {"rows": (20,), "sets": 1, "chains": 2, "draws": 20},
}


def axes_of_grid(points: int = 25) -> list[np.ndarray]:
    """Coordinates that cover the data with a margin."""
    x, _ = data()
    low, high = x.min(0) - 0.35 * np.ptp(x, 0), x.max(0) + 0.35 * np.ptp(x, 0)
    return [np.linspace(low[i], high[i], points, dtype=np.float32) for i in (0, 1)]


def grid() -> np.ndarray:
    return np.stack(np.meshgrid(*axes_of_grid(), indexing="ij"), -1).reshape(-1, 2)


class Judged(NamedTuple):
    """What draws of a model predict."""

    average: np.ndarray  # probability of class 1 at each place of the grid, the average over draws
    row: Row  # what is stored of it
    on_grid: np.ndarray  # that probability of each draw, (chain, draw, place)
    log_prob: np.ndarray  # of the classes of the fresh rows, of each draw, (chain, draw, row), nats


def judged(name: str, model: Callable, draws: Any) -> Judged:
    """Predictions of some draws, whose columns have this name, on the grid and at the fresh rows."""
    x, y = data(FRESH, FRESH_SEED)
    # One call, so that one program is compiled.
    probs = bnn.predict(model, draws, np.concatenate([grid(), x])).probs[..., 1]
    on_grid, fresh = np.split(probs, [len(grid())], axis=-1)
    average = on_grid.mean((0, 1))
    log_prob = np.log(np.where(y == 1, fresh, 1 - fresh))
    row = {
        f"lppd, {name}": scores.lppd(log_prob),
        f"error rate, {name}": float(np.mean((fresh.mean((0, 1)) > 0.5) != y)),
        f"sure, {name}": float(np.mean(np.maximum(average, 1 - average) >= SURE)),
        f"surface, {name}": as_text(average),
    }
    return Judged(average, row, on_grid, log_prob)


def gain_of(average: np.ndarray, one: np.ndarray) -> Row:
    """What an average over draws gains over one network, nats a row; errors over rows and over chains."""
    by_chain = logsumexp(average.astype(np.float64), 1) - np.log(average.shape[1])
    whole = logsumexp(by_chain, 0) - np.log(len(by_chain))
    gap = paired(whole, one[0, 0].astype(np.float64))
    return {
        "gain": gap["difference"],
        "gain, se": gap["difference_se"],
        "gain, chains": jackknife_error(without_each(by_chain).mean(1)),
    }


def cell(model: str, rows: int, seed: int, *, size: Row) -> Iterator[Row]:
    """MAP and the average on one data set."""
    own, (x, y) = MODELS[model], data(rows, seed)
    key = jax.random.key(seed)
    options = {"progress_bar": False}
    mode = bnn.map_estimate(own, key, x, y, num_starts=8, **options)
    starts = bnn.optimize(own, key, x, y, num_chains=size["chains"], **options)
    numbers = {"num_warmup": size["draws"] // 4, "num_samples": size["draws"], "thinning": 1}
    run = sampled(hmc(own), jax.random.fold_in(key, 1), x, y, starts=starts, **numbers)
    one, average = judged("MAP", own, mode), judged("average", own, run)
    classes = [np.stack([1 - p, p], -1) for p in (one.average, average.average)]
    if (model, seed) != ("network", 0):  # Only these are drawn.
        one.row["surface, MAP"] = average.row["surface, average"] = ""
    yield {
        "total variation": scores.total_variation(*classes),
        **one.row,
        **average.row,
        **gain_of(average.log_prob, one.log_prob),
        **convergence(average.on_grid),
    }


def gain_over_sets(rows: Sequence[Row]) -> Gap:
    """The mean gain over data sets, which share the fresh rows."""
    return Gap.over_subsets(*([r[f"gain{of}"] for r in rows] for of in ("", ", se", ", chains")))


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Means over data sets, with standard errors of differences, for each model and number of rows."""
    made = []
    for model in MODELS:
        for count in sorted({r["rows"] for r in rows}):
            own = [r for r in rows if (r["model"], r["rows"]) == (model, count)]

            def mean(column: str, own: list[Row] = own) -> float:
                return float(np.mean([r[column] for r in own]))

            made.append(
                {
                    "model": model,
                    "rows": f"{count:g}",
                    "total variation": f"{mean('total variation'):.3f}",
                    "sure, MAP": f"{mean('sure, MAP'):.2f}",
                    "sure, average": f"{mean('sure, average'):.2f}",
                    "log score, MAP": f"{mean('lppd, MAP'):.3f}",
                    "average": f"{mean('lppd, average'):.3f}",
                    "gain": str(gain_over_sets(own)),
                    "error rate, MAP": f"{mean('error rate, MAP'):.3f}",
                    "error rate, average": f"{mean('error rate, average'):.3f}",
                    "converged": f"{sum(r['converged'] == 'yes' for r in own)} of {len(own)}",
                }
            )
    return made


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Where one network and the average predict better, and on how much of the plane either is sure."""
    counts = sorted({r["rows"] for r in rows})
    groups = [
        [r for r in rows if (r["model"], r["rows"]) == (m, n)] for m in MODELS for n in counts
    ]
    gains = [gain_over_sets(own) for own in groups]
    one = [-g.value for g in gains if g.value < 0 and g.is_sure]
    better = sum(g.value > 0 and g.is_sure for g in gains)
    yield (
        f"On fresh rows one network scores better beyond two errors in {len(one)} of {len(gains)} settings, "
        f"by {span(one, 4)} nats, and the average in {better}."
    )


def picture(rows: Sequence[Row]) -> Any:
    """The first data set of each size: the network's probabilities, MAP above and the average below."""
    own = [r for r in rows if (r["model"], r["seed"]) == ("network", 0)]
    figure, panels = plt.subplots(
        2, len(own), figsize=(3.2 * len(own), 6), layout="constrained", squeeze=False
    )
    for column, row in zip(panels.T, sorted(own, key=lambda r: r["rows"])):
        for ax, name in zip(column, ("MAP", "average")):
            values = from_text(row[f"surface, {name}"]).reshape(25, 25)
            surface = RegularGridInterpolator(axes_of_grid(), values)

            def probs(points: np.ndarray, surface: Any = surface) -> np.ndarray:
                p = surface(points)
                return np.stack([1 - p, p], -1)[None]

            bnn.plots.plot_decision_boundary(probs, *data(int(row["rows"]), 0), ax=[ax])
            ax.set(title=f"{row['rows']:g} rows: {name}", xlabel="", ylabel="")
            if (name, row) != ("MAP", own[0]):
                ax.get_legend().remove()
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, _, size = begin(__file__, __doc__, ("model", "rows", "seed"), SIZES, argv)
    study.run(
        every_cell(model=MODELS, rows=size["rows"], seed=range(size["sets"])),
        partial(cell, size=size),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
