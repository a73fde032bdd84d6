"""The words of a verdict: its headline, and the sentences on Monte Carlo errors and agreement of chains."""

import numpy as np

from numpyro_bnn.diagnostics.compare_runs import label_of
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement, least_batches
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import Check
from numpyro_bnn.diagnostics.sampler_stats import percent
from numpyro_bnn.diagnostics.verdict_evidence import ErrorsAndAgreement

_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
# Most rows that a sentence names.
_NAMED = 5
# From this number of chains on, superchains are suggested for chains too short to be compared singly.
_MANY = 16
# The unit of a distance between averages, in words.
_UNIT_WORDS = {
    "total_variation": "of total variation",
    "relative": "predictive standard deviations",
}


def headline(measured: ErrorsAndAgreement, what: str) -> str:
    """The headline of the verdict: the largest error beside its limit, and whether the chains agree."""
    verdict = measured.verdict
    if measured.second_disagrees and not measured.agreement.disagree(measured.tolerance):
        return _of_second_run(measured, what)
    if verdict.startswith("chains"):
        return f"{_farthest(measured, what)}; {_p_value(measured)}"
    if measured.nothing_moves:
        return "every draw of every chain is the same"
    checks = measured.error.checks(measured.tolerance)
    carried = _beside_its_limit(max(checks, key=lambda check: check.needed), what)
    if verdict.startswith("within"):
        return f"{carried}; {_compared(measured)} agree ({_p_value(measured)})"
    agreed = (
        "not compared yet" if not measured.agreement.tested else f"agree ({_p_value(measured)})"
    )
    if measured.agreement.remember_starts:
        return f"{carried}; {_compared(measured)} remember where they started"
    return f"{carried}; {_compared(measured)} {agreed}; {draws_needed(measured.needed[0])}"


