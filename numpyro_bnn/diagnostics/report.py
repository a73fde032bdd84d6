"""The report on a run: its verdict, the numbers behind it, and their display as text, table and page."""

import html
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from numpyro_bnn._html import page, picture, section
from numpyro_bnn.diagnostics.compare_runs import Disagreement, SecondOpinion
from numpyro_bnn.diagnostics.distinct_functions import DistinctFunctions
from numpyro_bnn.diagnostics.fit_check.record import FitCheck
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.report_numbers import ReportNumbers, numbers_of
from numpyro_bnn.diagnostics.report_sections import (
    convergence_table,
    evidence_section,
    rows_section,
    temperature_section,
    verdict_section,
)
from numpyro_bnn.diagnostics.rhat_of_weights_and_predictions import RhatTable
from numpyro_bnn.diagnostics.sampler_stats import SamplerStats
from numpyro_bnn.diagnostics.verdict_names import Verdict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_WIDTH = 88
_MOST_GROUPS = 12
_COLUMNS = ("scalars", "max", "median", "min", "median", "min")
_ABOVE = (("", 1), ("R-hat", 2), ("bulk ESS", 2), ("tail ESS", 1))
_CELL = 9
# Colours that all kinds of colour vision tell apart (Okabe & Ito 2008).
_COLOURS = {"weights": "#D55E00", "predictions": "#0072B2"}


class Relabelling(NamedTuple):
    """Convergence of the weights before and after the hidden units of all draws are matched.

    - **space** - R-hat and ESS of the weights after matching.
    - **before** - share of the weights' variance that lies between chains, before matching.
    - **after** - that share after matching.
    """

    space: RhatTable
    before: float
    after: float


