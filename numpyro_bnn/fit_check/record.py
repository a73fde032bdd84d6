"""The check of a fit as one record: its numbers, what they mean in words, and how it is shown."""

import html
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from numpyro_bnn._html import page, paragraph, picture, section, table
from numpyro_bnn.fit_check.calibration import Calibration
from numpyro_bnn.fit_check.loo import LeaveOneOut
from numpyro_bnn.fit_check.quantities import Quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_WIDTH = 88
_WORST = 10
_HEAD = ("quantity", "data", "model: 5 %", "95 %", "p")
_MOST_ROWS = 8
_NO_CALIBRATION = "The test of calibration is made for one target a row, and here are several."


@dataclass(frozen=True, repr=False)
class FitCheck:
    """Whether a model fits its data, and how well it would predict other rows like them.

    :param loo: leave-one-out log predictive densities, with their Pareto k̂ and Monte Carlo errors.
    :param calibration: whether rows are where the posterior without them expects them; None of
        several targets a row.
    :param quantities: quantities of the data beside those of data that the model makes.
    :param doubts: why `loo` is not to be believed, sentence by sentence; empty where it may be.
    :param notes: what else is to be known about the numbers.
    :param names: names of the rows.
    :param targets: observed targets, (row, …).
    :param num_chains: chains.
    :param num_draws: draws a chain.
    """

    loo: LeaveOneOut
    calibration: Calibration | None
    quantities: tuple[Quantity, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]
    names: tuple[str, ...]
    targets: np.ndarray
    num_chains: int
    num_draws: int

    @property
    def believable(self) -> bool:
        """Whether the leave-one-out estimate may be believed: nothing speaks against it."""
        return not self.doubts

    @property
    def rare(self) -> tuple[str, ...]:
        """Names of what a right model seldom gives: quantities, and ``"calibration"``; empty if none."""
        found = [quantity.name for quantity in self.quantities if quantity.is_rare]
        if self.calibration is not None and self.calibration.is_rare:
            found.append("calibration")
        return tuple(found)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, in words: the estimate first, then calibration and quantities."""
        calibration = (
            _NO_CALIBRATION if self.calibration is None else _on_calibration(self.calibration)
        )
        return (
            _on_loo(self.loo, self.doubts),
            calibration,
            _on_quantities(self.quantities),
            *self.notes,
        )

    def worst_rows(self, count: int = _WORST) -> list[tuple[str, float, float]]:
        """Rows with the largest k̂.

        :param count: how many, at most.
        :return: name, k̂ and leave-one-out log density of each.
        """
        k = self.loo.pareto_k
        order = np.argsort(-np.nan_to_num(k, nan=np.inf), kind="stable")[:count]
        return [(self.names[i], float(k[i]), float(self.loo.by_row[i])) for i in order]

    def __repr__(self) -> str:
        believed = "believable" if self.believable else "not to be believed"
        rare = f"; rare: {', '.join(self.rare)}" if self.rare else ""
        return f"FitCheck(elpd {self.loo.elpd:.1f} ± {self.loo.se:.1f}, {believed}{rare})"

    def _facts(self) -> str:
        good, bad, very_bad = self.loo.counts
        limit = self.loo.good_k
        return (
            f"{len(self.names)} rows · {self.num_chains} chains × {self.num_draws} draws · "
            f"Pareto k̂: {good} good (up to {limit:.2f}), {bad} bad (up to 1), {very_bad} very bad"
        )

    def _lines(self) -> Iterator[tuple[str, ...]]:
        for q in self.quantities:
            mark = " (rare)" if q.is_rare else ""
            numbers = (f"{value:.4g}" for value in (q.observed, q.low, q.high))
            yield (q.name + mark, *numbers, f"{q.p:.2g}")

    def __str__(self) -> str:
        lines = textwrap.wrap(self._facts(), _WIDTH)
        rows = [_HEAD, *self._lines()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
        told = [
            row[0].ljust(widths[0]) + "".join(c.rjust(w + 2) for c, w in zip(row[1:], widths[1:]))
            for row in rows
        ]
        lines += ["", told[0], "─" * len(told[0]), *told[1:]]
        for sentence in self.sentences:
            lines += ["", *textwrap.wrap(sentence, _WIDTH)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        said = "".join(f'<p style="max-width:48em">{html.escape(s)}</p>' for s in self.sentences)
        return f"<div>{html.escape(self._facts())}{table(_HEAD, self._lines())}{said}</div>"

    def html_section(self) -> str:
        """This check as a part of a page of HTML."""
        worst = [(name, f"{k:.2f}", f"{density:.3f}") for name, k, density in self.worst_rows()]
        shown = ""
        if self.calibration is not None:
            shown = picture(
                lambda figure: self.plot(figure.subplots()),
                "Calibration of each row under the posterior without it",
                "Within the band where the model is right."
                if self.calibration.kind == "pit"
                else "On the line where the model is right.",
                (6.0, 3.6) if self.calibration.kind == "pit" else (5.6, 4.6),
            )
        return section(
            "Does the model fit?",
            *(
                paragraph(s, "" if i or self.believable else "warning")
                for i, s in enumerate(self.sentences)
            ),
            table(
                _HEAD, self._lines(), "Quantities of the data beside those that the model makes."
            ),
            shown,
            table(("row", "Pareto k̂", "log density without it"), worst, "Rows that matter most."),
            paragraph(self._facts(), "faint"),
        )

    def to_html(self, path: str | Path | None = None) -> str:
        """This check as one page of HTML, which needs neither a network nor a script.

        :param path: the file to write; none where None.
        :return: the page.
        :raises OSError: if the file cannot be written.
        """
        made = page("Does the model fit?", [self.html_section()])
        if path is not None:
            Path(path).write_text(made, encoding="utf-8")
        return made

    def to_dataframe(self) -> "pd.DataFrame":
        """One line a row of the data, as a pandas data frame indexed by the names of the rows.

        :return: columns `elpd`, `error` (its Monte Carlo error), `pareto_k` and, where there is one, `pit`.
        """
        import pandas as pd

        columns = {"elpd": self.loo.by_row, "error": self.loo.error_by_row}
        columns["pareto_k"] = self.loo.pareto_k
        if self.calibration is not None and self.calibration.pit is not None:
            columns["pit"] = self.calibration.pit
        return pd.DataFrame(columns, index=list(self.names))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """LOO-PIT beside uniform (:func:`~numpyro_bnn.plots.plot_pit`), or reliability of classes.

        :param ax: Matplotlib axes; default: a new figure.
        :return: the axes.
        :raises ValueError: where there is no test of calibration.
        """
        if self.calibration is None:
            raise ValueError(f"FitCheck.plot: nothing to draw. {_NO_CALIBRATION}")
        from numpyro_bnn import plots

        if self.calibration.pit is not None:
            return plots.plot_pit(self.calibration.pit, ax=ax)
        probabilities = self.calibration.probabilities
        return plots.plot_reliability(probabilities, self.targets, num_bins=10, ax=ax)


def on_weights(loo: LeaveOneOut, names: tuple[str, ...]) -> list[str]:
    """What Pareto k̂ says against the estimate; empty where all rows are good."""
    bad = loo.bad_rows
    if not bad.size:
        return []
    worst = ", ".join(f"{names[i]} ({loo.pareto_k[i]:.2f})" for i in bad[:_MOST_ROWS])
    more = f" and {bad.size - _MOST_ROWS} more" if bad.size > _MOST_ROWS else ""
    rows = f"row {worst} has" if bad.size == 1 else f"rows {worst}{more} have"
    said = [
        f"{bad.size} of {loo.pareto_k.size} rows: {rows} Pareto k̂ above {loo.good_k:.2f}. These draws do "
        "not reach the posterior without them: its density there is not known, nor is the sum, which is "
        "mostly too high."
    ]
    if not (loo.pareto_k[bad] > 0.7).any():
        return [*said, "More draws do: from 2200 on, 0.7 is good enough."]
    return [
        *said,
        "Fit again without these rows and score them (`bnn.scores.lppd`), or leave out folds of rows "
        "(cross-validation with `BNNRegressor` or `BNNClassifier`). Where they are outliers, noise with "
        'heavier tails is another model: `likelihood="student_t"`.',
    ]


def _on_loo(loo: LeaveOneOut, doubts: tuple[str, ...]) -> str:
    """The estimate, and whether it may be believed."""
    rows = loo.by_row.size
    lead = (
        f"Predicting each row from the others: elpd {loo.elpd:.1f} ± {loo.se:.1f} nats "
        f"({loo.elpd / rows:.3f} ± {loo.se / rows:.3f} a row; Monte Carlo error {_error(loo.error)}). "
    )
    if doubts:
        return lead + "This number is not to be believed. " + " ".join(doubts)
    share = f"{loo.p_loo:.1f} effective parameters for {rows} rows"
    return lead + f"All Pareto k̂ are good: the number may be believed. p_loo: {share}."


def _error(error: float) -> str:
    return f"{error:.2g}" if math.isfinite(error) else "not known"


def _on_calibration(calibration: Calibration) -> str:
    """Whether rows are where the posterior without them expects them."""
    p = f"p = {calibration.p:.2g}"
    if calibration.kind == "pit":
        rare = (
            "are not uniform" if calibration.is_rare else "are as uniform as those of a right model"
        )
        return (
            f"The probabilities of targets up to the observed ones, each without its row (LOO-PIT), {rare} "
            f"({p}; largest distance {calibration.distance:.3f} ± {calibration.error:.2g})."
        )
    gap = abs(100 * calibration.distance)
    sure = "too sure" if calibration.distance > 0 else "not sure enough"
    said = (
        f"the classes that are most probable without the row are right {gap:.1f} % of rows "
        f"{'less' if calibration.distance > 0 else 'more'} often than their probabilities say ({p})"
    )
    if calibration.is_rare:
        return f"The model is {sure}: {said}."
    return f"As calibrated as a right model: {said}."


def _on_quantities(quantities: tuple[Quantity, ...]) -> str:
    """Which quantities of the data the model does not make."""
    rare = [q for q in quantities if q.is_rare]
    if not rare:
        return (
            f"The model makes data like these: none of {len(quantities)} quantities of the data is rare. "
            "It was fitted to these rows, so that this proves little."
        )
    told = ", ".join(
        f"{q.name} (too {'large' if q.p < 0.5 else 'small'}, p = {q.p:.2g})" for q in rare
    )
    return f"The model seldom makes data like these: {told}."
