"""Which sampler, in which coordinates and with which moves, mixes best over a hierarchy of precisions?

Parameterisation × kernel × moves at equal numbers of gradients a chain, four chains. The posteriors:

- *rdata*: Neal's 1-8-1 network on 100 rows, with his priors (`benchmarks.neal.posteriors`), where a
  mode of mass 0.04 and narrow tails are missed easily;
- *digits*: 64-16-10, Gamma(1, 1) precisions for each array;
- *yacht* and *airfoil*: 16-16 relu networks, precisions around the scales of fan-in, noise with a
  precision.

Printed and stored, by posterior and method: worst R-hat of the log precisions and of the functions at
test rows (logits, means); effective draws of both by 1000 gradients and by second, of the worst scalar
and of the median one; log score, and that of the best and of the worst chain alone, which tell how
far chains are apart. Warm-up gets half as many gradients again, and 200 steps of the kernel at least;
neither it nor compilation is in the counts.
Runs of one method differ by up to a factor of 29 in effective draws, so that one run of each decides little.

A second table has runs with programs of one version: MCLMC and MAMS with the output layer integrated out and
without, and MALA.

    python -m benchmarks.mixing.which_sampler [--quick | --toy] [--data FOLDER] [--output FOLDER]

The kernels and moves are cited where the library has them. Tempering counts the gradients of all rungs.
"""

import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import (
    RHAT_LIMIT,
    publish,
    sampler,
    scores_of_chains,
    select,
)
from benchmarks._shared.study import Row, Study, parser
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
# Steps of optimisation: few, so that starts differ. On rdata, where the energy begins in the millions,
# microcanonical trajectories need more.
OPTIMISED = {"rdata": 2000, "digits": 200, "yacht": 200, "airfoil": 200}


class Size(NamedTuple):
    """Gradients a chain for each posterior; seeds; steps of a long trajectory; least warm-up; draws kept;
    rows; how many methods; posteriors and seeds of the second table."""

    gradients: dict[str, int]
    seeds: tuple[int, ...]
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
        *((0,), 100, 200, 1000, 0, None, ("rdata", "digits"), (0, 1)),
    ),
    "quick": Size({"rdata": 4000, "yacht": 2000}, (0,), 50, 50, 100, 200, 6, ("yacht",)),
    "toy": Size({"yacht": 60}, (0,), 5, 8, 12, 30, 2, ("yacht",)),
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
    """A run of as many gradients a chain as asked for, its gradients and its seconds.

    :param begin: where chains begin.
    :param cost: gradients a step of the kernel; None: what a short run of it counts.
    """
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
    for seed in size.seeds:
        for problem in size.gradients:
            for method in names:
                # Their sweeps cost a hundred steps of all others, with as little warm-up.
                if method in LADDERS and problem not in ("rdata", "digits"):
                    continue
                yield {"problem": problem, "method": method, "seed": seed}


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


def findings(rows: list[Row]):
    """Who is ahead where, and who is ahead where it is worst."""
    shown = worst_of_seeds(rows)
    names = list(dict.fromkeys(r["problem"] for r in shown))
    for name in names:
        here = select(shown, problem=name)
        for label in ("precisions", "functions"):
            best = min(here, key=lambda r: r[f"{label}_max_rhat"])
            most = max(here, key=lambda r: r[f"{label}_min_by_1000"])
            fast = max(here, key=lambda r: r[f"{label}_min_by_second"])
            yield (
                f"{name}, {label}: least worst R-hat {best[f'{label}_max_rhat']:.3f} "
                f"({best['method']}); most effective draws of the worst scalar by 1000 gradients "
                f"{most[f'{label}_min_by_1000']:.3f} ({most['method']}), by second "
                f"{fast[f'{label}_min_by_second']:.3f} ({fast['method']})."
            )
    for label in ("precisions", "functions"):
        names = informative(rows, label)
        for unit in ("1000", "second") if names else ():
            found = shares(rows, label, unit)
            listed = ", ".join(f"{m} {share:.2f}" for m, share in list(found.items())[:4])
            yield (
                f"Worst case over {' and '.join(names)}, {label}, by {unit}"
                f"{' gradients' if unit == '1000' else ''}, share of the best method: {listed}."
            )
    for target, nuts in (
        ("0.95", "NUTS, non-centred"),
        ("0.8", "NUTS, non-centred, accepting 0.8"),
    ):
        for name in informative(rows, "precisions") if nuts in {r["method"] for r in shown} else ():
            ratios = times(rows, name, SMALL, nuts)
            if ratios:
                yield (
                    f"{name}: MCLMC with small steps has {ratios[0]:.1f} (precisions) and "
                    f"{ratios[1]:.1f} (functions) times the effective draws by gradient of NUTS that "
                    f"accepts {target}."
                )


def informative(rows: list[Row], label: str) -> list[str]:
    """Posteriors on which the chains of some method move: its worst scalar has `MOVING` draws a chain."""
    most: dict[str, float] = {}
    for row in worst_of_seeds(rows):
        most[row["problem"]] = max(most.get(row["problem"], 0.0), row[f"{label}_min_ess"])
    return [name for name, ess in most.items() if ess >= MOVING * CHAINS]


def shares(rows: list[Row], label: str, unit: str) -> dict[str, float]:
    """Effective draws of the worst scalar relative to the best method's, where that is least.

    Over the posteriors that can tell methods apart, and for the methods that ran on all of them; the
    largest share comes first.
    """
    shown, column = worst_of_seeds(rows), f"{label}_min_by_{unit}"
    names = informative(rows, label)
    best = {name: max(r[column] for r in select(shown, problem=name)) for name in names}
    found = {}
    for method in dict.fromkeys(r["method"] for r in shown):
        own = [select(shown, problem=name, method=method) for name in names]
        if names and all(own):
            found[method] = min(row[column] / best[row["problem"]] for (row,) in own)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def times(rows: list[Row], problem: str, method: str, other: str) -> tuple[float, float] | None:
    """Effective draws by gradient over those of another method: of log precisions, of functions."""
    shown = worst_of_seeds(rows)
    both = [select(shown, problem=problem, method=name) for name in (method, other)]
    if not all(both):
        return None
    columns = ("precisions_min_by_1000", "functions_min_by_1000")
    first, second = (both[0][0][c] / both[1][0][c] for c in columns)
    return first, second


def draw(rows: list[Row]):
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

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
    asked = parser(__doc__).parse_args(argv)
    size = SIZES[asked.size]
    study = Study(__file__, ["problem", "method", "seed"], asked)
    study.run(cells(size), functools.partial(one, asked.data, size))
    publish(
        study, worst_of_seeds(study.rows), TABLE, findings(study.rows), lambda: draw(study.rows)
    )
    second = Study(__file__, ["problem", "method", "seed"], asked, part="added")
    second.run(added_cells(size), functools.partial(one, asked.data, size))
    publish(second, worst_of_seeds(second.rows), TABLE, [], lambda: draw(second.rows))


if __name__ == "__main__":
    main()
