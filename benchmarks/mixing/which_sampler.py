"""Which sampler, in which coordinates and with which moves, mixes best over a hierarchy of precisions?

Parameterisation × kernel × moves at equal numbers of gradients a chain, those of all rungs of a ladder.
Neither warm-up nor compilation is in the counts. A second table has runs with programs of one version.

    python -m benchmarks.mixing.which_sampler [--quick | --toy]
"""

import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import RHAT_LIMIT, publish, sampler, scores_of_chains, select
from benchmarks._shared.study import Results, Row, Study, begin, read_rows
from benchmarks.mixing.hierarchical_posteriors import (
    CHAINS,
    INTEGRATED,
    METHODS,
    Posterior,
    begin_at,
    functions,
    gradients_of,
    kernel_of,
    log_precisions,
    posterior,
)
from numpyro_bnn.diagnostics import summarize
from numpyro_bnn.plots.style import color_at, label_axes

# Gradients of warm-up, as a share of those counted.
WARMUP = 0.5
LADDERS = ("tempering, HMC, non-centred",)
# A second table, of runs with programs of one version: methods that the first has not, and two that it has.
ADDED = ("MCLMC, output integrated out", "MAMS, output integrated out", "MALA, non-centred")
AGAIN = ("MCLMC, non-centred", "MAMS, non-centred")
# Chains that never meet have one to two effective draws each, whatever the sampler. A posterior on which no
# method has ten a chain cannot tell methods apart.
MOVING = 10
SMALL = "MCLMC, non-centred, small steps"
NUTS = "NUTS, non-centred"
# Steps of optimisation: few, so that starts differ. On rdata, where the energy begins in the millions,
# microcanonical trajectories need more.
OPTIMISED = {"rdata": 2000, "digits": 200, "yacht": 200, "airfoil": 200}


class Size(NamedTuple):
    """Gradients a chain for each posterior; steps of a long trajectory; least warm-up; draws kept;
    rows; how many methods; posteriors and seeds of the second table."""

    gradients: dict[str, int]
    steps: int
    warmup: int
    draws: int
    rows: int
    methods: int | None
    added: tuple[str, ...]
    added_seeds: tuple[int, ...] = (0,)


SIZES = {
    "full": Size(
        {"rdata": 1_000_000, "digits": 20_000, "yacht": 100_000, "airfoil": 20_000},
        *(100, 200, 1000, 0, None, ("rdata", "digits"), (0, 1)),
    ),
    "quick": Size({"rdata": 4000, "yacht": 2000}, 50, 50, 100, 200, 6, ("yacht",)),
    "toy": Size({"yacht": 60}, 5, 8, 12, 30, 2, ("yacht",)),
}


