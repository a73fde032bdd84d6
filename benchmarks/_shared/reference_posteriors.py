"""What the package stores of a reference posterior: means by two routes, their errors, some draws."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._shared.data_sets import Split
from benchmarks._shared.study import ROOT
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean
from numpyro_bnn.references.grading import functions_of, log_scales_of
from numpyro_bnn.references.reference import PROBLEMS

PACKAGE = ROOT / "numpyro_bnn" / "references" / "data"
NO_EVIDENCE = (math.nan, math.nan)


class Known(NamedTuple):
    """Means of some scalars, Monte Carlo errors of the means, and posterior standard deviations."""

    mean: np.ndarray
    error: np.ndarray
    sd: np.ndarray

    @classmethod
    def from_draws(cls, draws: np.ndarray) -> "Known":
        """Of draws (chain, draw, …)."""
        return cls(draws.mean((0, 1)), mcse_mean(draws), draws.std((0, 1)))


class Route(NamedTuple):
    """What one sampler found."""

    how: str  # which it is, in a sentence
    functions: Known  # of the rows of the test set
    log_scales: dict[str, Known]  # by their names in the package
    masses: dict[str, tuple[float, float]]  # of modes, by name, each with its error
    log_evidence: tuple[float, float]  # with its error in nats, or two NaN
    # Of the functions, (chain, draw, row, …); None where only their means are known
    draws: np.ndarray | None


def route(
    how: str,
    name: str,
    draws: Mapping[str, Any],
    x_test: Any,
    y_test: Any,
    thinning: int,
    log_evidence: tuple[float, float] = NO_EVIDENCE,
) -> Route:
    """What a run of ours found; functions are computed of one in `thinning` draws (chain, draw, …)."""
    problem = PROBLEMS[name]
    arrays = {site: np.asarray(value) for site, value in draws.items()}
    some = {site: value[:, ::thinning] for site, value in arrays.items()}
    functions = functions_of(some, problem, x_test, y_test)
    scales = log_scales_of(arrays, problem.scales)
    return Route(
        how,
        Known.from_draws(functions),
        {scale: Known.from_draws(values) for scale, values in scales.items()},
        {},
        log_evidence,
        functions,
    )


def evidence_of(tempering: Any) -> tuple[float, float]:
    """Log evidence of all replicas and its error: what they state, or their scatter where that is more."""
    values, errors = np.asarray(tempering.log_evidence), np.asarray(tempering.log_evidence_error)
    one = max(float(values.std(ddof=1)), float(np.sqrt(np.mean(errors**2))))
    return float(values.mean()), one / math.sqrt(len(values))


def both_evidences(routes: Sequence[Route]) -> tuple[float, float]:
    """The log evidence of the routes that give one, weighted by inverse squared errors."""
    given = np.array([r.log_evidence for r in routes if math.isfinite(r.log_evidence[0])])
    if len(given) == 0:
        return NO_EVIDENCE
    values, errors = given.T
    weights = errors**-2.0
    return float(weights @ values / weights.sum()), float(weights.sum() ** -0.5)


def store(
    folder: Path, name: str, rows: Split, routes: tuple[Route, Route], num_draws: int
) -> None:
    """Write ``NAME.npz``, with `num_draws` draws of the functions of the first route, far apart."""
    scales = list(routes[1].log_scales)
    masses = {mode: [list(r.masses[mode]) for r in routes] for mode in routes[0].masses}
    about = {
        "scales": scales,
        "routes": [r.how for r in routes],
        "masses": masses,
        "log_evidence": both_evidences(routes),
    }
    values: dict[str, np.ndarray] = {"about": np.array(json.dumps(about))}
    values |= {part: np.asarray(value) for part, value in rows._asdict().items()}
    listed = [[r.log_scales[scale] for scale in scales] for r in routes]
    values |= {
        "functions_sd": _together([r.functions.sd for r in routes]).astype(np.float32),
        "functions_means": np.stack([r.functions.mean for r in routes]).astype(np.float32),
        "functions_errors": np.stack([r.functions.error for r in routes]).astype(np.float32),
        "scales_sd": _together([[k.sd for k in known] for known in listed]),
        "scales_means": np.array([[k.mean for k in known] for known in listed]),
        "scales_errors": np.array([[k.error for k in known] for known in listed]),
    }
    assert routes[0].draws is not None
    flat = routes[0].draws.reshape(-1, *routes[0].draws.shape[2:])
    chosen = np.linspace(0, len(flat) - 1, num_draws).astype(int)
    kept = flat[chosen].astype(np.float64)
    low, high = kept.min(0), kept.max(0)
    # In 256 steps, a quarter of the bytes: at most 0.05 of their standard deviation.
    steps = np.rint((kept - low) / np.maximum(high - low, 1e-30) * 255)
    values |= {"draws": steps.astype(np.uint8), "draws_range": np.float32([low, high])}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **values)


def _together(sds: Sequence[Any]) -> np.ndarray:
    """Standard deviations of both routes, root mean squares."""
    return np.sqrt(np.mean(np.square(sds), 0))
