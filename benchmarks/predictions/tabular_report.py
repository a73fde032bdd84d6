"""The tables and the figure of `tabular`, from its rows."""

import matplotlib.pyplot as plt
import numpy as np

TABLES = ("yacht", "energy", "concrete", "airfoil", "bikesharing", "protein")
# Published lppd of standardised targets: bde (four layers of 16), deep ensembles beside it, and
# microcanonical Langevin ensembles.
MARKS = {
    "published, bde": {"airfoil": 0.9126, "bikesharing": 0.7315},
    "published, deep ensemble": {"airfoil": -0.176, "bikesharing": 0.455},
    "published, microcanonical": {"airfoil": 0.28, "bikesharing": 0.132, "energy": 2.018},
}


def summary(rows):
    """One line a table and method: means over seeds, errors of the lppd, the best lppd in bold.

    A method with fewer seeds than others says how many, and is not compared: splits differ by more
    than methods do.
    """
    lines = []
    for name in TABLES:
        found = [row for row in rows if row["table"] == name]
        methods = dict.fromkeys(row["method"] for row in found)
        scores = {m: [r["lppd"] for r in found if r["method"] == m] for m in methods}
        most = max(map(len, scores.values()), default=0)
        full = [m for m in methods if len(scores[m]) == most]
        best = max(full, key=lambda m: np.mean(scores[m]), default=None)
        for m in methods:
            own = [row for row in found if row["method"] == m]
            lppd = f"{np.mean(scores[m]):.3f}"
            if len(own) > 1:
                lppd += f" ± {np.std(scores[m], ddof=1) / len(own) ** 0.5:.3f}"
            if len(own) < most:
                lppd += f" ({len(own)} of {most})"
            lines.append(
                {
                    "table": name,
                    "method": m,
                    "RMSE": float(np.mean([row["rmse"] for row in own])),
                    "lppd": f"**{lppd}**" if m == best else lppd,
                    "worst R-hat": float(np.max([row["worst rhat"] for row in own])),
                    "median R-hat": float(np.median([row["median rhat"] for row in own])),
                    "CPU seconds": float(np.mean([row["CPU seconds"] for row in own])),
                    "seeds": len(own),
                }
            )
    return lines


def wide(rows):
    """The same for people in a hurry: lppd by method and table, and what it took."""
    names = [name for name in TABLES if any(row["table"] == name for row in rows)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(r["method"], r["table"]): r["lppd"] for r in summary(rows)}
    yield "| " + " | ".join(["method", *names, "median R-hat", "CPU seconds"]) + " |"
    yield "| " + " | ".join(["---"] * (len(names) + 3)) + " |"
    for method in methods:
        own = [row for row in rows if row["method"] == method]
        hats = [row["median rhat"] for row in own if np.isfinite(row["median rhat"])]
        shown = [str(cells.get((method, name), "")) for name in names]
        shown.append(f"{min(hats):.2f} to {max(hats):.2f}" if hats else "")
        spent = [row["CPU seconds"] for row in own]
        shown.append(f"{min(spent):.0f} to {max(spent):.0f}")
        yield "| " + " | ".join([method, *shown]) + " |"
    for method, marks in MARKS.items():
        shown = [f"{marks[name]:.3f}" if name in marks else "" for name in names]
        yield "| " + " | ".join([method, *shown, "", ""]) + " |"


def gains(rows, over="deep ensemble"):
    """What every method gains over another on the same splits, in nats a row of the test."""
    for name in TABLES:
        base = {r["seed"]: r["lppd"] for r in rows if (r["table"], r["method"]) == (name, over)}
        found = []
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [
                row["lppd"] - base[row["seed"]]
                for row in rows
                if (row["table"], row["method"]) == (name, method) and row["seed"] in base
            ]
            if method != over and len(own) == len(base) > 1:
                found.append((np.mean(own), np.std(own, ddof=1) / len(own) ** 0.5, method))
        listed = (
            f"{method} {mean:+.2f} ± {error:.2f}" for mean, error, method in sorted(found)[::-1]
        )
        if found:
            yield f"{name}, gain over {over} on the same {len(base)} splits: {', '.join(listed)}."


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