def sampled(
    kernel: Any,
    given: Posterior,
    begin: Any,
    seed: int,
    size: Size,
    cost: float | None,
    budget: int,
):
    """A run of so many gradients a chain (`cost` a step, or what a short run counts), and its seconds."""
    x, y = given.split.x, given.split.y
    # What adapts its steps is taken to be as dear as a long trajectory.
    warmup = max(size.warmup, round(WARMUP * budget / (cost or size.steps)))
    mcmc = sampler(kernel, CHAINS, warmup, max(4, size.warmup // 10))
    mcmc.run(jax.random.key(seed), x, y, init_params=begin)
    state = mcmc.last_state
    if cost is None:
        cost = gradients_of(mcmc)
    mcmc.thinning = thinning = max(1, round(budget / cost / size.draws))
    draws = max(8, round(budget / cost / thinning))
    mcmc.num_samples = draws * thinning
    mcmc.post_warmup_state = state
    return mcmc, draws * thinning * cost, timed(mcmc, state.rng_key, x, y)


@functools.cache
def compiling() -> list[float]:
    """Seconds of every compilation from the first call on."""
    seconds: list[float] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


def timed(mcmc: bnn.MCMC, *args: Any) -> float:
    """Run; the seconds of it that were not spent on compilation."""
    before = sum(compiling())
    begin = time.perf_counter()
    mcmc.run(*args)
    jax.block_until_ready(mcmc.get_samples())
    return time.perf_counter() - begin - (sum(compiling()) - before)


def one(folder: Any, size: Size, problem: str, method: str, seed: int):
    """The row of a run."""
    given, budget = posterior(folder, problem, size.rows), size.gradients[problem]
    which = METHODS[method]
    cost = None if which.fixed is None else max(1.0, which.fixed * size.steps)
    kernel = kernel_of(which, given, size.steps)
    begin = begin_at(given, which.coordinates, seed, OPTIMISED[problem])
    mcmc, gradients, seconds = sampled(kernel, given, begin, seed, size, cost, budget)
    predictions = bnn.predict(None, mcmc, given.split.x_test)
    row: Row = {"gradients": gradients, "sampling_seconds": seconds}
    for label, values in (
        ("precisions", log_precisions(mcmc.get_samples(group_by_chain=True))),
        ("functions", functions(predictions.values)),
    ):
        found = summarize(values, tail=False)
        row |= {
            f"{label}_max_rhat": float(np.nanmax(found.rhat)),
            f"{label}_min_ess": float(np.nanmin(found.ess_bulk)),
            f"{label}_median_ess": float(np.nanmedian(found.ess_bulk)),
        }
        for kind in ("min", "median"):
            ess = row[f"{label}_{kind}_ess"]
            row[f"{label}_{kind}_by_1000"] = ess / (CHAINS * gradients) * 1000
            row[f"{label}_{kind}_by_second"] = ess / seconds
    by_chain = scores_of_chains(np.asarray(predictions.log_prob(given.split.y_test))).mean(1)
    row |= {"log_score": float(bnn.scores.lppd(predictions, given.split.y_test))}
    row |= {"best_chain": float(by_chain.max()), "worst_chain": float(by_chain.min())}
    yield row


def cells(size: Size):
    names = [name for name in METHODS if name not in ADDED]
    names = names[: size.methods]
    for problem in size.gradients:
        for method in names:
            # Their sweeps cost a hundred steps of all others, with as little warm-up.
            if method not in LADDERS or problem in ("rdata", "digits"):
                yield {"problem": problem, "method": method, "seed": 0}


def added_cells(size: Size):
    """Those of the second table."""
    for seed in size.added_seeds:
        for problem in size.added:
            for method in (*AGAIN, *ADDED):
                # Only Gaussian noise lets an output layer be integrated out.
                if METHODS[method].coordinates != INTEGRATED or problem != "digits":
                    yield {"problem": problem, "method": method, "seed": seed}


def worst_of_seeds(rows: list[Row]) -> list[Row]:
    """One row by posterior and method: the worst seed of every figure of mixing, and mean scores."""
    out = []
    for key in dict.fromkeys((r["problem"], r["method"]) for r in rows):
        same = select(rows, problem=key[0], method=key[1])
        row = dict(same[0])
        for name, value in same[0].items():
            if isinstance(value, str) or name == "seed":
                continue
            values = [r[name] for r in same]
            if "rhat" in name:
                row[name] = max(values)
            elif "_by_" in name or "ess" in name or name == "worst_chain":
                row[name] = min(values)
            else:
                row[name] = float(np.mean(values))
        out.append(row)
    return out


SEEDS = "which_sampler_seeds.csv"
MEDIANS = {
    "functions_max_rhat": "worst R-hat, functions",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "functions_min_by_1000": "effective draws by 1000 gradients, functions",
    "precisions_min_by_1000": "by 1000 gradients, log precisions",
}


def medians(rows: list[Row], best: int = 8) -> Iterator[Row]:
    """Medians over all runs of a method where chains move, the methods that mix best first."""
    for problem in informative(rows, "functions"):
        here = select(rows, problem=problem)
        found = []
        for method in dict.fromkeys(r["method"] for r in here):
            own = select(here, method=method)
            values = {
                name: float(np.median([r[name] for r in own if name in r])) for name in MEDIANS
            }
            found.append({"problem": problem, "method": method, "runs": len(own)} | values)
        found.sort(key=lambda row: row["functions_max_rhat"])
        for row in found[:best]:
            yield {MEDIANS.get(k, k): v for k, v in row.items()}


def all_runs(study: Study, second: Study) -> list[Row]:
    """Rows of both tables, and of the further seeds, whose first is a row of the first table, rounded."""
    seeds = study.folder / SEEDS
    more = read_rows(seeds)[1:] if seeds.is_file() else []
    return [*study.rows, *second.rows, *more]


def findings(rows: list[Row]) -> Iterator[str]:
    """Worst R-hats of functions where chains move, how far runs differ, and where no chains meet."""
    problems = informative(rows, "functions")
    told = {}
    for method in (
        "MCLMC, non-centred",
        NUTS,
        f"{NUTS}, accepting 0.8",
        "MAMS, non-centred",
        SMALL,
    ):
        for problem in problems:
            own = [r["functions_max_rhat"] for r in select(rows, problem=problem, method=method)]
            if own:
                text = f"{np.median(own):.2f} ({len(own)})"
                told.setdefault(method, []).append(text)
    names = {NUTS: f"{NUTS}, accepting 0.95"}
    yield "Median worst R-hat of functions on {} (number of runs): {}.".format(
        " and ".join(problems),
        "; ".join(f"{names.get(m, m)} {' and '.join(texts)}" for m, texts in told.items()),
    )
    for problem in dict.fromkeys(r["problem"] for r in rows):
        if problem not in problems:
            most = max(r["functions_min_ess"] for r in select(rows, problem=problem))
            yield f"{problem}: no chains meet; no method has above {most:.1f} effective draws of functions."


def informative(rows: list[Row], label: str) -> list[str]:
    """Posteriors on which the chains of some method move: its worst scalar has `MOVING` draws a chain."""
    least: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["problem"], row["method"]
        least[key] = min(least.get(key, np.inf), row.get(f"{label}_min_ess", np.inf))
    most: dict[str, float] = {}
    for (problem, _), value in least.items():
        most[problem] = max(most.get(problem, 0.0), value)
    return [name for name, value in most.items() if value >= MOVING * CHAINS]


def draw(rows: list[Row]):
    shown = worst_of_seeds(rows)
    names = list(dict.fromkeys(r["problem"] for r in shown))
    methods = list(dict.fromkeys(r["method"] for r in shown))[::-1]
    figure, axes = plt.subplots(
        1,
        len(names),
        figsize=(3 + 2.8 * len(names), 1.5 + 0.33 * len(methods)),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for ax, name in zip(axes[0], names):
        for i, (label, marker) in enumerate((("precisions", "s"), ("functions", "o"))):
            here = select(shown, problem=name)
            at = [methods.index(r["method"]) for r in here]
            excess = [max(r[f"{label}_max_rhat"] - 1, 1e-3) for r in here]
            ax.plot(excess, at, marker, color=color_at(ax, i), label=label)
        ax.axvline(RHAT_LIMIT - 1, color="0.5", linestyle=":", linewidth=1)
        ax.set_xscale("log")
        ax.set_title(name, fontsize=10)
        label_axes(ax, "worst R-hat – 1", "")
    axes[0][0].set_yticks(range(len(methods)), methods)
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


TABLE = {
    "problem": "posterior",
    "method": "method",
    "gradients": "gradients a chain",
    "sampling_seconds": "seconds",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "functions_max_rhat": "worst R-hat, functions",
    "precisions_min_by_1000": "worst ESS of log precisions by 1000 gradients",
    "functions_min_by_1000": "of functions",
    "functions_median_by_1000": "median",
    "precisions_min_by_second": "worst ESS of log precisions by second",
    "functions_min_by_second": "of functions, by second",
    "log_score": "log score",
    "best_chain": "best chain",
    "worst_chain": "worst chain",
}


def main(argv=None) -> None:
    study, given, size = begin(__file__, __doc__, ("problem", "method", "seed"), SIZES, argv)
    study.run(cells(size), functools.partial(one, given.data, size))
    second = Study(__file__, ["problem", "method", "seed"], given, part="added")
    second.run(added_cells(size), functools.partial(one, given.data, size))
    every = all_runs(study, second)
    publish(study, worst_of_seeds(study.rows), TABLE, findings(every), lambda: draw(study.rows))
    publish(second, worst_of_seeds(second.rows), TABLE, [], lambda: draw(second.rows))
    Results(__file__, given, "medians").report(list(medians(every)))


if __name__ == "__main__":
    main()
