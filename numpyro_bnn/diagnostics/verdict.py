"""The verdict on a run, and every sentence that explains it, from what was measured (:mod:`.evidence`).

Precedence: invalid (any NaN or infinity) > too short (fewer draws a chain than `min_draws`) > chains
that disagree, or a second run that does > the tolerance. Predictions are judged, and weights are reported
apart: they can be relabelled without changing a prediction. Weights are judged only if there is nothing else.

Parallel tempering that made no round trip, or whose log evidence differs between replicas or between
two runs, is "run longer" at best, and so is a run whose temperature is far from its target. A run with
suspect chains disagrees, even with few draws; a run of suspect chains alone is invalid
(:func:`~numpyro_bnn.diagnostics.report.with_suspects`).
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpyro.util import find_stack_level

from numpyro_bnn.diagnostics.compare_runs import SecondOpinion, label_of
from numpyro_bnn.diagnostics.evidence import ErrorsAndAgreement, Evidence
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement, least_batches
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import Check
from numpyro_bnn.diagnostics.sampler_stats import percent, warnings_of
from numpyro_bnn.samplers.tempering.evidence import doubts

# Verdicts by their former names, which stood for limits on R-hat and effective draws.
_OLD = {
    "converged": ["within_tolerance"],
    "predictions_converged": ["within_tolerance"],
    "not_converged": ["chains_disagree", "run_longer", "within_tolerance_on_average"],
}
# The number of draws needed where more draws would not help.
UNKNOWN = float("nan")
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
# Chains "drift" where their two halves predict differently at more than this share of the inputs.
_DRIFT = 0.05
# The number of distinct functions is not whole; up to this it may come from finitely many draws alone.
_DISTINCT = 1.2
# If more than this share of the variance between chains remains, matching hidden units explains nothing.
_HARDLY_LESS = 0.9
_UNCORRECTED = (
    "This sampler has no Metropolis correction. Its step-size bias is the same in every chain, "
)
_CHECK_BIAS = (
    "so R-hat cannot detect it. Check with second_opinion, or with a run of half the step size: "
    "diagnose(run, x, second=other)."
)
_BOUND_OF_BIAS = "and at most the distance to the averages of the second run, if that has none."
_NO_PREDICTIONS = (
    "No predictions were given, and the weights of a network do not say whether its functions "
    "are known; give inputs to predict at."
)
_ONE_CHAIN = (
    "One chain only: other modes cannot be seen from it, and its two halves stand for chains; run at "
    "least four."
)


class Verdict(str):
    """A verdict: a string that can still be compared with deprecated names.

    One of `"within_tolerance"`, `"within_tolerance_on_average"`, `"run_longer"`, `"chains_disagree"`,
    `"too_short"` and `"invalid"`. For one more release it can be compared by `==`, `!=` or `in` a tuple or
    list with `"converged"`, `"predictions_converged"` or `"not_converged"`, with a warning: the first two
    mean within tolerance, the third means every other verdict on a run that could be judged. In sets and as
    keys of dicts only the new names work.
    """

    __slots__ = ("one_chain",)

    one_chain: bool

    def __new__(cls, name: str, one_chain: bool = False) -> "Verdict":
        """A verdict by its name; with `one_chain` its words say that there was nothing to compare with."""
        made = super().__new__(cls, name)
        made.one_chain = one_chain
        return made

    def __eq__(self, other: object) -> bool:
        meant = _OLD.get(other) if type(other) is str else None
        if meant is None:
            return str.__eq__(self, other)
        warnings.warn(
            f"report.verdict was compared with {other!r}, which is no verdict any more; this one is "
            f"{str(self)!r}. Compare with {' or '.join(map(repr, meant))} instead.",
            DeprecationWarning,
            stacklevel=find_stack_level(),
        )
        return str(self) in meant

    def __ne__(self, other: object) -> bool:
        return not self == other

    # A class that defines == loses its hash.
    __hash__ = str.__hash__

    @property
    def words(self) -> str:
        """The verdict as it is written in a sentence, with spaces."""
        words = self.replace("_", " ")
        alone = self.one_chain and self.startswith("within_tolerance")
        return f"{words}, by one chain alone" if alone else words

    def at_best(self, worst: str) -> "Verdict":
        """This verdict, replaced by `worst` where it is within tolerance."""
        return Verdict(worst, self.one_chain) if self.startswith("within_tolerance") else self


class Judgement(NamedTuple):
    """The verdict with its explanation: the fields of a report that are not measured but decided."""

    verdict: Verdict
    headline: str
    needed: float
    needed_by: str
    sentences: tuple[str, ...]


def judge(evidence: Evidence) -> Judgement:
    """Decide the verdict on a run, and explain it sentence by sentence; faults of the sampler come first."""
    if evidence.bad_chains:
        judgement = _invalid(evidence)
    elif evidence.measured is None:
        judgement = _too_short(evidence)
    else:
        judgement = _limited_by_sampler(_by_tolerance(evidence, evidence.measured), evidence)
    lines = [*judgement.sentences]
    if evidence.second is not None:
        lines.append(_on_second_run(evidence.second, evidence.measured))
    if evidence.num_chains == 1:
        lines.insert(0, _ONE_CHAIN)
        judgement = judgement._replace(verdict=Verdict(judgement.verdict, one_chain=True))
    return judgement._replace(sentences=tuple(lines))


def _invalid(evidence: Evidence) -> Judgement:
    """The judgement on draws with NaN or infinities."""
    what = "predictions" if evidence.not_finite else "draws"
    line = f"NaN or infinite {what} in {len(evidence.bad_chains)} of {evidence.num_chains} chains"
    lines = (*warnings_of(evidence.sampler), *_on_invalid_draws(evidence))
    return Judgement(Verdict("invalid"), line, UNKNOWN, f"finite {what}", lines)


def _too_short(evidence: Evidence) -> Judgement:
    """The judgement on chains that are too short to judge."""
    num_draws, least = evidence.num_draws, evidence.min_draws
    reason = (
        f"{num_draws} draws a chain are too few to judge (at least {least}): their errors are themselves too "
        "uncertain; run longer, 1000 draws are usual."
    )
    line = f"{num_draws} draws a chain, {least} are the least"
    lines = (*warnings_of(evidence.sampler), reason)
    return Judgement(Verdict("too_short"), line, least / max(1, num_draws), "draws a chain", lines)


def _by_tolerance(evidence: Evidence, measured: ErrorsAndAgreement) -> Judgement:
    """The judgement by Monte Carlo errors and agreement of chains."""
    lines = warnings_of(evidence.sampler) + sentences(measured, evidence.what)
    if evidence.what == "weights":
        lines.append(_NO_PREDICTIONS)
    lines += _on_weights_and_precisions(evidence)
    lines += _on_relabelling(evidence)
    lines += _on_single_chains(evidence)
    # Only kernels that discretise a dynamics record temperatures.
    if evidence.sampler.temperatures and evidence.sampler.acceptance is None:
        lines.append(_UNCORRECTED + (_CHECK_BIAS if evidence.second is None else _BOUND_OF_BIAS))
    line = headline(measured, evidence.what)
    return Judgement(verdict_of(measured), line, *measured.needed, tuple(lines))


def _limited_by_sampler(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Make the verdict `"run_longer"` at best where the statistics of the sampler show a fault."""
    # Draws that look stationary do not show parallel tempering without round trips, or a wrong temperature.
    heat, ladder = evidence.sampler.heat, evidence.sampler.tempering
    unproved = [] if ladder is None else doubts(ladder, evidence.second_tempering)
    if unproved:
        lead = (*unproved, "What follows is what the draws alone would say.")
        judgement = judgement._replace(sentences=(*lead, *judgement.sentences))
        why = "round trips and evidence of the ladder"
    elif heat.step_is_zero or heat.far_off:
        why = "the temperature of the sampler"
    else:
        return judgement
    verdict = judgement.verdict.at_best("run_longer")
    if verdict.startswith("run"):
        # The number of draws that this needs is unknown.
        line = f"by {why}; {judgement.headline}"
        judgement = judgement._replace(
            verdict=verdict, needed=UNKNOWN, needed_by=why, headline=line
        )
    return judgement


