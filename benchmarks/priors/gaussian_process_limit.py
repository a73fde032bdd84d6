"""Wider and wider: does the posterior of a network become that of a Gaussian process?

One hidden layer of erf units, weights with fan-in-scaled Gaussian priors, known noise. The prior over
functions tends to a Gaussian process with the arc-sine kernel (Williams 1998, *Computation with infinite
neural networks*, eq. 11, here for s_b² + s_w² xx' inside the erf),

    k(x, x') = s_v² (2/π) asin(2 q(x, x') / √((1 + 2 q(x, x)) (1 + 2 q(x', x')))),
    q(x, x') = s_b² + s_w² x x',

and the posterior to its posterior (Hron et al. 2020, *Exact posterior distributions of wide Bayesian neural
networks*). `gap` is what is left when the expected square of the Monte Carlo error is taken off.

    python -m benchmarks.priors.gaussian_process_limit [--quick]
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from flax import linen as nn
from numpyro.infer import HMC
from scipy.linalg import cho_factor, cho_solve

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import convergence, sampled
from benchmarks._shared.study import Row, as_text, begin, from_text, without
from benchmarks._shared.words import number
from numpyro_bnn.diagnostics import mcse_mean

NOISE, WEIGHT, BIAS, OUT = 0.2, 4.0, 1.0, 1.0
LEAPFROGS = 32
GRID = np.linspace(-3, 3, 41, dtype=np.float32)[:, None]
SIZES = {
    "full": {"widths": (4, 16, 64, 256, 1024, 4096), "chains": 4, "warmup": 200, "draws": 800},
    "quick": {"widths": (4, 32, 256), "chains": 4, "warmup": 200, "draws": 500},
    "toy": {"widths": (4,), "chains": 2, "warmup": 10, "draws": 20},
}


class OneHiddenLayer(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        hidden = jax.scipy.special.erf(nn.Dense(self.width)(x))
        return nn.Dense(1, use_bias=False)(hidden).squeeze(-1)


def model_of(width: int) -> Callable:
    """Var(weight) = 4, Var(bias) = 1 and Var(outgoing) = 1/width."""
    prior = bnn.priors.ByPath(
        {
            "Dense_0.bias": bnn.priors.Normal(BIAS**0.5),
            "Dense_0.kernel": bnn.priors.FanIn(WEIGHT),
            "Dense_1.kernel": bnn.priors.FanIn(OUT),
        }
    )

    def model(x, y=None):
        net = bnn.random_module("net", OneHiddenLayer(width), prior, x[:1])
        bnn.likelihoods.gaussian(net, y, x=x, noise=NOISE)

    return model


def data():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -0.5, 8), rng.uniform(0.7, 2, 8)])
    y = np.sin(2 * x) + NOISE * rng.normal(size=x.size)
    return x.astype(np.float32)[:, None], y.astype(np.float32)


def kernel(x: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Covariance of the limit between inputs (row, 1) and (column, 1)."""
    x, other = x.astype(np.float64), other.astype(np.float64)
    ours, theirs = (1 + 2 * (BIAS + WEIGHT * (v**2).sum(-1)) for v in (x, other))
    inner = 2 * (BIAS + WEIGHT * x @ other.T)
    return OUT * 2 / np.pi * np.arcsin(inner / np.sqrt(ours[:, None] * theirs))


