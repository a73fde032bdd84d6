"""Is full-batch HMC mixing in function space while it is not in weight space?

HMC with the whole data set in every gradient, unit mass and a step adapted in warm-up, several
chains from optimised starts: a 784-256-256-10 relu network on 1000 images of MNIST (267,000
weights of prior N(0, 0.1²)), and 16-16 relu networks on UCI tables (prior N(0, 0.5²)). Printed and
stored, by problem:

- R-hat of every weight (as they are, and with hidden units matched where there are few of them)
  and of every test prediction: rank-normalised, split, folded;
- the log score of 1, 2, … chains, with all their draws and with as many draws in all as one chain;
- trajectories of length πα/2 against shorter ones with as many gradients (tables only).

    python -m benchmarks.mixing.function_space [--quick]

Source: Izmailov, Vikram, Hoffman and Wilson, *What are Bayesian neural network posteriors really
like?* (2021), sections 4 and 5. Theirs are the whole data sets, 512 TPU cores, three chains;
Vehtari et al. (2021), *Rank-normalization, folding, and localization: an improved R-hat*.
"""

import functools
import math
from collections.abc import Iterator

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import (
    convergence,
    hmc,
    leapfrogs,
    problem,
    publish,
    sampled,
    score,
    scores_of_chains,
    select,
    starts,
)
from benchmarks._shared.study import Row, Study, parser
from benchmarks._shared.words import number
from numpyro_bnn.plots.style import MARKERS, label_axes, line_style

# R-hat - 1, below and above which values are counted in the outermost bins.
BINS = np.geomspace(1e-3, 10, 41)
# Above this R-hat, the limit of the study that is asked about, a scalar is said not to mix.
MIXES = 1.1
# Of each problem: hidden units, prior scale, first leapfrog step, rows, test rows, chains,
# trajectories of warm-up and kept, fractions of the long trajectory.
SIZES = {
    "full": {
        "boston": ([16, 16], 0.5, 0.001, 0, 0, 4, 50, 200, (1, 1 / 8)),
        "wine_red": ([16, 16], 0.5, 0.002, 0, 0, 4, 50, 200, (1, 1 / 8)),
        "mnist": ([256, 256], 0.1, 0.004, 1000, 1000, 4, 40, 80, (1,)),
    },
    "quick": {
        "boston": ([16, 16], 0.5, 0.001, 0, 0, 4, 10, 20, (1, 1 / 8)),
        "mnist": ([64, 64], 0.1, 0.005, 200, 200, 3, 10, 40, (1,)),
    },
    "toy": {"boston": ([4], 0.5, 0.01, 50, 0, 2, 5, 8, (1,))},
}
# Early, before the noise of a regression shrinks: steps that are right for the posterior would be too
# long there.
ADAM_STEPS = {"full": 300, "quick": 300, "toy": 200}


def by_number_of_chains(log_prob: np.ndarray) -> list[tuple[int, float, float]]:
    """Log score of k chains: mean over C sets of neighbours of all C chains.

    :param log_prob: (chain, draw, row), nats.
    :return: k, with all draws of the k chains, and with every k-th of them.
    """
    num_chains = len(log_prob)

    def average(k: int, step: int) -> float:
        # One predictive density a chain and row; then of every k neighbours in a circle.
        own = scores_of_chains(log_prob[:, ::step])
        sets = [[(i + j) % num_chains for j in range(k)] for i in range(num_chains)]
        return float(np.mean([(logsumexp(own[s], 0) - math.log(k)).mean() for s in sets]))

    return [(k, average(k, 1), average(k, k)) for k in range(1, num_chains + 1)]


def histogram(rhat: np.ndarray) -> str:
    """How many R-hat lie in each of BINS, as the text of one cell."""
    excess = np.clip(rhat[np.isfinite(rhat)] - 1, BINS[0], BINS[-1])
    return " ".join(str(count) for count in np.histogram(excess, BINS)[0])


