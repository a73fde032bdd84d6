"""What do the defaults of `BNNRegressor` buy, and shorter limits, beside `bde` with its README's settings?

Splits of five tables as in `against_boosting`. Both get the same rows, and each fit is a process
of its own, so that its CPU seconds count imports and compiling. Numbers are those of ours over or less
those of `bde` on the same split, which runs directly after it.

    python -m benchmarks.predictions.defaults --bde-python PYTHON [--quick | --toy]
"""

import operator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context

import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Study, every_cell, parser
from benchmarks._shared.words import number, span
from benchmarks.predictions.against_boosting import FEW, MOST, standardised
from benchmarks.predictions.other_regressors import BDE, bde
from benchmarks.predictions.tabular import cpu_seconds, scored

TABLES = ("diabetes", "yacht", "energy", "concrete", "airfoil")
OURS = {"defaults": {}, "30 s": {"max_minutes": 1 / 2}, "10 s": {"max_minutes": 1 / 6}}


def fitted(given, table, seed, method):
    """Scores on the rows to test, and which verdict the run had."""
    (x, y), (x_test, y_test) = standardised(given.data, table, seed, MOST[given.size])
    verdict = ""
    if method in BDE:
        settings = BDE[method] | {"seed": seed}
        predictions = bde(given.bde_python, settings, x, y, x_test)
    else:
        options = OURS[method] | FEW.get(given.size, {})
        made = bnn.BNNRegressor(random_state=seed, **options).fit(x, y)
        predictions, verdict = made.predictions(x_test), made.report_.verdict
    found = scored(predictions, y_test) | {"verdict": verdict}
    return {k: "" if value != value else value for k, value in found.items()}


COMPARED = {
    "log score less bde's": ("lppd", operator.sub),
    "RMSE over bde's": ("rmse", operator.truediv),
    "CPU seconds over bde's": ("CPU seconds", operator.truediv),
}


def compared(rows, method, name):
    """What a method has beside `bde`, on each split that both have, by table."""
    column, beside = COMPARED[name]
    others = {(row["table"], row["seed"]): row for row in select(rows, method="bde")}
    found = {}
    for row in select(rows, method=method):
        if other := others.get((row["table"], row["seed"])):
            found.setdefault(row["table"], []).append(beside(row[column], other[column]))
    return found


def summary(rows):
    """A row for each table and method: numbers of all splits."""
    for table, method in dict.fromkeys((r["table"], r["method"]) for r in rows if r["verdict"]):
        beside = {name: compared(rows, method, name).get(table, ()) for name in COMPARED}
        told = {name: ", ".join(map(number, values)) for name, values in beside.items()}
        verdicts = sorted({r["verdict"] for r in select(rows, table=table, method=method)})
        yield {"table": table, "method": method} | told | {"verdict": " or ".join(verdicts)}


def findings(rows):
    """Means and ranges over all splits of all tables."""
    for method in OURS:
        beside = {k: [*chain(*compared(rows, method, k).values())] for k in COMPARED}
        told = (f"{k} {number(np.mean(v))} ({span(v)})" for k, v in beside.items() if v)
        yield f"{method}: {'; '.join(told)}."


def main(argv=None):
    made = parser(__doc__)
    made.add_argument("--bde-python", help="an interpreter with sklearn-contrib-bde")
    given = made.parse_args(argv)
    tables, seeds = (TABLES, range(3)) if given.size == "full" else (TABLES[:1], (0,))
    methods = [*OURS, *(("bde",) if given.bde_python else ())]

    def compute(table, seed, method):
        begin = cpu_seconds()
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            found = process.submit(fitted, given, table, seed, method).result()
        yield found | {"CPU seconds": cpu_seconds() - begin}

    study = Study(__file__, ("table", "seed", "method"), given)
    study.run(every_cell(seed=seeds, table=tables, method=methods), compute)
    study.publish(list(summary(study.rows)), findings(study.rows))


if __name__ == "__main__":
    main()
