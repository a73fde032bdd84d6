"""What a step size costs: the variance of the weights of a logistic regression over the exact one.

Two moons in the plane. The exact posterior is by quadrature; variances are averages over the coordinates in
which the exact covariance is the identity. SGLD accepted by its minibatch is that of `accept="minibatch"`.

    python -m benchmarks.predictions.step_size [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.datasets import make_moons

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import convergence, sampled, select
from benchmarks._shared.study import Row, begin, every_cell, without
from numpyro_bnn.diagnostics import mcse_mean


class Nodes(NamedTuple):
    """Points with weights that sum to one: averages over them are posterior expectations."""

    points: np.ndarray  # (node, parameter)
    weights: np.ndarray  # (node,)
    mode: np.ndarray  # the parameters of highest density

    @property
    def mean(self) -> np.ndarray:
        return self.weights @ self.points

    @property
    def covariance(self) -> np.ndarray:
        centred = self.points - self.mean
        return (centred * self.weights[:, None]).T @ centred


def nodes_of(
    log_density: Callable[[np.ndarray], np.ndarray],
    hessian: Callable[[np.ndarray], np.ndarray],
    num_parameters: int,
    count: int = 33,
    width: float = 7.0,
) -> Nodes:
    """The trapezoid rule in the coordinates that whiten the curvature at the mode: `count` nodes an axis."""
    start = np.zeros(num_parameters)
    found = minimize(lambda p: -log_density(p[None])[0], start, method="BFGS", tol=1e-8)
    mode = found.x
    scale = np.linalg.inv(np.linalg.cholesky(hessian(mode))).T
    axes = [np.linspace(-width, width, count)] * num_parameters
    whitened = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, num_parameters)
    points = mode + whitened @ scale.T
    values = log_density(points)
    weights = np.exp(values - values.max())
    kept = weights > 1e-14
    return Nodes(points[kept], weights[kept] / weights[kept].sum(), mode)


ROWS, BATCH, SCALE, HIDDEN = 200, 20, 2.0, 8
STEPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.0025)
METHODS = ("SGLD", "SGLD, all rows", "MALA", "SGLD, accept minibatch", "SGHMC")
SIZES: dict[str, Row] = {
    "full": {"chains": 8, "draws": 1000, "between": 20, "steps": STEPS, "methods": METHODS},
    "quick": {
        "chains": 4,
        "draws": 400,
        "between": 10,
        "steps": STEPS[:2],
        "methods": ("SGLD", "MALA"),
    },
    "toy": {"chains": 2, "draws": 20, "between": 2, "steps": STEPS[:1], "methods": ("SGLD",)},
}


def model_of(hidden: tuple[int, ...], scale: float = SCALE) -> Callable:
    """A classifier of two classes with weights N(0, scale²)."""

    def model(x, y=None):
        net = bnn.random_module("net", bnn.MLP(hidden, 1), bnn.priors.Normal(scale), x[:1])
        bnn.likelihoods.bernoulli(lambda rows: net(rows).squeeze(-1), y, x=x)

    return model


MODELS = {"logistic": model_of(()), "network": model_of((HIDDEN,))}


def data(count: int = ROWS, seed: int = 0):
    """Two moons, their coordinates about of unit scale."""
    x, y = make_moons(count, noise=0.3, random_state=seed)
    return ((x - np.array([0.5, 0.25])) / np.array([0.9, 0.55])).astype(np.float32), y


@cache
def exact() -> Nodes:
    """The posterior of bias and weights of the logistic regression, by quadrature."""
    x, y = data()
    rows = np.column_stack([np.ones(len(x)), x]).astype(np.float64)
    sign = np.where(y == 1, 1.0, -1.0)

    def log_density(theta: np.ndarray) -> np.ndarray:
        fit = -np.logaddexp(0, -sign * (theta @ rows.T)).sum(1)
        return fit - 0.5 * (theta**2).sum(1) / SCALE**2

    def hessian(theta: np.ndarray) -> np.ndarray:
        p = expit(rows @ theta)
        return (rows * (p * (1 - p))[:, None]).T @ rows + np.eye(3) / SCALE**2

    return nodes_of(log_density, hessian, 3)


def kernel_named(name: str, model: Callable, step: float):
    """A kernel, and passes over the data a step."""
    h, share = (step / 2) ** 0.5, BATCH / ROWS
    batch = {"batch_size": BATCH}
    if name == "SGLD":
        return bnn.SGLD(model, step_size=step, **batch), share
    if name == "SGLD, accept minibatch":
        return bnn.SGLD(model, step_size=step, accept="minibatch", **batch), 2 * share
    if name == "MALA":
        return bnn.MALA(model, step_size=step), 1.0
    if name == "SGLD, all rows":
        return bnn.SGLD(model, step_size=step), 1.0
    return bnn.SGHMC(model, step_size=h, friction=3.0, **batch), share


def hmc(model: Callable) -> HMC:
    return HMC(model, num_steps=20, trajectory_length=None, target_accept_prob=0.9)


def run(
    name: str, model: Callable, kernel: Any, chains: int, draws: int, between: int = 1
) -> bnn.MCMC:
    """A finished run from optimised starts, a quarter of its steps before as warm-up."""
    starts = starts_of(model, chains)
    key = jax.random.fold_in(jax.random.key(1), sum(map(ord, name)))
    numbers = {"num_warmup": draws * between // 4, "num_samples": draws, "thinning": between}
    return sampled(kernel, key, *data(), starts=starts, **numbers)


@cache
def starts_of(model: Callable, chains: int):
    """Optimised starts, the same for every kernel."""
    return bnn.optimize(model, jax.random.key(0), *data(), num_chains=chains, progress_bar=False)


def bias(method: str, step: float, size: Row) -> Iterator[Row]:
    """Variance of the logistic regression's weights over the exact one, whitened."""
    kernel, passes = kernel_named(method, MODELS["logistic"], step)
    made = run(method, MODELS["logistic"], kernel, size["chains"], size["draws"], size["between"])
    draws = made.get_samples(group_by_chain=True)
    weights = np.asarray(draws["net/Dense_0.kernel"], np.float64)[..., 0]
    theta = np.concatenate([np.asarray(draws["net/Dense_0.bias"]), weights], -1)
    nodes = exact()
    squares = whitened_square(theta, nodes)
    precision = np.linalg.eigvalsh(np.linalg.inv(nodes.covariance))
    yield {
        "variance over the exact one": float(squares.mean()),
        "Monte Carlo error": float(mcse_mean(squares)),
        "Langevin, all rows, linear theory": float(np.mean(1 / (1 - step * precision / 4))),
        "passes": passes * size["draws"] * size["between"] * 5 / 4,
        **convergence(theta),
    }