def verdict_of(measured: ErrorsAndAgreement) -> Verdict:
    """The verdict on errors and agreement: agreement first, also with a second run, then the tolerance."""
    # Chains whose agreement could not be tested need more draws, and so do chains that remember their starts.
    error, agrees, tolerance = measured.error, measured.agreement, measured.tolerance
    if agrees.disagree(tolerance) or measured.second_disagrees:
        return Verdict("chains_disagree")
    if agrees.tested and not agrees.remember_starts:
        if error.within(tolerance):
            return Verdict("within_tolerance")
        if error.within_on_average(tolerance):
            return Verdict("within_tolerance_on_average")
    return Verdict("run_longer")


def headline(measured: ErrorsAndAgreement, what: str) -> str:
    """The headline of the verdict: the largest error beside its limit, and whether the chains agree."""
    verdict = verdict_of(measured)
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
    return f"{carried}; {_compared(measured)} {agreed}; {_draws_needed(measured.needed[0])}"


def sentences(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """The verdict explained: agreement of chains, Monte Carlo errors, draws still needed, R-hat."""
    if measured.nothing_moves:
        return ["Nothing is known from them: every draw of every chain is the same."]
    lines = _chains(measured, what) + _errors(measured, what)
    verdict = verdict_of(measured)
    if verdict.startswith("within_tolerance_on"):
        lines.append(_worst_rows(measured))
    needed, by = measured.needed
    if needed > 1 and not verdict.startswith("chains"):
        lines.append(f"To bring all within tolerance takes {_draws_needed(needed)} (set by {by}).")
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


def _draws_needed(needed: float) -> str:
    """How many times as many draws are needed, in words."""
    if not np.isfinite(needed):
        return "more draws than can be estimated"
    return (
        f"about {needed:.1f} times as many draws" if needed < 10 else f"{needed:.0f} times as many"
    )


def _listed(names: object) -> str:
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
    return float(np.any(np.broadcast_arrays(*differs), axis=0).mean()) if differs else 0.0


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
                f"{_UNIT_WORDS[unit]} (worst: {_listed(worst)})"
            )
    return f"Good on average, but {' and '.join(parts)}."


