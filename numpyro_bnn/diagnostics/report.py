"""The report on a run: its verdict, the numbers behind it, and their display as text, table and page."""

import html
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from numpyro_bnn._html import Markup, escape, page, paragraph, picture, section, strong, table
from numpyro_bnn.diagnostics.compare_runs import Disagreement, SecondOpinion
from numpyro_bnn.diagnostics.distinct_functions import DistinctFunctions
from numpyro_bnn.diagnostics.evidence import Relabelling, RhatTable
from numpyro_bnn.diagnostics.monte_carlo.agreement import SIGNIFICANT, Agreement
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.sampler_stats import SamplerStats, Temperatures
from numpyro_bnn.diagnostics.verdict import UNKNOWN, Verdict
from numpyro_bnn.samplers.suspects import named

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Section(Protocol):
    """What is shown beside a report, such as the check of a fit."""

    def html_section(self) -> str: ...


_WIDTH = 88
_MOST_GROUPS = 12
_COLUMNS = ("scalars", "max", "median", "min", "median", "min")
_ABOVE = (("", 1), ("R-hat", 2), ("bulk ESS", 2), ("tail ESS", 1))
_CELL = 9
# Colours that all kinds of colour vision tell apart (Okabe & Ito 2008).
_COLOURS = {"weights": "#D55E00", "predictions": "#0072B2"}
# The fields that are single numbers; one that is None does not apply and is left out.
_ERRORS = ("total_variation", "total_variation_99", "relative", "relative_99", "log_score", "log_score_bias",
           "log_score_rows", "decisions_open", "num_unknown")  # fmt: skip
_AGREEMENT = ("p", "p_max", "p_median", "groups", "batch_length", "num_batches", "total_variation",
              "total_variation_99", "relative", "relative_99", "nested_rhat",
              "nested_rhat_limit")  # fmt: skip
_TONES = {
    "within_tolerance": "good",
    "within_tolerance_on_average": "good",
    "run_longer": "wait",
    "too_short": "wait",
}
# What a reader can do with the run, by verdict.
_ALLOWED = {
    "within_tolerance": "Use the averages: their Monte Carlo error is stated below.",
    "within_tolerance_on_average": (
        "Use scores and averages over rows; look up a single row in the table of rows below before you "
        "rely on it."
    ),
    "run_longer": "Not yet: averages may still move by more than was accepted. Run longer.",
    "chains_disagree": (
        "Do not average these chains as if they were one posterior: temper them (ParallelTempering), or "
        "stack them."
    ),
    "too_short": "Nothing can be said from so few draws. Run longer.",
    "invalid": "Nothing can be said: draws are NaN or infinite. Repair or leave out those chains.",
}
_MOST_ROWS = 10


class ReportNumbers(NamedTuple):
    """The numbers of a report, in a form that a file can hold."""

    attributes: Mapping[str, str | float | int]
    # Monte Carlo errors of judged rows, (input,): "total_variation", "relative"
    by_row: Mapping[str, np.ndarray]
    # "chain_group"; empty where halves of one chain stood for chains, or nothing was judged
    by_chain: Mapping[str, np.ndarray]


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
        check: Section | None = None,
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


def with_suspects(report: Report, suspect: Mapping[int, str], num_chains: int) -> Report:
    """Lower the verdict of a report because of suspect chains: never moved, or mostly diverged."""
    if len(suspect) < num_chains:
        verdict = "invalid" if report.verdict.startswith("invalid") else "chains_disagree"
        advice = (
            "They count as disagreeing with the others: leave them out, or run again from optimised "
            "weights or with another step size."
        )
    else:
        verdict = "invalid"
        advice = "No chain is left to judge: change the step size, or start from optimised weights."
    lead = f"Suspect: {named(suspect)}. {advice} What follows is what the draws alone would say."
    return replace(
        report,
        verdict=Verdict(verdict),
        headline=f"{len(suspect)} of {num_chains} chains suspect; {report.headline}",
        needed=UNKNOWN,
        needed_by="chains that move",
        suspect=dict(suspect),
        sentences=(lead, *report.sentences),
    )


def without_errors(report: Report, why: str) -> Report:
    """A report on draws that are no series of a chain, of which no error was computed, and why."""
    return replace(
        report,
        headline="these draws are no chain, and have no Monte Carlo error",
        needed=UNKNOWN,
        needed_by="the run that they come from",
        sentences=(why,),
    )


def with_copies(report: Report, sentence: str) -> Report:
    """Add to a report on the chains that differ that some were copies of others, and lower its verdict."""
    verdict = report.verdict.at_best("run_longer")
    if report.num_chains > 1 or verdict is report.verdict:
        return replace(report, sentences=(sentence, *report.sentences))
    # All chains were copies of one, which leaves nothing to compare it with.
    sentence += " One chain is nothing to compare. What follows is what it alone would say."
    return replace(
        report,
        verdict=verdict,
        headline=f"all chains are copies of one; {report.headline}",
        needed=UNKNOWN,
        needed_by="chains that differ",
        sentences=(sentence, *report.sentences),
    )


