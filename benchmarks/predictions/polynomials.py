"""A network against polynomial regression, between the rows that were seen and beyond them.

Polynomials have all products of inputs, with weights and noise by the evidence, as is the degree (MacKay
1992, *Bayesian interpolation*; scikit-learn's `BayesianRidge`).

    python -m benchmarks.predictions.polynomials [--quick]
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split, uci
from benchmarks._shared.sampled_runs import estimator, select
from benchmarks._shared.splits import split_error
from benchmarks._shared.study import Row, begin, every_cell
from benchmarks.predictions.other_regressors import process, single
from numpyro_bnn import scores

TABLES = ("yacht", "boston", "energy", "concrete")
KINDS = ("at random", "beyond")
POLYNOMIAL, PROCESS, NETWORK = "polynomial", "Gaussian process", "network"
METHODS = (POLYNOMIAL, PROCESS, NETWORK)
# Degrees that are compared, and the most columns that a polynomial may have.
DEGREES, MOST_COLUMNS = range(1, 7), 1500
# The share of the rows that a split along a direction tests; that of splits at random is a tenth.
BEYOND = 0.2
SIZES: dict[str, Row] = {
    "full": {"tables": TABLES, "splits": 3, "draws": 300},
    "quick": {"tables": TABLES[:1], "splits": 2, "draws": 100},
    "toy": {"tables": TABLES[:1], "splits": 1, "draws": 10},
}


def beyond(x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the rows to keep, and of the outermost ones along a random direction."""
    direction = np.random.default_rng(seed).normal(size=x.shape[1])
    order = np.argsort(x @ direction, kind="stable")
    kept, tested = np.split(order, [round((1 - BEYOND) * len(order))])
    return kept, tested


def rows_of(folder: Path | None, table: str, kind: str, split: int) -> Split:
    """Rows to learn from and rows to test, inputs and target standardised by the former."""
    found = uci(folder, table, split)
    if kind == "at random":
        return found
    x = np.concatenate([found.x, found.x_test]).astype(np.float64)
    y = np.concatenate([found.y, found.y_test]).astype(np.float64)
    kept, tested = beyond(x, split)
    spread = np.where(x[kept].std(0) > 1e-6, x[kept].std(0), 1.0)
    x, y = (x - x[kept].mean(0)) / spread, (y - y[kept].mean()) / y[kept].std()
    return Split(*(np.float32(part) for part in (x[kept], y[kept], x[tested], y[tested])))


def polynomial(x: np.ndarray, y: np.ndarray, x_new: np.ndarray, degree: int) -> tuple[Any, float]:
    """A forecast by all products of at most `degree` inputs, and the log evidence."""
    ridge = BayesianRidge(compute_score=True, max_iter=1000)
    model = make_pipeline(PolynomialFeatures(degree, include_bias=False), StandardScaler(), ridge)
    model.fit(x.astype(np.float64), y.astype(np.float64))
    mean, scale = model.predict(x_new.astype(np.float64), return_std=True)
    return single(mean, scale), float(ridge.scores_[-1])


def best_polynomial(x: np.ndarray, y: np.ndarray, x_new: np.ndarray) -> tuple[Any, int]:
    """The forecast of the degree with the highest evidence, and that degree."""
    found = {}
    for degree in DEGREES:
        if PolynomialFeatures(degree).fit(x[:1]).n_output_features_ <= MOST_COLUMNS:
            found[degree] = polynomial(x, y, x_new, degree)
    best = max(found, key=lambda degree: found[degree][1])
    return found[best][0], best


def cell(
    table: str, kind: str, split: int, method: str, *, size: Row, folder: Path | None
) -> Iterator[Row]:
    """One method on one split."""
    rows = rows_of(folder, table, kind, split)
    begin, more = time.process_time(), {"degree": "", "verdict": ""}
    if method == POLYNOMIAL:
        forecast, more["degree"] = best_polynomial(rows.x, rows.y, rows.x_test)
        predictions = forecast.predictions
    elif method == PROCESS:
        predictions = process(rows.x, rows.y, rows.x_test, split).predictions
    else:
        network = estimator((16, 16), rows, split, size["draws"])
        predictions = network.predictions(rows.x_test)
        more["verdict"] = network.report_.verdict.words
    log_prob = np.asarray(predictions.log_prob(rows.y_test), np.float64)
    yield {
        "lppd": scores.lppd(log_prob),
        "rmse": scores.rmse(predictions, rows.y_test),
        **more,
        "rows": len(rows.x),
        "seconds": time.process_time() - begin,
    }


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Means over splits, and what the network gains over each other method, with the error of splits."""
    made = []
    for kind in KINDS:
        for table in dict.fromkeys(r["table"] for r in rows):
            own = {m: select(rows, table=table, kind=kind, method=m) for m in METHODS}
            tested = BEYOND if kind == "beyond" else 0.1
            row: Row = {"split": kind, "table": table}
            for method, found in own.items():
                row[f"log score, {method}"] = f"{np.mean([r['lppd'] for r in found]):.2f}"
                row[f"rmse, {method}"] = f"{np.mean([r['rmse'] for r in found]):.3f}"
            for method in METHODS[:2]:
                gain = np.array([a["lppd"] - b["lppd"] for a, b in zip(own[NETWORK], own[method])])
                error = split_error(gain, tested, 1 - tested)
                row[f"network over {method}"] = f"{gain.mean():.2f} ± {error:.2f}"
            row["degrees"] = " ".join(f"{r['degree']:g}" for r in own[POLYNOMIAL])
            within = sum("within" in r["verdict"] for r in own[NETWORK])
            row["within tolerance"] = f"{within} of {len(own[NETWORK])}"
            made.append(row)
    return made


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """What the network gains over the two other methods, between rows and beyond them."""
    for kind in KINDS:
        for method in METHODS[:2]:
            told = ", ".join(
                f"{r[f'network over {method}'].replace('-', '−')} ({r['table']})"
                for r in averaged(rows)
                if r["split"] == kind
            )
            yield f"Rows {kind}: the network gains over the {method} {told} nats."


def picture(rows: Sequence[Row]) -> Any:
    """The error of every split, at random and beyond."""
    tables = list(dict.fromkeys(r["table"] for r in rows))
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for ax, kind in zip(axes, KINDS):
        for k, method in enumerate(METHODS):
            own = select(rows, kind=kind, method=method)
            place = [tables.index(r["table"]) + 0.2 * (k - 1) for r in own]
            color = bnn.plots.PALETTE[k]
            ax.plot(place, [r["rmse"] for r in own], "os^"[k], color=color, label=method, alpha=0.7)
        ax.set(yscale="log", xticks=range(len(tables)), xticklabels=tables, title=kind)
    axes[0].set_ylabel("rmse, sd of the target")
    axes[0].legend(frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, ("table", "kind", "split", "method"), SIZES, argv)
    study.run(
        every_cell(split=range(size["splits"]), table=size["tables"], kind=KINDS, method=METHODS),
        partial(cell, size=size, folder=given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
