"""How far do hard posteriors get in twenty minutes, and do two samplers agree about them?

A row after every doubling of the budget, over all draws so far; at the end what chains disagree about.

    python -m benchmarks.mixing.hard_posteriors [--quick | --toy]
"""

import functools
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import RHAT_LIMIT, publish, sampler, scores_of_chains, select
from benchmarks._shared.study import Row, begin
from benchmarks.mixing.hierarchical_posteriors import (
    CHAINS,
    FOUR_LAYERS,
    LADDER,
    METHODS,
    Posterior,
    begin_at,
    functions,
    gradients_of,
    kernel_of,
    ladder_columns,
    log_precisions,
    posterior,
)
from numpyro_bnn.diagnostics import summarize
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean
from numpyro_bnn.plots.style import color_at, label_axes

# Functions whose chains are further apart than that are counted at the end of a run.
FAR_APART = 1.05
TEST_ROWS = 200
_INTEGRATED = ("MCLMC, output integrated out", "MAMS, output integrated out")
_TABLES = (("tempering, HMC, non-centred", "MCLMC, collapsed"), _INTEGRATED)
PAIRS = {
    "digits": (("HMC, non-centred, long, moves", "MCLMC, non-centred, small steps"),),
    "yacht": _TABLES,
    "airfoil": _TABLES,
    **dict.fromkeys(("airfoil" + FOUR_LAYERS, "boston", "concrete", "energy"), (_INTEGRATED,)),
}
# Trajectories' worth of steps between draws of a kernel of one gradient a step.
APART = 5


class Size(NamedTuple):
    """Posteriors; minutes a run, at least; warm-up; draws and steps to a draw of a piece; steps; rows."""

    problems: tuple[str, ...]
    minutes: float
    warmup: int
    draws: int
    steps: int
    rows: int


SIZES = {
    "full": Size(tuple(PAIRS), 20.0, 200, 50, 100, 0),
    "quick": Size(("yacht",), 0.5, 50, 20, 50, 100),
    "toy": Size(("yacht",), 0.01, 8, 8, 5, 30),
}


class Found(NamedTuple):
    """What is kept of a run: by chain and draw, functions, log precisions and log scores of test rows."""

    functions: np.ndarray
    precisions: np.ndarray
    log_prob: np.ndarray


def pieces(
    kernel: Any, given: Posterior, size: Size, thinning: int, init_params: Any, seed: int = 0
) -> Iterator[tuple[Found, bnn.MCMC, float]]:
    """One piece after the other of the same chains, with the run that made it and the seconds so far."""
    begin = time.perf_counter()
    x, y = given.split.x, given.split.y
    x_test, y_test = given.split.x_test[:TEST_ROWS], given.split.y_test[:TEST_ROWS]
    warmup = size.warmup * thinning
    mcmc = sampler(kernel, CHAINS, warmup, size.draws, thinning, chain_method="parallel")
    key = jax.random.key(seed)
    while True:
        mcmc.run(key, x, y, init_params=init_params)
        mcmc.post_warmup_state, init_params = mcmc.last_state, None
        key = mcmc.last_state.rng_key
        predictions = bnn.predict(None, mcmc, x_test)
        found = Found(
            functions(predictions.values),
            log_precisions(mcmc.get_samples(group_by_chain=True)),
            np.asarray(predictions.log_prob(y_test), np.float64),
        )
        yield found, mcmc, time.perf_counter() - begin


def joined(parts: list[Found]) -> Found:
    return Found(*(np.concatenate(arrays, 1) for arrays in zip(*parts)))


def judged(found: Found, gradients: float) -> Row:
    """R-hat and effective draws of everything so far."""
    row: Row = {}
    for label, values in (("functions", found.functions), ("precisions", found.precisions)):
        space = summarize(values, tail=False)
        row |= {
            f"{label}_max_rhat": float(np.nanmax(space.rhat)),
            f"{label}_median_rhat": float(np.nanmedian(space.rhat)),
            f"{label}_min_by_1000": float(np.nanmin(space.ess_bulk) / (CHAINS * gradients) * 1000),
        }
    return row


def disagreement(found: Found) -> Row:
    """Log score of each chain, and the rows that keep chains apart."""
    own = scores_of_chains(found.log_prob)
    rhat = summarize(found.functions, tail=False).rhat
    apart = np.flatnonzero(rhat > FAR_APART)
    means = found.functions.mean(1)
    share = means.var(0) / (means.var(0) + found.functions.var(1).mean(0))
    return {
        "log_score": float((np.logaddexp.reduce(own, 0) - math.log(len(own))).mean()),
        "log_scores_of_chains": " ".join(f"{v:.4f}" for v in own.mean(1)),
        "apart": len(apart),
        "of": len(rhat),
        "between_share": float(share[apart].mean()) if len(apart) else 0.0,
        "worst_scalars": " ".join(str(i) for i in np.argsort(-rhat)[:5]),
    }


EMPTY = dict.fromkeys(
    (
        *("log_score", "log_scores_of_chains", "apart", "of", "between_share", "worst_scalars"),
        *("functions_max_z", "precisions_max_z"),
    ),
    "",
)