def spaces(mcmc: bnn.MCMC, x_test: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """R-hat and ESS of the scalars in weight space, aligned, and in function space."""
    report = bnn.diagnose(mcmc, x_test)
    found = {"weights": report.weights, "predictions": report.predictions}
    if report.relabelling is not None:
        found["weights, aligned"] = report.relabelling.space
    moving = {name: np.isfinite(space.rhat) for name, space in found.items()}
    return {name: (s.rhat[moving[name]], s.ess[moving[name]]) for name, s in found.items()}


def one_run(size: str, folder, problem_name: str, trajectory: float):
    """Rows of one run: R-hat by space, and the score by number of chains for the long one."""
    settings = SIZES[size][problem_name]
    hidden, scale, step, num_rows, num_test, num_chains, warmup, draws, _ = settings
    given = problem(
        folder, problem_name, hidden, bnn.priors.Normal(scale), num_rows=num_rows, num_test=num_test
    )
    x, y, x_test, y_test = given.split
    kernel = hmc(given.model, step, trajectory * math.pi / 2 * scale)
    # As many gradients, and as many draws kept, as with the long trajectory.
    thinning = max(1, round(1 / trajectory))
    mcmc = sampled(
        kernel,
        jax.random.key(1),
        x,
        y,
        starts=begun(size, folder, problem_name),
        num_warmup=warmup * thinning,
        num_samples=draws,
        thinning=thinning,
    )
    predictions = bnn.predict(None, mcmc, x_test)
    accepted = float(np.mean(mcmc.get_extra_fields()["accept_prob"]))
    # Trajectories of warm-up are counted as if they were as long as the others.
    steps = leapfrogs(mcmc)
    gradients = num_chains * (warmup + draws) * thinning * steps
    common = {"acceptance": accepted, "gradients": gradients, "leapfrogs": steps}
    common |= score(predictions, y_test)[0] | convergence(predictions.values)
    for space, (rhat, ess) in spaces(mcmc, x_test).items():
        yield common | {
            "what": space,
            "chains": num_chains,
            "scalars": len(rhat),
            "max_rhat": float(rhat.max()),
            "mid_rhat": float(np.median(rhat)),
            "not_mixing": float(np.mean(rhat > MIXES)),
            "ess_per_1000": float(np.median(ess) / gradients * 1000),
            "as_long": "",
            "histogram": histogram(rhat),
        }
    if trajectory < 1:
        return
    empty = dict.fromkeys(("scalars", "max_rhat", "mid_rhat", "not_mixing", "ess_per_1000"), "")
    for k, log_score, as_long in by_number_of_chains(predictions.log_prob(y_test)):
        more = {"what": "score", "chains": k, "log_score": log_score, "as_long": as_long}
        yield common | empty | more | {"histogram": ""}


@functools.lru_cache(maxsize=1)
def begun(size: str, folder, name: str):
    """Starts, which all trajectories of a problem share."""
    hidden, scale, _, num_rows, num_test, num_chains, *_ = SIZES[size][name]
    prior = bnn.priors.Normal(scale)
    given = problem(folder, name, hidden, prior, num_rows=num_rows, num_test=num_test)
    return starts(*given, 0, num_chains, ADAM_STEPS[size])


def findings(rows: list[Row], names: list[str]) -> Iterator[str]:
    """R-hats of weights and functions, scores by number of chains, and what long trajectories give."""
    for name in names:
        here = {r["what"]: r for r in select(rows, problem=name, trajectory=1) if r["scalars"]}
        weights, functions = here["weights"], here["predictions"]
        aligned = here.get("weights, aligned")
        matched = f" ({aligned['not_mixing']:.1%} once units are matched)" if aligned else ""
        yield (
            f"{name}: R-hat above {MIXES} for {weights['not_mixing']:.1%} of the weights{matched} and "
            f"{functions['not_mixing']:.1%} of the functions; worst {weights['max_rhat']:.2f} and "
            f"{functions['max_rhat']:.2f}."
        )
    for name in names:
        by_chains = select(rows, problem=name, what="score")
        first, last = by_chains[0], by_chains[-1]
        draws = ", ".join(
            f"{row['ess_per_1000']:.2f} ({row['trajectory']:g} × πα/2)"
            for row in select(rows, problem=name, what="predictions")
        )
        yield (
            f"{name}: log score {number(first['log_score'], 3)} of one chain, {number(last['log_score'], 3)} "
            f"of {last['chains']}; effective draws of the median function by 1000 gradients {draws}."
        )


def draw_histograms(axes, rows: list[Row], names: list[str]) -> None:
    for ax, name in zip(axes, names):
        kinds = [r for r in select(rows, problem=name, trajectory=1) if r["scalars"]]
        for index, row in enumerate(kinds):
            counts = np.array(row["histogram"].split(), float)
            text = f"{row['what']} ({row['scalars']:,}; {row['not_mixing']:.0%} > {MIXES})"
            style = line_style(ax, index)
            ax.stairs(counts / counts.sum(), 1 + BINS, label=text, linewidth=1.6, **style)
        ax.axvline(MIXES, color="0.4", linestyle=":", linewidth=1)
        ax.set_xscale("function", functions=(lambda r: np.log(np.maximum(r - 1, 1e-9)), _back))
        ax.set_xlim(1 + BINS[0], 1 + BINS[-1])
        ax.set_xticks([1.001, 1.01, 1.1, 2, 11], ["1.001", "1.01", "1.1", "2", "11"])
        label_axes(ax, "R-hat", "share of scalars")
        ax.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(0, 1.2))
        ax.set_title(name, y=1.2)


