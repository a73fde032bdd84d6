"""Do chains that agree with one another have the whole of a scale? That of the output weights of surv.

Samplers are compared with a curve that needs no long steps. With σ held at a value s, and n output weights w,

    d log Z(s) / d log s = E[Σ w²] / s² − n,

an average of a run of its own; its integral and the prior of σ give the posterior of log σ (thermodynamic
integration; A. Gelman and X.-L. Meng, *Simulating normalizing constants*, Statistical Science 13, 1998).

    python -m benchmarks.neal.tail [--quick | --toy]
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC, NUTS
from scipy.interpolate import PchipInterpolator

import numpyro_bnn as bnn
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks._shared.sampled_runs import convergence, sampler, select
from benchmarks._shared.study import Row, Study, parser
from benchmarks.neal import posteriors
from numpyro_bnn import moves, priors
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean
from numpyro_bnn.plots.style import color_at, label_axes
from numpyro_bnn.references.grading import functions_of
from numpyro_bnn.references.reference import PROBLEMS

PROBLEM = "surv"
OUTPUT = "net/Dense_1.kernel"
UNITS, WIDTH = 8, 0.05
KEYS = ("method", "log scale")
CURVE = "scale held"
ABOVE = (1.0, 2.0, 3.0)
# Log scales at which the scale is held.
HELD = (-1.5, -0.75, 0.0, 0.75, 1.5, 2.25, 3.0)
LONG, SHORT, CAREFUL = "HMC, 1000 steps", "NUTS", "NUTS, accepting 0.99"
MAMS, LADDER = "MAMS", "tempering"


class Size(NamedTuple):
    """Chains; leapfrogs of HMC; warm-up and draws by method; values at which the scale is held."""

    chains: int
    steps: int
    lengths: dict[str, tuple[int, int]]
    held: tuple[float, ...]


LENGTHS = {
    LONG: (300, 500),
    SHORT: (500, 1500),
    "NUTS, moves": (500, 1500),
    MAMS: (1000, 2000),
    CAREFUL: (500, 1000),
    LADDER: (1000, 3000),
    CURVE: (200, 400),
}
SIZES = {
    "full": Size(8, 1000, LENGTHS, HELD),
    "quick": Size(4, 100, dict.fromkeys(LENGTHS, (50, 100)), HELD[::2]),
    "toy": Size(2, 5, {CURVE: (5, 8), LONG: (5, 8)}, HELD[::6]),
}


def model_of(scale: float | None = None) -> Any:
    """The model in non-centred coordinates; with the output weights' scale held, where one is given."""
    model = posteriors.model_of(PROBLEM, MLPByFeatures)
    if scale is not None:
        held = posteriors.prior_of(PROBLEM, {"Dense_1.kernel": priors.Normal(scale)})
        model = posteriors.model_of(PROBLEM, MLPByFeatures, held)
    return bnn.parameterize(model, "noncentered")


def kernel_of(method: str, model: Any, steps: int) -> Any:
    if method in (CURVE, LONG):
        length = steps if method != CURVE else steps * 2 // 5
        return HMC(model, num_steps=length, trajectory_length=None, target_accept_prob=0.9)
    if method == MAMS:
        return bnn.MAMS(model)
    if method == LADDER:
        return bnn.ParallelTempering(model, HMC(model, trajectory_length=1.0))
    if method == CAREFUL:
        return NUTS(model, max_tree_depth=11, target_accept_prob=0.99)
    nuts = NUTS(model)
    if method == SHORT:
        return nuts
    return moves.Interleaved(nuts, [moves.RidgeScaling(), moves.PrecisionRedraw()])


def run(method: str, size: Size, scale: float | None = None) -> bnn.MCMC:
    """Chains from optimised starts; of a ladder four replicas from the prior."""
    x, y, *_ = posteriors.data_of(PROBLEM, posteriors.SHARED)
    ladder = method == LADDER
    warmup, draws = size.lengths[method]
    model = model_of(scale)
    mcmc = sampler(
        kernel_of(method, model, size.steps),
        size.chains // 2 if ladder else size.chains,
        warmup,
        draws,
    )
    begin = None
    if not ladder:
        begin = posteriors.starts(PROBLEM, model, x, y, size.chains, jax.random.key(1))
    mcmc.run(jax.random.key(0), x, y, init_params=begin)
    return mcmc


BLANK: Row = dict.fromkeys(
    ("slope", "its error", "mean", "error of mean", *(f"above {s:g}" for s in ABOVE)), ""
) | dict.fromkeys(("error above 2", "accepted", "gradients", "verdict"), "")


