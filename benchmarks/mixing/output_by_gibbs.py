"""Does a classifier's output layer mix better where a Gibbs step draws it?

Non-centred HMC with the moves of precisions, and the same with `moves.OutputLayerGibbs` before them: after
every trajectory the output layer is drawn from its exact conditional by Pólya-Gamma augmentation. Four chains
from `optimize`, on a softmax of ten classes (digits, 64-16-10) and a binary network (breast cancer, 30-8-1),
both with hierarchical precisions. The warm-up and a run after it are thrown away; a run as long, which goes
on from there in a program that is compiled, is timed and judged: at equal gradients, and the dearer one cut
at the seconds of the other.

    python -m benchmarks.mixing.output_by_gibbs [--problems NAME …] [--seeds N] [--quick | --toy]
        [--data FOLDER] [--output FOLDER]
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer import HMC
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks._shared.sampled_runs import publish, sampler, select, starts
from benchmarks._shared.study import Row, Study, parser
from benchmarks._shared.words import span
from benchmarks.mixing.hierarchical_posteriors import (
    CHAINS,
    Posterior,
    functions,
    log_precisions,
    posterior,
    rhat_columns,
)
from numpyro_bnn import moves
from numpyro_bnn.diagnostics import summarize

TEST_ROWS = 100
PROBLEMS = ("breast cancer", "digits")
WITH, WITHOUT = "with the Gibbs step", "without"


class Size(NamedTuple):
    """Trajectories of warm-up and of each run, by problem; steps of one; seeds; rows of breast cancer."""

    warmup: dict[str, int]
    draws: dict[str, int]
    steps: int
    seeds: int
    rows: int


SIZES = {
    "full": Size(
        {"breast cancer": 1000, "digits": 500}, {"breast cancer": 4000, "digits": 1500}, 20, 2, 0
    ),
    "quick": Size(dict.fromkeys(PROBLEMS, 50), dict.fromkeys(PROBLEMS, 60), 10, 1, 200),
    "toy": Size(dict.fromkeys(PROBLEMS, 4), dict.fromkeys(PROBLEMS, 12), 2, 1, 30),
}


def problem_of(name: str, folder: Any, rows: int) -> Posterior:
    """The model and its data; of breast cancer at most so many rows (0: all)."""
    if name == "digits":
        return posterior(folder, "digits", 0)
    cancer = load_breast_cancer()
    x, x_test, y, y_test = train_test_split(
        cancer.data, cancer.target, test_size=0.2, random_state=0
    )
    shift, unit = x.mean(0), x.std(0)
    x, x_test = (np.float32((part - shift) / unit) for part in (x, x_test))
    prior = bnn.priors.Hierarchical(1.0, 1.0)

    def model(x: Any, y: Any = None) -> None:
        net = bnn.random_module("net", MLPByFeatures((8,), 1), prior, x[:1])
        bnn.likelihoods.bernoulli(lambda some: net(some).squeeze(-1), y, x=x)

    parts = (x[: rows or None], y[: rows or None], x_test, y_test)
    return Posterior(model, data_sets.Split(*parts), 0)


def judged(draws: dict[str, Any], values: Any, count: int, seconds: float) -> Row:
    """R-hat of functions and log precisions over the first draws, and effective draws a second."""
    kept = {name: np.asarray(value)[:, :count] for name, value in draws.items()}
    row: Row = {"draws": count, "run_seconds": seconds}
    row |= rhat_columns(functions(values)[:, :count], log_precisions(kept))
    for layer, name in (("first", "Dense_0"), ("output", "Dense_1")):
        own = log_precisions({n: v for n, v in kept.items() if name in n})
        least = float(np.nanmin(summarize(own, tail=False).ess_bulk))
        row[f"{layer}_ess"] = least
        row[f"{layer}_ess_per_second"] = least / seconds
    return row


def runs(name: str, seed: int, folder: Any, size: Size) -> Iterator[Row]:
    """Both kernels at equal gradients, then the dearer one cut at the seconds of the other."""
    given = problem_of(name, folder, size.rows)
    x, y = given.split.x, given.split.y
    begin = starts(given.model, given.split, seed, CHAINS, 200)
    found = {}
    for method in (WITHOUT, WITH):
        kernel = HMC(
            given.model, num_steps=size.steps, trajectory_length=None, target_accept_prob=0.9
        )
        between: list[Any] = [moves.RidgeScaling(), moves.PrecisionRedraw()]
        if method == WITH:
            between.insert(0, moves.OutputLayerGibbs())
        mcmc = sampler(
            moves.Interleaved(kernel, between), CHAINS, size.warmup[name], size.draws[name]
        )
        mcmc.run(jax.random.key(seed), x, y, init_params=begin)
        # The first run without warm-up compiles its program.
        for _ in range(2):
            mcmc.post_warmup_state = mcmc.last_state
            clock = time.perf_counter()
            mcmc.run(mcmc.last_state.rng_key, x, y)
            jax.block_until_ready(mcmc.last_state)
            seconds = time.perf_counter() - clock
        values = bnn.predict(None, mcmc, given.split.x_test[:TEST_ROWS]).values
        found[method] = (mcmc.get_samples(group_by_chain=True), values, seconds)
    least = min(seconds for *_, seconds in found.values())
    for equal in ("gradients", "seconds"):
        for method, (draws, values, seconds) in found.items():
            count = size.draws[name]
            if equal == "seconds":
                count, seconds = max(4, int(count * least / seconds)), least
            row = {"equal": equal, "method": method, "gradients": count * size.steps}
            yield row | judged(draws, values, count, seconds)


def findings(rows: list[Row]) -> Iterator[str]:
    """Effective draws a second of the slowest precision with the step over those without it."""
    for equal in dict.fromkeys(row["equal"] for row in rows):
        ratios: dict[str, list[float]] = {"output_ess_per_second": [], "first_ess_per_second": []}
        times = []
        for own in select(rows, equal=equal, method=WITH):
            (base,) = select(
                rows, equal=equal, method=WITHOUT, problem=own["problem"], seed=own["seed"]
            )
            for name, found in ratios.items():
                found.append(own[name] / base[name])
            times.append(own["run_seconds"] / base["run_seconds"])
        output, first = ratios.values()
        yield (
            f"At equal {equal} the Gibbs step gives {span(output, 1)} times the effective draws a second of "
            f"the slowest precision of the output layer. In the first layer it is {span(first, 1)} times"
            + (f", at {span(times, 1)} times the seconds." if equal == "gradients" else ".")
        )


def draw(rows: list[Row]) -> Any:
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    names = list(dict.fromkeys(r["problem"] for r in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(1 + 3.2 * len(names), 3.2), layout="constrained", squeeze=False
    )
    keys = {"output_ess_per_second": "output layer", "first_ess_per_second": "first layer"}
    for ax, name in zip(axes[0], names):
        for i, method in enumerate((WITHOUT, WITH)):
            for row in select(rows, problem=name, method=method, equal="gradients"):
                label = method if row["seed"] == 0 else None
                ax.plot([0, 1], [row[k] for k in keys], "o-", color=color_at(ax, i), label=label)
        ax.set_xticks([0, 1], list(keys.values()))
        ax.set_xlim(-0.4, 1.4)
        ax.set_yscale("log")
        ax.set_title(name, fontsize=10)
        label_axes(ax, "", "effective draws a second")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


TABLE = {
    "problem": "posterior",
    "equal": "equal",
    "method": "output layer",
    "seed": "seed",
    "gradients": "gradients a chain",
    "run_seconds": "seconds",
    "functions_max_rhat": "worst R-hat, functions",
    "functions_median_rhat": "median",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "output_ess_per_second": "effective draws a second, slowest precision of the output layer",
    "first_ess_per_second": "of the first layer",
}


def main(argv: Any = None) -> None:
    made = parser(__doc__)
    made.add_argument("--problems", nargs="+", choices=PROBLEMS, default=PROBLEMS)
    made.add_argument("--seeds", type=int, help="runs of each (default: 2)")
    asked = made.parse_args(argv)
    size = SIZES[asked.size]
    study = Study(__file__, ["problem", "seed"], asked)
    study.run(
        (
            {"problem": name, "seed": seed}
            for name in asked.problems
            for seed in range(asked.seeds or size.seeds)
        ),
        lambda problem, seed: runs(problem, seed, asked.data, size),
    )
    publish(study, study.rows, TABLE, findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
