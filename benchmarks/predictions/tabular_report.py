"""The tables and the figure of `tabular`, from its rows."""

import matplotlib.pyplot as plt
import numpy as np

from benchmarks._shared.splits import split_error
from benchmarks._shared.words import span, with_error

TABLES = ("yacht", "energy", "concrete", "airfoil", "bikesharing", "protein")
# Published lppd of standardised targets: bde (four layers of 16), deep ensembles beside it, and
# microcanonical Langevin ensembles.
MARKS = {
    "published, bde": {"airfoil": 0.9126, "bikesharing": 0.7315},
    "published, deep ensemble": {"airfoil": -0.176, "bikesharing": 0.455},
    "published, microcanonical": {"airfoil": 0.28, "bikesharing": 0.132, "energy": 2.018},
}
# Shares of a table that a split tests and fits; the rest stops the optimisation.
TESTED, FITTED = 0.2, 0.7
DEEP = "four layers, "


def mean_and_error(values):
    """Mean over splits, and its standard error, which allows for the rows that splits share."""
    return float(np.mean(values)), split_error(values, TESTED, FITTED)


def base_of(method, over="deep ensemble"):
    """What a method is compared with: networks of as many layers."""
    return DEEP + over if method.startswith(DEEP) else over


def scores_by_split(rows, table, method):
    """Log scores of one method on one table, by split."""
    return {r["seed"]: r["lppd"] for r in rows if (r["table"], r["method"]) == (table, method)}


def gain(rows, table, method, over):
    """What a method gains over another, for each split that both have."""
    own, base = (scores_by_split(rows, table, name) for name in (method, over))
    return np.array([own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())])


def wide(rows):
    """Log score by method and table, means over all splits of a table, the best in bold; and what it took.

    :func:`first_split` has the methods that ran on fewer splits.
    """
    names = [name for name in TABLES if any(row["table"] == name for row in rows)]
    cells = {}
    for name in names:
        found = [row for row in rows if row["table"] == name]
        scores = {m: [r["lppd"] for r in found if r["method"] == m] for m in by_method(found)}
        most = max(map(len, scores.values()))
        full = {method: own for method, own in scores.items() if len(own) == most}
        best = max(full, key=lambda method: np.mean(full[method]))
        for method, own in full.items():
            text = "{:.3f} ± {:.3f}".format(*mean_and_error(own)) if most > 1 else f"{own[0]:.3f}"
            cells[method, name] = f"**{text}**" if method == best else text
    for method, every in by_method(rows).items():
        own = [row for row in every if (method, row["table"]) in cells]
        if not own:
            continue
        hats = [row["median rhat"] for row in own if np.isfinite(row["median rhat"])]
        yield {
            "method": method,
            **{name: cells.get((method, name), "") for name in names},
            "median R-hat": span(hats) if hats else "",
            "CPU seconds": span([row["CPU seconds"] for row in own], 0),
        }
    for method, marks in MARKS.items():
        shown = {name: f"{marks[name]:.3f}" if name in marks else "" for name in names}
        yield {"method": method, **shown, "median R-hat": "", "CPU seconds": ""}


def by_method(rows):
    """Rows of each method, in the order in which they came."""
    found = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return found


def first_split(rows):
    """lppd of the methods that ran once, and of what they are to be held against, on that split."""
    first = min(row["seed"] for row in rows)
    names = [name for name in TABLES if any(row["table"] == name for row in rows)]
    cells = {(r["method"], r["table"]): r["lppd"] for r in rows if r["seed"] == first}
    once = [m for m, name in cells if len(scores_by_split(rows, name, m)) == 1]
    beside = ["deep ensemble", "MCLMC", "hierarchical, MCLMC"]
    beside += [DEEP + "deep ensemble", DEEP + "MCLMC"]
    for method in dict.fromkeys([*beside, *once]):
        found = [cells.get((method, name)) for name in names]
        if any(value is not None for value in found):
            shown = ["" if value is None else f"{value:.3f}" for value in found]
            yield {"method, first split": method} | dict(zip(names, shown))


def gains(rows, method, over="deep ensemble"):
    """What a method gains over another by table: mean and error, where all splits of both are there."""
    found = {}
    for name in TABLES:
        base = base_of(method, over)
        own = gain(rows, name, method, base)
        if 1 < len(own) == len(scores_by_split(rows, name, base)):
            found[name] = mean_and_error(own)
    return found


def by_table(rows):
    """Gains over an ensemble of the same networks, a row a table."""
    columns = {m: gains(rows, m) for m in ("MCLMC", "MAMS", "NUTS", "BAOAB", DEEP + "MCLMC")}
    for name in dict.fromkeys(row["table"] for row in rows):
        cells = {m: with_error(own[name]) if name in own else "" for m, own in columns.items()}
        yield {"gain over a deep ensemble, nats": name} | cells


def times_the_ensemble(rows, layers=""):
    """CPU seconds of MCLMC over those of its ensemble, split by split."""
    seconds = {(r["method"], r["table"], r["seed"]): r["CPU seconds"] for r in rows}
    own, base = f"{layers}MCLMC", f"{layers}deep ensemble"
    return [
        value / seconds[base, *where]
        for (method, *where), value in seconds.items()
        if method == own and (base, *where) in seconds
    ]


def told(found):
    """Gains as they stand in a sentence."""
    return ", ".join(f"{with_error(pair)} ({name})" for name, pair in found.items()) or "unknown"


def findings(rows):
    """What sampling gains over ensembles and over bde, what it costs, and how far chains agree."""
    yield f"MCLMC gains over a deep ensemble of the same networks: {told(gains(rows, 'MCLMC'))} nats a row."
    times, deep = (times_the_ensemble(rows, layers) for layers in ("", DEEP))
    yield (
        f"It takes {span(times, 1)} times the CPU seconds of the ensemble, split by split; with four layers "
        f"{span(deep, 1)} times."
    )
    for method in ("MCLMC", "MCLMC, rough"):
        yield f"{method}, over bde of two layers: {told(gains(rows, method, 'bde'))}."
    yield f"Learned precisions, over N(0, 1): {told(gains(rows, 'hierarchical, MCLMC', 'MCLMC'))}."
    for method in ("SWAG", "mean field", "Laplace"):
        yield f"{method}, over the ensemble: {told(gains(rows, method))}."
    # Draws of a Gaussian around averaged weights are no chain.
    chains = [r for r in rows if r["median rhat"] > 0 and r["method"] != "SWAG"]
    ladder, other = [], []
    for row in chains:
        (ladder if "tempering" in row["method"] else other).append(row["median rhat"])
    yield f"Median R-hat of predictions: {span(other)} of chains, {span(ladder)} of tempering."


def picture(rows):
    """lppd of every method, seed by seed; one panel a table."""
    names = [name for name in TABLES if any(row["table"] == name for row in rows)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    with plt.rc_context({"font.size": 8}):
        figure, axes = plt.subplots(
            1, len(names), figsize=(3 * len(names), 4), sharey=True, squeeze=False
        )
        for axis, name in zip(axes[0], names):
            own = [row for row in rows if row["table"] == name]
            axis.plot(
                [row["lppd"] for row in own], [methods.index(row["method"]) for row in own], "o"
            )
            # A method that failed would squeeze all others together.
            low, high = np.quantile([row["lppd"] for row in own], [0.1, 1.0])
            axis.set_xlim(low - 0.3 * (high - low), high + 0.1 * (high - low))
            axis.set_title(name)
            axis.set_xlabel("lppd")
        axes[0, 0].set_yticks(range(len(methods)), methods)
        axes[0, 0].invert_yaxis()
    return figure
