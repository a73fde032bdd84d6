"""Which method scores best for a given time?

`BNNRegressor` with a limit of ten seconds, which are enough for its optimised networks alone, with a third of
its draws and warm-up, with its defaults and with three times its draws; `bde`, a deep ensemble, a last layer
by Laplace, a Gaussian process and boosted trees, each at the one cost that it has. All get the same rows of
ten tables, and one core: seconds are then CPU-seconds. Each fit is a process of its own, so that imports and
compiling count.

    taskset -c 0 python -m benchmarks.predictions.anytime --bde-python PYTHON [--quick | --toy]
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import jax
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Study, every_cell, parser
from benchmarks._shared.words import number, span
from benchmarks.predictions.against_boosting import FEW, MOST, standardised
from benchmarks.predictions.other_regressors import BDE, OTHERS, bde
from benchmarks.predictions.tabular import cpu_seconds

# By source, see `data_sets.table`.
TABLES = {
    "diabetes": "of scikit-learn",
    "yacht": "mile",
    "boston": "uci",
    "energy": "mile",
    "concrete": "mile",
    "airfoil": "mile",
    "kin8nm": "uci",
    "power": "uci",
    "bikesharing": "mile",
    "protein": "mile",
}
OURS = {
    "10 s": {"max_minutes": 10 / 60},
    "a third of the draws": {"num_warmup": 100, "num_samples": 100},
    "defaults": {},
    "three times the draws": {"num_samples": 900},
}
APPROXIMATIONS = ("deep ensemble", "last layer by Laplace")
# Units of the layers of the estimator.
HIDDEN = bnn.BNNRegressor().hidden
OTHER = ("CatBoost, validated", "LightGBM", "Gaussian process")
TICKS = (5, 10, 20, 50, 100, 200)
METHODS = (*OURS, "bde", *APPROXIMATIONS, *OTHER)


def approximated(method, x, y, x_new, seed):
    """Predictions of the estimator's networks without a chain."""
    key, prior, quiet = jax.random.key(seed), bnn.priors.Hierarchical(), {"progress_bar": False}
    if method == "deep ensemble":
        model = bnn.regression(bnn.MLP(HIDDEN, 2), prior, likelihood="heteroscedastic")
        draws = bnn.deep_ensemble(model, key, x, y, num_members=8, **quiet)
    else:
        model = bnn.regression(bnn.MLP(HIDDEN, 1), prior)
        draws = bnn.laplace(model, key, x, y, subset="last_layer", num_samples=200, **quiet)
    return bnn.predict(None, draws, x_new)


def fitted(given, table, seed, method):
    """Scores on the rows to test, and which verdict the run had."""
    most, verdict = MOST[given.size], ""
    (x, y), (x_test, y_test) = standardised(given.data, table, seed, most, TABLES[table])
    try:
        if method in BDE:
            predictions = bde(given.bde_python, BDE[method] | {"seed": seed}, x, y, x_test)
        elif method in OTHERS:
            predictions = OTHERS[method](x, y, x_test, seed).predictions
        elif method in OURS:
            options = OURS[method] | FEW.get(given.size, {})
            made = bnn.BNNRegressor(random_state=seed, **options).fit(x, y)
            predictions, verdict = made.predictions(x_test), made.report_.verdict
        else:
            predictions = approximated(method, x, y, x_test, seed)
    except ValueError as why:
        # A search for a mode where there is none.
        return {"rmse": "", "lppd": "", "error": "", "verdict": f"refused: {str(why)[:60]}"}
    rows = np.asarray(bnn.scores.lppd(predictions, y_test, pointwise=True))
    rmse = float(bnn.scores.rmse(predictions, y_test))
    error = bnn.scores.standard_error(rows)
    return {"rmse": rmse, "lppd": float(rows.mean()), "error": error, "verdict": verdict}


