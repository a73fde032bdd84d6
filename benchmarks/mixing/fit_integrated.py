"""Should `fit` integrate the output layer of a regression out?

Ready regressions of a 16-16 relu network with hierarchical precisions, as `fit` has them by default, on five
tables: four fifths of the rows to learn from, the others to judge. `fit` with its default kernel and budget
(300 draws after 300 of warm-up, 100 steps each, four chains), the output layer

- sampled with all else,
- sampled, with three times the steps to a draw,
- integrated out (`regression(…, integrate_output=True)`), a step of which takes about three times as long.

Of each: seconds of sampling with compilation, log score and RMSE of the test rows in units of the target's
standard deviation, worst and median R-hat of the functions at them, worst R-hat of log precisions, and the
verdict of the report. Gains are paired by table and split.

    python -m benchmarks.mixing.fit_integrated [--tables NAME …] [--splits N] [--quick | --toy]
        [--data FOLDER] [--output FOLDER]
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import publish, select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.mixing.hierarchical_posteriors import (
    functions,
    log_precisions,
    posterior,
    rhat_columns,
)

TABLES = ("yacht", "boston", "energy", "concrete", "airfoil")
PLAIN, LONGER, INTEGRATED = "sampled", "sampled, three times the steps", "integrated out"
METHODS = (PLAIN, LONGER, INTEGRATED)
# Steps to a draw of `fit` by default, and what a step costs with the layer integrated out.
STEPS, DEARER = 100, 3


class Size(NamedTuple):
    """Tables; splits of each; draws of warm-up, which are as many as are kept; rows at most (0: all)."""

    tables: tuple[str, ...]
    splits: int
    draws: int
    rows: int


SIZES = {
    "full": Size(TABLES, 1, 300, 0),
    "quick": Size(("yacht",), 1, 30, 100),
    "toy": Size(("yacht",), 1, 8, 30),
}


def fitted(table: str, split: int, method: str, folder: Any, size: Size) -> Row:
    """What one call of `fit` gives."""
    data = posterior(folder, table, size.rows, split).split
    model = bnn.regression(
        bnn.MLP([16, 16], 1, jax.nn.relu),
        bnn.priors.Hierarchical(),
        integrate_output=method == INTEGRATED,
    )
    found = bnn.fit(
        model,
        data.x,
        data.y,
        key=jax.random.key(split),
        num_warmup=size.draws,
        num_samples=size.draws,
        thinning=STEPS * (DEARER if method == LONGER else 1),
        progress_bar=False,
    )
    predictions = found.predict(data.x_test)
    # In units of the target's standard deviation: the rows to learn from are standardised.
    row = {
        "log_score": float(bnn.scores.lppd(predictions, data.y_test)),
        "rmse": float(bnn.scores.rmse(predictions, data.y_test)),
        "sampling_seconds": found.seconds["sample"],
        "verdict": str(found.report.verdict),
    }
    draws = found.mcmc.get_samples(group_by_chain=True)
    return row | rhat_columns(functions(predictions.values), log_precisions(draws))


def gains(rows: list[Row], of: str, over: str) -> np.ndarray:
    """Differences of log scores by table, paired by split and averaged over splits."""
    found = []
    for table in dict.fromkeys(r["table"] for r in rows):
        pairs = [
            (one["log_score"], other["log_score"])
            for one in select(rows, table=table, method=of)
            for other in select(rows, table=table, method=over, split=one["split"])
        ]
        if pairs:
            found.append(np.subtract(*np.mean(pairs, 0)))
    return np.array(found)


def findings(rows: list[Row]) -> Iterator[str]:
    for over in (PLAIN, LONGER):
        gain = gains(rows, INTEGRATED, over)
        if not gain.size:
            continue
        words = [f"{v:+.3f}" for v in gain]
        yield (
            f"Log score, {INTEGRATED} less {over}: {', '.join(words)} nats a row by table, mean "
            f"{gain.mean():.3f}."
        )
    for method in METHODS:
        own = select(rows, method=method)
        if own:
            worst = [r["functions_max_rhat"] for r in own]
            precisions = [r["precisions_max_rhat"] for r in own]
            yield (
                f"{method}: worst R-hat of functions {min(worst):.2f} to {max(worst):.2f}, of log precisions "
                f"{min(precisions):.2f} to {max(precisions):.2f}."
            )


def draw(rows: list[Row]) -> Any:
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    tables = list(dict.fromkeys(r["table"] for r in rows))
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    columns = {
        "functions_max_rhat": "worst R-hat of functions",
        "precisions_max_rhat": "worst R-hat of log precisions",
        "log_score": "log score, nats a row",
    }
    for ax, (column, text) in zip(axes, columns.items()):
        for i, method in enumerate(METHODS):
            own = select(rows, method=method)
            at = [tables.index(r["table"]) + 0.2 * (i - 1) for r in own]
            ax.plot(at, [r[column] for r in own], "o", ms=4, color=color_at(ax, i), label=method)
        ax.set_xticks(range(len(tables)), tables, rotation=30)
        if column != "log_score":
            ax.set_yscale("log")
        label_axes(ax, "", text)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


TABLE = {
    "table": "table",
    "split": "split",
    "method": "output layer",
    "sampling_seconds": "seconds of sampling",
    "functions_max_rhat": "worst R-hat, functions",
    "functions_median_rhat": "median",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "log_score": "log score",
    "rmse": "RMSE",
    "verdict": "verdict",
}


def main(argv: Any = None) -> None:
    made = parser(__doc__)
    made.add_argument("--tables", nargs="+", choices=TABLES, help="default: all")
    made.add_argument("--splits", type=int, help="of each table (default: 1)")
    asked = made.parse_args(argv)
    size = SIZES[asked.size]
    study = Study(__file__, ["table", "split", "method"], asked)
    study.run(
        (
            {"table": table, "split": split, "method": method}
            for split in range(asked.splits or size.splits)
            for table in asked.tables or size.tables
            for method in METHODS
        ),
        lambda table, split, method: [fitted(table, split, method, asked.data, size)],
    )
    publish(study, study.rows, TABLE, findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
