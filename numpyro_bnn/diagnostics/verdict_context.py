"""Sentences of a report on what does not decide the verdict.

They tell why a run could not be judged, how weights, precisions and log joint mix, how much of the weights'
disagreement is relabelling, what single chains do, and whether a second run agrees. The sentences on the
verdict itself are in :mod:`numpyro_bnn.diagnostics.verdict_words`.
"""

import numpy as np

from numpyro_bnn.diagnostics.compare_runs import SecondOpinion
from numpyro_bnn.diagnostics.sampler_stats import percent
from numpyro_bnn.diagnostics.verdict_evidence import ErrorsAndAgreement, Evidence
from numpyro_bnn.diagnostics.verdict_words import listed

# Chains "drift" where their two halves predict differently at more than this share of the inputs.
_DRIFT = 0.05
# The number of distinct functions is not whole; up to this it may come from finitely many draws alone.
_DISTINCT = 1.2
# If more than this share of the variance between chains remains, matching hidden units explains nothing.
_HARDLY_LESS = 0.9
UNCORRECTED = (
    "This sampler has no Metropolis correction. Its step-size bias is the same in every chain, so R-hat "
    "cannot detect it. Check with second_opinion, or with a run of half the step size: "
    "diagnose(run, x, second=other)."
)
UNCORRECTED_SECOND = (
    "This sampler has no Metropolis correction. Its step-size bias is the same in every chain, and at most "
    "the distance to the averages of the second run, if that has none."
)
NO_PREDICTIONS = (
    "No predictions were given, and the weights of a network do not say whether its functions "
    "are known; give inputs to predict at."
)
ONE_CHAIN = (
    "One chain only: other modes cannot be seen from it, and its two halves stand for chains; run at "
    "least four."
)


def on_invalid_draws(evidence: Evidence) -> list[str]:
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
    names = listed(sorted(bad))
    if evidence.verdict_without is not None:
        verdict = evidence.verdict_without.words
        chain = "chains" if len(bad) > 1 else "chain"
        lines.append(f"Leave out {chain} {names}; the others alone get the verdict: {verdict}.")
    return lines


def on_too_few_draws(evidence: Evidence) -> list[str]:
    """A sentence that the chains are too short to judge."""
    return [
        f"{evidence.num_draws} draws a chain are too few to judge (at least {evidence.min_draws}): "
        f"their errors are themselves too uncertain; run longer, 1000 draws are usual."
    ]


def on_weights_and_precisions(evidence: Evidence) -> list[str]:
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


def on_relabelling(evidence: Evidence) -> list[str]:
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


def on_single_chains(evidence: Evidence) -> list[str]:
    """Chains that do not move, the number of distinct chains, and whether they drift."""
    found, stuck = evidence.chains, evidence.stuck
    lines = []
    if stuck and len(stuck) < evidence.num_chains:
        many = len(stuck) > 1
        lines.append(
            f"Chain{'s' * many} {listed(stuck)} {'do' if many else 'does'} not move: leave "
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


def on_second_run(second: SecondOpinion, measured: ErrorsAndAgreement | None) -> str:
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
