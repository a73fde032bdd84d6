"""A table that comes in ten batches, in its own order: an updated posterior beside fits anew.

Each batch is scored before its rows are used. The scale of boosting is that of its residuals at a fifth of
the rows, which a first forest did not see.

    python -m benchmarks.predictions.stream [--quick | --toy]
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.ensemble import HistGradientBoostingRegressor

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import table as stored_table
from benchmarks._shared.study import Study, parser
from benchmarks.predictions.tabular import cpu_seconds

BATCHES = 10
METHODS = ("updated", "fitted anew", "boosting", "never updated")
ROWS = {"full": 200, "quick": 100, "toy": 60}
# Short chains: they do not converge.
FIT = {"num_warmup": 50, "num_samples": 100, "thinning": 2}


def batches(given):
    """Inputs and targets of each batch, in the order of time."""
    x, y = stored_table(given.data, "bikesharing")
    order = np.argsort(x[:, 0], kind="stable")
    rows = order[np.linspace(0, len(order) - 1, ROWS[given.size]).astype(int)]
    # The number of a row is left out: the season and the year are inputs, and trees do not extrapolate.
    inputs, targets = x[rows, 1:].astype(np.float64), np.log1p(y[rows]).astype(np.float64)
    return list(zip(np.array_split(inputs, BATCHES), np.array_split(targets, BATCHES)))


def fitted(x, y, seed):
    model = bnn.regression(bnn.MLP((16,), 1), bnn.priors.Hierarchical())
    return bnn.fit(model, x, y, key=jax.random.key(seed), progress_bar=False, **FIT).mcmc


class Boosted:
    """Gradient boosting with one Gaussian of its residuals."""

    def __init__(self, x, y):
        held = np.arange(len(y)) % 5 == 0
        forest = HistGradientBoostingRegressor(random_state=0).fit(x[~held], y[~held])
        self.scale = (y[held] - forest.predict(x[held])).std()
        self.forest = HistGradientBoostingRegressor(random_state=0).fit(x, y)

    def score(self, x, y):
        return norm.logpdf(y, self.forest.predict(x), self.scale).mean()


def score(run, x, y):
    """Mean log density of targets."""
    if isinstance(run, Boosted):
        return run.score(x, y)
    return float(bnn.scores.lppd(bnn.predict(None, run, x), y))


def learned(method, run, past, new, number):
    """The predictor after a batch, and how it came about."""
    x, y = (np.concatenate(parts) for parts in zip(*past, new))
    if method == "boosting":
        return Boosted(x, y), "fit"
    if run is None or method == "fitted anew":
        return fitted(x, y, number), "fit"
    if method == "never updated":
        return run, "nothing"
    try:
        run = bnn.update(run, *new, key=jax.random.key(number))
    except RuntimeError as why:
        print(why)
        return fitted(x, y, number), "fit again"
    return run, "moved" if run.moves else "resampled"


def compute(given):
    """The function that a study calls for a cell."""
    parts = batches(given)

    def one(method):
        run = None
        for number, new in enumerate(parts):
            before = float("nan") if run is None else score(run, *new)
            begin = cpu_seconds()
            run, how = learned(method, run, parts[:number], new, number)
            spent = cpu_seconds() - begin
            yield {"batch": number + 1, "log score": before, "cpu": spent, "how": how}

    return one


def summary(rows):
    """A line for each method: scores of batches 2 to 10, and CPU-seconds after the first batch."""
    for method in METHODS:
        own = [row for row in rows if row["method"] == method and row["batch"] > 1]
        how = [row["how"] for row in own]
        yield {
            "method": method,
            "log score": float(np.mean([row["log score"] for row in own])),
            "CPU-seconds": float(np.sum([row["cpu"] for row in own])),
            "how": ", ".join(f"{how.count(kind)} {kind}" for kind in dict.fromkeys(how)),
        }


def findings(lines):
    """Scores and costs of updates beside those of fits anew."""
    of = {line["method"]: line for line in lines}
    updated, anew = of["updated"], of["fitted anew"]
    yield (
        f"Updates score {updated['log score']:.2f} nats a row on the next batch at "
        f"{updated['CPU-seconds']:.0f} CPU-seconds ({updated['how']}), fits anew {anew['log score']:.2f} at "
        f"{anew['CPU-seconds']:.0f}."
    )


def picture(rows):
    """Scores by batch, and CPU-seconds so far."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for method in METHODS:
        own = [row for row in rows if row["method"] == method and row["batch"] > 1]
        number = [row["batch"] for row in own]
        axes[0].plot(number, [row["log score"] for row in own], "o-", label=method)
        axes[1].plot(number, np.cumsum([row["cpu"] for row in own]), "o-")
    axes[0].set(xlabel="batch", ylabel="log score, nats a row")
    axes[1].set(xlabel="batch", ylabel="CPU-seconds so far", yscale="log")
    axes[1].legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="lower right")
    return figure


def main(argv=None):
    given = parser(__doc__).parse_args(argv)
    study = Study(__file__, ("method", "batch"), given)
    study.run([{"method": method} for method in METHODS], compute(given))
    lines = list(summary(study.rows))
    study.publish(lines, findings(lines), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
