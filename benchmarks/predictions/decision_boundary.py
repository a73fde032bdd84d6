"""Averaged boundaries of eight samplers, and what a step size costs: the lecture's pictures.

Two moons in the plane; a logistic regression and a tanh network with one hidden layer on the same
rows. Random-walk Metropolis, SGLD with decreasing steps (Welling and Teh 2011), SGLD accepted with
the energy of all rows or of the minibatch, SGD with momentum at a constant rate (SGHMC at
temperature 0: its only noise is that of the minibatch), SGHMC (Chen, Fox and Guestrin 2014) and
HMC, from the same starts, beside MAP. The table has the total variation of the averaged class
probabilities from the reference on a grid over the data, the spread of the probabilities over that
of the reference, the log score on fresh rows, and passes over the data that a chain spent. The
reference is quadrature over the three weights of the logistic regression, and a longer HMC run for
the network; HMC's own distance from it is the Monte Carlo error. `step_size_bias` has the variance
of the logistic regression's weights over the exact one as the step grows (1: no bias), averaged
over the coordinates in which the exact covariance is the identity.

    python -m benchmarks.predictions.decision_boundary [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC
from scipy.special import expit
from sklearn.datasets import make_moons

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import convergence, sampled
from benchmarks._shared.study import Row, Study, as_text, every_cell, from_text, parser, without
from benchmarks._shared.words import number, span
from benchmarks.predictions.quadrature import Nodes, nodes_of
from numpyro_bnn import scores
from numpyro_bnn.diagnostics import mcse_mean

ROWS, BATCH, SCALE, HIDDEN = 200, 20, 2.0, 8
# Steps ε of SGLD, h = √(ε/2): about a tenth of the largest stable ones.
STEP = {"logistic": 0.02, "network": 0.005}
FRICTION = 3.0
LEAPFROGS = 20
BIASES = (0.1, 0.05, 0.02, 0.01, 0.005, 0.0025)
AVERAGED = ("random walk", "SGLD, decreasing", "SGLD", "SGLD, accept full")
AVERAGED += ("SGLD, accept minibatch", "momentum SGD", "SGHMC", "HMC")
BIASED = ("SGLD", "SGLD, all rows", "MALA", "SGLD, accept minibatch", "SGHMC")
EVERY = {"methods": ("MAP", *AVERAGED), "biased": BIASED}
SIZES = {
    "full": {"chains": 8, "draws": 1000, "steps": 20, "longer": 4, "biases": 6} | EVERY,
    "quick": {
        "chains": 4,
        "draws": 400,
        "steps": 10,
        "longer": 2,
        "biases": 2,
        "methods": ("MAP", "random walk", "SGLD", "momentum SGD", "HMC"),
        "biased": ("SGLD", "MALA"),
    },
    "toy": {
        "chains": 2,
        "draws": 20,
        "steps": 2,
        "longer": 2,
        "biases": 1,
        "methods": ("MAP", "momentum SGD", "HMC"),
        "biased": ("SGLD",),
    },
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


def axes_of_grid(points: int = 25) -> list[np.ndarray]:
    """Coordinates that cover the data with a margin."""
    x, _ = data()
    low, high = x.min(0) - 0.35 * np.ptp(x, 0), x.max(0) + 0.35 * np.ptp(x, 0)
    return [np.linspace(low[i], high[i], points, dtype=np.float32) for i in (0, 1)]


def grid() -> np.ndarray:
    return np.stack(np.meshgrid(*axes_of_grid(), indexing="ij"), -1).reshape(-1, 2)


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
    """A kernel, its steps a draw as a multiple of the usual number, and passes a step."""
    h, share = (step / 2) ** 0.5, BATCH / ROWS
    batch = {"batch_size": BATCH}
    if name == "random walk":
        return bnn.RandomWalk(model, step_size="auto"), 1.0
    if name == "SGLD, decreasing":
        falling = bnn.schedules.polynomial(3 * step * 100**0.55, 100.0, 0.55)
        return bnn.SGLD(model, step_size=falling, **batch), share
    if name == "SGLD":
        return bnn.SGLD(model, step_size=step, **batch), share
    if name.startswith("SGLD, accept"):
        rule = name.removeprefix("SGLD, accept ")
        cost = share * 2 + (2 if rule == "full" else 0)
        return bnn.SGLD(model, step_size=step, accept=rule, **batch), cost
    if name == "MALA":
        return bnn.MALA(model, step_size=step), 1.0
    if name == "SGLD, all rows":
        return bnn.SGLD(model, step_size=step), 1.0
    if name in ("SGHMC", "momentum SGD"):
        temperature = 1.0 if name == "SGHMC" else 0.0
        kernel = bnn.SGHMC(model, step_size=h, friction=FRICTION, temperature=temperature, **batch)
        return kernel, share
    hmc = HMC(model, num_steps=LEAPFROGS, trajectory_length=None, target_accept_prob=0.9)
    return hmc, float(LEAPFROGS)


@cache
def starts_of(model: Callable, chains: int):
    """Optimised starts, the same for every kernel."""
    return bnn.optimize(model, jax.random.key(0), *data(), num_chains=chains, progress_bar=False)


def run(name: str, model: Callable, step: float, size: Row, longer: int = 1):
    """A finished run, and the passes over the data that each of its chains took."""
    kernel, passes = kernel_named(name, model, step)
    starts = starts_of(model, size["chains"])
    thinning = 1 if name == "HMC" else size["steps"]
    draws = size["draws"] * longer
    warmup = (draws * thinning) // 4
    key = jax.random.fold_in(jax.random.key(longer), sum(map(ord, name)))
    numbers = {"num_warmup": warmup, "num_samples": draws, "thinning": thinning}
    return sampled(kernel, key, *data(), starts=starts, **numbers), passes * (
        warmup + draws * thinning
    )


@cache
def reference(name: str, size: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Mean and spread of the probability of class 1 on the grid, and what is known of them."""
    if name == "logistic":
        nodes, probs = exact(), []
        for rows in np.array_split(np.column_stack([np.ones(len(grid())), grid()]), 25):
            at = expit(nodes.points @ rows.T)
            mean = nodes.weights @ at
            probs.append([mean, np.sqrt(nodes.weights @ (at - mean) ** 2)])
        mean, sd = np.concatenate(probs, axis=1)
        return mean, sd, "exact"
    numbers = SIZES[size]
    longer, _ = run("HMC", MODELS[name], STEP[name], numbers, numbers["longer"])
    made = bnn.predict(MODELS[name], longer, grid()).probs[..., 1]
    told = convergence(made)
    about = f"R-hat {told['worst R-hat']:.3f}, ESS {told['least ESS']:.0f}"
    return made.mean((0, 1)), made.std((0, 1)), about


