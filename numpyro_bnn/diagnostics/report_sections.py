"""A report as parts of a page of HTML: the verdict, the numbers behind it, tables of convergence."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from numpyro_bnn._html import Markup, escape, paragraph, section, strong, table
from numpyro_bnn.diagnostics.monte_carlo.agreement import SIGNIFICANT, Agreement
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.temperatures import Temperatures
from numpyro_bnn.diagnostics.verdict_names import Verdict

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