def numbers_of(
    texts: Mapping[str, str | float | int],
    tolerance: Tolerance,
    error: MonteCarloError | None,
    agreement: Agreement | None,
) -> ReportNumbers:
    """Gather the numbers of a report; `error` and `agreement` are None for draws that were not judged."""
    attributes = dict(texts) | {f"tolerance_{name}": v for name, v in asdict(tolerance).items()}
    for lead, names, found in (
        ("monte_carlo_error", _ERRORS, error),
        ("agreement", _AGREEMENT, agreement),
    ):
        values = {name: getattr(found, name, None) for name in names}
        attributes |= {f"{lead}_{name}": v for name, v in values.items() if v is not None}
    by_chain = {}
    if agreement is not None and not agreement.halves:
        by_chain["chain_group"] = agreement.members
    return ReportNumbers(attributes, {} if error is None else error.by_row, by_chain)


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


def verdict_section(verdict: Verdict, headline: str, facts: str, sentences: Sequence[str]) -> str:
    """The verdict, what can be done with the run, and the reasons."""
    tone = _TONES.get(str(verdict), "bad")
    return (
        f'<div class="verdict {tone}"><strong>{escape(verdict.words)}</strong><br>'
        f"{escape(headline)}</div>\n"
        + paragraph(_ALLOWED[str(verdict)])
        + f"\n<details><summary>Why</summary>{paragraph(' '.join(sentences))}</details>\n"
        + paragraph(facts, "faint")
    )


def evidence_section(
    error: MonteCarloError | None, agreement: Agreement | None, tolerance: Tolerance
) -> str:
    """The two results that decide the verdict: errors beside their limits, and the test of agreement."""
    parts = []
    if error is not None:
        rows = [
            (check.what, _number(check.value), f"{check.limit:.3g}", _times(check.needed))
            for check in error.checks(tolerance)
        ]
        parts.append(
            table(
                ("Monte Carlo error", "measured", "accepted", "draws needed"),
                rows,
                "How far averages over these draws are from those of an infinite run.",
            )
        )
    if agreement is not None:
        parts.append(paragraph(_agreement(agreement)))
    return section("How well are the predictions known?", *parts)


def _agreement(agreement: Agreement) -> str:
    who = "The halves of the chain" if agreement.halves else "The chains"
    if not agreement.tested:
        return f"{who} move too slowly to be compared yet."
    agree = "agree" if agreement.p >= SIGNIFICANT else "disagree"
    groups = f" They form {agreement.groups} groups." if agreement.groups > 1 else ""
    return (
        f"{who} {agree}: if they sampled one distribution, they would differ as much as this with "
        f"probability {agreement.p:.2g} (disagreement is below {SIGNIFICANT:g}).{groups}"
    )


def convergence_table(
    above: Sequence[tuple[str, int]],
    columns: Sequence[str],
    lines: Iterable[tuple[str, bool, Sequence[str]]],
) -> str:
    """R-hat and effective sample sizes of each site."""
    head = "".join(f'<th colspan="{n}">{escape(text)}</th>' for text, n in (("", 1), *above))
    body = [
        (strong(label) if whole else Markup(f"&ensp;{escape(label)}"), *cells)
        for label, whole, cells in lines
    ]
    html = table(("", *columns), body)
    return html.replace("<thead>", f"<thead><tr>{head}</tr>", 1)


def temperature_section(heat: Temperatures) -> str:
    """Temperatures of momenta and positions by site; nothing where none were recorded."""
    kinds = [kind for kind in ("kinetic", "configurational") if heat.measured.get(kind)]
    sites = list(dict.fromkeys(site for kind in kinds for site in heat.measured[kind]))
    if not kinds:
        return ""
    rows = []
    for site in sites:
        found = [heat.measured[kind].get(site) for kind in kinds]
        cells = ["–" if one is None else f"{one.value:.3f} ± {one.error:.3f}" for one in found]
        rows.append((strong("all sites") if site == "all" else site, *cells))
    if heat.along_gradient is not None:
        value, error = heat.along_gradient
        cells = ["–" if kind != "kinetic" else f"{value:.3f} ± {error:.3f}" for kind in kinds]
        rows.append(("along gradients", *cells))
    return section(
        "Temperatures",
        table(
            ("site", *kinds),
            rows,
            f"Mean over draws and its Monte Carlo error; {heat.asked:g} is right. A kinetic temperature "
            "that is off speaks of the step size, one along gradients alone of noise that weights share, a "
            "configurational one of chains that have not arrived.",
        ),
    )


def rows_section(by_row: Mapping[str, np.ndarray], names: Sequence[str] | None) -> str:
    """The rows whose predictions are known worst, by Monte Carlo errors (row,); infinite where unknown."""
    parts = []
    words = {"total_variation": "total variation", "relative": "error in predictive sd"}
    for kind, errors in by_row.items():
        errors = np.asarray(errors)
        if names is not None and len(names) != errors.size:
            raise ValueError(
                f"to_html: got {len(names)} names of rows for {errors.size} rows that were judged. Give "
                "one name for each row that `diagnose` was given."
            )
        worst = np.argsort(-errors, kind="stable")[:_MOST_ROWS]
        rows = [(str(i) if names is None else names[i], _number(errors[i])) for i in worst]
        parts.append(table(("row", words.get(kind, kind)), rows))
    return section("Rows whose predictions are known worst", *parts)


def _number(value: float) -> str:
    return f"{value:.2g}" if np.isfinite(value) else "not known yet"


def _times(needed: float) -> str:
    if not np.isfinite(needed):
        return "not known"
    return "enough" if needed <= 1 else f"{needed:.1f} times as many"
