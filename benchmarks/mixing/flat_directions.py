"""Relabelled, collapsed, flat: what is it that the weights of a network do not agree about?

A relu unit with incoming weights u and outgoing v can be moved along (u eᵗ, v e⁻ᵗ) without changing a
prediction. Under Gaussian priors the distribution of t given the product of the whitened norms is known,

    p(t | ρ) ∝ exp((k - m) t - ρ cosh 2t),   ρ = ‖u/s_u‖ ‖v/s_v‖,  u ∈ Rᵏ, v ∈ Rᵐ,

so that the variance along the ridge that a sampler reaches can be held against the exact one.

    python -m benchmarks.mixing.flat_directions [--quick]
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import uci
from benchmarks._shared.sampled_runs import ESS_LIMIT, RHAT_LIMIT, sampled
from benchmarks._shared.study import Row, begin, every_cell, without
from benchmarks._shared.words import span
from numpyro_bnn import diagnostics
from numpyro_bnn.diagnostics import mcse_mean
from numpyro_bnn.posterior.draws import draws_of

ACTIVATIONS: dict[str, Callable] = {"tanh": jnp.tanh, "relu": jax.nn.relu}
NOISE = 0.3
RIDGE = ("ridge: mean off by, in sd", "ridge: its error")
RIDGE += ("ridge: variance over the exact one", "ridge: error of that")
SIZES = {
    "full": {
        "tables": ("yacht", "boston"),
        "widths": (4, 16),
        "chains": 8,
        "draws": 500,
        "leapfrogs": 48,
    },
    "quick": {"tables": ("yacht",), "widths": (4,), "chains": 6, "draws": 300, "leapfrogs": 32},
    "toy": {"tables": ("yacht",), "widths": (3,), "chains": 2, "draws": 100, "leapfrogs": 2},
}


def model_of(width: int, activation: str) -> Callable:
    def model(x, y=None):
        module = bnn.MLP((width,), 1, ACTIVATIONS[activation])
        net = bnn.random_module("net", module, bnn.priors.Normal(1.0), x[:1])
        bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=NOISE)

    return model


def along_ridge(rho: np.ndarray, difference: int, count: int = 400) -> tuple:
    """Mean and variance of t under p(t | ρ) ∝ exp(difference · t - ρ cosh 2t), by quadrature."""
    rho = np.asarray(rho, np.float64)[..., None]
    # The mode is at sinh 2t = difference / (2 ρ); where ρ is small the distribution is wide around it.
    mode = 0.5 * np.arcsinh(difference / (2 * rho))
    curvature = 4 * rho * np.cosh(2 * mode)
    half = np.maximum(10 / np.sqrt(curvature), 0.5 * np.arccosh(1 + 60 / rho) + np.abs(mode))
    t = mode + half * np.linspace(-1, 1, count)
    log = difference * t - rho * np.cosh(2 * t)
    weights = np.exp(log - log.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mean = (weights * t).sum(-1)
    return mean, (weights * (t - mean[..., None]) ** 2).sum(-1)


def ridge(draws, scale: float = 1.0) -> Row:
    """Variance along the rescaling orbits of all relu units over the exact one, and its error."""
    names = ("Dense_0.kernel", "Dense_0.bias", "Dense_1.kernel")
    kernel, bias, out = (np.asarray(draws[f"net/{name}"], np.float64) / scale for name in names)
    into = np.sqrt((kernel**2).sum(-2) + bias**2)
    away = np.sqrt((out**2).sum(-1))
    t = 0.5 * np.log(into / away)
    mean, variance = along_ridge(into * away, kernel.shape[-2] + 1 - out.shape[-1])
    # Averages over units do not depend on their labels, and can be followed through a chain.
    shift, spread = (t - mean).mean(-1), ((t - mean) ** 2).mean(-1)
    expected = float(variance.mean())
    found = (
        shift.mean() / expected**0.5,
        mcse_mean(shift) / expected**0.5,
        spread.mean() / expected,
        mcse_mean(spread - variance.mean(-1)) / expected,
    )
    return dict(zip(RIDGE, map(float, found)))


def never_on(draws, x: np.ndarray) -> float:
    """Share of relu units, over about a hundred draws a chain, that are off at every row."""
    kernel, bias = (np.asarray(draws[f"net/Dense_0.{name}"]) for name in ("kernel", "bias"))
    every = range(0, kernel.shape[1], max(1, kernel.shape[1] // 100))
    on = [(x @ kernel[:, i] + bias[:, i][:, None]).max(1) > 0 for i in every]
    return float(1 - np.mean(on))


def collapsed(draws, x: np.ndarray, activation: str) -> Row:
    """Share of units that no row switches on, and of matched weights with 0.9 of the prior's variance."""
    dead: float | str = never_on(draws, x) if activation == "relu" else ""
    names = ("net/Dense_0.kernel", ("net/Dense_0.bias",), "net/Dense_1.kernel")
    # Not rescaled: that would take away what the ridges add.
    layer = diagnostics.HiddenLayer(*names, flips=activation == "tanh")
    matched = diagnostics.align(draws, (layer,))
    free = [np.ravel(np.asarray(v, np.float64).var((0, 1))) >= 0.9 for v in matched.values()]
    return {
        "units never on": dead,
        "weights as wide as their prior": float(np.concatenate(free).mean()),
    }


