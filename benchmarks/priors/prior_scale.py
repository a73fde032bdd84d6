"""How flat is the score in the scale of the prior? Two families of fixed scales, and learned precisions.

    python -m benchmarks.priors.prior_scale [--quick]

Figure 10 of Izmailov, Vikram, Hoffman and Wilson, *What are Bayesian neural network posteriors really like?*
(2021), asks this of N(0, α²) alone; Neal, *Bayesian learning for neural networks* (1996), of precisions.
"""

import functools
import math

import jax
import matplotlib.pyplot as plt
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import (
    convergence,
    leapfrogs,
    load,
    means,
    network,
    paired,
    publish,
    sampler,
    score,
    select,
    starts,
)
from benchmarks._shared.study import Row, Study, parser
from numpyro_bnn.plots.style import MARKERS, label_axes, line_style

FAMILIES = ("N(0, α²)", "N(0, α²/n)")
HIERARCHICAL = "hierarchical"
# Of each problem: hidden units, rows, test rows, activation, α of both families.
PROBLEMS = {
    "mnist": (
        [32],
        500,
        2000,
        jax.nn.relu,
        (0.03, 0.1, 0.3, 1.0, 3.0),
        (0.3, 1.0, 3.0, 10.0, 30.0),
    ),
    "boston": ([16], 0, 0, jax.numpy.tanh, (0.1, 0.3, 1.0, 3.0, 10.0), (0.1, 0.3, 1.0, 3.0, 10.0)),
    "yacht": ([16], 0, 0, jax.numpy.tanh, (0.1, 0.3, 1.0, 3.0, 10.0), (0.1, 0.3, 1.0, 3.0, 10.0)),
}
# Splits of each problem, chains, warm-up, draws, tree depth, Adam steps, places of α.
SIZES = {
    "full": ({"yacht": 2, "boston": 2, "mnist": 1}, 4, 150, 150, 6, 1500, slice(None)),
    "quick": ({"yacht": 1}, 4, 50, 50, 4, 500, slice(0, 5, 2)),
    "toy": ({"yacht": 1}, 2, 6, 8, 2, 20, slice(1, 3)),
}
# Log scores so near to each other are called the same.
FLAT = 0.02


def prior(family: str, alpha) -> object:
    """The prior of a family at one scale, which may be traced."""
    if family == HIERARCHICAL:
        return bnn.priors.Hierarchical()
    if family == FAMILIES[0]:
        return bnn.priors.Normal(alpha)
    return bnn.priors.FanIn(alpha**2)


@functools.cache
def run_of(size: str, name: str, family: str):
    """The run of a family, of which α is the third argument: one program for scales and splits."""
    hidden, _, _, activation, *_ = PROBLEMS[name]
    _, num_chains, num_warmup, num_draws, depth, *_ = SIZES[size]

    def model(x, y=None, alpha=1.0):
        network(name, hidden, prior(family, alpha), activation)(x, y)

    kernel = NUTS(model, max_tree_depth=depth, target_accept_prob=0.9)
    return sampler(kernel, num_chains, num_warmup, num_draws)


@functools.cache
def data(folder, size: str, name: str, split: int):
    _, num_rows, num_test, *_ = PROBLEMS[name]
    return load(folder, name, 30 if size == "toy" else num_rows, num_test, split)


@functools.cache
def begun(folder, size: str, name: str, family: str, split: int):
    """Starts, which all scales of a family share."""
    _, num_chains, *_, num_steps, _ = SIZES[size]
    model = run_of(size, name, family).model
    return starts(model, data(folder, size, name, split), split, num_chains, num_steps)


@functools.lru_cache(maxsize=1)
def hierarchical_rows(folder, size: str, name: str, split: int):
    """What all others are compared with: scores, convergence and log scores by row."""
    return judged(folder, size, name, split, HIERARCHICAL, 1.0)


def judged(folder, size: str, name: str, split: int, family: str, alpha: float):
    """Scores of one posterior, and its log score of every test row."""
    x, y, x_test, y_test = data(folder, size, name, split)
    mcmc = run_of(size, name, family)
    # Weights have the same names under all families but the hierarchical one.
    first = family if family == HIERARCHICAL else FAMILIES[0]
    init_params = begun(folder, size, name, first, split)
    more = () if family == HIERARCHICAL else (jax.numpy.float32(alpha),)
    mcmc.run(jax.random.key(split), x, y, *more, init_params=init_params)
    predictions = bnn.predict(None, mcmc, x_test)
    found, rows = score(predictions, y_test)
    return found | convergence(predictions.values) | {"leapfrogs": leapfrogs(mcmc)}, rows


