"""The verdict on a run and the reasons for it, from what was measured (:mod:`.evidence`).

Precedence: invalid (any NaN or infinity) > too short (fewer draws a chain than `min_draws`) > chains
that disagree, or a second run that does > the tolerance. Predictions are judged, and parameters of the
model that are no weights of a network. Weights can be relabelled without changing a prediction, and are
judged only if there is nothing else.

Parallel tempering that made no round trip, or whose log evidence differs between replicas or between
two runs, is "run longer" at best, and so is a run whose temperature is far from its target. A run with
suspect chains disagrees, even with few draws; a run of suspect chains alone is invalid
(:func:`~numpyro_bnn.diagnostics.report.with_suspects`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from numpyro_bnn._sentences import percent, say
from numpyro_bnn._text import first_of
from numpyro_bnn.diagnostics.compare_runs import label_of
from numpyro_bnn.diagnostics.evidence import ErrorsAndAgreement, Evidence, ParameterErrors
from numpyro_bnn.diagnostics.monte_carlo.agreement import Agreement, least_batches
from numpyro_bnn.diagnostics.sampler_stats import warnings_of
from numpyro_bnn.samplers.tempering.evidence import doubts

# The number of draws needed where more draws would not help.
UNKNOWN = float("nan")
# Most rows, and parameters, that a sentence names.
_NAMED, _NAMED_PARAMETERS = 5, 3
# From this number of chains on, superchains are suggested for chains too short to be compared singly.
_MANY = 16
# The unit of a distance between averages, in words.
_UNIT_WORDS = {"total_variation": "of total variation", "relative": "predictive sd"}
# If more than this share of the variance between chains remains, matching hidden units explains nothing.
_HARDLY_LESS = 0.9


class Verdict(str):
    """A verdict: a string, with its words for people.

    One of `"within_tolerance"`, `"within_tolerance_on_average"`, `"run_longer"`, `"chains_disagree"`,
    `"too_short"` and `"invalid"`.
    """

    __slots__ = ("one_chain",)

    one_chain: bool

    def __new__(cls, name: str, one_chain: bool = False) -> "Verdict":
        """A verdict by its name; with `one_chain` its words say that there was nothing to compare with."""
        made = super().__new__(cls, name)
        made.one_chain = one_chain
        return made

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
    advice: str
    headline: str
    needed: float
    needed_by: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()  # what was not looked at, in a few words each
    second_run: tuple[str, ...] = ()  # those of the reasons that are about a second run


def judge(evidence: Evidence) -> Judgement:
    """Decide the verdict on a run, and explain it sentence by sentence."""
    faults = warnings_of(evidence.sampler)
    if evidence.bad_chains:
        judgement = _invalid(evidence)
    elif evidence.measured is None:
        judgement = _too_short(evidence)
    else:
        judgement = _limited_by_sampler(_by_tolerance(evidence, evidence.measured), evidence)
    second = tuple(_on_second_run(evidence))
    if evidence.num_chains == 1:
        judgement = judgement._replace(verdict=Verdict(judgement.verdict, one_chain=True))
    unseen, why = _not_judged(evidence)
    return judgement._replace(
        warnings=(*judgement.warnings, *faults),
        reasons=(*judgement.reasons, *second, *why),
        not_judged=unseen,
        second_run=second,
    )


def _invalid(evidence: Evidence) -> Judgement:
    """The judgement on draws with NaN or infinities."""
    what = "predictions" if evidence.not_finite else "draws"
    line = say("bad draws", what=what, bad=len(evidence.bad_chains), chains=evidence.num_chains)
    advice = say("invalid predictions" if evidence.not_finite else "invalid")
    reasons = tuple(_on_invalid_draws(evidence))
    return Judgement(Verdict("invalid"), advice, line, UNKNOWN, f"finite {what}", reasons)


def _too_short(evidence: Evidence) -> Judgement:
    """The judgement on chains that are too short to judge."""
    draws, least = evidence.num_draws, evidence.min_draws
    advice, why = say("too short", least=least), say("few draws", draws=draws, least=least)
    needed, line = least / max(1, draws), first_of(why).removesuffix(".")
    return Judgement(Verdict("too_short"), advice, line, needed, "draws a chain", (why,))


def _by_tolerance(evidence: Evidence, measured: ErrorsAndAgreement) -> Judgement:
    """The judgement by Monte Carlo errors and agreement of chains."""
    own, what = evidence.parameters, evidence.what
    verdict = verdict_of(measured, own)
    needed, by = measured.needed
    if own is not None and not measured.nothing_moves:
        needed, by = max((needed, by), own.needed(measured.tolerance), key=lambda each: each[0])
    lines = _chains(measured, what) + _errors(measured, what) + _on_parameters(measured, own)
    if verdict.startswith("within_tolerance_on"):
        lines.append(_worst_rows(measured))
    if needed > 1 and not verdict.startswith("chains") and not measured.nothing_moves:
        lines.append(say("draws needed", draws=draws_needed(needed), by=by))
    lines += _on_rhat(measured, what, verdict)
    lines += _on_weights_and_chains(evidence)
    advice = say(verdict.replace("_", " "), draws=draws_needed(needed))
    if measured.nothing_moves:
        advice = say("none helps")
    elif measured.agreement.halves and verdict.startswith("chains"):
        advice = say("drifting")
    elif evidence.sampler.tempering is not None and verdict.startswith("chains"):
        advice = say("tempered chains disagree")
    line = _headline(measured, own, what, verdict)
    return Judgement(verdict, advice, line, needed, by, tuple(lines))


def _limited_by_sampler(judgement: Judgement, evidence: Evidence) -> Judgement:
    """Make the verdict `"run_longer"` at best where the statistics of the sampler show a fault."""
    # Draws that look stationary do not show parallel tempering without round trips, or a wrong temperature.
    heat, ladder = evidence.sampler.heat, evidence.sampler.tempering
    unproved = [] if ladder is None else doubts(ladder, evidence.second_tempering)
    if unproved:
        judgement = judgement._replace(
            warnings=tuple(unproved), reasons=(say("by draws alone"), *judgement.reasons)
        )
        why = "round trips and evidence of the ladder"
    elif heat.step_is_zero or heat.far_off:
        why = "the temperature of the sampler"
    else:
        return judgement
    verdict = judgement.verdict.at_best("run_longer")
    if verdict.startswith("run"):
        # The number of draws that this needs is unknown.
        judgement = judgement._replace(
            verdict=verdict, advice=say("sampler first"), needed=UNKNOWN, needed_by=why
        )
    return judgement


def verdict_of(measured: ErrorsAndAgreement, own: ParameterErrors | None = None) -> Verdict:
    """The verdict on errors and agreement: agreement first, also with a second run, then the tolerance."""
    # Chains whose agreement could not be tested need more draws, and so do chains that remember their starts.
    error, agrees, tolerance = measured.error, measured.agreement, measured.tolerance
    each = (agrees,) if own is None else (agrees, own.agreement)
    if measured.second_disagrees or any(one.disagree(tolerance) for one in each):
        return Verdict("chains_disagree")
    known = own is None or own.needed(tolerance)[0] <= 1
    if agrees.tested and not agrees.remember_starts and known:
        if error.within(tolerance):
            return Verdict("within_tolerance")
        if error.within_on_average(tolerance):
            return Verdict("within_tolerance_on_average")
    return Verdict("run_longer")


def _headline(
    measured: ErrorsAndAgreement, own: ParameterErrors | None, what: str, verdict: Verdict
) -> str:
    """The largest error beside its limit, and whether the chains agree."""
    agrees = measured.agreement
    if verdict.startswith("chains"):
        if agrees.disagree(measured.tolerance):
            return f"{_farthest(measured, what)}; {say('p', p=agrees.p)}"
        if measured.second_disagrees:
            return " ".join(map(first_of, _of_second_run(measured, what))).removesuffix(".")
        assert own is not None
        name, far = _most_apart(own)
        beside = say("parameter apart", name=name, far=far)
        return f"{beside}; {say('p', p=own.agreement.p)}"
    if measured.nothing_moves:
        return say("nothing moves").removesuffix(".")
    checks = measured.error.checks(measured.tolerance)
    checks += () if own is None else own.checks(measured.tolerance)
    check = max(checks, key=lambda check: check.needed)
    name = check.what.removesuffix(" (unknown)")
    # Weights are judged where there are no predictions, in standard deviations of their draws.
    name = name if what == "predictions" else name.replace("predictive sd", "sd")
    carried = say("beside its limit", name=name, value=check.value, limit=check.limit)
    key = "chains agree" if agrees.tested else "not compared"
    key = "starts remembered" if agrees.remember_starts else key
    return f"{carried}; {say(key, who=_compared(agrees), p=agrees.p)}"


def draws_needed(needed: float) -> str:
    """How many times as many draws are needed, in words."""
    if not np.isfinite(needed):
        return "more draws than can be estimated"
    return f"about {needed:.{1 if needed < 10 else 0}f} times as many draws"


def _compared(agrees: Agreement) -> str:
    """What the test of agreement compared, in words: chains, or the halves of a single chain."""
    return "halves of the one chain" if agrees.halves else "chains"


def _errors(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """Monte Carlo errors of predictions beside what is accepted, each in its own unit."""
    error, accepted = measured.error, measured.tolerance
    if measured.nothing_moves:
        return []
    lines = []
    keys = {"total_variation": "error of classes", "relative": "error of predictions"}
    for name, key in keys.items():
        if getattr(error, name) is not None:
            found = {"error": getattr(error, name), "worst": getattr(error, f"{name}_99")}
            found |= zip(("limit", "worst_limit"), accepted.limits[name])
            words = {"what": what, "unit": _unit(name, what), "open": error.decisions_open}
            lines.append(say(key, **words, **found))
    if error.log_score is not None:
        rows = error.log_score_rows or 0.0
        found = {"limit": accepted.log_score_limit(rows), "bias": -(error.log_score_bias or 0.0)}
        lines.append(say("error of score", error=error.log_score, rows=rows, **found))
    if measured.num_impossible:
        rows = len(next(iter(error.by_row.values())))
        lines.append(say("impossible", count=measured.num_impossible, rows=rows))
    if error.num_unknown and not error.within(accepted):
        total = measured.num_scalars
        lines.append(say("unknown errors", count=error.num_unknown, total=total, what=what))
    return lines


def _unit(name: str, what: str) -> str:
    return _UNIT_WORDS[name] if what == "predictions" else "sd"


def _superchains(agrees: Agreement) -> list[str]:
    """Whether superchains have forgotten their starts, or how to have that compared."""
    if agrees.nested_rhat is None or agrees.nested_rhat_limit is None:
        return [say("suggest superchains")] * (not agrees.tested and len(agrees.members) >= _MANY)
    key = "remember" if agrees.remember_starts else "forgotten"
    return [say(key, value=agrees.nested_rhat, limit=agrees.nested_rhat_limit)]


def _chains(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """Whether the chains agree, or why that cannot be tested yet."""
    agrees = measured.agreement
    who = _compared(agrees)
    if measured.nothing_moves:
        return [say("nothing moves")]
    if not agrees.tested:
        least = least_batches(len(agrees.members))
        each = "in each half" if agrees.halves else "a chain"
        said = say("not tested", who=who, least=least, length=agrees.batch_length, each=each)
        return [said, *_superchains(agrees)]
    lines = _superchains(agrees)
    if agrees.disagree(measured.tolerance):
        lines += _groups(measured, what)
    elif agrees.p < 0.01:
        lines.append(say("differ a little", who=who, p=agrees.p))
    else:
        lines.append(say("agree", who=who, p=agrees.p, what=what))
    slow = {name: int(flags.sum()) for name, flags in agrees.left_out.items() if flags.any()}
    if slow:
        first = next(iter(slow))
        example = label_of(first, tuple(np.argwhere(agrees.left_out[first])[0]))
        total, count = measured.num_scalars, sum(slow.values())
        lines.append(say("slow", count=count, total=total, what=what, example=example))
    return lines


def _groups(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """Which groups of chains disagree, at how many inputs, and which group predicts best."""
    agrees = measured.agreement
    numbers: dict[str, object] = {"p": agrees.p, "far": _farthest(measured, what)}
    if agrees.halves:
        return [say("halves differ", **numbers)]
    where, apart = "", {name: flags for name, flags in agrees.differs.items() if flags.any()}
    if apart and what == "predictions":
        by_row = [f.reshape(len(f), -1).any(axis=1) for f in agrees.differs.values()]
        share = float(np.any(np.broadcast_arrays(*by_row), axis=0).mean())
        name, flags = next(iter(apart.items()))
        label = label_of(name, tuple(np.argwhere(flags)[0]))
        where = f" at {percent(share)} of inputs, such as {label}"
    groups = [np.flatnonzero(agrees.members == g).tolist() for g in range(agrees.groups)]
    if all(len(group) == 1 for group in groups) and len(groups) > 2:
        lines = [say("each alone", where=where, **numbers)]
    else:
        names = " | ".join(", ".join(map(str, group)) for group in groups)
        lines = [say("groups differ", count=len(groups), groups=names, where=where, **numbers)]
    if measured.scores:
        best = int(np.argmax(measured.scores))
        scores = [f"{score:.4g}" for score in measured.scores]
        lines.append(say("best group", best=best + 1, chains=groups[best], scores=scores))
    return [*lines, say("different solutions")]


def _farthest(measured: ErrorsAndAgreement, what: str) -> str:
    """How far the averages of the two most different chains are apart, and what is accepted."""
    agrees = measured.agreement
    unit = "relative" if agrees.total_variation is None else "total_variation"
    limit, worst = measured.tolerance.limits[unit]
    far, where = getattr(agrees, unit), ""
    if far <= limit:
        far, limit, where = getattr(agrees, f"{unit}_99"), worst, " in the worst rows"
    return say("apart", far=far, unit=_unit(unit, what), where=where, limit=limit)


def _worst_rows(measured: ErrorsAndAgreement) -> str:
    """The rows whose error is above the limit that is set for the worst rows."""
    said = []
    for unit, rows in measured.error.by_row.items():
        limit = measured.tolerance.limits[unit][1]
        beyond = np.flatnonzero(rows > limit)
        if beyond.size:
            worst = beyond[np.argsort(-rows[beyond], kind="stable")][:_NAMED].tolist()
            words = {"unit": _UNIT_WORDS[unit], "worst": worst}
            said.append(say("worst rows", count=beyond.size, rows=rows.size, limit=limit, **words))
    return " ".join(said)


def _on_parameters(measured: ErrorsAndAgreement, own: ParameterErrors | None) -> list[str]:
    """Which parameters are known to what is accepted, and whether chains agree on them."""
    if own is None:
        return []
    tolerance = measured.tolerance
    lines = [parameters_in_words(own, tolerance.relative)]
    if own.agreement.disagree(tolerance):
        name, far = _most_apart(own)
        lines.insert(0, say("parameters differ", name=name, far=far, p=own.agreement.p))
    return lines


def _most_apart(own: ParameterErrors) -> tuple[str, float]:
    """The parameter on which chains differ most, and how far their averages are apart in its sd."""
    worst = int(np.argmax(own.apart))
    return own.names[worst], float(own.apart[worst])


def parameters_in_words(own: ParameterErrors, limit: float) -> str:
    """How many parameters are known, and the averages of those that are known worst."""
    worst = np.argsort(-own.relative, kind="stable")
    bad = int((own.relative > limit).sum())
    shown = worst[: min(bad or _NAMED_PARAMETERS, _NAMED_PARAMETERS)]
    listed = [f"{own.names[i]} {own.mean[i]:.3g} ± {own.mean_error[i]:.1g}" for i in shown]
    listed += ["…"] if len(shown) < (bad or len(own.names)) else []
    key = "parameters unknown" if bad else "parameters known"
    return say(key, bad=bad, count=len(own.names), limit=limit, listed=listed)


def _on_rhat(measured: ErrorsAndAgreement, what: str, verdict: Verdict) -> list[str]:
    """How many predictions have an R-hat above their limit; nothing where none has."""
    if not measured.num_above or not np.isfinite(measured.rhat_limit):
        return []
    numbers = {"count": measured.num_above, "total": measured.num_scalars}
    said = say("rhat above", what=what, limit=measured.rhat_limit, **numbers)
    return [f"{said} {say('rhat spread')}" if verdict.startswith("within") else said]


def _on_invalid_draws(evidence: Evidence) -> list[str]:
    """Chains with NaN or infinities, the draw where these begin, and the verdict on the other chains."""
    bad = evidence.bad_chains
    lines = [evidence.not_finite] if evidence.not_finite else []
    for number, (draw, site) in sorted(bad.items()):
        lines.append(say("no number", chain=number, draw=draw, site=site))
    if evidence.verdict_without is not None:
        names = f"chain{'s' * (len(bad) > 1)} {', '.join(map(str, sorted(bad)))}"
        lines.append(say("others", chains=names, verdict=evidence.verdict_without))
    elif len(bad) == evidence.num_chains and not evidence.not_finite:
        lines.append(say("no chain left"))
    return lines


def _not_judged(evidence: Evidence) -> tuple[tuple[str, ...], list[str]]:
    """What was not looked at, in a few words each, and sentences on it."""
    if evidence.measured is None:
        return (), []
    found: list[tuple[str, str]] = []
    if evidence.what == "weights":
        found.append(("predictions", "no predictions"))
    elif evidence.spaces["weights"] or evidence.spaces["precisions"]:
        found.append(("weights of networks", "weights"))
    if evidence.measured.error.log_score is None and evidence.what == "predictions":
        why = "" if evidence.measured.num_impossible else " (no test targets)"
        found.append((f"the log score{why}", ""))
    if evidence.num_chains == 1:
        found.append(("other modes (one chain)", "one chain"))
    # Only kernels that discretise a dynamics record temperatures.
    if evidence.sampler.temperatures and evidence.sampler.acceptance is None:
        alone = evidence.second is None or evidence.second.too_short
        words = ("the bias of the step size", "step bias") if alone else ("", "step bias bounded")
        found.append(words)
    return tuple(words for words, _ in found if words), [say(key) for _, key in found if key]


def _on_weights_and_chains(evidence: Evidence) -> Iterator[str]:
    """Variance of the weights that is mere relabelling; chains that do not move; whether chains drift."""
    if (matched := evidence.relabelling) is not None:
        key = "not relabelled" if matched.after > _HARDLY_LESS * matched.before else "relabelled"
        yield say(key, before=matched.before, after=matched.after, rhat=matched.space.max_rhat)
    if evidence.stuck and len(evidence.stuck) < evidence.num_chains:
        yield say("stuck", chains=evidence.stuck)
    if evidence.drifts:
        yield say("drift")


def _of_second_run(measured: ErrorsAndAgreement, what: str) -> list[str]:
    """How far a second run is away, beside what the errors of both explain and what is accepted."""
    second, lines = measured.second, []
    assert second is not None
    for unit, (mean, worst) in second.apart.items():
        beside = {"chance": second.by_chance[unit], "limit": measured.tolerance.limits[unit][0]}
        lines.append(say("second apart", mean=mean, worst=worst, unit=_unit(unit, what), **beside))
    if np.isfinite(second.score):
        sure = "more than chance explains" if second.scores_differ else "chance explains it"
        lines.append(say("second score", score=second.score, error=second.score_error, sure=sure))
    return lines


def _on_second_run(evidence: Evidence) -> Iterator[str]:
    """How far a second run of the same model is away, and whether it agrees with this one."""
    second, measured = evidence.second, evidence.measured
    if second is None:
        return
    run = None if measured is None else measured.second
    if measured is not None and run is not None:
        yield from _of_second_run(measured, evidence.what)
    count = second.num_compared
    if second.too_short:
        yield say("second too short")
    elif second.agrees:
        unclear = run is not None and (run.scores_differ or run.differs)
        yield say("second unclear" if unclear else "second agrees", count=count)
    else:
        worst = second.worst[0]._asdict()
        yield say("second differs", parted=second.num_parted, count=count, **worst)