def process(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the Gaussian process at inputs, given noisy targets."""
    factor = cho_factor(kernel(x, x) + NOISE**2 * np.eye(len(x)))
    cross = kernel(x, at)
    mean = cross.T @ cho_solve(factor, y.astype(np.float64))
    variance = np.diag(kernel(at, at)) - (cross * cho_solve(factor, cross)).sum(0)
    return mean, np.sqrt(variance)


def functions(width: int, size: Row) -> np.ndarray:
    """The function on the grid under each draw, (chain, draw, input); weights are not kept."""
    x, y = data()
    model = model_of(width)
    scale = {"Dense_0.bias": BIAS, "Dense_0.kernel": WEIGHT, "Dense_1.kernel": OUT / width}
    metric = {(f"net/{name}",): jnp.full(width, value) for name, value in scale.items()}
    hmc = HMC(
        model,
        num_steps=LEAPFROGS,
        trajectory_length=None,
        inverse_mass_matrix=metric,
        adapt_mass_matrix=False,
    )
    starts = bnn.optimize(
        model, jax.random.key(0), x, y, num_chains=size["chains"], progress_bar=False
    )

    def record(sites):
        return {"f": OneHiddenLayer(width).apply({"params": bnn.to_params(sites)}, GRID)}

    numbers = {"num_warmup": size["warmup"], "num_samples": size["draws"]}
    run = sampled(hmc, jax.random.key(1), x, y, starts=starts, record=record, **numbers)
    return np.asarray(run.get_samples(group_by_chain=True)["f"], np.float64)


def differences(f: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> Row:
    """Root mean square gaps of mean and sd from the exact ones, and their Monte Carlo errors."""
    ours = f.mean((0, 1))
    squares = (f - ours) ** 2
    spread = np.sqrt(squares.mean((0, 1)))
    found: Row = {}
    for name, gap, error in (
        ("mean", (ours - mean) / sd, mcse_mean(f) / sd),
        # d(sd) = d(variance) / (2 sd).
        ("sd", spread / sd - 1, mcse_mean(squares) / (2 * spread * sd)),
    ):
        square, noise = np.mean(gap**2), np.mean(error**2)
        found[f"{name}: rms difference"] = float(square**0.5)
        found[f"{name}: rms error"] = float(noise**0.5)
        found[f"{name}: gap"] = float(max(square - noise, 0.0) ** 0.5)
    return found


def cell(width: int, size: Row) -> Iterator[Row]:
    mean, sd = process(*data(), GRID)
    f = functions(width, size)
    yield {
        **differences(f, mean, sd),
        **convergence(f),
        "mean on the grid": as_text(f.mean((0, 1))),
        "sd on the grid": as_text(f.std((0, 1))),
    }


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Differences from the Gaussian process by width, and the power of the width that they go with."""
    for name in ("mean", "sd"):
        seen = [r for r in rows if r[f"{name}: rms difference"] > 2 * r[f"{name}: rms error"]]
        told = ", ".join(
            f"{r[f'{name}: rms difference']:.2f} ± {r[f'{name}: rms error']:.2f} (width {r['width']})"
            for r in rows
        )
        power = ""
        if len(seen) > 1:
            logs = [np.log([r[c] for r in seen]) for c in ("width", f"{name}: gap")]
            power = (
                f"; where it is seen it goes as width to the {number(np.polyfit(*logs, 1)[0], 1)}"
            )
        yield f"Rms difference of the {name} from the Gaussian process, in its sd: {told}{power}."


def picture(rows: Sequence[Row]):
    """Left: narrow, wide and limit; right: differences and Monte Carlo errors by width."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    at, (mean, sd) = GRID[:, 0], process(*data(), GRID)
    for k, row in enumerate((rows[0], rows[-1])):
        values = [from_text(row[f"{what} on the grid"]) for what in ("mean", "sd")]
        color = bnn.plots.PALETTE[k]
        left.plot(at, values[0], color=color, label=f"width {row['width']}")
        for sign in (-2, 2):
            left.plot(at, values[0] + sign * values[1], color=color, linestyle="--", linewidth=1)
    left.fill_between(at, mean - 2 * sd, mean + 2 * sd, color="0.5", alpha=0.3, linewidth=0)
    left.plot(at, mean, color="0.3", linewidth=1, label="Gaussian process, ± 2 sd")
    left.scatter(*data(), s=12, color="black", zorder=3)
    left.set(xlabel="x", ylabel="function, ± 2 sd")
    left.legend(frameon=False, loc="lower left")
    widths = [row["width"] for row in rows]
    for k, name in enumerate(("mean", "sd")):
        color = bnn.plots.PALETTE[k]
        for what, dash in (("rms difference", "-"), ("rms error", ":")):
            values = [row[f"{name}: {what}"] for row in rows]
            right.plot(widths, values, "os"[k] + dash, color=color, label=f"{name}, {what}")
    right.set(xscale="log", yscale="log", xlabel="width", ylabel="units of the exact sd")
    right.legend(frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, _, size = begin(__file__, __doc__, ("width",), SIZES, argv)
    study.run([{"width": width} for width in size["widths"]], lambda width: cell(width, size))
    rows = sorted(study.rows, key=lambda row: row["width"])
    table = without(rows, "mean on the grid", "sd on the grid")
    study.publish(table, findings(rows), lambda: picture(rows))


if __name__ == "__main__":
    main()