def one_cell(folder, size: str, problem: str, split: int, family: str, alpha: float):
    """The row of one prior."""
    base, base_rows = hierarchical_rows(folder, size, problem, split)
    if family == HIERARCHICAL:
        yield base | paired(base_rows, base_rows)
        return
    found, rows = judged(folder, size, problem, split, family, alpha)
    yield found | paired(rows, base_rows)


def cells(size: str):
    """The hierarchical prior of each split first, then both families at every scale."""
    splits, *_, places = SIZES[size]
    for name, count in splits.items():
        for split in range(count):
            yield {"problem": name, "split": split, "family": HIERARCHICAL, "alpha": 1.0}
            for family, scales in zip(FAMILIES, PROBLEMS[name][-2:]):
                for alpha in scales[places]:
                    yield {"problem": name, "split": split, "family": family, "alpha": alpha}


def averaged(rows: list[Row]) -> list[Row]:
    """Means over splits; standard errors over test rows combine as those of a mean."""
    out = []
    for same, mean in means(rows, "problem", "family", "alpha"):
        for error in ("log_score_se", "difference_se"):
            mean[error] = math.sqrt(sum(r[error] ** 2 for r in same)) / len(same)
        good = sum(r["converged"] == "yes" for r in same)
        mean["worst R-hat"] = max(r["worst R-hat"] for r in same)
        out.append(mean | {"converged": f"{good} of {len(same)}"})
    return out


def findings(rows: list[Row]):
    """What the rows say, in sentences."""
    for name in dict.fromkeys(r["problem"] for r in rows):
        for family in FAMILIES:
            here = select(rows, problem=name, family=family)
            best = max(here, key=lambda r: r["log_score"])
            near = [r["alpha"] for r in here if r["log_score"] >= best["log_score"] - FLAT]
            spread = best["log_score"] - min(r["log_score"] for r in here)
            yield (
                f"{name}, {family}: best at α = {best['alpha']:g}, log score "
                f"{best['log_score']:.4f}; within {FLAT} nats of it for α in "
                f"{', '.join(f'{a:g}' for a in near)} (of {len(here)}); "
                f"the worst is {spread:.3f} lower; the best is {best['difference']:+.4f} ± "
                f"{best['difference_se']:.4f} from the hierarchical prior."
            )


def draw(rows: list[Row]):
    names = list(dict.fromkeys(r["problem"] for r in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(4.6 * len(names), 3.9), layout="constrained", squeeze=False
    )
    for ax, name in zip(axes[0], names):
        for index, family in enumerate(FAMILIES):
            here = select(rows, problem=name, family=family)
            style = line_style(ax, index) | {"marker": MARKERS[index]}
            alphas, gap = ([r[k] for r in here] for k in ("alpha", "difference"))
            errors = [2 * r["difference_se"] for r in here]
            ax.errorbar(alphas, gap, errors, capsize=2, label=family, **style)
            rough = [r for r in here if r["worst R-hat"] > 1.1]
            ax.plot(
                [r["alpha"] for r in rough],
                [r["difference"] for r in rough],
                "o",
                markersize=12,
                fillstyle="none",
                color=style["color"],
            )
        ax.axhline(0, color="0.4", linestyle=":", linewidth=1, label=HIERARCHICAL)
        ax.set_xscale("log")
        ax.set_title(f"{name} (circled: worst R-hat above 1.1)", fontsize=10)
        label_axes(ax, "α", "log score – hierarchical (nats, ± 2 s.e.)")
    axes[0, 0].legend(frameon=False)
    return figure


TABLE = {
    "problem": "problem",
    "family": "prior",
    "alpha": "α",
    "log_score": "log score",
    "log_score_se": "± s.e.",
    "difference": "– hierarchical",
    "difference_se": "± s.e. of it",
    "error": "error or RMSE",
    "calibration": "calibration error, or cover of 90 %",
    "median R-hat": "median R-hat",
    "worst R-hat": "worst R-hat",
    "converged": "splits converged",
    "leapfrogs": "leapfrogs a draw",
}


def main(argv=None) -> None:
    asked = parser(__doc__).parse_args(argv)
    study = Study(__file__, ["problem", "split", "family", "alpha"], asked)
    study.run(
        cells(asked.size),
        lambda problem, split, family, alpha: one_cell(
            asked.data, asked.size, problem, split, family, alpha
        ),
    )
    rows = averaged(study.rows)
    publish(study, rows, TABLE, findings(rows), lambda: draw(rows))


if __name__ == "__main__":
    main()