def beside(rows, method):
    """For each table and split: scores of a method less the best among those that cost no more, in errors."""
    for own in select(rows, method=method):
        same = [r for r in select(rows, table=own["table"], seed=own["seed"]) if r["lppd"] != ""]
        cost = 1.1 * own["CPU seconds"]
        best = max((r for r in same if r["CPU seconds"] <= cost), key=lambda r: r["lppd"])
        yield (own["lppd"] - best["lppd"]) / np.hypot(own["error"], best["error"])


def findings(rows):
    """How often each limit is the best for its time, and what it gains over `bde`."""
    for method in OURS:
        of = select(rows, method=method)
        over = [select(rows, method="bde", table=r["table"], seed=r["seed"]) for r in of]
        pairs = [(own, other[0]) for own, other in zip(of, over) if other]
        gaps = list(beside(rows, method))
        told = (
            f"{method} ({span([r['CPU seconds'] for r in of], 0)} CPU-seconds): best of what costs no more, "
            f"or within a standard error of it, on {sum(gap > -1 for gap in gaps)} of {len(gaps)} tables"
        )
        if pairs:
            gain = np.mean([own["lppd"] - other["lppd"] for own, other in pairs])
            errors, cost = (
                np.median([own[k] / other[k] for own, other in pairs])
                for k in ("rmse", "CPU seconds")
            )
            told += (
                f"; {number(gain)} nats over `bde` on average, {number(errors)} times its root mean squared "
                f"error and {number(cost)} times its CPU-seconds in the median"
            )
        yield f"{told}."


def summary(rows):
    """A line for each table: log scores by method, means over splits."""
    for table in dict.fromkeys(row["table"] for row in rows):
        line = {"table": table}
        for method in METHODS:
            own = [r["lppd"] for r in select(rows, table=table, method=method) if r["lppd"] != ""]
            line[method] = number(np.mean(own)) if own else "none"
        yield line


def picture(rows):
    """Log score against CPU-seconds, a panel for each table; the estimator as a line."""
    tables = list(dict.fromkeys(row["table"] for row in rows))
    columns = -(-len(tables) // 2)
    size = 3.2 * columns, 6
    figure, axes = plt.subplots(2, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(tables) :]:
        axis.axis("off")
    for axis, table in zip(axes.flat, tables):
        own = select(rows, table=table)
        line = [[r["CPU seconds"], r["lppd"]] for r in own if r["method"] in OURS]
        axis.plot(*np.transpose(sorted(line)), "o-", color="black", label="BNNRegressor")
        for method, marker in zip(METHODS[len(OURS) :], "s^vD*P"):
            points = [r for r in select(own, method=method) if r["lppd"] != ""]
            xy = [[r[k] for r in points] for k in ("CPU seconds", "lppd")]
            axis.plot(*xy, marker, ls="", label=method)
        scores = sorted(r["lppd"] for r in own if r["lppd"] != "")
        # One method far below the others would hide what lies between these.
        axis.set(title=table, xscale="log", ylim=(max(scores[0], scores[-1] - 2) - 0.1, None))
        axis.set_xticks(TICKS, TICKS)
        axis.minorticks_off()
    figure.supxlabel("CPU-seconds on one core")
    figure.supylabel("log score, nats a row")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncol=7)
    return figure


def main(argv=None):
    made = parser(__doc__)
    made.add_argument("--bde-python", help="an interpreter with sklearn-contrib-bde")
    given = made.parse_args(argv)
    tables, seeds = (TABLES, range(2)) if given.size == "full" else (("diabetes",), (0,))
    # A check of seconds needs no other packages.
    known = METHODS if given.size == "full" else (*OURS, *APPROXIMATIONS)
    methods = [m for m in known if m not in BDE or given.bde_python]

    def compute(table, seed, method):
        begin = cpu_seconds()
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            found = process.submit(fitted, given, table, seed, method).result()
        yield found | {"CPU seconds": cpu_seconds() - begin}

    study = Study(__file__, ("table", "seed", "method"), given)
    study.run(every_cell(seed=seeds, table=tables, method=methods), compute)
    study.publish(list(summary(study.rows)), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
