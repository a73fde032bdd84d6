"""Do small networks that are averaged over their posterior predict as well as wide ones that are trained?

python -m benchmarks.predictions.averaging_or_width [--quick]
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split, uci
from benchmarks._shared.ensembles import log_mixture, stopped_early
from benchmarks._shared.sampled_runs import estimator, select
from benchmarks._shared.splits import split_error
from benchmarks._shared.study import Row, begin
from benchmarks._shared.words import with_error
from numpyro_bnn import scores

TABLES = ("yacht", "boston", "energy", "concrete")
POSTERIOR, TRAINED = "posterior", "trained"
# What is read of the rows: the method, and the columns of its log score and error.
READ = {
    "posterior": (POSTERIOR, "lppd", "rmse"),
    "one network": (TRAINED, "lppd of one", "rmse of one"),
    "ensemble of ten": (TRAINED, "lppd", "rmse"),
}
MEMBERS = 10
SIZES: dict[str, Row] = {
    "full": {
        "tables": TABLES,
        "splits": 2,
        "draws": 300,
        "steps": 5000,
        POSTERIOR: (2, 4, 8, 16, 32),
        TRAINED: (2, 4, 8, 16, 32, 64, 128, 256),
    },
    "quick": {
        "tables": TABLES[:1],
        "splits": 2,
        "draws": 100,
        "steps": 500,
        POSTERIOR: (2, 8),
        TRAINED: (2, 8, 32),
    },
    "toy": {
        "tables": TABLES[:1],
        "splits": 1,
        "draws": 10,
        "steps": 20,
        POSTERIOR: (2,),
        TRAINED: (2,),
    },
}


def averaged_network(rows: Split, width: int, split: int, size: Row) -> Row:
    """The posterior of a network of this width."""
    network = estimator((width,), rows, split, size["draws"])
    predictions = network.predictions(rows.x_test)
    return {
        "lppd": scores.lppd(np.asarray(predictions.log_prob(rows.y_test), np.float64)),
        "rmse": scores.rmse(predictions, rows.y_test),
        "lppd of one": "",
        "rmse of one": "",
        "worst R-hat": network.report_.predictions.max_rhat,
        "verdict": network.report_.verdict.words,
    }


def trained_networks(rows: Split, width: int, split: int, size: Row) -> Row:
    """Ten networks, one by one and together."""
    found = stopped_early((width,), jax.nn.tanh, rows, split, MEMBERS, size["steps"])
    y_test, means = rows.y_test, found.means
    alone = [
        log_mixture(mean[None], noise, y_test).mean() for mean, noise in zip(means, found.own_noise)
    ]
    return {
        "lppd": float(log_mixture(means, found.noise, y_test).mean()),
        "rmse": float(np.sqrt(np.mean((means.mean(0) - y_test) ** 2))),
        "lppd of one": float(np.mean(alone)),
        "rmse of one": float(np.sqrt(np.mean((means - y_test) ** 2, 1)).mean()),
        "worst R-hat": "",
        "verdict": "",
    }


def cell(
    table: str, split: int, method: str, width: int, *, size: Row, folder: Path | None
) -> Iterator[Row]:
    """One width on one split."""
    rows = uci(folder, table, split)
    begin = time.process_time()
    made = averaged_network if method == POSTERIOR else trained_networks
    row = made(rows, width, split, size)
    yield row | {"seconds": time.process_time() - begin}


def of_splits(rows: Sequence[Row], table: str, name: str, width: int, column: int) -> np.ndarray:
    """Log score (1) or error (2) of a width on every split, in their order."""
    method, *columns = READ[name]
    own = select(rows, table=table, method=method, width=width)
    return np.array(
        [r[columns[column - 1]] for r in sorted(own, key=lambda r: r["split"])], np.float64
    )


def widths(rows: Sequence[Row], name: str) -> list[int]:
    return sorted({r["width"] for r in rows if r["method"] == READ[name][0]})


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Each table: log scores by width, and what the widest trained networks gain over each posterior."""
    made = []
    for table in dict.fromkeys(r["table"] for r in rows):
        widest = widths(rows, "one network")[-1]
        alone, together = (
            of_splits(rows, table, name, widest, 1) for name in ("one network", "ensemble of ten")
        )
        for width in widths(rows, "posterior"):
            own = of_splits(rows, table, "posterior", width, 1)
            row: Row = {"table": table, "width": f"{width:g}", "posterior": f"{own.mean():.2f}"}
            for name in ("one network", "ensemble of ten"):
                row[f"{name}, same width"] = f"{of_splits(rows, table, name, width, 1).mean():.2f}"
            for name, other in (("one", alone), ("ten", together)):
                gain = own - other
                error = f" ± {split_error(gain, 0.1, 0.9):.2f}" if len(gain) > 1 else ""
                row[f"posterior over {name} of {widest:g}"] = f"{gain.mean():.2f}{error}"
            found = select(rows, table=table, method=POSTERIOR, width=width)
            row["rmse"] = f"{of_splits(rows, table, 'posterior', width, 2).mean():.3f}"
            best = of_splits(rows, table, "ensemble of ten", widest, 2)
            row[f"rmse, ten of {widest:g}"] = f"{best.mean():.3f}"
            within = sum("within" in r["verdict"] for r in found)
            row["within tolerance"] = f"{within} of {len(found)}"
            made.append(row)
    return made


