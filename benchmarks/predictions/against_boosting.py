"""On the splits of `bde`: the estimator, its variants, boosted trees and a Gaussian process.

Splits and scaling are those of the published figures (the season, one of the published inputs of bikesharing,
is not in our file). Validation rows, where a method has them, come out of the training rows.

Cells with `held` above 0 leave so large a share of the training rows out of the fit, and calibrate the 90 %
interval on it (split conformal; the score of conformalised quantile regression, for all methods).

    python -m benchmarks.predictions.against_boosting [--quick] [--bde-python PYTHON]
"""

from functools import partial

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import table as stored_table
from benchmarks._shared.splits import split_error
from benchmarks._shared.study import Results, Study, every_cell, parser
from benchmarks._shared.words import span
from benchmarks.predictions.other_regressors import BDE, ENDS, OTHERS, Forecast, bde, held_out
from benchmarks.predictions.tabular import BATCH, cpu_seconds, network, scored
from numpyro_bnn.workflow.calibration import interval_scores, threshold

TABLES = ("airfoil", "bikesharing")
# What other methods are compared with, split by split: the estimator, with twice its default steps a draw.
BASE = "100 steps a draw"
# Splits on which options of the estimator were compared, by which its defaults were chosen: what it scores
# there is not what it scores on rows that had no say.
CHOSEN_ON = {"airfoil": (0, 1, 2), "bikesharing": (0, 1)}
# Shares of a table that a split tests, and that it could learn from.
TESTED, LEFT = 0.2, 0.8
# Of `bde`: means of the log score of one Gaussian a row, over the five published fits of the split of seed 0.
PUBLISHED = {"airfoil": 0.9126, "bikesharing": 0.7315}


def cells(rows, table, method, held=False):
    """Rows of a method by split: of fits of all training rows, or of those with rows held out."""
    return {
        row["seed"]: row
        for row in rows
        if (row["table"], row["method"], row["held"] > 0) == (table, method, held)
    }


def gain(rows, table, method, over=BASE, name="lppd"):
    """What a method gains over another, for each split that both have."""
    own, base = (cells(rows, table, m) for m in (method, over))
    return np.array([own[seed][name] - base[seed][name] for seed in sorted(own.keys() & base)])


def mean_and_error(values):
    """Mean over splits, and its standard error, which allows for the rows that splits share."""
    return float(np.mean(values)), split_error(values, TESTED, LEFT)


def shown(values, sign="", digits=3):
    """Mean ± error as text; of two splits, whose error is hardly known, or one: the values themselves."""
    if len(values) > 2:
        mean, error = mean_and_error(values)
        return f"{mean:{sign}.{digits}f} ± {error:.{digits}f}"
    return " and ".join(f"{value:{sign}.{digits}f}" for value in values)


def spans(seeds):
    """Numbers of splits in few words: 0 to 9, or a list."""
    seeds = sorted(seeds)
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def methods_of(rows, table, held=False):
    """Methods in the order in which they came."""
    found = (r["method"] for r in rows if r["table"] == table and (r["held"] > 0) == held)
    return list(dict.fromkeys(found))


def groups(rows, table, held=False):
    """Sets of splits, each with the methods that ran on all of them, the estimator among these."""
    has = {m: frozenset(cells(rows, table, m, held)) for m in methods_of(rows, table, held)}
    for seeds in sorted(set(has.values()), key=lambda own: (-len(own), sorted(own))):
        beside = seeds == has.get(BASE)
        yield (
            sorted(seeds),
            [
                m
                for m, own in has.items()
                if own == seeds or (own > seeds and (beside or m == BASE))
            ],
        )


def summary(rows):
    """One line a table, set of splits and method: means over these splits."""
    lines = []
    for table in TABLES:
        for held in (False, True):
            for seeds, methods in groups(rows, table, held):
                lines += [of_method(rows, table, m, held, seeds) for m in methods]
    return lines


