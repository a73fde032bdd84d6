"""What the rows of `against_hmc` say: means over seeds with both errors, sentences, tables and the figure."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import spearmanr

from benchmarks._shared.sampled_runs import means, select
from benchmarks._shared.study import Row
from benchmarks._shared.words import number
from benchmarks.mixing.against_hmc_methods import AGAIN, EQUAL, OPTIMISED, REFERENCE, SAMPLED
from numpyro_bnn.plots.style import color_at, label_axes

ORDER = (REFERENCE, AGAIN, EQUAL, *OPTIMISED, *SAMPLED[1:])
# Agreement and total variation with HMC in table 4 of the paper: ResNet-20 on CIFAR-10, HMC against another
# of its chains.
PUBLISHED = {
    "SGD": (0.855, 0.190),
    "deep ensemble": (0.915, 0.115),
    "SGHMC": (0.920, 0.109),
    "cyclical SGHMC": (0.927, 0.099),
}


def monte_carlo(same: Sequence[Row]) -> float | str:
    """Monte Carlo error of the mean log score of a method over its seeds; empty where it is not known.

    By the jackknife over chains or networks of each seed; of one chain by the spread between seeds.
    """
    errors = [row["over_chains"] for row in same]
    if "" not in errors:
        return math.sqrt(sum(e**2 for e in errors)) / len(errors)
    if len(same) > 1:
        return float(np.std([row["log_score"] for row in same], ddof=1)) / math.sqrt(len(same))
    return ""


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Means over the seeds of a method, with the Monte Carlo error of its difference from the reference.

    - **monte_carlo** - of the difference: that of the method and that of the reference together
    - **sure** - the difference over both errors together; 0 where one is not known
    - **seeds** - how many
    """
    out = []
    for same, mean in means(list(rows), "problem", "method"):
        (reference,) = select(rows, problem=mean["problem"], method=REFERENCE)
        own = monte_carlo(same)
        both: float | str = ""
        if mean["method"] == REFERENCE:
            both = 0.0
        elif own != "":
            both = math.hypot(float(own), reference["over_chains"])
        good = all(row["converged"] == "yes" for row in same)
        out.append(
            mean
            | {
                "over_chains": own,
                "monte_carlo": both,
                "sure": sureness(mean["difference"], mean["difference_error"], both),
                "seeds": len(same),
                "converged": same[0]["converged"] and ("yes" if good else "no"),
            }
        )
    names = problems(rows)
    return sorted(out, key=lambda r: (names.index(r["problem"]), ORDER.index(r["method"])))


def sureness(difference: float, over_rows: float, over_chains: float | str) -> float:
    """A difference in units of both of its errors together; 0 where one is not known."""
    if over_chains == "" or difference == 0:
        return 0.0
    return difference / math.hypot(over_rows, float(over_chains))


def problems(rows: Sequence[Row]) -> list[str]:
    """Those that have rows, in their order."""
    return list(dict.fromkeys(row["problem"] for row in rows))


def nearer(rows: Sequence[Row], one: str, other: str) -> Iterator[tuple[str, float, float]]:
    """A distance from HMC of each of two methods by problem, where the first is the nearer one."""
    for name in problems(rows):
        here = {r["method"]: r["total_variation"] for r in select(rows, problem=name)}
        if {one, other} <= here.keys() and here[one] < here[other]:
            yield name, here[one], here[other]


def differing(rows: Sequence[Row], name: str) -> tuple[list[Row], list[Row]]:
    """Methods whose log score is above that of HMC by more than two errors, and those below."""
    here = [r for r in select(rows, problem=name) if r["method"] not in (REFERENCE, AGAIN)]
    above = [r for r in here if r["sure"] > 2]
    return above, [r for r in here if r["sure"] < -2]