def judged(model: Callable, made, known, passes: float | str) -> Row:
    """A row about draws of one model, `known` being the reference."""
    fresh = data(1000, seed=1)
    # One call, so that one program is compiled.
    probs = bnn.predict(model, made, np.concatenate([grid(), fresh[0]])).probs
    on_grid, off_grid = np.split(probs, [len(grid())], axis=2)
    log_prob = np.log(np.where(fresh[1] == 1, off_grid[..., 1], off_grid[..., 0]))
    average = on_grid.mean((0, 1))[:, 1]
    mean, sd, about = known
    classes = [np.stack([1 - p, p], -1) for p in (average, mean)]
    accepted = ""
    if isinstance(made, bnn.MCMC) and "accept_prob" in made.get_extra_fields():
        accepted = float(np.mean(made.get_extra_fields()["accept_prob"]))
    return {
        "total variation": scores.total_variation(*classes),
        "boundary agreement": scores.agreement(*classes),
        "relative spread": float(on_grid[..., 1].std((0, 1)).mean() / sd.mean()),
        "lppd, fresh rows": scores.lppd(log_prob),
        "acceptance": accepted,
        "passes": passes,
        **convergence(on_grid[..., 1]),
        "reference": about,
        "surface": as_text(average),
    }


def boundary(model: str, method: str, size: str) -> Iterator[Row]:
    """MAP or a sampler on one model."""
    known, own = reference(model, size), MODELS[model]
    if method == "MAP":
        made = bnn.map_estimate(own, jax.random.key(1), *data(), num_starts=8, progress_bar=False)
        yield judged(own, made, known, "")
        return
    made, passes = run(method, own, STEP[model], SIZES[size])
    yield judged(own, made, known, passes)