def run(given: Posterior, method: str, seed: int, size: Size) -> tuple[list[Row], Found]:
    """Rows at every doubling of the number of pieces, and all draws."""
    which = METHODS[method]
    kernel = kernel_of(which, given, size.steps)
    thinning = which.apart if which.fixed != 0 else APART * size.steps
    known = size.draws * thinning * max(1.0, (which.fixed or 0) * size.steps)
    parts, rows, gradients = [], [], 0.0
    begin = begin_at(given, which.coordinates, seed, 200)
    for number, (part, mcmc, seconds) in enumerate(
        pieces(kernel, given, size, thinning, begin, seed), 1
    ):
        parts.append(part)
        counted = "num_steps" in mcmc.get_extra_fields()
        gradients += size.draws * thinning * gradients_of(mcmc) if counted else known
        done = seconds > 60 * size.minutes
        if done or number & (number - 1) == 0:
            everything = joined(parts)
            draws = number * size.draws
            row = {"gradients": gradients, "run_seconds": seconds, "draws": draws}
            row |= judged(everything, gradients) | dict.fromkeys(LADDER, "")
            if isinstance(mcmc.sampler, bnn.ParallelTempering):
                row |= ladder_columns(mcmc.tempering, draws)
            rows.append(row | EMPTY)
        if done:
            rows[-1] |= disagreement(everything)
            return rows, everything
    raise AssertionError("pieces never end")


@functools.lru_cache(maxsize=2)
def both(
    folder: Any, name: str, methods: tuple[str, ...], seed: int, size: Size
) -> dict[str, list[Row]]:
    """Rows of each method; of two the last rows have their distance in joint Monte Carlo errors."""
    given = posterior(folder, name, size.rows)
    ran = {method: run(given, method, seed, size) for method in methods}
    if len(ran) == 2:
        one, other = (found for _, found in ran.values())
        for label in ("functions", "precisions"):
            a, b = (getattr(found, label) for found in (one, other))
            z = (a.mean((0, 1)) - b.mean((0, 1))) / np.hypot(mcse_mean(a), mcse_mean(b))
            for rows, _ in ran.values():
                rows[-1][f"{label}_max_z"] = float(np.nanmax(np.abs(z)))
    return {method: rows for method, (rows, _) in ran.items()}


def last_rows(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["log_score"] != ""]


def findings(rows: list[Row]) -> Iterator[str]:
    """How far each posterior came: the run whose functions agree best."""
    for problem in dict.fromkeys(r["problem"] for r in rows):
        best = min(last_rows(select(rows, problem=problem)), key=lambda r: r["functions_max_rhat"])
        yield (
            f"{problem}: worst R-hat of functions {best['functions_max_rhat']:.3f} (median "
            f"{best['functions_median_rhat']:.3f}) and of log precisions {best['precisions_max_rhat']:.3f} "
            f"after {best['run_seconds'] / 60:.0f} minutes of {best['method']}."
        )


def draw(rows: list[Row]):
    names = list(dict.fromkeys(r["problem"] for r in rows))
    columns = min(4, len(names))
    lines = math.ceil(len(names) / columns)
    size = (1 + 3.6 * columns, 4.2 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    for ax, name in zip(axes.flat, names):
        for i, method in enumerate(itertools.chain(*PAIRS[name])):
            here = select(rows, problem=name, method=method)
            for seed in sorted({r["seed"] for r in here}):
                own = select(here, seed=seed)
                minutes = [r["run_seconds"] / 60 for r in own]
                for label, style in (("functions", "-"), ("precisions", ":")):
                    excess = [max(r[f"{label}_max_rhat"] - 1, 1e-3) for r in own]
                    text = f"{method}, {label}" if seed == 0 else None
                    ax.plot(
                        minutes,
                        excess,
                        "o" + style,
                        color=color_at(ax, i),
                        label=text,
                        markersize=3,
                    )
        ax.axhline(RHAT_LIMIT - 1, color="0.5", linewidth=1)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_yscale("log")
        ax.set_title(name, fontsize=10)
        label_axes(ax, "minutes", "worst R-hat – 1")
        ax.legend(frameon=False, fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


TABLE = {
    "problem": "posterior",
    "method": "method",
    "seed": "seed",
    "run_seconds": "seconds",
    "gradients": "gradients a chain",
    "draws": "draws a chain",
    "functions_max_rhat": "worst R-hat, functions",
    "functions_median_rhat": "median",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "functions_min_by_1000": "worst ESS of functions by 1000 gradients",
    "precisions_min_by_1000": "of log precisions",
    "log_score": "log score",
    "log_scores_of_chains": "of each chain",
    "apart": f"functions above {FAR_APART}",
    "functions_max_z": "largest difference from the other sampler, functions (joint errors)",
    "precisions_max_z": "log precisions",
}


def main(argv=None) -> None:
    study, given, size = begin(
        __file__, __doc__, ("problem", "method", "seed", "draws"), SIZES, argv
    )
    pairs = {
        (problem, method): pair
        for problem in size.problems
        for pair in PAIRS[problem]
        for method in pair
    }
    study.run(
        ({"problem": problem, "method": method, "seed": 0} for problem, method in pairs),
        lambda problem, method, seed: both(given.data, problem, pairs[problem, method], seed, size)[
            method
        ],
    )
    ends = last_rows(study.rows)
    publish(study, ends, TABLE, findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
