"""The report on a run: :func:`diagnose` of a run, :func:`diagnose_draws` of arrays."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from numpyro_bnn.data.arguments import as_arrays
from numpyro_bnn.diagnostics.compare_runs import (
    Disagreement,
    SecondOpinion,
    compare_draws,
    disagreement,
    stuck_chains,
)
from numpyro_bnn.diagnostics.convergence.blocks import checked
from numpyro_bnn.diagnostics.convergence.rhat import (
    summarize,
)
from numpyro_bnn.diagnostics.copies import copies_of, said_of, without_copies
from numpyro_bnn.diagnostics.distinct_functions import (
    DistinctFunctions,
    distinct_functions,
    variance_parts,
)
from numpyro_bnn.diagnostics.hidden_units import align, find_hidden_layers
from numpyro_bnn.diagnostics.report import Numbers, Relabelling, Report, Space
from numpyro_bnn.diagnostics.sampler_stats import read
from numpyro_bnn.diagnostics.verdict import Evidence, Limits, judge, with_copies, with_suspects
from numpyro_bnn.posterior.draws import Draws, draws_of
from numpyro_bnn.posterior.prediction_sites import structure_at
from numpyro_bnn.posterior.predictions import predict
from numpyro_bnn.priors.paths import is_auxiliary
from numpyro_bnn.samplers.suspects import named_elsewhere
from numpyro_bnn.samplers.tempering.evidence import tempering_of
from numpyro_bnn.storage.stored_array import StoredArray, read_by_scalar

Arrays = dict[str, np.ndarray]
# Weights up to which hidden units are matched unless asked otherwise.
_MOST_MATCHED = 20_000
# Rows on which hidden units are exchanged to see whether predictions change.
_ROWS_TRIED = 50


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


def _is_precision(name: str) -> bool:
    return name.endswith("precision")


def _stuck(weights: Arrays) -> tuple[int, ...]:
    """Chains whose weights do not move, judged on some weights of each site."""
    sds = []
    for array in weights.values():
        flat = array.reshape(*array.shape[:2], -1)
        some = flat[:, :, :: -(-flat.shape[2] // 200)]
        sds.append(some.std(axis=1, dtype=np.float64))
    return stuck_chains(sds)


def _second(second: Any, compared: Arrays) -> SecondOpinion:
    """Compare precisions and predictions with those of another run."""
    if isinstance(second, Mapping):
        second = (second.get("weights"), second.get("predictions"))
    if not isinstance(second, tuple | list) or len(second) != 2:
        raise TypeError(
            f"diagnose_draws: second must be a pair (weights, predictions) or a mapping with "
            f"those keys, got {type(second).__name__}. Either of the two may be None."
        )
    if not compared:
        raise ValueError(
            "diagnose_draws: second has nothing to be compared with: got weights alone, whose "
            "labelling is arbitrary. Pass the predictions of both runs at the same inputs."
        )
    arrays = _named("second weights", second[0], "weights")
    arrays = {name: array for name, array in arrays.items() if _is_precision(name)}
    return compare_draws(compared, arrays | _named("second predictions", second[1], "predictions"))


def _relabelling(plain: Arrays, aligned: Arrays) -> Relabelling:
    """The weights after alignment, and the variance between chains before and after."""

    def share(arrays: Arrays) -> float:
        parts = [variance_parts(array) for array in arrays.values()]
        between = sum(float(part.between.sum()) for part in parts)
        return between / max(sum(float(part.within.sum()) for part in parts) + between, 1e-300)

    return Relabelling(_space("weights, aligned", aligned), share(plain), share(aligned))


def diagnose_draws(
    weights: Any = None,
    predictions: Any = None,
    *,
    aligned: Any = None,
    log_joint: Any = None,
    sample_stats: Mapping[str, Any] | None = None,
    second: Any = None,
    rhat_limit: float = 1.01,
    ess_limit: float = 400.0,
    min_draws: int = 100,
) -> Report:
    """Judge a run from its draws.

    The worst scalar counts: predictions converge when every one has an R-hat of at most
    `rhat_limit` (Vehtari et al. 2021) and at least `ess_limit` effective draws, all chains
    together. Precisions (sites whose names end in "precision") and the log joint are reported
    apart; `"converged"` asks for them and for the weights as well. Chains that equal each other bit
    for bit count once, and the report says so.

    :param weights: name to draws `(chain, draw, ...)`.
    :param predictions: name to `(chain, draw, input, ...)`, one such array, or predictions with
        `"probs"` or `"mean"` and `"scale"`.
    :param aligned: the weights after :func:`align`, to tell relabelling from the rest.
    :param log_joint: log joint density `(chain, draw)` in nats.
    :param sample_stats: what the sampler recorded, `(chain, draw)` each, under NumPyro's or
        ArviZ's names: `diverging`, `accept_prob`, `energy`, `num_steps` with the number
        `max_num_steps`, or `tree_saturated`.
    :param second: `(weights, predictions)` of another run of the same model, or a mapping with
        those keys and `"sample_stats"`: precisions and predictions are compared with it in joint
        Monte Carlo errors, and the log evidence of two runs of parallel tempering.
    :param rhat_limit: largest R-hat allowed.
    :param ess_limit: smallest bulk ESS allowed.
    :param min_draws: draws a chain below which nothing is judged.
    :return: numbers, verdict and explanation; constants have no R-hat and are left out.
    :raises ValueError: without any draws, for chains or draws that differ in number, or predictions
        without an axis of inputs.
    :raises TypeError: for a `second` that is no pair.

    >>> draws = np.random.default_rng(0).normal(size=(4, 1000, 3))
    >>> diagnose_draws({"w": draws}, draws).verdict
    'converged'
    """
    given = _named("weights", weights, "weights")
    functions = _named("predictions", predictions, "predictions")
    matched = {
        n: a for n, a in _named("aligned", aligned, "weights").items() if not _is_precision(n)
    }
    joint = _named("log_joint", log_joint, "log joint")
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
    everything = {f"weights {name!r}": array for name, array in given.items()} | joint
    everything |= {f"predictions {name!r}": array for name, array in functions.items()}
    chains, draws = _one_shape(everything)
    precise = {name: array for name, array in given.items() if _is_precision(name)}
    plain = {name: array for name, array in given.items() if name not in precise}
    if matched and {n: a.shape for n, a in matched.items()} != {
        n: a.shape for n, a in plain.items()
    }:
        raise ValueError(
            f"diagnose_draws: aligned must hold the same sites and shapes as weights, got "
            f"{sorted(matched)} beside {sorted(plain)}. Give what diagnostics.align(weights, "
            f"layers) returns."
        )
    copies = copies_of(everything.values())
    if copies:
        once = [without_copies(part, copies, chains) for part in (given, functions, matched)]
        report = diagnose_draws(
            once[0],
            once[1],
            aligned=once[2],
            log_joint=without_copies(joint, copies, chains),
            sample_stats=without_copies(sample_stats, copies, chains),
            second=second,
            rhat_limit=rhat_limit,
            ess_limit=ess_limit,
            min_draws=min_draws,
        )
        return with_copies(report, said_of(copies, chains))
    spaces = {
        "weights": _space("weights", plain),
        "precisions": _space("precisions", precise),
        "log joint": _space("log joint", joint),
        "predictions": _space("predictions", {n: _once(a) for n, a in functions.items()}),
    }
    # An ESS is NaN for a bad scalar and for fewer than 4 draws: only then look chain by chain.
    doubtful = any(space.num_bad for space in spaces.values())
    bad = _bad_chains(everything) if doubtful else {}
    limits = Limits(rhat_limit, ess_limit, min_draws)
    judgeable = not bad and draws >= max(4, min_draws)
    without = None
    if bad and len(bad) < chains:
        left = [_without(bad, part) for part in (given, functions, joint)]
        options: dict[str, Any] = {"rhat_limit": rhat_limit, "ess_limit": ess_limit}
        options |= {"min_draws": min_draws, "log_joint": left[2].get("log joint")}
        without = diagnose_draws(*left[:2], **options).verdict
    opinion = None
    if second is not None and judgeable:
        # Single weights of two runs cannot be compared, for want of a common labelling.
        opinion = _second(second, {**precise, **functions})
    parted: Disagreement | None = None
    stuck: tuple[int, ...] = ()
    if judgeable and not spaces["predictions"].within(rhat_limit, ess_limit):
        if functions:
            parted = disagreement(functions)
            stuck = parted.stuck
        elif given:
            stuck = _stuck(given)
    evidence = Evidence(
        spaces={name: space for name, space in spaces.items() if space},
        num_chains=chains,
        num_draws=draws,
        sampler=read(sample_stats, (chains, draws)),
        bad_chains=bad,
        verdict_without=without,
        stuck=stuck,
        chains=parted,
        distinct=_distinct(functions) if judgeable else None,
        second=opinion,
        relabelling=_relabelling(plain, matched) if judgeable and matched else None,
        second_tempering=tempering_of(second["sample_stats"])
        if isinstance(second, Mapping) and "sample_stats" in second
        else None,
    )
    verdict, sentences = judge(evidence, limits)
    return Report(
        weights=spaces["weights"],
        predictions=spaces["predictions"],
        precisions=spaces["precisions"],
        log_joint=spaces["log joint"],
        verdict=verdict,
        sentences=sentences,
        num_chains=chains,
        num_draws=draws,
        rhat_limit=rhat_limit,
        sampler=evidence.sampler,
        chains=parted,
        distinct=evidence.distinct,
        second=opinion,
        relabelling=evidence.relabelling,
    )


def _distinct(functions: Arrays) -> DistinctFunctions | None:
    """Effective number of functions, where the predictions say how noisy labels are."""
    if "probs" in functions or {"mean", "scale"} <= set(functions):
        return distinct_functions(functions)
    return None


def diagnose(
    run: Any,
    x: Any,
    *,
    model: Callable | None = None,
    second: Any = None,
    align_units: bool | None = None,
    batch_size: int = 1000,
    site: str | None = None,
) -> Report:
    """Judge a run by its weights and by its predictions at given inputs.

    A run with suspect chains (``mcmc.suspect``) has not converged, and one of nothing else is invalid.

    :param run: an ``MCMC`` after `run`, :class:`~numpyro_bnn.posterior.draws.Draws`, or draws by site with
        leading axes (chain, draw).
    :param x: inputs at which to predict, such as test rows.
    :param model: the model, where `run` does not carry one.
    :param second: another run of the same model, by another sampler or from other starts.
    :param align_units: whether to match hidden units across draws, which tells how much of the
        non-convergence of weights is relabelling; default: for up to 20,000 weights.
    :param batch_size: rows predicted at a time.
    :param site: the site that is predicted, see :func:`~numpyro_bnn.predict`; for a model whose
        likelihood is a factor, a deterministic one.
    :return: numbers, verdict and explanation; see :func:`diagnose_draws`.
    :raises ValueError: without draws or a model, or for a target that cannot be told.

    >>> report = diagnose(mcmc, x_test)                                     # doctest: +SKIP
    >>> report.verdict                                                      # doctest: +SKIP
    'predictions_converged'
    """
    draws = draws_of(run, model, "diagnose")
    if not draws.num_chains * draws.num_draws:
        raise ValueError(
            f"diagnose: there are no draws, but {draws.num_chains} chains of {draws.num_draws}. Run the "
            "chains on past their warm-up first."
        )
    (x,), _ = as_arrays(draws.model, (x,), {})
    weights, functions = _spaces_of(draws, x, batch_size, site)
    num_weights = sum(array[0, 0].size for array in weights.values())
    wanted = num_weights <= _MOST_MATCHED if align_units is None else align_units
    aligned = _aligned(draws, weights, x, site) if wanted and weights else None
    other = None
    if second is not None:
        theirs = draws_of(second, draws.model, "diagnose")
        values = _spaces_of(theirs, x, batch_size, site)
        other = {"weights": values[0], "predictions": values[1], "sample_stats": theirs.stats}
    energy = draws.stats.get("potential_energy")
    exact = "num_steps" in draws.stats
    report = diagnose_draws(
        weights,
        functions,
        aligned=aligned,
        # Under minibatches the energy is an estimate, whose noise would look like mixing.
        log_joint=-np.asarray(energy) if exact and energy is not None else None,
        sample_stats=draws.stats | {"max_num_steps": draws.info.get("max_num_steps")},
        second=other,
    )
    if draws.suspect:
        # A stacked mixture is one chain made of several.
        report = with_suspects(
            report, draws.suspect, max(draws.num_chains, len(draws.info.get("weights", ())))
        )
    left_out = draws.left_out
    if not left_out:
        return report
    names = ", ".join(f"chain {chain} ({why})" for chain, why in left_out.items())
    note = f"What follows is about the chains that stayed finite; left out: {names}."
    return replace(report, sentences=(note, *report.sentences))


def _aligned(draws: Draws, weights: Arrays, x: Any, site: str | None) -> Arrays | None:
    """Weights with their hidden units matched; None for a network without any, or for NaN."""
    if not all(np.isfinite(value.min()) and np.isfinite(value.max()) for value in weights.values()):
        return None
    structure = None if draws.model is None else structure_at(draws.model, x)
    if structure and any(
        structure.sites[name].plates for name in structure.latent if name in draws
    ):
        return None  # latent values of single rows: predictions of some rows need all of them
    layers = find_hidden_layers(draws, jax.tree.map(lambda leaf: leaf[:_ROWS_TRIED], x), site=site)
    return align(weights, layers) if layers else None


def _spaces_of(draws: Draws, x: Any, batch_size: int, site: str | None) -> tuple[Arrays, Arrays]:
    """Weights and precisions of a run, without what merely stands for them, and predictions."""
    weights = {
        name: read_by_scalar(value) if isinstance(value, StoredArray) else np.asarray(value)
        for name, value in draws.items()
        if _is_precision(name) or not is_auxiliary(name)
    }
    with named_elsewhere():
        return weights, predict(None, draws, x, batch_size=batch_size, site=site).values