def cell(method: str, *, size: Size, **asked: float) -> Iterator[Row]:
    if method == CURVE:
        value = asked["log scale"]
        draws = run(method, size, math.exp(value)).get_samples(group_by_chain=True)
        weights = np.asarray(draws[OUTPUT], np.float64) / math.exp(value)
        slope = (weights**2).sum((-2, -1)) - UNITS
        found = {"slope": float(slope.mean()), "its error": float(mcse_mean(slope))}
        yield BLANK | found | convergence(slope[..., None])
        return
    mcmc = run(method, size)
    draws = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    scales = posteriors.scalars_of(PROBLEM, draws)
    test = posteriors.data_of(PROBLEM, posteriors.SHARED)[2:]
    some = {k: v[:, :: max(1, v.shape[1] // 500)] for k, v in draws.items()}
    functions = functions_of(some, PROBLEMS[PROBLEM], *test)
    report = bnn.diagnostics.diagnose_draws(predictions={"log hazard": functions})
    extra = mcmc.get_extra_fields()
    own = scales["ho"]
    yield BLANK | {
        "log scale": "",
        "mean": float(own.mean()),
        "error of mean": float(mcse_mean(own)),
        **{f"above {s:g}": float((own > s).mean()) for s in ABOVE},
        "error above 2": float(mcse_mean((own > 2).astype(float))),
        "accepted": float(np.mean(extra["accept_prob"])) if "accept_prob" in extra else "",
        "gradients": float(np.mean(extra["num_steps"])) if "num_steps" in extra else "",
        "verdict": report.verdict.words,
        **convergence(np.stack(list(scales.values()), -1)),
    }


class Curve(NamedTuple):
    """The posterior of log σ on a grid: probabilities of its cells."""

    grid: np.ndarray
    mass: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.mass @ self.grid)

    def above(self, value: float) -> float:
        return float(self.mass[self.grid > value].sum())


def curve_of(scales: np.ndarray, slopes: np.ndarray) -> Curve:
    """From slopes of log Z at some log scales; outside of these the slope is that of the nearest."""
    grid = np.linspace(-4.0, 6.0, 4001)
    slope = PchipInterpolator(scales, slopes)(np.clip(grid, scales[0], scales[-1]))
    log_z = np.cumsum(slope) * (grid[1] - grid[0])
    # τ = σ^(-2) ~ Gamma(1/2, W²/2) with W the width over √n: the density of log σ is that of τ times 2 τ.
    precision = np.exp(-2 * grid)
    log_prior = 0.5 * np.log(precision) - WIDTH**2 / UNITS * precision / 2
    mass = np.exp(log_z + log_prior - (log_z + log_prior).max())
    return Curve(grid, mass / mass.sum())


def held(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log scales, slopes and their errors, in order."""
    own = sorted(select(rows, method=CURVE), key=lambda r: r["log scale"])
    return tuple(
        np.array([r[name] for r in own], float) for name in ("log scale", "slope", "its error")
    )


def curve_with_errors(rows: Sequence[Row]) -> tuple[Curve, dict[str, float]]:
    """The curve, and standard deviations of its mean and of its masses by the errors of its slopes."""
    scales, slopes, errors = held(rows)
    rng = np.random.default_rng(0)
    others = [curve_of(scales, slopes + errors * rng.normal(size=len(errors))) for _ in range(200)]
    spread = {"mean": float(np.std([c.mean for c in others]))}
    spread |= {f"above {s:g}": float(np.std([c.above(s) for c in others])) for s in ABOVE}
    return curve_of(scales, slopes), spread


def averaged(rows: Sequence[Row]) -> Iterator[Row]:
    """A line for the curve, and one for each sampler."""
    curve, spread = curve_with_errors(rows)
    own = select(rows, method=CURVE)
    blank = dict.fromkeys(("accepted", "gradients a draw", "R-hat of log scales", "verdict"), "")
    yield {
        "method": "from runs of held scales",
        "mean of log σ": f"{curve.mean:.2f} ± {spread['mean']:.2f}",
        "above 1": f"{curve.above(1):.3f}",
        "above 2": f"{curve.above(2):.3f} ± {spread['above 2']:.3f}",
        "above 3": f"{curve.above(3):.3f}",
        **blank,
        "R-hat of log scales": f"{max(r['worst R-hat'] for r in own):.3f}",
    }
    for row in rows:
        if row["method"] == CURVE:
            continue
        yield {
            "method": row["method"],
            "mean of log σ": f"{row['mean']:.2f} ± {row['error of mean']:.2f}",
            "above 1": f"{row['above 1']:.3f}",
            "above 2": f"{row['above 2']:.3f} ± {row['error above 2']:.3f}",
            "above 3": f"{row['above 3']:.3f}",
            "accepted": "" if row["accepted"] == "" else f"{row['accepted']:.2f}",
            "gradients a draw": "" if row["gradients"] == "" else f"{row['gradients']:.0f}",
            "R-hat of log scales": f"{row['worst R-hat']:.3f}",
            "verdict": row["verdict"],
        }


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Shares of the draws of each sampler in the tail."""
    curve, spread = curve_with_errors(rows)
    told = ", ".join(
        f"{100 * r['above 2']:.1f} % of {r['method']} (R-hat {r['worst R-hat']:.3f})"
        for r in rows
        if r["method"] != CURVE
    )
    share, error = 100 * curve.above(2), 100 * spread["above 2"]
    yield (
        f"Draws in the tail of surv, log σ above 2: {told}; by slopes of the evidence "
        f"{share:.0f} ± {error:.0f} %."
    )


def picture(rows: Sequence[Row]) -> Any:
    """The posterior probability that log σ is above a value, by the curve and by each sampler."""
    made, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
    curve, _ = curve_with_errors(rows)
    inside = curve.grid > 0
    ax.plot(curve.grid[inside], 1 - np.cumsum(curve.mass)[inside], "k-", label="held scales")
    for i, row in enumerate(r for r in rows if r["method"] != CURVE):
        shares = [max(row[f"above {s:g}"], 1e-4) for s in ABOVE]
        ax.plot(ABOVE, shares, "o--", ms=4, color=color_at(ax, i), label=row["method"])
    ax.set(yscale="log", xlim=(0, 4), ylim=(1e-4, 1))
    label_axes(ax, "log σ of the output weights", "posterior probability above it")
    ax.legend(frameon=False, fontsize=8)
    return made


def cells_of(size: Size) -> list[dict[str, Any]]:
    curve = [{"method": CURVE, "log scale": value} for value in size.held]
    return curve + [{"method": method} for method in size.lengths if method != CURVE]


def main(argv: Sequence[str] | None = None) -> None:
    given: argparse.Namespace = parser(__doc__ or "").parse_args(argv)
    size = SIZES[given.size]
    study = Study(__file__, KEYS, given)
    study.run(cells_of(size), partial(cell, size=size))
    study.publish(list(averaged(study.rows)), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
