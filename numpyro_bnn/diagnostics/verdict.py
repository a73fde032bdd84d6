"""From what was measured to a verdict and to words.

Precedence: invalid (any NaN or infinity) > too short (fewer draws a chain than `min_draws`) > chains
that disagree > the tolerance. Predictions are judged, and weights are reported apart: they can be
relabelled without changing a prediction. Only where nothing else was given are they judged themselves.
Parallel tempering that made no round trip, or whose log evidence differs between replicas or between
two runs, is "run longer" at best, and so is a run at a temperature far from what was asked for. A run
with suspect chains disagrees, however few its draws; one of suspect chains alone is invalid.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from numpyro_bnn.diagnostics.compare_runs import Disagreement, SecondOpinion
from numpyro_bnn.diagnostics.distinct_functions import DistinctFunctions
from numpyro_bnn.diagnostics.judged import Judged
from numpyro_bnn.diagnostics.report import Relabelling, Report
from numpyro_bnn.diagnostics.sampler_stats import SamplerStats, percent, warnings_of
from numpyro_bnn.diagnostics.spaces import Space
from numpyro_bnn.diagnostics.verdict_names import Verdict
from numpyro_bnn.diagnostics.words import headline, listed, sentences
from numpyro_bnn.samplers.suspects import named
from numpyro_bnn.samplers.tempering.evidence import Tempering, doubts

# The share of inputs at which the halves of the chains must differ to be called a drift.
_DRIFT = 0.05
# Distinct functions are a continuous count; below this it is sampling of finitely many draws.
_DISTINCT = 1.2
_UNKNOWN = float("nan")


class Evidence(NamedTuple):
    """All that a verdict rests on; see the fields of `Report`. A space that was not given is empty.

    `judged` is None for draws that are invalid or too few; `what` is judged: `"predictions"`, or
    `"weights"` where nothing else was given.
    """

    spaces: Mapping[str, Space]
    num_chains: int
    num_draws: int
    min_draws: int
    sampler: SamplerStats
    bad_chains: Mapping[int, tuple[int, str]]
    verdict_without: Verdict | None
    judged: Judged | None
    what: str
    stuck: tuple[int, ...]
    chains: Disagreement | None
    distinct: DistinctFunctions | None
    second: SecondOpinion | None
    relabelling: Relabelling | None = None
    second_tempering: Tempering | None = None


class Judgement(NamedTuple):
    """The fields of a report that say what its numbers mean."""

    verdict: Verdict
    headline: str
    needed: float
    needed_by: str
    sentences: tuple[str, ...]


def judge(evidence: Evidence) -> Judgement:
    """The verdict, and its explanation sentence by sentence.

    :param evidence: numbers of each space and what else is known.
    :return: one of the six verdicts, and sentences with the sampler's own troubles first.
    """
    if evidence.bad_chains:
        found = _not_judged("invalid", _invalid(evidence), evidence)
    elif evidence.judged is None:
        found = _not_judged("too_short", _too_short(evidence), evidence)
    else:
        found = _no_better(_measured(evidence, evidence.judged), evidence)
    said = [*found.sentences]
    if evidence.second is not None:
        said.append(_second_opinion(evidence.second))
    if evidence.num_chains == 1:
        said.insert(0, _ONE_CHAIN)
    return found._replace(sentences=tuple(said))


def _not_judged(verdict: str, said: list[str], evidence: Evidence) -> Judgement:
    said = warnings_of(evidence.sampler) + said
    if verdict == "too_short":
        needed = evidence.min_draws / max(1, evidence.num_draws)
        line = f"{evidence.num_draws} draws a chain, {evidence.min_draws} are the least"
        return Judgement(Verdict(verdict), line, needed, "draws a chain", tuple(said))
    bad = evidence.bad_chains
    line = f"NaN or infinite draws in {len(bad)} of {evidence.num_chains} chains"
    return Judgement(Verdict(verdict), line, _UNKNOWN, "finite draws", tuple(said))


def _measured(evidence: Evidence, found: Judged) -> Judgement:
    said = warnings_of(evidence.sampler) + sentences(found, evidence.what)
    if evidence.what == "weights":
        said.append(_NO_PREDICTIONS)
    said += _apart_from_the_verdict(evidence)
    said += _relabelled(evidence)
    said += _what_chains_do(evidence)
    # Only kernels that take steps by a discretisation keep temperatures.
    if evidence.sampler.temperatures and evidence.sampler.acceptance is None:
        said.append(_UNCORRECTED if evidence.second is None else _UNCORRECTED_SECOND)
    return Judgement(found.verdict, headline(found, evidence.what), *found.needed, tuple(said))


def _no_better(found: Judgement, evidence: Evidence) -> Judgement:
    """At best `run_longer`, where a ladder or the temperatures show what the draws do not."""
    heat, ladder = evidence.sampler.heat, evidence.sampler.tempering
    unproved = [] if ladder is None else doubts(ladder, evidence.second_tempering)
    if unproved:
        lead = (*unproved, "What follows is what the draws alone would say.")
        found = found._replace(sentences=(*lead, *found.sentences))
        why = "round trips and evidence of the ladder"
    elif heat.step_is_zero or heat.far_off:
        why = "the temperature of the sampler"
    else:
        return found
    verdict = found.verdict.at_best("run_longer")
    if verdict.startswith("run"):
        # How many draws mend that nobody knows.
        line = f"by {why}; {found.headline}"
        found = found._replace(verdict=verdict, needed=_UNKNOWN, needed_by=why, headline=line)
    return found


def with_suspects(report: Report, suspect: Mapping[int, str], num_chains: int) -> Report:
    """A report on chains of which some never moved, or whose moves mostly failed.

    :param report: what the draws alone say.
    :param suspect: these chains, at least one, and why.
    :param num_chains: chains among the draws.
    """
    if len(suspect) < num_chains:
        verdict = "invalid" if report.verdict.startswith("invalid") else "chains_disagree"
        said = (
            "They count as disagreeing with the others: leave them out, or run again from optimised "
            "weights or with another step size."
        )
    else:
        verdict = "invalid"
        said = "No chain is left to judge: change the step size, or start from optimised weights."
    lead = f"Suspect: {named(suspect)}. {said} What follows is what the draws alone would say."
    return replace(
        report,
        verdict=Verdict(verdict),
        headline=f"{len(suspect)} of {num_chains} chains suspect; {report.headline}",
        needed=_UNKNOWN,
        needed_by="chains that move",
        suspect=dict(suspect),
        sentences=(lead, *report.sentences),
    )


def with_copies(report: Report, said: str) -> Report:
    """A report on chains of which copies were counted once.

    :param report: on the chains that differ.
    :param said: which are copies.
    """
    verdict = report.verdict.at_best("run_longer")
    if report.num_chains > 1 or verdict is report.verdict:
        return replace(report, sentences=(said, *report.sentences))
    # Several were asked for, and there is nothing to compare the one with.
    said += " One chain is nothing to compare. What follows is what it alone would say."
    return replace(
        report,
        verdict=verdict,
        headline=f"all chains are copies of one; {report.headline}",
        needed=_UNKNOWN,
        needed_by="chains that differ",
        sentences=(said, *report.sentences),
    )


def _invalid(evidence: Evidence) -> list[str]:
    bad = evidence.bad_chains
    said = []
    for number, (draw, site) in sorted(bad.items()):
        said.append(f"Chain {number} holds NaN or infinite values from draw {draw} on ({site}).")
    if len(bad) == evidence.num_chains:
        return [*said, "No chain is left: lower the step size, or start from optimised weights."]
    names = listed(sorted(bad))
    if evidence.verdict_without is not None:
        verdict = evidence.verdict_without.words
        chain = "chains" if len(bad) > 1 else "chain"
        said.append(f"Leave out {chain} {names}; the others alone get the verdict: {verdict}.")
    return said


def _too_short(evidence: Evidence) -> list[str]:
    return [
        f"{evidence.num_draws} draws a chain are too few to judge (at least {evidence.min_draws}): "
        f"their errors are themselves too uncertain; run longer, 1000 draws are usual."
    ]


def _apart_from_the_verdict(evidence: Evidence) -> list[str]:
    """Weights, precisions and log joint, which are reported and do not count."""
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


def _relabelled(evidence: Evidence) -> list[str]:
    """How much of what is wrong with the weights is names of hidden units."""
    found = evidence.relabelling
    if found is None:
        return []
    lead = f"Of the weights' variance {percent(found.before)} lies between chains"
    worst = f"worst R-hat {_rhat(found.space.max_rhat)}"
    if found.after > _HARDLY_LESS * found.before:
        return [f"{lead}, and matching hidden units changes little ({worst}): not relabelling."]
    return [
        f"{lead}, and {percent(found.after)} once hidden units are matched ({worst}): the "
        "difference is relabelling, the rest is not."
    ]


# The share of the variance between chains that is left where matching units explains nothing.
_HARDLY_LESS = 0.9
_UNCORRECTED = (
    "No step was accepted or rejected: the bias of the step size is in all chains alike, and no R-hat "
    "and no number above can show it; measure it with NUTS (second_opinion), or with a run of half the "
    "step: diagnose(run, x, second=other)."
)
_UNCORRECTED_SECOND = (
    "No step was accepted or rejected: the bias of the step size is in all chains alike, and is at most "
    "what the averages of the second run are away, if that one has none."
)
_NO_PREDICTIONS = (
    "No predictions were given, and the weights of a network do not say whether its functions "
    "are known; give inputs to predict at."
)
_ONE_CHAIN = (
    "One chain only: other modes cannot be seen from it, and its two halves stand for chains; run at "
    "least four."
)


def _what_chains_do(evidence: Evidence) -> list[str]:
    """Which chains are stuck, how many distinct ones there are, and whether they drift."""
    found, stuck = evidence.chains, evidence.stuck
    said = []
    if stuck and len(stuck) < evidence.num_chains:
        many = len(stuck) > 1
        said.append(
            f"Chain{'s' * many} {listed(stuck)} {'do' if many else 'does'} not move: leave "
            f"{'them' if many else 'it'} out, or start again from optimised weights with a "
            f"smaller step."
        )
    if found is None:
        return said
    distinct = evidence.distinct
    if distinct is not None and evidence.num_chains > 1 and distinct.between > _DISTINCT:
        said.append(
            f"By what they predict, the {evidence.num_chains} chains count as "
            f"{distinct.between:.1f} distinct ones."
        )
    if found.drift > _DRIFT:
        said.append(
            f"The chains drift: their first and second halves predict differently at "
            f"{percent(found.drift)} of inputs; discard the beginning and run longer."
        )
    return said


def _second_opinion(second: SecondOpinion) -> str:
    if second.agrees:
        return (
            f"A second run agrees in all {second.num_compared:,} means and quantiles compared, "
            f"within their joint Monte Carlo errors."
        )
    worst = second.worst[0]
    return (
        f"A second run parts from this one in {second.num_parted:,} of {second.num_compared:,} "
        f"means and quantiles (worst: {worst.quantity} of {worst.site}, {worst.first:.4g} here "
        f"and {worst.second:.4g} there, {worst.errors:.3g} joint Monte Carlo errors): at least one "
        f"of them has missed something that its own chains cannot show."
    )