def rank_correlation(rows: Sequence[Row], name: str) -> float:
    """Of the distance from HMC and the log score, over methods."""
    here = [r for r in select(rows, problem=name) if r["method"] != REFERENCE]
    columns = ([r[k] for r in here] for k in ("total_variation", "log_score"))
    return float(spearmanr(*columns).statistic)


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """How far methods are from HMC, and how their scores differ from its own."""
    found = [
        f"{a:.3f} and {b:.3f} ({name})"
        for name, a, b in nearer(rows, "deep ensemble", "mean field")
    ]
    yield (
        f"A deep ensemble is nearer to HMC than mean field on {len(found)} of {len(problems(rows))} "
        f"posteriors: {', '.join(found)}."
    )
    for name in problems(rows):
        here = {r["method"]: r["total_variation"] for r in select(rows, problem=name)}
        order = sorted((m for m in here if m != REFERENCE), key=here.__getitem__)
        told = ", ".join(f"{m} {here[m]:.3f}" for m in order)
        yield f"Distance from HMC, {name}: {told}."
        above, below = (
            ", ".join(f"{r['method']} ({number(r['difference'], 3)})" for r in found) or "none"
            for found in differing(rows, name)
        )
        yield (
            f"Log score beyond that of HMC by more than two errors, {name}: above {above}; below {below}; "
            f"rank correlation with distance {number(rank_correlation(rows, name))}."
        )


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def distances(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table: distance from HMC by method and problem."""
    yield from _table(rows, lambda r: _number(r["total_variation"]))


def _table(rows: Sequence[Row], cell: Any, *, reference: bool = False) -> Iterator[str]:
    names = problems(rows)
    for method in ORDER if reference else ORDER[1:]:
        own = {r["problem"]: r for r in select(rows, method=method)}
        if own:
            cells = [cell(own[name]) if name in own else "" for name in names]
            yield f"| {' | '.join([method, *cells])} |".replace("|  |", "| |")


TABLE = {
    "problem": "problem",
    "method": "method",
    "prior_scale": "prior scale",
    "seeds": "seeds",
    "gradients": "passes in all",
    "agreement": "agreement",
    "total_variation": "total variation, or distance of the mean",
    "predictive": "distance of predictive samples",
    "error": "error or RMSE",
    "log_score": "log score",
    "difference": "– HMC",
    "difference_error": "± over test rows",
    "monte_carlo": "± Monte Carlo",
    "calibration": "calibration error, or cover of 90 %",
    "fit_seconds": "seconds",
    "median R-hat": "median R-hat",
    "worst R-hat": "worst R-hat",
    "least ESS": "least ESS",
    "converged": "predictions converged",
}


TICKS = (-1, -0.1, 0, 0.1, 1)


def draw(rows: Sequence[Row]) -> Any:
    """Distance from HMC and difference of the log score by method; a row of panels a problem."""
    names = problems(rows)
    figure, axes = plt.subplots(
        len(names),
        2,
        figsize=(9, 3.3 * len(names)),
        layout="constrained",
        squeeze=False,
        sharey="row",
    )
    for (left, right), name in zip(axes, names):
        others = [r for r in select(rows, problem=name) if r["method"] != REFERENCE]
        others.sort(key=lambda r: -r["total_variation"])
        floor = [r["total_variation"] for r in others if r["method"] == AGAIN]
        for place, row in enumerate(others):
            color = "0.4" if row["method"] in (AGAIN, EQUAL) else color_at(left, 0)
            left.plot(row["total_variation"], place, "o", color=color)
            error = math.hypot(row["difference_error"], float(row["monte_carlo"] or 0.0))
            gap = row["difference"]
            right.errorbar(gap, place, xerr=2 * error, fmt="o", color=color, capsize=3)
            right.errorbar(gap, place, xerr=2 * row["difference_error"], color=color, linewidth=3)
        left.set_yticks(range(len(others)), [r["method"] for r in others], fontsize=8)
        for distance in floor:
            left.axvline(distance, color="0.4", linestyle=":", linewidth=1)
        left.set_xlim(left=0)
        right.axvline(0, color="0.4", linestyle=":", linewidth=1)
        # Thick: over test rows alone. Linear up to a tenth of a nat, logarithmic beyond.
        right.set_xscale("symlog", linthresh=0.1)
        right.set_xticks(TICKS, [f"{t:g}" for t in TICKS])
        right.minorticks_off()
        scale = others[0]["prior_scale"] if others else 0.0
        left.set_title(f"{name}, N(0, {scale:g}²) (dotted: HMC against HMC)", fontsize=10)
        what = "total variation" if others and others[0]["agreement"] != "" else "1-Wasserstein"
        label_axes(left, f"{what} distance from HMC", "")
        label_axes(right, "log score – that of HMC (nats, ± 2 s.e.)", "")
    return figure