def bias(method: str, step: float, size: Row) -> Iterator[Row]:
    """Variance of the logistic regression's weights over the exact one, whitened."""
    made, passes = run(method, MODELS["logistic"], step, size)
    draws = made.get_samples(group_by_chain=True)
    kernel = np.asarray(draws["net/Dense_0.kernel"], np.float64)[..., 0]
    theta = np.concatenate([np.asarray(draws["net/Dense_0.bias"]), kernel], -1)
    nodes = exact()
    squares = whitened_square(theta, nodes)
    precision = np.linalg.eigvalsh(np.linalg.inv(nodes.covariance))
    yield {
        "variance over the exact one": float(squares.mean()),
        "Monte Carlo error": float(mcse_mean(squares)),
        "Langevin, all rows, linear theory": float(np.mean(1 / (1 - step * precision / 4))),
        "passes": passes,
        **convergence(theta),
    }


def whitened_square(theta: np.ndarray, nodes: Nodes) -> np.ndarray:
    """(θ - μ)ᵀ Σ⁻¹ (θ - μ) / d of draws (…, d): its mean is 1 under the exact posterior."""
    gap = theta - nodes.mean
    solved = np.einsum("...i,ij,...j->...", gap, np.linalg.inv(nodes.covariance), gap)
    return solved / theta.shape[-1]


def findings(rows: Sequence[Row], biases: Sequence[Row]) -> Iterator[str]:
    """How the variance grows with the step, and how far averages are from the reference."""
    for method in dict.fromkeys(row["method"] for row in biases):
        own = sorted((r for r in biases if r["method"] == method), key=lambda r: r["step"])
        first, last = own[0], own[-1]
        yield (
            f"{method}: variance over the exact one {first['variance over the exact one']:.2f} at a step of "
            f"{first['step']:g} and {last['variance over the exact one']:.2f} at {last['step']:g}."
        )
    for model in MODELS:
        own = {row["method"]: row for row in rows if row["model"] == model}
        drawn = {m: own[m]["total variation"] for m in AVERAGED if m in own and m != "HMC"}
        yield (
            f"{model}, total variation from the reference: HMC {own['HMC']['total variation']:.3f}, other "
            f"samplers {span(drawn.values(), 3)} (most: {max(drawn, key=drawn.__getitem__)}), MAP "
            f"{own['MAP']['total variation']:.3f}; log score of MAP "
            f"{number(own['MAP']['lppd, fresh rows'], 3)}, of HMC "
            f"{number(own['HMC']['lppd, fresh rows'], 3)}."
        )


def picture(rows: Sequence[Row]):
    """Probabilities and boundaries: MAP, then the averages, one row of panels a model."""
    from scipy.interpolate import RegularGridInterpolator

    shown = ("MAP", "random walk", "SGLD, accept minibatch", "momentum SGD", "SGHMC", "HMC")
    shown = tuple(name for name in shown if any(r["method"] == name for r in rows))
    x, y = data()
    figure, panels = plt.subplots(
        len(MODELS), len(shown), figsize=(3 * len(shown), 6), layout="constrained"
    )
    for line, model in zip(panels, MODELS):
        for ax, name in zip(line, shown):
            row = next(r for r in rows if (r["model"], r["method"]) == (model, name))
            surface = RegularGridInterpolator(
                axes_of_grid(), from_text(row["surface"]).reshape(25, 25)
            )

            def probs(points: np.ndarray, surface=surface) -> np.ndarray:
                p = surface(points)
                return np.stack([1 - p, p], -1)[None]

            bnn.plots.plot_decision_boundary(probs, x, y, ax=[ax])
            title = f"{name}{'' if name == 'MAP' else ', averaged'}"
            ax.set(title=f"{model}: {title}", xlabel="", ylabel="")
            ax.title.set_fontsize(9)
            if (model, name) != ("logistic", "MAP"):
                ax.get_legend().remove()
    return figure


def picture_of_bias(rows: Sequence[Row]):
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
    options = parser(__doc__).parse_args(argv)
    size = SIZES[options.size]
    study = Study(__file__, ("model", "method"), options)
    study.run(
        every_cell(model=MODELS, method=size["methods"]),
        lambda model, method: boundary(model, method, options.size),
    )
    second = Study(__file__, ("method", "step"), options, part="step_size")
    cells = every_cell(step=BIASES[: size["biases"]], method=size["biased"])
    second.run(cells, lambda method, step: bias(method, step, size))
    found = findings(study.rows, second.rows)
    study.publish(without(study.rows, "surface"), found, lambda: picture(study.rows))
    second.publish(without(second.rows), figure=lambda: picture_of_bias(second.rows))


if __name__ == "__main__":
    main()
