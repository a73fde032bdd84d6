"""Decides the verdict on a run, from everything that was measured.

Precedence: invalid (any NaN or infinity) > too short (fewer draws a chain than `min_draws`) > chains
that disagree, or a second run that does > the tolerance (the last two in
:attr:`numpyro_bnn.diagnostics.verdict_evidence.ErrorsAndAgreement.verdict`). Predictions are judged, and
weights are reported apart: they can be relabelled without changing a prediction. Weights are judged only
if there is nothing else.

Parallel tempering that made no round trip, or whose log evidence differs between replicas or between
two runs, is "run longer" at best, and so is a run whose temperature is far from its target. A run with
suspect chains disagrees, even with few draws; a run of suspect chains alone is invalid.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.diagnostics.sampler_stats import warnings_of
from numpyro_bnn.diagnostics.verdict_context import (
    NO_PREDICTIONS,
    ONE_CHAIN,
    UNCORRECTED,
    UNCORRECTED_SECOND,
    on_invalid_draws,
    on_relabelling,
    on_second_run,
    on_single_chains,
    on_too_few_draws,
    on_weights_and_precisions,
)
from numpyro_bnn.diagnostics.verdict_evidence import ErrorsAndAgreement, Evidence
from numpyro_bnn.diagnostics.verdict_names import Verdict
from numpyro_bnn.diagnostics.verdict_words import headline, sentences
from numpyro_bnn.samplers.suspects import named
from numpyro_bnn.samplers.tempering.evidence import doubts

# The number of draws needed where more draws would not help.
_UNKNOWN = float("nan")


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
        judgement = _not_judged("invalid", on_invalid_draws(evidence), evidence)
    elif evidence.measured is None:
        judgement = _not_judged("too_short", on_too_few_draws(evidence), evidence)
    else:
        judgement = _limited_by_sampler(_by_tolerance(evidence, evidence.measured), evidence)
    lines = [*judgement.sentences]
    if evidence.second is not None:
        lines.append(on_second_run(evidence.second, evidence.measured))
    if evidence.num_chains == 1:
        lines.insert(0, ONE_CHAIN)
        judgement = judgement._replace(verdict=Verdict(judgement.verdict, one_chain=True))
    return judgement._replace(sentences=tuple(lines))


def _not_judged(verdict: str, reasons: list[str], evidence: Evidence) -> Judgement:
    """The judgement `"invalid"` or `"too_short"`: no Monte Carlo error was computed."""
    reasons = warnings_of(evidence.sampler) + reasons
    if verdict == "too_short":
        needed = evidence.min_draws / max(1, evidence.num_draws)
        line = f"{evidence.num_draws} draws a chain, {evidence.min_draws} are the least"
        return Judgement(Verdict(verdict), line, needed, "draws a chain", tuple(reasons))
    bad = evidence.bad_chains
    what = "predictions" if evidence.not_finite else "draws"
    line = f"NaN or infinite {what} in {len(bad)} of {evidence.num_chains} chains"
    return Judgement(Verdict(verdict), line, _UNKNOWN, f"finite {what}", tuple(reasons))


def _by_tolerance(evidence: Evidence, measured: ErrorsAndAgreement) -> Judgement:
    """The judgement by Monte Carlo errors and agreement of chains."""
    lines = warnings_of(evidence.sampler) + sentences(measured, evidence.what)
    if evidence.what == "weights":
        lines.append(NO_PREDICTIONS)
    lines += on_weights_and_precisions(evidence)
    lines += on_relabelling(evidence)
    lines += on_single_chains(evidence)
    # Only kernels that discretise a dynamics record temperatures.
    if evidence.sampler.temperatures and evidence.sampler.acceptance is None:
        lines.append(UNCORRECTED if evidence.second is None else UNCORRECTED_SECOND)
    line = headline(measured, evidence.what)
    return Judgement(measured.verdict, line, *measured.needed, tuple(lines))


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
            verdict=verdict, needed=_UNKNOWN, needed_by=why, headline=line
        )
    return judgement


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
        needed=_UNKNOWN,
        needed_by="chains that move",
        suspect=dict(suspect),
        sentences=(lead, *report.sentences),
    )


def without_errors(report: Report, why: str) -> Report:
    """A report on draws that are no series of a chain, of which no error was computed, and why."""
    return replace(
        report,
        headline="these draws are no chain, and have no Monte Carlo error",
        needed=_UNKNOWN,
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
        needed=_UNKNOWN,
        needed_by="chains that differ",
        sentences=(sentence, *report.sentences),
    )
