"""The report on a run: its verdict, the numbers behind it, and their display as text, table and page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from numpyro_bnn._html import Grid, Note, Section, html_of, page, picture
from numpyro_bnn._sentences import say
from numpyro_bnn._text import first_of, text_table, wrapped
from numpyro_bnn.diagnostics.compare_runs import SecondOpinion
from numpyro_bnn.diagnostics.evidence import ParameterErrors, Relabelling, RhatTable
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import IN_WORDS, MonteCarloError
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.sampler_stats import SamplerStats, Temperatures
from numpyro_bnn.diagnostics.verdict import UNKNOWN, Verdict, parameters_in_words
from numpyro_bnn.samplers.suspects import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class HasSection(Protocol):
    """What is shown beside a report, such as the check of a fit."""

    def section(self) -> Section: ...


_MOST_GROUPS = 12
_COLUMNS = ("scalars", "max R-hat", "median", "min ESS", "median", "min tail")
_ERROR_HEAD = ("Monte Carlo error", "measured", "accepted", "draws needed")
_PARAMETER_HEAD = ("parameter", "mean", "± error", "sd", "± error", "error / sd", "ESS")
_TONES = {
    "within_tolerance": "good",
    "within_tolerance_on_average": "good",
    "run_longer": "wait",
    "too_short": "wait",
}
_MOST_ROWS = 10


@dataclass(frozen=True, repr=False)
class Report:
    """The diagnosis of a run: its verdict, the explanation, and the numbers behind them.

    :param weights: R-hat and ESS of the weights.
    :param predictions: R-hat and ESS of the predictions at the given inputs.
    :param precisions: R-hat and ESS of sites of networks whose names end in "precision".
    :param parameters: R-hat and ESS of the parameters of the model that are no weights of a network.
    :param parameter_errors: their averages and standard deviations, with Monte Carlo errors; None where there
        are none, or nothing was judged.
    :param log_joint: R-hat and ESS of the log joint density.
    :param verdict: `"within_tolerance"`: chains agree and averages are within the tolerance;
        `"within_tolerance_on_average"`: the same for means over rows, but not for the worst rows;
        `"run_longer"`; `"chains_disagree"`; `"too_short"`: too few draws a chain to judge; `"invalid"`: NaN
        or infinities.
    :param advice: what to do with the run, in words.
    :param warnings: what may be wrong with the sampler or the draws, an entry for each.
    :param reasons: what was found, in words.
    :param not_judged: what was not looked at, in a few words each.
    :param num_chains: chains.
    :param num_draws: draws a chain.
    :param rhat_limit: the limit that the largest R-hat of so many predictions stays below where chains
        agree, at their median effective sample size; NaN where nothing was judged.
    :param sampler: divergences, acceptance, temperatures, … that the sampler recorded.
    :param stuck: chains that do not move; only where predictions are not within the tolerance.
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
    :param second_run: those of the reasons that are about a second run.
    """

    weights: RhatTable
    predictions: RhatTable
    precisions: RhatTable
    parameters: RhatTable
    log_joint: RhatTable
    verdict: Verdict
    advice: str
    warnings: tuple[str, ...]
    reasons: tuple[str, ...]
    not_judged: tuple[str, ...]
    num_chains: int
    num_draws: int
    rhat_limit: float
    sampler: SamplerStats
    stuck: tuple[int, ...] = ()
    second: SecondOpinion | None = None
    relabelling: Relabelling | None = None
    suspect: Mapping[int, str] = field(default_factory=dict)
    headline: str = ""
    monte_carlo_error: MonteCarloError | None = field(default=None, repr=False)
    agreement: Agreement | None = field(default=None, repr=False)
    parameter_errors: ParameterErrors | None = field(default=None, repr=False)
    tolerance: Tolerance = field(default_factory=Tolerance)
    needed: float = float("nan")
    needed_by: str = ""
    second_run: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """What may be wrong, then what was found."""
        return (*self.warnings, *self.reasons)

    @property
    def explanation(self) -> str:
        """The verdict in plain words: what may be wrong, what was found, and what to do."""
        return " ".join((*self.sentences, self.advice))

    @property
    def spaces(self) -> tuple[RhatTable, ...]:
        """R-hat and ESS of the kinds of scalars that were given, in the order of the table."""
        aligned = [self.relabelling.space] if self.relabelling is not None else []
        of_networks = (self.weights, *aligned, self.precisions)
        every = (*of_networks, self.parameters, self.log_joint, self.predictions)
        return tuple(space for space in every if space)

    def _lines(self) -> Iterator[tuple[str, bool, tuple[float, ...]]]:
        """Rows of the table: label, whether the row is of one site of a kind of scalar, and numbers."""
        for space in self.spaces:
            yield space.name, False, space.row()
            if len(space.groups) == 1 and space.groups[0].name == space.name:
                continue
            worst_first = sorted(space.groups, key=lambda g: -np.nan_to_num(g.max_rhat, nan=-1.0))
            shown = set(map(id, worst_first[:_MOST_GROUPS]))
            for group in space.groups:
                if id(group) in shown:
                    yield group.name, True, group.row()
            left = len(space.groups) - len(shown)
            if left:
                yield f"({left} more, all better)", True, ()

    def _chains(self) -> str:
        return f"{self.num_chains} chain{'s' * (self.num_chains > 1)} × {self.num_draws} draws"

    def _facts(self) -> str:
        """One line on the sampler and the chains."""
        facts = [self._chains()]
        if self.suspect:
            facts.append(f"{len(self.suspect)} suspect")
        stats = self.sampler
        named = (
            (stats.divergences, "{} divergences"),
            (stats.saturated_trees, "{} saturated trees"),
            (stats.cut_trajectories, "{} trajectories cut"),
            (None if stats.acceptance is None else stats.acceptance.mean(), "acceptance {:.2f}"),
            (None if stats.ebfmi is None else stats.ebfmi.min(), "lowest E-BFMI {:.2f}"),
        )
        facts += [text.format(value) for value, text in named if value is not None]
        if stats.tempering is not None:
            facts += stats.tempering.facts()
        for kind, sites in stats.temperatures.items():
            if "all" in sites:
                facts.append(f"{kind} temperature {sites['all'].value:.3f}")
        return " · ".join(facts)

    def __repr__(self) -> str:
        return f"Report({self.verdict.words}; {self._chains()}; print it to read it)"

    def __str__(self) -> str:
        advice = self.advice[:1].lower() + self.advice[1:]
        numbers = self.headline[:1].upper() + self.headline[1:]
        beside = [f"Verdict: {self.verdict.words}: {advice}", f"{numbers}."]
        if self.parameter_errors is not None:
            beside.append(parameters_in_words(self.parameter_errors, self.tolerance.relative))
        apart = map(first_of, self.second_run)
        beside.append(" ".join(said for said in apart if said[:-1] not in self.headline))
        if self.not_judged:
            beside.append(f"Not looked at: {'; '.join(self.not_judged)}.")
        lines = [line for each in beside for line in wrapped(each, most=3)]
        if self.warnings:
            first, more = first_of(self.warnings[0]), len(self.warnings) - 1
            lines += wrapped(f"Beware{f' (1 of {more + 1})' if more else ''}: {first}", most=1)
        return "\n".join([*lines, f"{self._chains()}. The rest: report.details()"])

    def details(self) -> str:
        """All that was found, as text: errors, parameters and R-hat as tables, and the reasons in words."""
        tables = [text_table(grid.head, grid.rows) for grid in (*self._errors(), self._sites())]
        parts = [[self._facts()], *tables, [f"- {said}" for said in self.sentences]]
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        first, *others = str(self).split("\n")
        details = Section("Details", [self._sites(), *self.sentences], folded=True)
        return html_of(Note("", "", first), *others, details)

    def _sites(self) -> Grid:
        """R-hat and ESS of each kind of scalar, and of the sites of each."""
        lines = list(self._lines())
        rows = [(lead * "  " + name, *_texts(numbers)) for name, lead, numbers in lines]
        return Grid(("", *_COLUMNS), rows, bold=[name for name, lead, _ in lines if not lead])

    def _errors(self) -> list[Grid]:
        """Monte Carlo errors of predictions beside their limits, and of parameters, if there are any."""
        error, own = self.monte_carlo_error, self.parameter_errors
        grids = []
        if error is not None:
            said = "How far averages over these draws are from those of an infinite run."
            rows = []
            for check in error.checks(self.tolerance):
                what = check.what.removesuffix(" (unknown)").replace(" of the worst", ", worst")
                limit, needed = f"{check.limit:.3g}", _times(check.needed)
                rows.append((what, _number(check.value), limit, needed))
            grids.append(Grid(_ERROR_HEAD, rows, said))
        if own is not None:
            said = "Parameters that are no weights of a network, and their Monte Carlo errors."
            grids.append(Grid(_PARAMETER_HEAD, _parameter_rows(own), said))
        return grids

    def in_one_line(self) -> Note:
        """The verdict and what can be done with the run, for a page."""
        said = f"{self.advice} {self.headline[:1].upper()}{self.headline[1:]}."
        tone = _TONES.get(str(self.verdict), "bad")
        return Note(said, tone, f"{self.verdict.words}:".capitalize())

    def sections(self, rows: Sequence[str] | None = None, folded: bool = False) -> list[Section]:
        """The evidence as sections of a page; `rows` names the rows that were judged."""
        errors, reasons = self._errors(), self.reasons[:1]
        pictures = []
        if any(np.isfinite(space.rhat).any() for space in (self.weights, self.predictions)):
            pictures = [
                picture(
                    lambda figure: self.plot(figure.subplots(1, 2, sharex=True)),
                    "Histograms of R-hat of weights and of predictions",
                    "R-hat of weights (which hidden units may exchange) beside that of predictions.",
                    (8.0, 3.0),
                )
            ]
        found: dict[str, Sequence[Any]] = {
            "Why this verdict": [*self.sentences, Note(self._facts())],
            "How well are the predictions known?": [*errors, *(reasons if errors else ())],
            "Rows whose predictions are known worst": self._worst_rows(rows),
            "Temperatures": temperatures_of(self.sampler.heat),
            "Convergence, site by site": [self._sites(), *pictures],
        }
        return [
            Section(heading, parts, folded or heading == "Why this verdict")
            for heading, parts in found.items()
        ]

    def _worst_rows(self, names: Sequence[str] | None) -> list[Grid]:
        """The rows whose predictions are known worst, by their Monte Carlo errors."""
        grids = []
        error = self.monte_carlo_error
        for kind, errors in ({} if error is None else error.by_row).items():
            if names is not None and len(names) != errors.size:
                raise ValueError(
                    f"to_html: got {len(names)} names of rows for {errors.size} rows that were judged. "
                    "Give one name for each row that `diagnose` was given."
                )
            worst = np.argsort(-errors, kind="stable")[:_MOST_ROWS]
            rows = [(str(i) if names is None else names[i], _number(errors[i])) for i in worst]
            grids.append(Grid(("row", IN_WORDS.get(kind, kind)), rows))
        return grids

    def to_html(
        self,
        path: str | Path | None = None,
        *,
        rows: Sequence[str] | None = None,
        check: HasSection | None = None,
    ) -> str:
        """This report as one page of HTML, which needs neither a network nor a script.

        :param path: the file to write; none where None.
        :param rows: names of the rows that were judged; their numbers where None.
        :param check: the check of the fit, from :func:`numpyro_bnn.check_fit`, to show beside it.
        :return: the page.
        :raises ValueError: for another number of names than rows.
        :raises OSError: if the file cannot be written.
        """
        parts = [self.in_one_line(), *self.sections(rows)]
        if check is not None:
            parts.append(check.section())
        return page("Can this posterior be believed?", parts, path)

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
        finite = {s.name: s.rhat[np.isfinite(s.rhat)] for s in (self.weights, self.predictions)}
        ends = np.concatenate([[0.999, 1.02], *finite.values()])
        bins = np.geomspace(ends.min(), ends.max() * 1.001, 41)
        # Colours that all kinds of colour vision tell apart (Okabe & Ito 2008).
        for ax, name, color in zip(axes, finite, ("#D55E00", "#0072B2")):
            ax.set(title=name, xlabel="R-hat")
            if np.isfinite(self.rhat_limit):
                ax.axvline(self.rhat_limit, color="0.5", linestyle="--")
                ax.set_xlabel(f"R-hat (dashed: limit {self.rhat_limit:.3f})")
            if finite[name].size:
                ax.hist(finite[name], bins=bins, color=color)
            else:
                ax.text(0.5, 0.5, "none given", ha="center", transform=ax.transAxes)
        axes[0].set_ylabel("scalars")
        return axes


def with_suspects(report: Report, suspect: Mapping[int, str], num_chains: int) -> Report:
    """Lower the verdict of a report because of suspect chains: never moved, or mostly diverged."""
    some = len(suspect) < num_chains
    invalid = not some or report.verdict.startswith("invalid")
    line = f"{say('suspect', bad=len(suspect), chains=num_chains)}; {report.headline}"
    said = (say("by suspects", chains=named(suspect)), *report.warnings)
    advice = say("suspects" if some else "invalid")
    changed = {"verdict": Verdict("invalid" if invalid else "chains_disagree"), "warnings": said}
    return _unknown(report, advice, line, "chains that move", suspect=dict(suspect), **changed)


def without_errors(report: Report, why: str, advice: str) -> Report:
    """A report on draws that are no series of a chain, of which no error was computed, and why."""
    changed: dict[str, Any] = {"warnings": (), "reasons": (why,)}
    return _unknown(report, advice, say("no error"), "the run that they come from", **changed)


def with_copies(report: Report, sentence: str) -> Report:
    """Add to a report on the chains that differ that some were copies of others, and lower its verdict."""
    verdict = report.verdict.at_best("run_longer")
    if report.num_chains > 1 or verdict is report.verdict:
        return replace(report, warnings=(sentence, *report.warnings))
    # All chains were copies of one, which leaves nothing to compare it with.
    said = (f"{sentence} {say('copies only')}", *report.warnings)
    line = f"{say('all copies')}; {report.headline}"
    changed = {"verdict": verdict, "warnings": said}
    return _unknown(report, say("copies"), line, "chains that differ", **changed)


def _unknown(report: Report, advice: str, headline: str, needed_by: str, **changed: Any) -> Report:
    """A report after which nobody knows how many draws are needed."""
    changed |= {"advice": advice, "headline": headline, "needed_by": needed_by}
    return replace(report, needed=UNKNOWN, **changed)


def _texts(numbers: tuple[float, ...]) -> Iterator[str]:
    """Numbers as a table shows them: counts with separators, R-hat to three digits, no NaN."""
    for column, number in enumerate(numbers):
        if np.isnan(number):
            yield "–"
        elif column in (1, 2):
            yield f"{number:.3f}" if number < 100 else f"{number:.3g}"
        else:
            yield f"{number:,.0f}"


def _parameter_rows(own: ParameterErrors) -> list[tuple[str, ...]]:
    """Parameters with their errors as rows of a table; of many those that are known worst."""
    worst = np.argsort(-own.relative, kind="stable")[:_MOST_GROUPS]
    columns = (own.mean, own.mean_error, own.sd, own.sd_error, own.relative, own.ess)
    pairs = list(zip(columns, (".4g", ".1g", ".4g", ".1g", ".2g", ",.0f")))
    rows = [
        (own.names[i], *(format(c[i], s).replace("inf", "not known yet") for c, s in pairs))
        for i in sorted(worst)
    ]
    left = len(own.names) - len(rows)
    return [*rows, *([(f"({left} more, all better)",)] if left else [])]


def temperatures_of(heat: Temperatures) -> list[Grid]:
    """Temperatures of momenta and positions by site; nothing where none were recorded."""
    kinds = [kind for kind in ("kinetic", "configurational") if heat.measured.get(kind)]
    if not kinds:
        return []
    rows = []
    for site in dict.fromkeys(site for kind in kinds for site in heat.measured[kind]):
        found = [heat.measured[kind].get(site) for kind in kinds]
        cells = ["–" if one is None else f"{one.value:.3f} ± {one.error:.3f}" for one in found]
        rows.append(("all sites" if site == "all" else site, *cells))
    if heat.along_gradient is not None:
        value, error, _ = heat.along_gradient
        cells = ["–" if kind != "kinetic" else f"{value:.3f} ± {error:.3f}" for kind in kinds]
        rows.append(("along gradients", *cells))
    said = (
        f"Mean over draws and its Monte Carlo error; {heat.asked:g} is right. A kinetic temperature that is "
        "off speaks of the step size, one along gradients alone of noise that weights share, a "
        "configurational one of chains that have not arrived."
    )
    return [Grid(("site", *kinds), rows, said, ["all sites"])]


def _number(value: float) -> str:
    return f"{value:.2g}" if np.isfinite(value) else "not known yet"


def _times(needed: float) -> str:
    if not np.isfinite(needed):
        return "not known"
    return "enough" if needed <= 1 else f"{needed:.1f} times as many"