def cell(table: str, width: int, activation: str, size: Row, folder) -> Iterator[Row]:
    split = uci(folder, table)
    model = model_of(width, activation)
    key = jax.random.key(width)
    starts = bnn.optimize(
        model, key, split.x, split.y, num_chains=size["chains"], progress_bar=False
    )
    hmc = HMC(model, num_steps=size["leapfrogs"], trajectory_length=None, target_accept_prob=0.9)
    run = sampled(
        hmc,
        jax.random.key(1),
        split.x,
        split.y,
        starts=starts,
        num_warmup=size["draws"],
        num_samples=size["draws"],
    )
    report = bnn.diagnose(run, split.x_test, align_units=True)
    draws = draws_of(run)
    moved = report.relabelling
    yield {
        "weights": sum(int(np.prod(np.shape(v)[2:])) for v in draws.values()),
        "between chains": moved.before,
        "between, matched": moved.after,
        "R-hat weights": float(report.weights.max_rhat),
        "R-hat matched": float(moved.space.max_rhat),
        "worst R-hat": float(report.predictions.max_rhat),
        "median R-hat": float(np.nanmedian(report.predictions.rhat)),
        "least ESS": float(report.predictions.min_ess),
        "converged": "yes" if report.predictions.within(RHAT_LIMIT, ESS_LIMIT) else "no",
        **collapsed(draws, split.x, activation),
        **(ridge(draws) if activation == "relu" else dict.fromkeys(RIDGE, "")),
    }


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Which share of the weights' variance lies between chains, before and after units are matched."""
    for table in dict.fromkeys(row["table"] for row in rows):
        told = ", ".join(
            f"{100 * r['between chains']:.1f} to {100 * r['between, matched']:.1f} % "
            f"({r['width']} {r['activation']})"
            for r in rows
            if r["table"] == table
        )
        yield (
            f"{table}: matching hidden units takes the share of the weights' variance that lies between "
            f"chains from {told}."
        )
    ridges = [r["ridge: variance over the exact one"] for r in rows if r["activation"] == "relu"]
    yield f"Along the rescaling ridges of relu units the variance is {span(ridges)} of the exact one."


def picture(rows: Sequence[Row]):
    """Left: variance between chains before and after matching; right: worst R-hat of each space."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 0.55 * len(rows) + 2), sharey=True)
    names = [f"{r['table']}, {r['width']} {r['activation']}" for r in rows]
    at = np.arange(len(rows))
    for ax, columns in (
        (left, {"as sampled": "between chains", "units matched": "between, matched"}),
        (
            right,
            {"weights": "R-hat weights", "matched": "R-hat matched", "functions": "worst R-hat"},
        ),
    ):
        for k, (label, column) in enumerate(columns.items()):
            values = [row[column] - (ax is right) for row in rows]
            ax.plot(values, at, "os^"[k], color=bnn.plots.PALETTE[k], label=label)
        ax.set_xscale("log")
        ax.legend(frameon=False)
        ax.grid(axis="y", alpha=0.3)
    left.set(yticks=at, yticklabels=names, xlabel="share of the weights' variance between chains")
    right.axvline(RHAT_LIMIT - 1, color="0.4", linestyle="--", linewidth=1)
    right.set(xlabel=f"worst R-hat - 1 (dashed: the limit of {RHAT_LIMIT - 1:.2g})")
    figure.tight_layout()
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, ("table", "width", "activation"), SIZES, argv)
    study.run(
        every_cell(table=size["tables"], width=size["widths"], activation=ACTIVATIONS),
        lambda table, width, activation: cell(table, width, activation, size, given.data),
    )
    study.publish(without(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
