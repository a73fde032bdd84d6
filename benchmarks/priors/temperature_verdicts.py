"""What a temperature gains, by training rows and prior: errors, verdicts, tables and the figure of a study.

`temperature_by_rows` stores the rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt

from benchmarks._shared.gaps import Gap
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row
from benchmarks.priors.tempered_network import HIERARCHICAL
from numpyro_bnn.plots.style import MARKERS, label_axes, line_style

# α of N(0, α²), and the hierarchical prior.
PRIORS: tuple[float | str, ...] = (0.1, 0.3, 1.0, 2.0, HIERARCHICAL)
FULL_BATCH, MINIBATCH, ENSEMBLE = "HMC", "BAOAB, SVRG", "ensemble"
LONG = f"{MINIBATCH}, long"
# Images as they are, and as they are or moved by one pixel.
UNMOVED, SHIFTED = "none", "one pixel"
# How far the kinetic temperature of a minibatch run may be from T.
HEAT = 0.05


def name_of(prior: float | str) -> str:
    """A prior in a table."""
    return prior if isinstance(prior, str) else f"{prior:g}"


def gap_of(rows: Sequence[Row], name: str) -> Gap:
    """A difference of log scores of runs of the same kind, a subset each."""
    return Gap.over_subsets(*([r[name + of] for r in rows] for of in ("", " rows", " chains")))


class Verdict(NamedTuple):
    """What temperatures do for one prior and number of rows."""

    rows: int
    shifts: str
    prior: float | str
    subsets: int  # those that are compared with the ensemble
    gains: dict[float, Gap]  # log score over that at T = 1, by temperature
    over_ensemble: Gap  # log score at T = 1 over the ensemble's
    rhat: float  # median R-hats of predictions, the largest over temperatures and subsets

    @property
    def best(self) -> float:
        """The temperature with the highest log score, of those that were run."""
        return max(self.gains, key=lambda t: self.gains[t].value)

    @property
    def one_is_best(self) -> bool:
        """Whether no temperature is more than two errors above T = 1."""
        return not self.better

    @property
    def is_compared(self) -> bool:
        """Whether another temperature than 1 was sampled."""
        return len(self.gains) > 1

    @property
    def in_a_word(self) -> str:
        """Whether no temperature is shown to be better than 1; nothing where none was sampled."""
        if not self.is_compared:
            return ""
        return "yes" if self.one_is_best else "no"

    @property
    def better(self) -> list[float]:
        """Temperatures that are more than two errors above T = 1."""
        return [t for t, gap in self.gains.items() if gap.value > 0 and gap.is_sure]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """One for each prior and number of rows; T = 1 beside the ensemble is of long runs where they are."""
    made = []
    sampled = select(rows, method=FULL_BATCH)
    wheres = {(r["shifts"], r["rows"]) for r in sampled}
    for shifts, count in sorted(wheres, key=lambda one: (one[0] != UNMOVED, one[1])):
        for prior in PRIORS:
            here = {"shifts": shifts, "rows": count, "prior": prior}
            own = select(sampled, **here)
            if not own:
                continue
            by = {t: select(own, temperature=t) for t in sorted({r["temperature"] for r in own})}
            gains = {t: gap_of(found, "gain") for t, found in by.items()} | {1.0: Gap(0.0, 0.0)}
            one = select(rows, **here, method=LONG, temperature=1.0) or by[1.0]
            ensemble_gap = gap_of(one, "over ensemble")
            rhat = max(r["median R-hat"] for r in own + one)
            made.append(Verdict(count, shifts, prior, len(one), gains, ensemble_gap, rhat))
    return made


def by_shifts(rows: Sequence[Row]) -> dict[str, list[Verdict]]:
    """Verdicts without shifts, and with them if there are any."""
    found = verdicts(rows)
    return {
        name: [v for v in found if v.shifts == name]
        for name in dict.fromkeys(v.shifts for v in found)
    }


def averaged(rows: Sequence[Row]) -> list[Row]:
    """One line for each number of rows and prior."""
    return [
        {
            "rows": f"{v.rows}",
            "shifts": v.shifts,
            "α": name_of(v.prior),
            "subsets": f"{v.subsets}",
            "best T": f"{v.best:g}" if v.is_compared else "",
            "best over T = 1": str(v.gains[v.best]) if v.best != 1 else "",
            "T = 1 within two errors of it": v.in_a_word,
            "T = 0.1 over T = 1": str(v.gains[0.1]) if v.is_compared else "",
            "T = 1 over ensemble": str(v.over_ensemble),
            "median R-hat, most": f"{v.rhat:.2f}",
        }
        for v in verdicts(rows)
    ]


def beside_hmc(rows: Sequence[Row]) -> list[Row]:
    """Runs of BAOAB, the short ones beside HMC on the same rows."""
    return [
        {
            "rows": f"{r['rows']}",
            "subset": f"{r['subset']}",
            "α": name_of(r["prior"]),
            "T": f"{r['temperature']:g}",
            "run": "long" if r["method"] == LONG else "short",
            "log score": f"{r['of the posterior']:.3f} ± {r['log_score chains']:.3f}".replace(
                "-", "−"
            ),
            "over HMC": "" if r["from HMC"] == "" else str(gap_of([r], "from HMC")),
            "kinetic temperature / T": f"{r['kinetic']:.3f}",
            "along gradients / T": f"{r['along gradients']:.1f}",
            "within 5 %": "yes" if abs(r["kinetic"] - 1) <= HEAT else "no",
            "median R-hat": f"{r['median R-hat']:.2f}",
        }
        for r in rows
        if r["method"] in (MINIBATCH, LONG)
    ]


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """In how many settings T = 1 is best, what T = 0.1 gains, and where T = 1 is above an ensemble."""
    moved = by_shifts(rows)
    counts = {
        shifts: (sum(v.one_is_best for v in compared), len(compared))
        for shifts, found in moved.items()
        for compared in [[v for v in found if v.is_compared]]
    }
    yield "T = 1 is within two errors of the best temperature in {}.".format(
        ", ".join(f"{a} of {b} settings (images{_moved(s)})" for s, (a, b) in counts.items())
    )


def picture(rows: Sequence[Row]) -> Any:
    """Gains over T = 1 against T, by rows."""
    moved = by_shifts(rows)
    counts = list(dict.fromkeys(v.rows for v in moved[UNMOVED]))
    figure, grid = plt.subplots(
        len(moved),
        len(counts),
        figsize=(11, 1 + 3 * len(moved)),
        layout="constrained",
        squeeze=False,
        sharex=True,
    )
    for axes, (shifts, found) in zip(grid, moved.items()):
        for ax, count in zip(axes, counts):
            _curves(ax, [v for v in found if v.rows == count])
            ax.set_title(f"{count} rows", fontsize="medium")
        axes[0].set_ylabel(f"log score – that at T = 1\nimages{_moved(shifts)}")
    # A prior may be missing in some axes.
    named = {k: v for ax in grid.flat for v, k in zip(*ax.get_legend_handles_labels())}
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=5, frameon=False)
    return figure


def _moved(shifts: str) -> str:
    return " as they are" if shifts == UNMOVED else f" moved by {shifts}"


def _curves(ax: Any, found: Sequence[Verdict]) -> None:
    """Gains over T = 1 against T in nats, a line for each prior, with two standard errors."""
    for v in found:
        if not v.is_compared:
            continue
        index, gaps = PRIORS.index(v.prior), list(v.gains.values())
        style = line_style(ax, index) | {"marker": MARKERS[index], "capsize": 2}
        values, errors = [g.value for g in gaps], [2 * g.error for g in gaps]
        label = v.prior if v.prior == HIERARCHICAL else f"α = {v.prior:g}"
        ax.errorbar(list(v.gains), values, errors, label=label, **style)
    ax.axhline(0, color="0.4", linestyle=":", linewidth=1)
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=0.02)
    ax.set_ylim(-2, 1)
    label_axes(ax, "temperature T", "")