def _back(log_excess):
    return 1 + np.exp(log_excess)


def draw(rows: list[Row], names: list[str]):
    from matplotlib.ticker import NullFormatter

    figure, axes = plt.subplots(
        2, max(2, len(names)), figsize=(4.2 * max(2, len(names)), 7), layout="constrained"
    )
    draw_histograms(axes[0], rows, names)
    for ax in axes[0, len(names) :]:
        ax.set_visible(False)
    for index, name in enumerate(names):
        score_rows = select(rows, problem=name, what="score")
        k = [r["chains"] for r in score_rows]
        style = line_style(axes[1, 0], index) | {"marker": MARKERS[index]}
        base = score_rows[0]["log_score"]
        axes[1, 0].plot(k, [r["log_score"] - base for r in score_rows], label=name, **style)
        fixed = style | {"linestyle": ":", "markerfacecolor": "none"}
        axes[1, 0].plot(k, [r["as_long"] - base for r in score_rows], **fixed)
        found = select(rows, problem=name, what="predictions")
        lengths = [r["trajectory"] for r in found]
        axes[1, 1].plot(lengths, [r["ess_per_1000"] for r in found], label=name, **style)
    label_axes(axes[1, 0], "chains", "log score – that of one chain (nats)")
    axes[1, 0].set_title("dotted: as many draws in all as one chain", fontsize=9)
    axes[1, 0].xaxis.get_major_locator().set_params(integer=True)
    axes[1, 1].set(xscale="log", yscale="log")
    lengths = sorted({r["trajectory"] for r in rows})
    axes[1, 1].xaxis.set_minor_formatter(NullFormatter())
    axes[1, 1].set_xticks(lengths, [f"1/{1 / t:.0f}" if t < 1 else "1" for t in lengths])
    label_axes(axes[1, 1], "trajectory / (πα/2)", "effective draws by 1000 gradients")
    axes[1, 1].set_title("median prediction, equal gradients", fontsize=9)
    for ax in axes[1, :2]:
        ax.legend(frameon=False)
    for ax in axes[1, 2:]:
        ax.set_visible(False)
    return figure


TABLE = {
    "problem": "problem",
    "trajectory": "trajectory / (πα/2)",
    "what": "space",
    "scalars": "scalars",
    "mid_rhat": "median R-hat",
    "max_rhat": "worst R-hat",
    "not_mixing": f"share above {MIXES}",
    "ess_per_1000": "median ESS by 1000 gradients",
    "converged": "predictions converged",
    "acceptance": "acceptance",
    "gradients": "gradients",
    "log_score": "log score",
    "log_score_se": "± s.e.",
    "error": "error or RMSE",
}


def main(argv=None) -> None:
    given = parser(__doc__).parse_args(argv)
    study = Study(__file__, ["problem", "trajectory", "what", "chains"], given)
    names = list(SIZES[given.size])
    cells = [{"problem": n, "trajectory": t} for n in names for t in SIZES[given.size][n][-1]]
    study.run(
        cells, lambda problem, trajectory: one_run(given.size, given.data, problem, trajectory)
    )
    shown = [row for row in study.rows if row["scalars"]]
    rows = study.rows
    publish(study, shown, TABLE, findings(rows, names), lambda: draw(rows, names))


if __name__ == "__main__":
    main()