@dataclass(frozen=True)
class Report:
    """The diagnosis of a run: its verdict, the explanation, and the numbers behind them.

    :param weights: R-hat and ESS of the weights.
    :param predictions: R-hat and ESS of the predictions at the given inputs.
    :param precisions: R-hat and ESS of sites whose names end in "precision".
    :param log_joint: R-hat and ESS of the log joint density.
    :param verdict: `"within_tolerance"`: chains agree and averages are within the tolerance;
        `"within_tolerance_on_average"`: the same for means over rows, but not for the worst rows;
        `"run_longer"`; `"chains_disagree"`; `"too_short"`: too few draws a chain to judge; `"invalid"`: NaN
        or infinities.
    :param sentences: the explanation, sentence by sentence.
    :param num_chains: chains.
    :param num_draws: draws a chain.
    :param rhat_limit: the limit that the largest R-hat of so many predictions stays below where chains
        agree, at their median effective sample size; NaN where nothing was judged.
    :param sampler: divergences, acceptance, temperatures, … that the sampler recorded.
    :param chains: which chains predict alike; only where predictions are not within the tolerance.
    :param distinct: effective number of distinct functions, where the noise is known.
    :param second: comparison with another run, where one was given.
    :param relabelling: the weights after matching hidden units, where that was done.
    :param suspect: chains that never moved or mostly diverged: reason by number.
    :param headline: the numbers that carry the verdict, in words.
    :param monte_carlo_error: how far averages over the draws may be off; None for draws that are
        invalid or too few.
    :param agreement: the test of whether chains differ by more than their own errors; None likewise.
    :param tolerance: the Monte Carlo error that was accepted.
    :param needed: factor by which to lengthen the run so that all is within tolerance: at most 1 where it is
        already, infinite where nothing moves, NaN where more draws would not help. Where chains disagree it
        assumes that they cross between modes.
    :param needed_by: the quantity that asks for the most draws.
    """

    weights: RhatTable
    predictions: RhatTable
    precisions: RhatTable
    log_joint: RhatTable
    verdict: Verdict
    sentences: tuple[str, ...]
    num_chains: int
    num_draws: int
    rhat_limit: float
    sampler: SamplerStats
    chains: Disagreement | None = field(default=None, repr=False)
    distinct: DistinctFunctions | None = None
    second: SecondOpinion | None = None
    relabelling: Relabelling | None = None
    suspect: Mapping[int, str] = field(default_factory=dict)
    headline: str = ""
    monte_carlo_error: MonteCarloError | None = field(default=None, repr=False)
    agreement: Agreement | None = field(default=None, repr=False)
    tolerance: Tolerance = field(default_factory=Tolerance)
    needed: float = float("nan")
    needed_by: str = ""

    @property
    def explanation(self) -> str:
        """The verdict in plain words: what is wrong with the sampler first, then what it means."""
        return " ".join(self.sentences)

    @property
    def divergences(self) -> int | None:
        """Divergent transitions; None where they were not recorded."""
        return self.sampler.divergences

    @property
    def saturated_trees(self) -> int | None:
        """Trajectories of NUTS that took the most steps allowed; None where not recorded."""
        return self.sampler.saturated_trees

    @property
    def spaces(self) -> tuple[RhatTable, ...]:
        """R-hat and ESS of the kinds of scalars that were given, in the order of the table."""
        aligned = [self.relabelling.space] if self.relabelling is not None else []
        every = (self.weights, *aligned, self.precisions, self.log_joint, self.predictions)
        return tuple(space for space in every if space)

    def _lines(self) -> Iterator[tuple[str, bool, tuple[float, ...]]]:
        """Rows of the table: label, whether the row sums up a whole kind of scalar, and numbers."""
        for space in self.spaces:
            yield space.name, True, space.row()
            if len(space.groups) == 1 and space.groups[0].name == space.name:
                continue
            worst_first = sorted(space.groups, key=lambda g: -np.nan_to_num(g.max_rhat, nan=-1.0))
            shown = set(map(id, worst_first[:_MOST_GROUPS]))
            for group in space.groups:
                if id(group) in shown:
                    yield group.name, False, group.row()
            left = len(space.groups) - len(shown)
            if left:
                yield f"({left} more, all better)", False, ()

    def _facts(self) -> str:
        """One line on the sampler and the chains."""
        facts = [f"{self.num_chains} chains × {self.num_draws} draws"]
        if self.num_chains == 1:
            facts = [f"1 chain × {self.num_draws} draws"]
        if self.suspect:
            facts.append(f"{len(self.suspect)} suspect")
        stats = self.sampler
        if stats.divergences is not None:
            facts.append(f"{stats.divergences} divergences")
        if stats.saturated_trees is not None:
            facts.append(f"{stats.saturated_trees} saturated trees")
        if stats.cut_trajectories is not None:
            facts.append(f"{stats.cut_trajectories} trajectories cut")
        if stats.acceptance is not None:
            facts.append(f"acceptance {stats.acceptance.mean():.2f}")
        if stats.ebfmi is not None:
            facts.append(f"lowest E-BFMI {stats.ebfmi.min():.2f}")
        if stats.tempering is not None:
            facts += stats.tempering.facts()
        for kind, sites in stats.temperatures.items():
            if "all" in sites:
                facts.append(f"{kind} temperature {sites['all'].value:.3f}")
        if self.distinct is not None and self.num_chains > 1:
            facts.append(f"{self.distinct.between:.1f} distinct chains")
        return " · ".join(facts)

    def __str__(self) -> str:
        rows = list(self._lines())
        name_width = min(34, max([len(label) + 2 * (not whole) for label, whole, _ in rows] + [12]))
        above = " " * name_width + "".join(f"{c:>{n * _CELL}}" for c, n in _ABOVE)
        head = " " * name_width + "".join(f"{c:>{_CELL}}" for c in _COLUMNS)
        lines = textwrap.wrap(f"Verdict: {self.verdict.words}: {self.headline}", _WIDTH)
        lines += [*textwrap.wrap(self._facts(), _WIDTH), "", above, head, "─" * len(head)]
        for label, whole, numbers in rows:
            label = label if whole else "  " + label
            if len(label) > name_width:
                # Long names are cut at their beginning: the end of a site's name is more telling.
                label = "  …" + label[-(name_width - 3) :]
            cells = "".join(f"{text:>{_CELL}}" for text in _texts(numbers))
            lines.append(f"{label:<{name_width}}{cells}".rstrip())
        lines += ["", *textwrap.wrap(self.explanation, _WIDTH)]
        return "\n".join(lines)

    def print(self) -> None:
        """Verdict, tables and explanation on the terminal."""
        print(self)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return (
            f"<div><b>Verdict: {self.verdict.words}</b> ({html.escape(self.headline)})<br>{self._facts()}"
            f"{self._html_table()}"
            f'<p style="max-width:48em">{html.escape(self.explanation)}</p></div>'
        )

    def _html_table(self) -> str:
        lines = ((label, whole, _texts(numbers)) for label, whole, numbers in self._lines())
        return convergence_table(_ABOVE[1:], _COLUMNS, lines)

    def html_sections(self, rows: Sequence[str] | None = None) -> dict[str, str]:
        """The parts of :meth:`to_html`, for pages that show more than this report.

        :param rows: names of the rows that were judged; their numbers where None.
        :return: HTML of ``"verdict"``, ``"evidence"``, ``"rows"``, ``"temperatures"`` and
            ``"convergence"``; empty where there is nothing to tell.
        :raises ValueError: for another number of names than rows.
        """
        error = self.monte_carlo_error
        pictures = ""
        if any(np.isfinite(space.rhat).any() for space in (self.weights, self.predictions)):
            pictures = picture(
                lambda figure: self.plot(figure.subplots(1, 2, sharex=True)),
                "Histograms of R-hat of weights and of predictions",
                "R-hat of weights (which hidden units may exchange) beside that of predictions.",
                (8.0, 3.0),
            )
        facts = self._facts()
        return {
            "verdict": verdict_section(self.verdict, self.headline, facts, self.sentences),
            "evidence": evidence_section(error, self.agreement, self.tolerance),
            "rows": rows_section({} if error is None else error.by_row, rows),
            "temperatures": temperature_section(self.sampler.heat),
            "convergence": section("Convergence, site by site", self._html_table(), pictures),
        }

    def to_html(
        self,
        path: str | Path | None = None,
        *,
        rows: Sequence[str] | None = None,
        check: FitCheck | None = None,
    ) -> str:
        """This report as one page of HTML, which needs neither a network nor a script.

        :param path: the file to write; none where None.
        :param rows: names of the rows that were judged; their numbers where None.
        :param check: the check of the fit, from :func:`numpyro_bnn.check_fit`, to show beside it.
        :return: the page.
        :raises ValueError: for another number of names than rows.
        :raises OSError: if the file cannot be written.
        """
        title = "Can this posterior be believed?"
        fit = "" if check is None else check.html_section()
        text = page(title, (f"<h1>{title}</h1>", *self.html_sections(rows).values(), fit))
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_dataframe(self) -> "pd.DataFrame":
        """The table as a pandas data frame, one row for each site and no summaries.

        :return: columns `space`, `site`, `num_scalars`, `max_rhat`, `median_rhat`, `min_ess`,
            `median_ess`, `min_tail_ess`, `num_constant`, `num_bad`.
        """
        import pandas as pd

        columns = ["num_scalars", "max_rhat", "median_rhat", "min_ess", "median_ess"]
        columns += ["min_tail_ess", "num_constant", "num_bad"]
        return pd.DataFrame(
            [
                {"space": space.name, "site": group.name}
                | {column: getattr(group, column) for column in columns}
                for space in self.spaces
                for group in space.groups
            ]
        )

    def numbers(self) -> ReportNumbers:
        """Verdict, errors and agreement as plain numbers and arrays, which files can hold."""
        texts: dict[str, str | float | int] = {
            "verdict": str(self.verdict),
            "headline": self.headline,
            "explanation": self.explanation,
            "needed": self.needed,
            "needed_by": self.needed_by,
            "num_chains": self.num_chains,
            "num_draws": self.num_draws,
        }
        return numbers_of(texts, self.tolerance, self.monte_carlo_error, self.agreement)

    def plot(
        self, axes: "Sequence[Axes] | np.ndarray | None" = None
    ) -> "Sequence[Axes] | np.ndarray":
        """Histograms of R-hat, weights beside predictions, with the limit of so many predictions.

        :param axes: two Matplotlib axes; default: a new figure.
        :return: the axes.
        """
        import matplotlib.pyplot as plt

        if axes is None:
            axes = plt.subplots(1, 2, figsize=(8, 3), sharex=True, layout="constrained")[1]
        spaces = (self.weights, self.predictions)
        finite = [s.rhat[np.isfinite(s.rhat)] for s in spaces]
        largest = max([1.02, *(values.max() for values in finite if values.size)])
        smallest = min([0.999, *(values.min() for values in finite if values.size)])
        bins = np.geomspace(smallest, largest * 1.001, 41)
        for ax, space, values in zip(axes, spaces, finite):
            ax.set_title(space.name)
            ax.set_xlabel("R-hat")
            if np.isfinite(self.rhat_limit):
                ax.axvline(self.rhat_limit, color="0.5", linestyle="--")
                ax.set_xlabel(f"R-hat (dashed: limit {self.rhat_limit:.3f})")
            if values.size:
                ax.hist(values, bins=bins, color=_COLOURS[space.name])
            else:
                ax.text(0.5, 0.5, "none given", ha="center", transform=ax.transAxes)
        axes[0].set_ylabel("scalars")
        return axes


def _texts(numbers: tuple[float, ...]) -> list[str]:
    """Numbers as a table shows them: counts with separators, R-hat to three digits, no NaN."""
    texts = []
    for column, number in enumerate(numbers):
        if np.isnan(number):
            texts.append("–")
        elif column in (1, 2):
            texts.append(f"{number:.3f}" if number < 100 else f"{number:.3g}")
        else:
            texts.append(f"{number:,.0f}")
    return texts