def best_width(rows: Sequence[Row], table: str) -> int:
    """The width at which ten trained networks together score best: by the test rows, in their favour."""
    return max(
        widths(rows, "ensemble of ten"),
        key=lambda width: of_splits(rows, table, "ensemble of ten", width, 1).mean(),
    )


def gains_over_the_best(rows: Sequence[Row], table: str, width: int) -> np.ndarray:
    """What a posterior gains over ten trained networks of the best width, on every split."""
    best = of_splits(rows, table, "ensemble of ten", best_width(rows, table), 1)
    return of_splits(rows, table, "posterior", width, 1) - best


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """What averages gain over ten trained networks of the best width of each table, by width."""
    tables = list(dict.fromkeys(r["table"] for r in rows))
    units = widths(rows, "posterior")
    for width in sorted(units, key=lambda w: abs(w - 16)):
        gained = {table: gains_over_the_best(rows, table, width) for table in tables}
        told = ", ".join(
            f"{with_error((gain.mean(), split_error(gain, 0.1, 0.9)))} ({table})"
            for table, gain in gained.items()
        )
        both = sum((gain > 0).all() for gain in gained.values())
        yield (
            f"{width} averaged units, over ten trained networks of the best width: {told} nats; ahead on "
            f"all splits of {both} of {len(tables)} tables."
        )
    best = ", ".join(f"{best_width(rows, table)} ({table})" for table in tables)
    yield f"The best width of trained networks: {best}."


def picture(rows: Sequence[Row]) -> Any:
    """Log score against width, one panel a table."""
    tables = list(dict.fromkeys(r["table"] for r in rows))
    figure, axes = plt.subplots(
        1, len(tables), figsize=(1 + 3 * len(tables), 3.4), layout="constrained", squeeze=False
    )
    for ax, table in zip(axes[0], tables):
        for k, name in enumerate(READ):
            own = widths(rows, name)
            values = [of_splits(rows, table, name, width, 1).mean() for width in own]
            ax.plot(own, values, "os^"[k] + "-", color=bnn.plots.PALETTE[k], label=name)
        ax.set(xscale="log", xlabel="hidden units", title=table)
    axes[0][0].set_ylabel("log score of test rows, nats")
    axes[0][0].legend(frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(
        __file__, __doc__, ("table", "split", "method", "width"), SIZES, argv
    )
    study.run(
        [
            {"table": table, "split": split, "method": method, "width": width}
            for split in range(size["splits"])
            for table in size["tables"]
            for method in (POSTERIOR, TRAINED)
            for width in size[method]
        ],
        partial(cell, size=size, folder=given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
