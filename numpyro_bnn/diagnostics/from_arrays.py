"""The report on arrays of draws: :func:`diagnose_draws`."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpyro.util import find_stack_level

from numpyro_bnn.diagnostics.compare_runs import (
    Disagreement,
    compare_draws,
    disagreement,
    stuck_chains,
)
from numpyro_bnn.diagnostics.convergence.blocks import checked
from numpyro_bnn.diagnostics.convergence.rhat import summarize
from numpyro_bnn.diagnostics.copies import copies_of, said_of, without_copies
from numpyro_bnn.diagnostics.distinct_functions import (
    DistinctFunctions,
    distinct_functions,
    variance_parts,
)
from numpyro_bnn.diagnostics.judged import Judged, judged, weights_to_judge
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance
from numpyro_bnn.diagnostics.report import Numbers, Relabelling, Report, Space
from numpyro_bnn.diagnostics.sampler_stats import read
from numpyro_bnn.diagnostics.verdict import Evidence, judge, with_copies
from numpyro_bnn.samplers.tempering.evidence import tempering_of

Arrays = dict[str, np.ndarray]
# Draws without which there is no error at all: those of the halves of one chain.
_FEWEST = 8


def _named(what: str, given: Any, default: str) -> Arrays:
    """Mapping, predictions or single array as checked arrays by name; None is empty."""
    values = getattr(given, "values", None)
    given = values if isinstance(values, Mapping) else given
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = {default: given}
    arrays = {str(k): checked(f"diagnose_draws: {what} {k!r}", v) for k, v in given.items()}
    return {name: array for name, array in arrays.items() if array.size}


def _one_shape(arrays: Arrays) -> tuple[int, int]:
    """Chains and draws that all arrays share."""
    if not arrays:
        raise ValueError(
            "diagnose_draws: got neither weights nor predictions nor a log joint. Pass weights "
            "as a dict of (chain, draw, ...), or predictions as (chain, draw, input, ...)."
        )
    first, shape = next((name, array.shape[:2]) for name, array in arrays.items())
    for name, array in arrays.items():
        if array.shape[:2] != shape:
            raise ValueError(
                f"diagnose_draws: all arrays need the same chains and draws, got {shape} in "
                f"{first!r} and {array.shape[:2]} in {name!r}. Take all from one run, after the "
                f"same thinning."
            )
    return shape[0], shape[1]


def _space(name: str, arrays: Arrays) -> Space:
    return Space.of(name, [Numbers(site, *summarize(array)) for site, array in arrays.items()])


def _once(functions: np.ndarray) -> np.ndarray:
    """`(chain, draw, input)`, or its first input where all are the same: one noise is one function."""
    first = functions[:, :, :1]
    # A single draw shows most that differ.
    if functions.ndim == 3 and (functions[:, :1] == first[:, :1]).all():
        return first if (functions == first).all() else functions
    return functions


def _bad_chains(arrays: Arrays) -> dict[int, tuple[int, str]]:
    """First draw and site of NaN or infinities in each chain that has any."""
    found: dict[int, tuple[int, str]] = {}
    for site, array in arrays.items():
        for chain, draws in enumerate(array):
            # The extremes of a chain are finite when all of it is, and need no flags beside it.
            if np.isfinite(draws.min()) and np.isfinite(draws.max()):
                continue
            flat = draws.reshape(len(draws), -1)
            first = next(t for t, row in enumerate(flat) if not np.isfinite(row).all())
            found[chain] = min(found.get(chain, (first, site)), (first, site))
    return found


def _without(chains: Mapping[int, Any], arrays: Arrays) -> Arrays:
    kept = [c for c in range(len(next(iter(arrays.values()), ()))) if c not in chains]
    return {name: array[kept] for name, array in arrays.items()}


def is_precision(name: str) -> bool:
    return name.endswith("precision")


def _stuck(weights: Arrays) -> tuple[int, ...]:
    """Chains whose weights do not move, judged on some weights of each site."""
    sds = []
    for array in weights.values():
        flat = array.reshape(*array.shape[:2], -1)
        some = flat[:, :, :: -(-flat.shape[2] // 200)]
        sds.append(some.std(axis=1, dtype=np.float64))
    return stuck_chains(sds)


def _theirs(second: Any) -> tuple[Arrays, Arrays]:
    """Precisions and predictions of another run."""
    if isinstance(second, Mapping):
        second = (second.get("weights"), second.get("predictions"))
    if not isinstance(second, tuple | list) or len(second) != 2:
        raise TypeError(
            f"diagnose_draws: second must be a pair (weights, predictions) or a mapping with "
            f"those keys, got {type(second).__name__}. Either of the two may be None."
        )
    arrays = _named("second weights", second[0], "weights")
    # Single weights of two runs cannot be compared, for want of a common labelling.
    precise = {name: array for name, array in arrays.items() if is_precision(name)}
    return precise, _named("second predictions", second[1], "predictions")


def _relabelling(plain: Arrays, aligned: Arrays) -> Relabelling:
    """The weights after alignment, and the variance between chains before and after."""

    def share(arrays: Arrays) -> float:
        parts = [variance_parts(array) for array in arrays.values()]
        between = sum(float(part.between.sum()) for part in parts)
        return between / max(sum(float(part.within.sum()) for part in parts) + between, 1e-300)

    return Relabelling(_space("weights, aligned", aligned), share(plain), share(aligned))


def _scored(log_likelihood: Any) -> np.ndarray | None:
    if log_likelihood is None:
        return None
    given = checked("diagnose_draws: log_likelihood", log_likelihood)
    if given.ndim != 3:
        raise ValueError(
            f"diagnose_draws: log_likelihood needs axes (chain, draw, input), got shape {given.shape}. "
            f"Pass what predictions.log_prob(y) returns."
        )
    return given


def _tolerance(given: Tolerance | None, old: Mapping[str, float | None]) -> Tolerance:
    """The tolerance that is meant, after a word on limits that are gone."""
    gone = [name for name, value in old.items() if value is not None]
    if gone:
        warnings.warn(
            f"diagnose_draws: {' and '.join(gone)} no longer take part in the verdict, and go with the next "
            f"release. Say what Monte Carlo error is accepted: tolerance=bnn.Tolerance(...).",
            DeprecationWarning,
            stacklevel=find_stack_level(),
        )
    if given is not None and not isinstance(given, Tolerance):
        raise TypeError(
            f"diagnose: tolerance must be a bnn.Tolerance, got {type(given).__name__}. Write "
            f"bnn.Tolerance(total_variation=0.01, relative=0.1, log_score=0.005)."
        )
    return Tolerance() if given is None else given


def _checked_functions(functions: Arrays) -> Arrays:
    for name, array in functions.items():
        if array.ndim < 3:
            raise ValueError(
                f"diagnose_draws: predictions {name!r} need axes (chain, draw, input, ...), got "
                f"shape {array.shape}. Pass a log joint as log_joint, weights as weights."
            )
    inputs = {name: array.shape[2] for name, array in functions.items()}
    if len(set(inputs.values())) > 1:
        raise ValueError(
            f"diagnose_draws: all predictions must be at the same inputs, got {inputs} of them. Judge "
            f"predictions at other inputs in a call of their own."
        )
    return functions


def _checked_aligned(aligned: Any, plain: Arrays) -> Arrays:
    named = _named("aligned", aligned, "weights")
    matched = {name: array for name, array in named.items() if not is_precision(name)}
    if matched and {n: a.shape for n, a in matched.items()} != {
        n: a.shape for n, a in plain.items()
    }:
        raise ValueError(
            f"diagnose_draws: aligned must hold the same sites and shapes as weights, got "
            f"{sorted(matched)} beside {sorted(plain)}. Give what diagnostics.align(weights, "
            f"layers) returns."
        )
    return matched


def diagnose_draws(
    weights: Any = None,
    predictions: Any = None,
    *,
    log_likelihood: Any = None,
    tolerance: Tolerance | None = None,
    aligned: Any = None,
    log_joint: Any = None,
    sample_stats: Mapping[str, Any] | None = None,
    second: Any = None,
    min_draws: int = 100,
    rhat_limit: float | None = None,
    ess_limit: float | None = None,
) -> Report:
    """Judge a run from its draws: how precisely are averages known, and do the chains agree?

    Chains disagree when a permutation test of all predictions together says so (p < 0.01) and their
    averages are farther apart than the tolerance; otherwise the Monte Carlo errors of the averages are
    compared with it. Weights, precisions (sites whose names end in "precision") and the log joint are
    reported apart, and judged only where there are no predictions. Chains that equal each other bit
    for bit count once, and the report says so.

    :param weights: name to draws `(chain, draw, ...)`.
    :param predictions: name to `(chain, draw, input, ...)`, one such array, or predictions with
        `"probs"` or `"mean"` and `"scale"`.
    :param log_likelihood: log density or probability of the targets under each draw,
        `(chain, draw, input)` in nats: ``predictions.log_prob(y)``. With it the error of the log score
        enters the verdict.
    :param tolerance: the Monte Carlo error that is accepted; default ``Tolerance()``.
    :param aligned: the weights after :func:`align`, to tell relabelling from the rest.
    :param log_joint: log joint density `(chain, draw)` in nats.
    :param sample_stats: what the sampler recorded, `(chain, draw)` each, under NumPyro's or
        ArviZ's names: `diverging`, `accept_prob`, `energy`, `num_steps` with the number
        `max_num_steps`, or `tree_saturated`.
    :param second: `(weights, predictions)` of another run of the same model, or a mapping with
        those keys and `"sample_stats"`: precisions and predictions are compared with it in joint
        Monte Carlo errors, and the log evidence of two runs of parallel tempering.
    :param min_draws: draws a chain below which nothing is judged.
    :param rhat_limit: has no meaning any more, and warns.
    :param ess_limit: has no meaning any more, and warns.
    :return: numbers, verdict and explanation; constants have no R-hat and are left out.
    :raises ValueError: without any draws, for chains or draws that differ in number, or predictions
        without an axis of inputs.
    :raises TypeError: for a `second` that is no pair, or a tolerance that is none.

    >>> draws = np.random.default_rng(0).normal(size=(4, 1000, 3))
    >>> diagnose_draws({"w": draws}, draws).verdict
    'within_tolerance'
    """
    accepted = _tolerance(tolerance, {"rhat_limit": rhat_limit, "ess_limit": ess_limit})
    given = _named("weights", weights, "weights")
    functions = _checked_functions(_named("predictions", predictions, "predictions"))
    joint = _named("log_joint", log_joint, "log joint")
    scored = _scored(log_likelihood)
    everything = {f"weights {name!r}": array for name, array in given.items()} | joint
    everything |= {f"predictions {name!r}": array for name, array in functions.items()}
    everything |= {} if scored is None else {"log likelihood": scored}
    chains, draws = _one_shape(everything)
    precise = {name: array for name, array in given.items() if is_precision(name)}
    plain = {name: array for name, array in given.items() if name not in precise}
    matched = _checked_aligned(aligned, plain)
    options: dict[str, Any] = {"tolerance": accepted, "min_draws": min_draws}
    copies = copies_of(everything.values())
    if copies:
        report = _on_chains(
            lambda part: without_copies(part, copies, chains),
            (given, functions, joint, scored),
            aligned=without_copies(matched, copies, chains),
            sample_stats=without_copies(sample_stats, copies, chains),
            second=second,
            **options,
        )
        return with_copies(report, said_of(copies, chains))
    once = {name: _once(array) for name, array in functions.items()}
    spaces = {
        "weights": _space("weights", plain),
        "precisions": _space("precisions", precise),
        "log joint": _space("log joint", joint),
        "predictions": _space("predictions", once),
    }
    # An ESS is NaN for a bad scalar and for fewer than 4 draws: only then look chain by chain.
    doubtful = any(space.num_bad for space in spaces.values())
    bad = _bad_chains(everything | _finite_if_impossible(scored)) if doubtful else {}
    if scored is not None and not bad and np.isnan(scored.min()):
        bad = _bad_chains(_finite_if_impossible(scored))
    judgeable = not bad and draws >= max(_FEWEST, min_draws)
    without = None
    if bad and len(bad) < chains:
        without = _on_chains(
            lambda part: _without(bad, part), (given, functions, joint, scored), **options
        ).verdict
    opinion, theirs = None, None
    if second is not None and judgeable:
        if not (precise or functions):
            raise ValueError(
                "diagnose_draws: second has nothing to be compared with: got weights alone, whose "
                "labelling is arbitrary. Pass the predictions of both runs at the same inputs."
            )
        other = _theirs(second)
        opinion = compare_draws({**precise, **functions}, other[0] | other[1])
        theirs = other[1] or None
    found: Judged | None = None
    what = "predictions" if functions else "weights"
    if judgeable and functions:
        found = judged(once, scored, accepted, space=spaces["predictions"], second=theirs)
    elif judgeable:
        found = judged(weights_to_judge(given | joint), scored, accepted)
    parted: Disagreement | None = None
    stuck: tuple[int, ...] = ()
    if found is not None and not found.verdict.startswith("within"):
        if functions:
            parted = disagreement(functions)
            stuck = parted.stuck
        elif given:
            stuck = _stuck(given)
    evidence = Evidence(
        spaces={name: space for name, space in spaces.items() if space},
        num_chains=chains,
        num_draws=draws,
        min_draws=max(_FEWEST, min_draws),
        sampler=read(sample_stats, (chains, draws)),
        bad_chains=bad,
        verdict_without=without,
        judged=found,
        what=what,
        stuck=stuck,
        chains=parted,
        distinct=_distinct(functions) if judgeable else None,
        second=opinion,
        relabelling=_relabelling(plain, matched) if judgeable and matched else None,
        second_tempering=tempering_of(second["sample_stats"])
        if isinstance(second, Mapping) and "sample_stats" in second
        else None,
    )
    return Report(
        weights=spaces["weights"],
        predictions=spaces["predictions"],
        precisions=spaces["precisions"],
        log_joint=spaces["log joint"],
        num_chains=chains,
        num_draws=draws,
        rhat_limit=float("nan") if found is None else found.rhat_limit,
        sampler=evidence.sampler,
        chains=parted,
        distinct=evidence.distinct,
        second=opinion,
        relabelling=evidence.relabelling,
        monte_carlo_error=None if found is None else found.error,
        agreement=None if found is None else found.agreement,
        tolerance=accepted,
        **judge(evidence)._asdict(),
    )


def _on_chains(kept: Any, parts: tuple[Arrays, Arrays, Arrays, Any], **options: Any) -> Report:
    """The report on some chains: weights, predictions, log joint and log likelihood of those."""
    given, functions, joint, scored = parts
    if scored is not None:
        options["log_likelihood"] = kept({"": scored})[""]
    return diagnose_draws(kept(given), kept(functions), log_joint=kept(joint), **options)


def _finite_if_impossible(scored: np.ndarray | None) -> Arrays:
    """A draw may give a target no probability at all; that is no broken draw."""
    return (
        {} if scored is None else {"log likelihood": np.maximum(scored, np.finfo(scored.dtype).min)}
    )


def _distinct(functions: Arrays) -> DistinctFunctions | None:
    """Effective number of functions, where the predictions say how noisy labels are."""
    if "probs" in functions or {"mean", "scale"} <= set(functions):
        return distinct_functions(functions)
    return None