def sentences(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """The verdict explained: agreement of chains, Monte Carlo errors, draws still needed, R-hat."""
    if measured.nothing_moves:
        return ["Nothing is known from them: every draw of every chain is the same."]
    lines = _chains(measured, what) + _errors(measured, what)
    verdict = measured.verdict
    if verdict.startswith("within_tolerance_on"):
        lines.append(_worst_rows(measured))
    needed, by = measured.needed
    if needed > 1 and not verdict.startswith("chains"):
        lines.append(f"To bring all within tolerance takes {draws_needed(needed)} (set by {by}).")
    if measured.num_above is not None and np.isfinite(measured.rhat_limit):
        lines.append(
            f"R-hat of {measured.num_above:,} of {measured.num_scalars:,} {what} is above about "
            f"{measured.rhat_limit:.3f}, which so many {what} of converged chains seldom exceed"
            + (
                ": their averages are known, but how far the draws spread there may not be."
                if measured.num_above and verdict.startswith("within")
                else "."
            )
        )
    if measured.second is not None:
        lines.append(f"A{_of_second_run(measured, what)[1:]}.")
    return lines


def _of_second_run(measured: ErrorsAndAgreement, what: str) -> str:
    """How far a second run is away, beside what the errors of both explain and what is accepted."""
    second, tolerance = measured.second, measured.tolerance
    assert second is not None
    limits = {"total_variation": tolerance.total_variation, "relative": tolerance.relative_mean}
    parts = [
        f"averages of a second run are {mean:.2g} {_unit(unit, what)} away (mean of rows; {worst:.2g} in the "
        f"worst), where the Monte Carlo errors of both explain {second.by_chance[unit]:.2g} and "
        f"{limits[unit]:.2g} is accepted"
        for unit, (mean, worst) in second.apart.items()
    ]
    if second.scores_differ:
        parts.append(f"its log score is {second.score:+.2g} ± {second.score_error:.2g} nats away")
    return "; ".join(parts)


def draws_needed(needed: float) -> str:
    """How many times as many draws are needed, in words."""
    if not np.isfinite(needed):
        return "more draws than can be estimated"
    return (
        f"about {needed:.1f} times as many draws" if needed < 10 else f"{needed:.0f} times as many"
    )


def listed(names: object) -> str:
    """Names joined as in a sentence: `a, b and c`."""
    words = [str(name) for name in names]  # type: ignore[attr-defined]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _compared(measured: ErrorsAndAgreement) -> str:
    """What the test of agreement compared, in words: chains, or the halves of a single chain."""
    return "halves of the one chain" if measured.agreement.halves else "chains"


def _p_value(measured: ErrorsAndAgreement) -> str:
    return f"p = {measured.agreement.p:.2g}"


def _beside_its_limit(check: Check, what: str) -> str:
    """An error and the limit that it is compared with, in words."""
    value = f"{check.value:.2g}" if np.isfinite(check.value) else "not known yet"
    name = check.what.removesuffix(" (unknown)")
    # Weights are judged where there are no predictions, in standard deviations of their draws.
    name = name if what == "predictions" else name.replace("predictive sd", "sd")
    return f"{name} {value} ({check.limit:.2g} accepted)"


def _errors(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """Monte Carlo errors beside what is accepted, each in its own unit."""
    error, tolerance = measured.error, measured.tolerance
    lines = []
    if error.total_variation is not None:
        lines.append(
            f"Averaged class probabilities err by {_size(error.total_variation, 'of total variation')} "
            f"({tolerance.total_variation:g} accepted), in the worst rows by "
            f"{_size(error.total_variation_99)} ({tolerance.total_variation_99:g}); at "
            f"{percent(error.decisions_open or 0.0)} of rows more draws could change which class is the "
            "likeliest."
        )
    if error.relative is not None:
        lines.append(
            f"Averaged {what} err by {_size(error.relative, _unit('relative', what))} "
            f"({tolerance.relative_mean:g} accepted), in the worst rows by "
            f"{_size(error.relative_99)} ({tolerance.relative:g})."
        )
    if error.log_score is not None:
        rows = error.log_score_rows or 0.0
        limit = tolerance.log_score_limit(rows)
        share = "" if limit == tolerance.log_score else ", a fifth of that"
        lines.append(
            f"The log score errs by {_size(error.log_score, 'nats')}, beside {rows:.2g} from the number "
            f"of rows ({limit:.2g} accepted{share}); finite draws lower it by "
            f"{-(error.log_score_bias or 0.0):.2g}."
        )
    if measured.num_impossible:
        lines.append(
            f"The log score was left out: no draw gives the targets of {measured.num_impossible:,} of "
            f"{len(next(iter(error.by_row.values()))):,} rows any probability."
        )
    if error.num_unknown and not error.within(tolerance):
        lines.append(
            f"{error.num_unknown:,} of {measured.num_scalars:,} {what} have fewer than 50 effective draws, "
            f"or five batches a chain: their errors are not known."
        )
    return lines


def _size(value: float | None, unit: str = "") -> str:
    if value is None or not np.isfinite(value):
        return "an unknown amount"
    return f"{value:.2g} {unit}".rstrip()


def _unit(name: str, what: str) -> str:
    return _UNIT_WORDS[name] if what == "predictions" else "standard deviations"


def _superchains(agrees: Agreement) -> list[str]:
    """Whether superchains have forgotten their starts, or how to have that compared."""
    if agrees.nested_rhat is None or agrees.nested_rhat_limit is None:
        return [
            "Of so many chains groups can start at one point each, and then be compared however short they "
            "are: diagnose(run, x, superchains=number of groups)."
        ]
    sentence = f"Nested R-hat of the superchains is at most {agrees.nested_rhat:.3f}"
    limit = f"the limit that belongs to so many scalars ({agrees.nested_rhat_limit:.3f})"
    if agrees.remember_starts:
        return [f"{sentence}, above {limit}: chains remember where they started. Run longer."]
    return [f"{sentence}, below {limit}: chains have forgotten their starts."]


def _chains(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """Whether the chains agree, or why that cannot be tested yet."""
    agrees = measured.agreement
    if not agrees.tested:
        lines = [
            f"Whether {_compared(measured)} agree cannot be tested yet: it takes "
            f"{_NUMBERS[least_batches(len(agrees.members))].lower()} batches of {agrees.batch_length} draws "
            f"{'in each half' if agrees.halves else 'a chain'}."
        ]
        if len(agrees.members) >= _MANY:
            lines += _superchains(agrees)
        return lines
    lines = _superchains(agrees) if agrees.nested_rhat is not None else []
    if agrees.disagree(measured.tolerance):
        lines += _groups(measured, what)
    elif agrees.p < 0.01:
        lines.append(
            f"The {_compared(measured)} differ by more than chance explains ({_p_value(measured)}) but by "
            f"less than what is accepted."
        )
    else:
        lines.append(f"The {_compared(measured)} agree ({_p_value(measured)} over all {what}).")
    slow = {name: int(flags.sum()) for name, flags in agrees.left_out.items() if flags.any()}
    if slow:
        first = next(iter(slow))
        index = np.argwhere(agrees.left_out[first])[0]
        count = sum(slow.values())
        lines.append(
            f"{count:,} of {measured.num_scalars:,} {what} move{'s' * (count == 1)} too slowly for that "
            f"test (such as {label_of(first, tuple(index))})."
        )
    return lines


def _groups(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """Which groups of chains disagree, at how many inputs, and which group predicts best."""
    agrees = measured.agreement
    if agrees.halves:
        return [
            f"The halves of the chain differ ({_p_value(measured)}; {_farthest(measured, what)}): it drifts, "
            f"or has crossed into another mode; discard the beginning and run longer."
        ]
    where, share = "", _share_of_rows(measured)
    if share:
        name = next(name for name, flags in agrees.differs.items() if flags.any())
        label = label_of(name, tuple(np.argwhere(agrees.differs[name])[0]))
        where = f" at {percent(share)} of inputs, such as {label}" if what == "predictions" else ""
    groups = [np.flatnonzero(agrees.members == g).tolist() for g in range(agrees.groups)]
    if all(len(group) == 1 for group in groups) and len(groups) > 2:
        lead = f"Every chain tells its own story{where}"
    else:
        count = _NUMBERS[len(groups)] if len(groups) < len(_NUMBERS) else str(len(groups))
        names = " | ".join(", ".join(map(str, group)) for group in groups)
        lead = f"{count} groups of chains ({names}) differ{where}"
    lines = [f"{lead} ({_p_value(measured)}; {_farthest(measured, what)})."]
    if measured.scores:
        best = int(np.argmax(measured.scores))
        scores = ", ".join(f"{score:.4g}" for score in measured.scores)
        lines.append(
            f"By log score group {best + 1} ({', '.join(map(str, groups[best]))}) predicts best: {scores} "
            f"nats in the order of the groups."
        )
    lines.append(
        "The chains found different solutions: do not average them as one posterior. More draws help only "
        "chains that cross from one to another: temper "
        "(ParallelTempering), or weight chains by rows held out (stack)."
    )
    return lines


def _share_of_rows(measured: ErrorsAndAgreement) -> float:
    """Share of rows at which any scalar differs by itself."""
    differs = [f.reshape(len(f), -1).any(axis=1) for f in measured.agreement.differs.values()]
    if not differs:
        return 0.0
    rows = np.zeros(max(map(len, differs)), bool)
    for each in differs:
        rows = rows | each
    return float(rows.mean())


def _farthest(measured: ErrorsAndAgreement, what: str) -> str:
    """How far the averages of the two most different chains are apart, and what is accepted."""
    agrees, tolerance = measured.agreement, measured.tolerance
    unit, limit, worst = "total_variation", tolerance.total_variation, tolerance.total_variation_99
    if agrees.total_variation is None:
        unit, limit, worst = "relative", tolerance.relative_mean, tolerance.relative
    mean, extreme = getattr(agrees, unit), getattr(agrees, f"{unit}_99")
    if mean > limit:
        return f"averages up to {mean:.2g} {_unit(unit, what)} apart ({limit:.2g} accepted)"
    return f"averages up to {extreme:.2g} {_unit(unit, what)} apart in the worst rows ({worst:.2g} accepted)"


def _worst_rows(measured: ErrorsAndAgreement) -> str:
    """The rows whose error is above the limit that is set for the worst rows."""
    limits = {
        "total_variation": measured.tolerance.total_variation_99,
        "relative": measured.tolerance.relative,
    }
    parts = []
    for unit, rows in measured.error.by_row.items():
        beyond = np.flatnonzero(rows > limits[unit])
        if beyond.size:
            worst = beyond[np.argsort(-rows[beyond], kind="stable")][:_NAMED]
            parts.append(
                f"{beyond.size:,} of {rows.size:,} rows err by more than {limits[unit]:.2g} "
                f"{_UNIT_WORDS[unit]} (worst: {listed(worst)})"
            )
    return f"Good on average, but {' and '.join(parts)}."