def of_method(rows, table, method, held, seeds):
    """Means of a method over some splits, and its gain over the estimator there."""
    own = cells(rows, table, method, held)
    own = [own[seed] for seed in seeds]
    of = {name: [row[name] for row in own if row[name] != ""] for name in own[0]}
    gains = [] if held or method == BASE else gain([*own, *rows_of_base(rows)], table, method)
    return {
        "table": table,
        "splits": spans(seeds),
        "rows held out": "yes" if held else "no",
        "method": method,
        "RMSE": shown(of["rmse"]),
        "lppd": shown(of["lppd"]),
        f"gain over {BASE}": shown(gains, "+") if len(gains) == len(seeds) else "",
        "lppd of moments": shown(of["lppd of moments"]),
        "coverage": shown(of["coverage before"]),
        "width": shown(of["width before"], digits=2),
        "calibrated coverage": shown(of["coverage after"]),
        "calibrated width": shown(of["width after"], digits=2),
        "worst R-hat": max(of["worst rhat"], default=""),
        "median R-hat": float(np.median(of["median rhat"])) if of["median rhat"] else "",
        "draws": round(np.mean(of["draws"])),
        "CPU-seconds": span_of(of["CPU seconds"]),
    }


def rows_of_base(rows):
    """Those of the estimator."""
    return [row for row in rows if row["method"] == BASE]


def findings(rows):
    """What the estimator gains on splits that did not choose its defaults, and at what cost."""
    told = {}
    for table in TABLES:
        seeds = other_splits(rows, table)
        for method in methods_of(rows, table) if seeds else ():
            own = cells(rows, table, method)
            if method != BASE and set(seeds) <= set(own):
                gained = [cells(rows, table, BASE)[s]["lppd"] - own[s]["lppd"] for s in seeds]
                times = span(times_the_seconds(rows, table, method), 1)
                text = f"{shown(gained)} nats on {table} at {times} times its CPU seconds"
                told.setdefault(method, []).append(text)
    for method in sorted(told, key=lambda method: method != "bde"):
        yield f"The estimator gains over {method}: {'; '.join(told[method])}."


def other_splits(rows, table):
    """Splits of the estimator on which its defaults were not chosen."""
    return sorted(set(cells(rows, table, BASE)) - set(CHOSEN_ON[table]))


def on_other_splits(rows):
    """Means over these splits alone, of the methods that have all of them."""
    for table in TABLES:
        seeds = other_splits(rows, table)
        for method in methods_of(rows, table) if seeds else ():
            if set(seeds) <= set(cells(rows, table, method)):
                found = of_method(rows, table, method, False, seeds)
                hidden = ("rows held out", "calibrated coverage", "calibrated width", "draws")
                yield {name: value for name, value in found.items() if name not in hidden}


def times_the_seconds(rows, table, method):
    """CPU seconds of the estimator over those of another method, by split of these."""
    own, other = (cells(rows, table, m) for m in (BASE, method))
    return [
        own[seed]["CPU seconds"] / other[seed]["CPU seconds"] for seed in other_splits(rows, table)
    ]


