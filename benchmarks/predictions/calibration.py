"""Calibration of runs that have not converged: coverage of 90 % intervals and sets, before and after.

Ten splits of three tables: 60 % of the rows are fitted, by chains that are too short on purpose, 20 % are
for `bnn.calibrate` and 20 % for the test. Split conformal prediction promises coverage between 0.9 and
0.9 + 1 / (n + 1) on average over splits, n being the number of calibration rows.

    python -m benchmarks.predictions.calibration --quick
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import table as stored_table
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.splits import split_error
from benchmarks._shared.study import Row, begin, every_cell
from benchmarks._shared.words import span

COVERAGE = 0.9
# Shares of a table that a split tests and fits; the rest is for calibration.
TESTED, FITTED = 0.2, 0.6
METHODS = {"diabetes": ("cdf", "cqr"), "airfoil": ("cdf", "cqr"), "digits": ("aps", "raps")}
SIZES: dict[str, Row] = {
    "full": {"splits": 10, "draws": 20, "thinning": 10, "rows": None},
    "quick": {"splits": 2, "draws": 20, "thinning": 10, "rows": None},
    "toy": {"splits": 2, "draws": 4, "thinning": 2, "rows": 150},
}
HIDDEN = (16,)
CHAINS = 4


def data(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of a table as they are."""
    if name == "airfoil":
        return stored_table(folder, name)
    load = load_digits if name == "digits" else load_diabetes
    x, y = load(return_X_y=True)
    return x, y


def parts(num_rows: int, split: int, most: int | None) -> tuple[np.ndarray, ...]:
    """Row numbers to fit, to calibrate and to test."""
    order = np.random.default_rng(split).permutation(num_rows)[:most]
    fifth = len(order) // 5
    fit, calibration, test = np.split(order, [len(order) - 2 * fifth, len(order) - fifth])
    return fit, calibration, test


def cell(table: str, split: int, size: Row, folder: Path | None) -> Iterator[Row]:
    """Coverage and size of both methods after one fit."""
    x, y = data(table, folder)
    fit, calibration, test = parts(len(x), split, size["rows"])
    prior = bnn.priors.Hierarchical()
    classes = table == "digits"
    model = (
        bnn.classification(bnn.MLP(HIDDEN, 10), prior)
        if classes
        else bnn.regression(bnn.MLP(HIDDEN, 1), prior)
    )
    fitted = bnn.fit(
        model,
        x[fit],
        y[fit],
        key=jax.random.key(split),
        num_chains=CHAINS,
        num_warmup=size["draws"],
        num_samples=size["draws"],
        thinning=size["thinning"],
        progress_bar=False,
    )
    for method in METHODS[table]:
        calibrated = bnn.calibrate(fitted, x[calibration], y[calibration], COVERAGE, method)
        before, after = calibrated.evaluate(x[test], y[test])
        yield {
            "method": method,
            "calibration rows": calibrated.num_rows,
            "coverage before": before.coverage,
            "coverage after": after.coverage,
            "size before": before.size,
            "size after": after.size,
            "temperature": calibrated.temperature or "",
            "verdict": str(fitted.report.verdict),
        }


def averaged(rows: Sequence[Row]) -> list[Row]:
    """A row for each table and method: means over splits, errors with the rows that these share."""
    table = []
    for name, methods in METHODS.items():
        for method in methods:
            own = select(rows, table=name, method=method)
            made: Row = {"table": name, "method": method, "splits": len(own)}
            for when in ("before", "after"):
                values = np.array([row[f"coverage {when}"] for row in own])
                error = split_error(values, TESTED, FITTED)
                made[f"coverage {when}"] = f"{values.mean():.3f} ± {error:.3f}"
            for when in ("before", "after"):
                made[f"size {when}"] = float(np.mean([row[f"size {when}"] for row in own]))
            known = sum(str(row["verdict"]).startswith("within_tolerance") for row in own)
            made["runs within tolerance"] = f"{known} of {len(own)}"
            table.append(made)
    return table


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Coverage before and after calibration, over tables and methods."""
    cells = dict.fromkeys((row["table"], row["method"]) for row in rows)
    groups = [select(rows, table=table, method=method) for table, method in cells]
    before, after = (
        [float(np.mean([r[f"coverage {when}"] for r in own])) for own in groups]
        for when in ("before", "after")
    )
    yield (
        f"Calibrated intervals and sets hold {span(after, 3)} of new targets, by table and method, where "
        f"{COVERAGE:g} is meant; before calibration {span(before, 3)}."
    )


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, ("table", "split", "method"), SIZES, argv)
    study.run(
        every_cell(table=METHODS, split=range(size["splits"])),
        lambda table, split: cell(table, split, size, given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows))


if __name__ == "__main__":
    main()
