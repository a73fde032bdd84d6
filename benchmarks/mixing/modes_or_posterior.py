"""Does the posterior predict better than samples that stay in the modes of an ensemble?

python -m benchmarks.mixing.modes_or_posterior [--quick | --toy]
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.ensembles import log_mixture, stopped_early
from benchmarks._shared.sampled_runs import RHAT_LIMIT, publish, sampler, select
from benchmarks._shared.splits import split_error
from benchmarks._shared.study import Row, begin
from benchmarks._shared.words import span
from benchmarks.mixing.hierarchical_posteriors import (
    CHAINS,
    INTEGRATED,
    Posterior,
    begin_at,
    functions,
    in_coordinates,
    log_precisions,
    posterior,
    rhat_columns,
)
from numpyro_bnn.plots.style import color_at, label_axes

MEMBERS = 8
# Of a table: a fifth is tested.
TESTED, LEFT = 0.2, 0.8
POSTERIOR = "posterior"
METHODS = (
    POSTERIOR,
    "chains in their modes, as many gradients",
    "chains in their modes, short",
    "ensemble, noise fitted to held-out rows",
    "ensemble, stopped early",
)


class Size(NamedTuple):
    """Splits by table; gradients a chain of the posterior, its warm-up, short ones; draws; rows; steps."""

    splits: dict[str, tuple[int, ...]]
    gradients: int
    warmup: int
    short: int
    draws: int
    rows: int
    num_steps: int


SIZES = {
    "full": Size(
        dict.fromkeys(("yacht", "boston"), (0, 1, 2, 3, 4)),
        1_000_000,
        200_000,
        20_000,
        500,
        0,
        5000,
    ),
    "quick": Size({"yacht": (0, 1)}, 10_000, 2000, 1000, 100, 100, 200),
    "toy": Size({"yacht": (0, 1)}, 40, 20, 20, 8, 30, 20),
}


def chains(given: Posterior, method: str, split: int, size: Size) -> tuple[bnn.MCMC, int]:
    """A run, and its gradients a chain, warm-up included."""
    if method == POSTERIOR:
        coordinates, number, warmup, gradients = INTEGRATED, CHAINS, size.warmup, size.gradients
    elif method.endswith("short"):
        coordinates, number, warmup, gradients = "noncentered", MEMBERS, size.short, size.short
    else:
        coordinates, number = "noncentered", MEMBERS
        warmup, gradients = (n * CHAINS // MEMBERS for n in (size.warmup, size.gradients))
    begin = begin_at(given, coordinates, split, 200, number)
    thinning = max(1, gradients // size.draws)
    kernel = bnn.MCLMC(in_coordinates(given.model, coordinates))
    draws = gradients // thinning
    mcmc = sampler(kernel, number, warmup, draws, thinning, chain_method="parallel")
    mcmc.run(jax.random.key(split), given.split.x, given.split.y, init_params=begin)
    return mcmc, warmup + gradients


def ensemble(given: Posterior, method: str, split: int, size: Size) -> Row:
    """Scores of a deep ensemble."""
    found = stopped_early((16, 16), jax.nn.relu, given.split, split, MEMBERS, size.num_steps)
    y_test = given.split.y_test
    row = {"gradients": size.num_steps, "chains": MEMBERS}
    row["rmse"] = float(bnn.scores.rmse(found.predictions, y_test))
    if method.endswith("early"):
        return row | {"log_score": float(bnn.scores.lppd(found.predictions, y_test))}
    return row | {"log_score": float(log_mixture(found.means, found.noise, y_test).mean())}


def judged(given: Posterior, method: str, split: int, size: Size):
    """The row of a method on a split."""
    begin = time.perf_counter()
    row: Row = dict.fromkeys(
        ("functions_max_rhat", "functions_median_rhat", "precisions_max_rhat"), ""
    )
    if method.startswith("ensemble"):
        row |= ensemble(given, method, split, size)
    else:
        mcmc, gradients = chains(given, method, split, size)
        predictions = bnn.predict(None, mcmc, given.split.x_test)
        draws = mcmc.get_samples(group_by_chain=True)
        row |= rhat_columns(functions(predictions.values), log_precisions(draws)) | {
            "gradients": gradients,
            "chains": mcmc.num_chains,
            "log_score": float(bnn.scores.lppd(predictions, given.split.y_test)),
            "rmse": float(bnn.scores.rmse(predictions, given.split.y_test)),
        }
    yield row | {"run_seconds": time.perf_counter() - begin}


def differences(rows: list[Row], method: str) -> np.ndarray:
    """Log score of the posterior less that of a method, on each split that has both."""
    by_split = {r["split"]: r["log_score"] for r in select(rows, method=method)}
    base = {r["split"]: r["log_score"] for r in select(rows, method=POSTERIOR)}
    return np.asarray([base[s] - by_split[s] for s in sorted(base) if s in by_split])


def by_table(rows: list[Row]) -> list[Row]:
    """A row for each table and method: means over splits, and how much better the posterior is."""
    found = []
    for table in dict.fromkeys(r["table"] for r in rows):
        here = select(rows, table=table)
        for method in METHODS:
            own = select(here, method=method)
            if not own:
                continue
            gap = differences(here, method)
            error = f" ± {split_error(gap, TESTED, LEFT):.3f}" if len(gap) > 1 else ""
            sampled = own[0]["functions_max_rhat"] != ""
            hats = ("functions_max_rhat", "functions_median_rhat", "precisions_max_rhat")
            found.append(
                {
                    "table": table,
                    "method": method,
                    "gradients": own[0]["gradients"],
                    "chains": own[0]["chains"],
                    "gain": "" if method == POSTERIOR else f"{gap.mean():.3f}{error}",
                }
                | {
                    k: float(np.mean([r[k] for r in own]))
                    for k in ("log_score", "rmse", "run_seconds")
                }
                | {k: span([r[k] for r in own]) if sampled else "" for k in hats}
            )
    return found


TABLE = {
    "table": "table",
    "method": "method",
    "gradients": "gradients a chain",
    "chains": "chains or members",
    "log_score": "log score",
    "gain": "the posterior gains",
    "rmse": "RMSE",
    "functions_max_rhat": "worst R-hat, functions",
    "functions_median_rhat": "median",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "run_seconds": "seconds",
}


def findings(rows: list[Row]) -> Iterator[str]:
    """What the posterior gains over every other method, and in how many runs it has converged."""
    for table in dict.fromkeys(r["table"] for r in rows):
        own = [row for row in by_table(rows) if row["table"] == table and row["gain"]]
        told = "; ".join(f"over {row['method']} {row['gain'].replace('-', '−')}" for row in own)
        runs = select(rows, table=table, method=POSTERIOR)
        reached = sum(r["functions_max_rhat"] <= RHAT_LIMIT for r in runs)
        yield (
            f"{table}, nats a row that the posterior gains: {told}. "
            f"Its functions have converged in {reached} of {len(runs)} runs."
        )


def draw(rows: list[Row]):
    tables = list(dict.fromkeys(r["table"] for r in rows))
    others = [method for method in METHODS if method != POSTERIOR and select(rows, method=method)]
    figure, axes = plt.subplots(
        1, len(tables), figsize=(2.5 + 3.2 * len(tables), 3.2), layout="constrained", squeeze=False
    )
    for ax, table in zip(axes[0], tables):
        for i, method in enumerate(others):
            gap = differences(select(rows, table=table), method)
            ax.plot(gap, np.full(len(gap), i), "o", color=color_at(ax, 0), alpha=0.5)
            error = split_error(gap, TESTED, LEFT) if len(gap) > 1 else None
            ax.errorbar(gap.mean(), i, xerr=error, fmt="|", color="black", capsize=4)
        ax.axvline(0, color="0.5", linewidth=1)
        first = table == tables[0]
        ax.set_yticks(range(len(others)), others if first else [""] * len(others))
        ax.invert_yaxis()
        ax.set_title(table, fontsize=10)
        label_axes(ax, "", "")
    figure.supxlabel("log score of the posterior less that of the method, nats a row", fontsize=10)
    return figure


def main(argv=None) -> None:
    study, given, size = begin(__file__, __doc__, ("table", "split", "method"), SIZES, argv)
    study.run(
        (
            {"table": table, "split": split, "method": method}
            for table, splits in size.splits.items()
            for split in splits
            for method in METHODS
        ),
        lambda table, split, method: judged(
            posterior(given.data, table, size.rows, split), method, split, size
        ),
    )
    publish(study, by_table(study.rows), TABLE, findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