def whitened_square(theta: np.ndarray, nodes: Nodes) -> np.ndarray:
    """(θ - μ)ᵀ Σ⁻¹ (θ - μ) / d of draws (…, d): its mean is 1 under the exact posterior."""
    gap = theta - nodes.mean
    solved = np.einsum("...i,ij,...j->...", gap, np.linalg.inv(nodes.covariance), gap)
    return solved / theta.shape[-1]


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """How the variance grows with the step."""
    for method in dict.fromkeys(row["method"] for row in rows):
        own = sorted(select(rows, method=method), key=lambda r: r["step"])
        told = (
            f"{r['variance over the exact one']:.2f} at a step of {r['step']:g}"
            for r in (own[0], own[-1])
        )
        yield f"{method}: variance over the exact one {' and '.join(told)}."


def picture(rows: Sequence[Row]):
    """Variance ratio against the step, with the linear theory of Langevin on all rows."""
    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for k, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        own = sorted((r for r in rows if r["method"] == method), key=lambda r: r["step"])
        values = [
            [r[c] for r in own]
            for c in ("step", "variance over the exact one", "Monte Carlo error")
        ]
        ax.errorbar(
            *values[:2],
            yerr=2 * np.array(values[2]),
            marker="os^Dv"[k % 5],
            color=bnn.plots.PALETTE[k % 6],
            label=method,
            capsize=2,
        )
    theory = sorted({(r["step"], r["Langevin, all rows, linear theory"]) for r in rows})
    ax.plot(*zip(*theory), color="0.4", linestyle=":", label="SGLD on all rows, linear theory")
    ax.axhline(1, color="0.4", linewidth=0.8)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="step ε (momentum methods: ε = 2h²)",
        ylabel="variance over the exact one (± 2 errors)",
    )
    ax.legend(frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, _, size = begin(__file__, __doc__, ("method", "step"), SIZES, argv)
    study.run(
        every_cell(step=size["steps"], method=size["methods"]),
        lambda method, step: bias(method, step, size),
    )
    study.publish(without(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