def _on_invalid_draws(evidence: Evidence) -> list[str]:
    """Chains with NaN or infinities, the draw where these begin, and the verdict on the other chains."""
    bad = evidence.bad_chains
    lines = []
    for number, (draw, site) in sorted(bad.items()):
        lines.append(f"Chain {number} holds NaN or infinite values from draw {draw} on ({site}).")
    if evidence.not_finite:
        lines.insert(0, evidence.not_finite)
    if len(bad) == evidence.num_chains:
        if evidence.not_finite:
            return lines
        return [*lines, "No chain is left: lower the step size, or start from optimised weights."]
    names = _listed(sorted(bad))
    if evidence.verdict_without is not None:
        verdict = evidence.verdict_without
        chain = "chains" if len(bad) > 1 else "chain"
        lines.append(f"Leave out {chain} {names}; the others alone get the verdict: {verdict}.")
    return lines


def _on_weights_and_precisions(evidence: Evidence) -> list[str]:
    """R-hat and ESS of weights, precisions and log joint, which do not enter the verdict."""
    if evidence.what == "weights":
        return []
    parts = [
        f"{name}: worst R-hat {_rhat(space.max_rhat)}, at least {space.min_ess:,.0f} effective draws"
        for name, space in evidence.spaces.items()
        if space and name != "predictions" and space.num_constant < space.num_scalars
    ]
    if not parts:
        return []
    why = ""
    if evidence.spaces["weights"]:
        why = "; hidden units can be relabelled without changing a prediction"
    return [f"Reported apart, and no part of the verdict ({'; '.join(parts)}){why}."]


def _rhat(value: float) -> str:
    return f"{value:.3f}" if value < 1.1 else f"{value:.3g}"


def _on_relabelling(evidence: Evidence) -> list[str]:
    """How much of the weights' variance between chains is mere relabelling of hidden units."""
    matched = evidence.relabelling
    if matched is None:
        return []
    lead = f"Of the weights' variance {percent(matched.before)} lies between chains"
    worst = f"worst R-hat {_rhat(matched.space.max_rhat)}"
    if matched.after > _HARDLY_LESS * matched.before:
        return [f"{lead}, and matching hidden units changes little ({worst}): not relabelling."]
    return [
        f"{lead}, and {percent(matched.after)} once hidden units are matched ({worst}): the "
        "difference is relabelling of hidden units, and what is left is not."
    ]


def _on_single_chains(evidence: Evidence) -> list[str]:
    """Chains that do not move, the number of distinct chains, and whether they drift."""
    found, stuck = evidence.chains, evidence.stuck
    lines = []
    if stuck and len(stuck) < evidence.num_chains:
        many = len(stuck) > 1
        lines.append(
            f"Chain{'s' * many} {_listed(stuck)} {'do' if many else 'does'} not move: leave "
            f"{'them' if many else 'it'} out, or start again from optimised weights with a "
            f"smaller step."
        )
    if found is None:
        return lines
    distinct = evidence.distinct
    if distinct is not None and evidence.num_chains > 1 and distinct.between > _DISTINCT:
        lines.append(
            f"By what they predict, the {evidence.num_chains} chains count as "
            f"{distinct.between:.1f} distinct ones."
        )
    if found.drift > _DRIFT:
        lines.append(
            f"The chains drift: their first and second halves predict differently at "
            f"{percent(found.drift)} of inputs; discard the beginning and run longer."
        )
    return lines


def _on_second_run(second: SecondOpinion, measured: ErrorsAndAgreement | None) -> str:
    """Whether a second run of the same model agrees with this one."""
    if second.too_short:
        return "The second run is too short to be compared: it has fewer than four draws a chain."
    run = None if measured is None else measured.second
    score = ""
    if run is not None and np.isfinite(run.score):
        sure = "more than chance explains" if run.scores_differ else "chance explains it"
        score = (
            f"The mean log score of the second run is {run.score:+.2g} ± {run.score_error:.2g} nats away "
            f"({sure}). "
        )
    if second.agrees:
        if run is not None and (run.scores_differ or run.differs):
            return (
                f"{score}None of {second.num_compared:,} means and quantiles differs by itself: each has an "
                "error too large to show it."
            )
        return (
            f"{score}A second run agrees in all {second.num_compared:,} means and quantiles compared, "
            f"within their joint Monte Carlo errors."
        )
    worst = second.worst[0]
    return (
        f"{score}A second run parts from this one in {second.num_parted:,} of {second.num_compared:,} "
        f"means and quantiles (worst: {worst.quantity} of {worst.site}, {worst.first:.4g} here "
        f"and {worst.second:.4g} there, {worst.errors:.3g} joint Monte Carlo errors): at least one "
        f"of them has missed something that its own chains cannot show."
    )