def span_of(values):
    """The least and the greatest in few digits, or the one where they are the same then."""
    low, high = (f"{end:.3g}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def dots(axis, rows, table, methods, held, name, color, shift=0.0):
    """A dot a split and method; the methods are the lines of the axis."""
    for place, method in enumerate(methods):
        own = cells(rows, table, method, held).values()
        values = [row[name] for row in own if row[name] != ""]
        axis.plot(values, np.full(len(values), place + shift), "o", color=color, markersize=4)


def scores_panel(axis, rows, table, methods):
    """Log scores, and the published one of `bde`."""
    dots(axis, rows, table, methods, False, "lppd", "C0")
    mark = PUBLISHED[table]
    axis.axvline(mark, color="C3", linestyle=":")
    # A method that failed would squeeze all others together.
    values = [row["lppd"] for row in rows if row["table"] == table]
    low, high = np.quantile(values, 0.1), max(*values, mark)
    axis.set_xlim(low - 0.3 * (high - low), high + 0.1 * (high - low))
    axis.set(title=f"{table}: log score, red: published `bde`", xlabel="nats a row")


def picture(rows):
    """Log score and coverage of every split, a row of panels a table; methods by their mean score."""
    tables = [table for table in TABLES if any(row["table"] == table for row in rows)]
    ordered = []
    for table in tables:
        scores = {m: cells(rows, table, m).values() for m in methods_of(rows, table)}
        means = {m: np.mean([row["lppd"] for row in own]) for m, own in scores.items()}
        ordered.append(sorted(means, key=means.get) or methods_of(rows, table, held=True))
    with plt.rc_context({"font.size": 8}):
        figure, axes = plt.subplots(
            len(tables),
            2,
            figsize=(9, 0.32 * sum(map(len, ordered)) + 0.9 * len(tables)),
            squeeze=False,
            height_ratios=[len(methods) + 1 for methods in ordered],
            layout="constrained",
        )
        for (left, right), table, methods in zip(axes, tables, ordered):
            scores_panel(left, rows, table, methods)
            dots(right, rows, table, methods, False, "coverage before", "0.55", -0.12)
            dots(right, rows, table, methods, True, "coverage after", "C1", 0.12)
            right.axvline(0.9, color="0.6", linestyle=":")
            title = "coverage of 90 % intervals; orange: calibrated"
            right.set(title=title, xlabel="share of test rows")
            left.set_yticks(range(len(methods)), methods)
            right.set_yticks(range(len(methods)), [""] * len(methods))
            for axis in (left, right):
                axis.set_ylim(-0.5, len(methods) - 0.5)
                axis.grid(axis="y", color="0.92")
    return figure


COVERAGE = ENDS[1] - ENDS[0]


def rough(network, prior, likelihood):
    """Options with the error of a step that `bde` accepts, 10,000 times that of the estimator."""
    options = {"network": network, "prior": prior, "likelihood": likelihood}
    return options | {"energy_variance": 0.1}


# Network and prior of `bde`.
DEEP = bnn.MLP((16,) * 4, 2, jax.nn.relu), bnn.priors.Normal(1.0), "heteroscedastic"
# What the estimator was shipped with before it was compared here.
SMALL = {"hidden": (16, 16), "likelihood": "gaussian"}
# The estimator at 100 steps a draw, twice its default of today; what differs from that or from the smaller
# one, and the network of `bde`; `energy_variance` is a setting of `bnn.fit`.
OURS = {
    "100 steps a draw": {},
    "half the draws": {"num_warmup": 150, "num_samples": 150},
    "one noise": {"likelihood": "gaussian"},
    "one noise, half the draws": {"likelihood": "gaussian", "num_warmup": 150, "num_samples": 150},
    "two layers": {"hidden": (16, 16)},
    "two layers, one noise": SMALL,
    "two layers, one noise, rough": rough(
        bnn.MLP((16, 16), 1), bnn.priors.Hierarchical(), "gaussian"
    ),
    "two layers, one noise, N(0, 1)": SMALL | {"prior": bnn.priors.Normal(1.0)},
    "two layers, one noise, fan-in": SMALL | {"prior": bnn.priors.FanIn()},
    "32-32, one noise": {"hidden": (32, 32), "likelihood": "gaussian"},
    "baoab": {"kernel": "baoab"},
    "nuts": {"kernel": "nuts", "thinning": 1},
    "minibatches": {"batch_size": BATCH},
    "relu, N(0, 1), rough": rough(*DEEP),
}
ENSEMBLE = "deep ensemble, four layers"
MEMBERS = 8
# What short forms run, and how long chains are there.
SHORT = {
    "quick": ("100 steps a draw", "relu, N(0, 1), rough", ENSEMBLE, "bde", *OTHERS),
    "toy": ("100 steps a draw", "relu, N(0, 1), rough", "histogram boosting", "Gaussian process"),
}
FEW = {
    "quick": {"num_warmup": 100, "num_samples": 100, "thinning": 10},
    "toy": {"num_warmup": 20, "num_samples": 20, "thinning": 2, "num_chains": 2},
}
MOST = {"full": None, "quick": 400, "toy": 80}


def standardised(folder, name, seed, most=None, source="mile"):
    """Rows to learn from and rows to test, (x, y) each, as the script of the published figures has them."""
    x, y = stored_table(folder, name, source)
    if name == "bikesharing":
        x = x[:, 1:]
    x, x_test, y, y_test = train_test_split(x[:most], y[:most], test_size=0.2, random_state=seed)
    inputs, target = StandardScaler().fit(x), StandardScaler().fit(y[:, None])
    return [
        (inputs.transform(rows), target.transform(values[:, None])[:, 0])
        for rows, values in ((x, y), (x_test, y_test))
    ]


def estimator(x, y, x_new, seed, *, options, few):
    """Predictions of the estimator with some options, or of `bnn.fit` where one is not the estimator's."""
    options = {"thinning": 100} | options | few
    if "energy_variance" not in options:
        made = bnn.BNNRegressor(random_state=seed, **options).fit(x, y)
        return Forecast(made.predictions(x_new))
    module, prior, likelihood = (options.pop(k) for k in ("network", "prior", "likelihood"))
    model = bnn.regression(module, prior, likelihood=likelihood)
    fitted = bnn.fit(model, x, y, key=jax.random.key(seed), progress_bar=False, **options)
    return Forecast(fitted.predict(x_new))


def ensemble(x, y, x_new, seed):
    """Eight networks of four layers, stopped by validation rows."""
    fitted, validation = held_out(np.float32(x), np.float32(y), seed)
    draws = bnn.deep_ensemble(
        network(bnn.priors.Normal(1.0), 4),
        jax.random.key(seed),
        *fitted,
        validation=validation,
        num_members=MEMBERS,
        progress_bar=False,
    )
    return Forecast(bnn.predict(None, draws, np.float32(x_new)))


def methods(bde_python=None, few=None):
    """Name to a function of training rows, new rows and a seed."""
    found = {
        name: partial(estimator, options=options, few=few or {}) for name, options in OURS.items()
    }
    found |= {ENSEMBLE: ensemble} | OTHERS
    if bde_python:

        def rival(x, y, x_new, seed, *, settings):
            return Forecast(bde(bde_python, settings | {"seed": seed}, x, y, x_new))

        found |= {name: partial(rival, settings=settings) for name, settings in BDE.items()}
    return found


def ends_of(forecast):
    """The central 90 % interval of each row, (row, 2)."""
    return forecast.predictions.quantiles(ENDS).T if forecast.ends is None else forecast.ends


def of_intervals(ends, y, when):
    """Coverage and mean width."""
    low, high = ends.T
    inside = (low <= y) & (y <= high)
    return {f"coverage {when}": float(inside.mean()), f"width {when}": float((high - low).mean())}


def calibrated(ends, ends_held, y_held):
    """Ends moved by one number, so that the held-out rows are covered as asked; crossed ones meet."""
    by = threshold(interval_scores(y_held, *ends_held.T), COVERAGE)
    low, high = ends.T
    by = np.maximum(by, (low - high) / 2)
    return np.stack([low - by, high + by], 1)


def judged(forecast, y_test, y_held):
    """Scores of the first rows, the test; the interval calibrated by the others, where there are any."""
    count = len(y_test)
    predictions = forecast.predictions.at_rows(slice(count))
    found = scored(predictions, y_test)
    # Published figures are of one Gaussian a row, with the mean and the variance of the mixture.
    found["lppd of moments"] = float(norm(*bnn.average(predictions)).logpdf(y_test).mean())
    ends = ends_of(forecast)
    found |= of_intervals(ends[:count], y_test, "before")
    after = {"coverage after": "", "width after": ""}
    if len(y_held):
        after = of_intervals(calibrated(ends[:count], ends[count:], y_held), y_test, "after")
    # What is no chain has no R-hat.
    return {k: "" if np.isnan(value) else value for k, value in found.items()} | after


def compute(given, most):
    """The function that a study calls for a cell."""
    known = methods(given.bde_python, FEW.get(given.size))

    def one(table, seed, method, held):
        (x, y), (x_test, y_test) = standardised(given.data, table, seed, most)
        x_held, y_held = x[:0], y[:0]
        if held:
            x, x_held, y, y_held = train_test_split(x, y, test_size=held, random_state=seed)
        begin = cpu_seconds()
        forecast = known[method](x, y, np.concatenate([x_test, x_held]), seed)
        found = judged(forecast, y_test, y_held)
        yield found | {"rows": len(y), "CPU seconds": cpu_seconds() - begin}

    return one


def main(argv=None):
    made = parser(__doc__)
    made.add_argument("--bde-python", help="an interpreter with sklearn-contrib-bde")
    given = made.parse_args(argv)
    full = given.size == "full"
    known = list(methods(given.bde_python))
    names = known if full else [name for name in SHORT[given.size] if name in known]
    tables, seeds, held = (TABLES, range(10), (0.0, 0.2)) if full else (TABLES[:1], (0, 1), (0.25,))
    study = Study(__file__, ("table", "seed", "method", "held"), given)
    cells = every_cell(table=tables, seed=seeds, method=names, held=held)
    study.run(cells, compute(given, MOST[given.size]))
    every = summary(study.rows)
    others = list(on_other_splits(study.rows)) or every
    study.publish(others, findings(study.rows), lambda: picture(study.rows))
    Results(__file__, given, "all_splits").report(every)


if __name__ == "__main__":
    main()
