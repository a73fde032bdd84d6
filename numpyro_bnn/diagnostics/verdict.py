"""From numbers to a verdict and to words.

Precedence: invalid (any NaN or infinity) > too short (fewer draws a chain than `min_draws`) >
the limits on R-hat and ESS. "converged" asks for every space that was given; for
"predictions_converged" the predictions suffice, since the weights of a network can be relabelled
without changing a prediction. Parallel tempering that made no round trip, or whose log evidence
differs between replicas or between two runs, is "not converged" whatever the draws say. So are a run
with suspect chains, and one at a temperature far from what was asked for; too few draws never hide
that. A run of suspect chains alone is "invalid".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from numpyro_bnn.diagnostics.compare_runs import Disagreement, SecondOpinion
from numpyro_bnn.diagnostics.distinct_functions import DistinctFunctions
from numpyro_bnn.diagnostics.report import Relabelling, Report, Space
from numpyro_bnn.diagnostics.sampler_stats import SamplerStats, percent, warnings_of
from numpyro_bnn.samplers.suspects import named
from numpyro_bnn.samplers.tempering.evidence import Tempering, doubts

_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
# The share of inputs at which the halves of the chains must differ to be called a drift.
_DRIFT = 0.05
# Distinct functions are a continuous count; below this it is sampling of finitely many draws.
_DISTINCT = 1.2


class Limits(NamedTuple):
    """What convergence asks for.

    :param rhat: largest R-hat of the worst scalar.
    :param ess: smallest bulk ESS of the worst scalar, all chains together.
    :param min_draws: draws a chain below which nothing is judged.
    """

    rhat: float = 1.01
    ess: float = 400.0
    min_draws: int = 100


class Evidence(NamedTuple):
    """All that a verdict rests on; see the fields of `Report`."""

    spaces: Mapping[str, Space]
    num_chains: int
    num_draws: int
    sampler: SamplerStats
    bad_chains: Mapping[int, tuple[int, str]]
    verdict_without: str | None
    stuck: tuple[int, ...]
    chains: Disagreement | None
    distinct: DistinctFunctions | None
    second: SecondOpinion | None
    relabelling: Relabelling | None = None
    second_tempering: Tempering | None = None


def judge(evidence: Evidence, limits: Limits) -> tuple[str, tuple[str, ...]]:
    """The verdict, and its explanation sentence by sentence.

    :param evidence: numbers of each space and what else is known.
    :param limits: what convergence asks for.
    :return: one of the five verdicts, and sentences with the sampler's own troubles first.
    """
    said = warnings_of(evidence.sampler)
    verdict = numbers = _verdict(evidence, limits)
    ladder = evidence.sampler.tempering
    if ladder is not None and verdict not in ("invalid", "too_short"):
        unproved = doubts(ladder, evidence.second_tempering)
        if unproved:
            verdict = "not_converged"
            said = [*unproved, "What follows is what the draws alone would say.", *said]
    if verdict == "invalid":
        said += _invalid(evidence)
    elif verdict == "too_short":
        said += _too_short(evidence, limits)
    else:
        said += _limits_kept(numbers, evidence, limits)
        said += _relabelled(evidence)
        said += _what_chains_do(evidence)
        # Only kernels that take steps by a discretisation keep temperatures.
        if evidence.sampler.temperatures and evidence.sampler.acceptance is None:
            said.append(_UNCORRECTED)
    if evidence.num_chains == 1:
        said.append(
            "One chain only: its R-hat compares its two halves, and one chain cannot see other "
            "modes; run at least four."
        )
    if evidence.second is not None:
        said.append(_second_opinion(evidence.second))
    return _no_better(verdict, evidence), tuple(said)


def _no_better(verdict: str, evidence: Evidence) -> str:
    """The verdict, where the temperatures show what the draws do not."""
    heat = evidence.sampler.heat
    if verdict == "invalid":
        return verdict
    wrong = heat.step_is_zero or heat.far_off
    return "not_converged" if wrong or (verdict == "too_short" and heat.comments()) else verdict


def with_suspects(report: Report, suspect: Mapping[int, str], num_chains: int) -> Report:
    """A report on chains of which some never moved, or whose moves mostly failed.

    :param report: what the draws alone say.
    :param suspect: these chains, at least one, and why.
    :param num_chains: chains among the draws.
    """
    if len(suspect) < num_chains:
        verdict = "invalid" if report.verdict == "invalid" else "not_converged"
        said = (
            "They count as disagreeing with the others: leave them out, or run again from optimised "
            "weights or with another step size."
        )
    else:
        verdict = "invalid"
        said = "No chain is left to judge: change the step size, or start from optimised weights."
    lead = f"Suspect: {named(suspect)}. {said} What follows is what the draws alone would say."
    sentences = (lead, *report.sentences)
    return replace(report, verdict=verdict, suspect=dict(suspect), sentences=sentences)


def with_copies(report: Report, said: str) -> Report:
    """A report on chains of which copies were counted once.

    :param report: on the chains that differ.
    :param said: which are copies.
    """
    verdict = report.verdict
    if report.num_chains == 1 and verdict in ("converged", "predictions_converged"):
        # Several were asked for, and there is nothing to compare the one with.
        verdict = "not_converged"
        said += " One chain is nothing to compare. What follows is what it alone would say."
    return replace(report, verdict=verdict, sentences=(said, *report.sentences))


def _verdict(evidence: Evidence, limits: Limits) -> str:
    if evidence.bad_chains:
        return "invalid"
    if evidence.num_draws < limits.min_draws:
        return "too_short"
    kept = {name: space.within(limits.rhat, limits.ess) for name, space in evidence.spaces.items()}
    if kept.get("predictions"):
        # Without any weights nothing is known about them.
        return "converged" if "weights" in kept and all(kept.values()) else "predictions_converged"
    if "predictions" not in kept and all(kept.values()):
        return "converged"
    return "not_converged"


def _invalid(evidence: Evidence) -> list[str]:
    bad = evidence.bad_chains
    said = []
    for number, (draw, site) in sorted(bad.items()):
        said.append(f"Chain {number} holds NaN or infinite values from draw {draw} on ({site}).")
    if len(bad) == evidence.num_chains:
        return [*said, "No chain is left: lower the step size, or start from optimised weights."]
    names = _listed(sorted(bad))
    if evidence.verdict_without is not None:
        verdict = evidence.verdict_without.replace("_", " ")
        chain = "chains" if len(bad) > 1 else "chain"
        said.append(f"Leave out {chain} {names}; the others alone get the verdict: {verdict}.")
    return said


def _too_short(evidence: Evidence, limits: Limits) -> list[str]:
    return [
        f"{evidence.num_draws} draws a chain are too few to judge (at least {limits.min_draws}): "
        f"R-hat and ESS are themselves too uncertain; run longer, 1000 draws are usual."
    ]


def _numbers(space: Space) -> str:
    return f"worst R-hat {_rhat(space.max_rhat)}, at least {space.min_ess:,.0f} effective draws"


def _rhat(value: float) -> str:
    return f"{value:.3f}" if value < 1.1 else f"{value:.3g}"


def _shortfall(space: Space, limits: Limits) -> str:
    """What is wrong with a space that does not keep the limits."""
    if space.num_constant == space.num_scalars:
        return "every draw of every chain is the same"
    worst = space.worst(1)[0]
    if space.max_rhat <= limits.rhat:
        return (
            f"R-hat is fine ({_rhat(space.max_rhat)}), but the worst has {space.min_ess:,.0f} "
            f"effective draws of the {limits.ess:,.0f} needed; run about "
            f"{limits.ess / space.min_ess:.1f} times as long"
        )
    return (
        f"worst R-hat {_rhat(space.max_rhat)} at {worst.site}, limit {limits.rhat:g}; smallest "
        f"ESS {space.min_ess:,.0f}"
    )


def _limits_kept(verdict: str, evidence: Evidence, limits: Limits) -> list[str]:
    spaces = evidence.spaces
    functions = spaces.get("predictions")
    others = {name: space for name, space in spaces.items() if name != "predictions"}
    failing = {n: s for n, s in others.items() if not s.within(limits.rhat, limits.ess)}
    if verdict == "converged" and functions is not None:
        held = "; ".join(f"{name}: {_numbers(space)}" for name, space in spaces.items())
        return [f"Everything has converged ({held})."]
    if verdict == "converged":
        held = "; ".join(f"{name}: {_numbers(space)}" for name, space in others.items())
        return [f"{_listed(others).capitalize()} have converged ({held}).", _NO_PREDICTIONS]
    if verdict == "predictions_converged" and functions is not None:
        lead = f"Predictions have converged ({_numbers(functions)})"
        if "weights" not in others:
            lead += "; no weights were given"
        said = []
        if "weights" in failing:
            said.append(
                f"{lead}, weights have not ({_shortfall(failing.pop('weights'), limits)}) and for "
                f"a network need not: hidden units can be relabelled without changing a "
                f"prediction."
            )
        else:
            said.append(f"{lead}.")
        return said + [
            f"The {name} has not converged ({_shortfall(space, limits)})."
            if name == "log joint"
            else f"{name.capitalize()} have not converged ({_shortfall(space, limits)})."
            for name, space in failing.items()
        ]
    if functions is None:
        failed = "; ".join(
            f"{name}: {_shortfall(space, limits)}" for name, space in failing.items()
        )
        return [f"Not converged ({failed}).", _NO_PREDICTIONS]
    said = [f"Predictions have not converged: {_shortfall(functions, limits)}."]
    if others and not failing:
        said.append(f"{_listed(others).capitalize()} keep the limits, which is not enough.")
    return said


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
    "can show it; compare with a smaller step, or with NUTS (second_opinion)."
)
_NO_PREDICTIONS = (
    "No predictions were given, and the weights of a network do not say whether its functions "
    "have converged; give inputs to predict at."
)


def _what_chains_do(evidence: Evidence) -> list[str]:
    """Which chains are stuck, which disagree and where, and whether they drift."""
    found, stuck = evidence.chains, evidence.stuck
    said = []
    if stuck and len(stuck) < evidence.num_chains:
        many = len(stuck) > 1
        said.append(
            f"Chain{'s' * many} {_listed(stuck)} {'do' if many else 'does'} not move: leave "
            f"{'them' if many else 'it'} out, or start again from optimised weights with a "
            f"smaller step."
        )
    if found is None:
        return said
    moving = [c for c in range(evidence.num_chains) if c not in stuck]
    labels = np.unique(found.groups[moving])
    if len(labels) > 1:
        groups = [[c for c in moving if found.groups[c] == label] for label in labels]
        across = np.mean(
            [
                found.share[c, d]
                for c in moving
                for d in moving
                if found.groups[c] != found.groups[d]
            ]
        )
        share = percent(float(across))
        advice = (
            "not one posterior yet; run longer, or average across chains knowing that their "
            "weights are arbitrary."
        )
        if all(len(group) == 1 for group in groups) and len(groups) > 2:
            said.append(f"Any two chains predict differently at {share} of inputs: {advice}")
        else:
            count = _NUMBERS[len(groups)] if len(groups) < len(_NUMBERS) else str(len(groups))
            named = " | ".join(", ".join(map(str, group)) for group in groups)
            said.append(
                f"{count} groups of chains ({named}) predict differently at {share} of inputs: "
                f"{advice}"
            )
        if evidence.distinct is not None and evidence.distinct.between > _DISTINCT:
            said.append(
                f"By what they predict, the {evidence.num_chains} chains count as "
                f"{evidence.distinct.between:.1f} distinct ones."
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
        f"of them has missed something that its own R-hat cannot show."
    )


def _listed(names: object) -> str:
    words = [str(name) for name in names]  # type: ignore[attr-defined]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
