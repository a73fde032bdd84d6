"""The tables and the figure of `against_boosting`, from its rows."""

import matplotlib.pyplot as plt
import numpy as np

from benchmarks._shared.splits import split_error
from benchmarks._shared.words import span

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
        "CPU-seconds": ends_of(of["CPU seconds"]),
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


def ends_of(values):
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
