"""What does integrating the output layer out cost, and what does it gain?

Two tables. *Cost*: seconds of an energy and its gradient for a relu network with one hidden layer of H
units on n rows, of the model as it is and with its output layer integrated out, interleaved, in single
precision; and how far the integrated energy in single precision is from the one in double, in nats.
*Mixing*: the 16-16 relu posteriors of `hard_posteriors` by MCLMC at its default, four chains from
`optimize`, the same gradients, in three coordinate systems: the worst and the median R-hat of functions
at test rows, that of the log precisions, and the log score of each chain alone.

    XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m benchmarks.mixing.integrated_output
        [--problems NAME …] [--seeds N] [--quick | --toy] [--data FOLDER] [--output FOLDER]
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import publish, scores_of_chains, select, starts
from benchmarks._shared.study import Study, every_cell, parser
from benchmarks._shared.words import span
from benchmarks.mixing.hierarchical_posteriors import (
    CHAINS,
    Posterior,
    functions,
    log_precisions,
    posterior,
)
from numpyro_bnn.diagnostics import summarize
from numpyro_bnn.plots.style import color_at, label_axes

TEST_ROWS = 200
COORDINATES = {
    "as it is, non-centred": lambda model: model,
    "output layer integrated out": bnn.integrate_output,
    "precisions integrated out": lambda model: bnn.parameterize(model, "collapsed"),
}


class Size(NamedTuple):
    """Rows and hidden units of the cost; repeats; posteriors, draws and gradients to a draw; rows."""

    rows: tuple[int, ...]
    hidden: tuple[int, ...]
    repeats: int
    problems: tuple[str, ...]
    seeds: int
    draws: int
    thinning: int
    limit: int


SIZES = {
    "full": Size(
        (100, 1000, 10_000, 50_000), (8, 32, 128, 256), 7, ("yacht", "airfoil"), 1, 500, 300, 0
    ),
    "quick": Size((100, 1000), (8, 32), 3, ("yacht",), 1, 100, 50, 100),
    "toy": Size((50,), (4,), 1, ("yacht",), 1, 8, 5, 30),
}


# -- cost --------------------------------------------------------------------------------------


def plain_model(hidden: int):
    prior = bnn.priors.Hierarchical(1.0, 1.0)

    def model(x: Any, y: Any = None) -> None:
        net = bnn.random_module("net", bnn.MLP((hidden,), 1, jax.nn.relu), prior, x[:1])
        noise = bnn.likelihoods.Precision.width(0.1, common=0.5)
        bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=noise)

    return model


def programs(model: Any, x: np.ndarray, y: np.ndarray):
    """A compiled energy with its gradient, and values to call it with."""
    potential = bnn.potential_of(model, x, y)
    z = potential.unconstrain(jax.jit(potential.prior_draw)(jax.random.key(0)))
    return jax.jit(jax.value_and_grad(potential)), z


def cost(rows: int, hidden: int, repeats: int):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8)).astype(np.float32)
    y = (np.sin(x[:, 0]) + 0.1 * rng.normal(size=rows)).astype(np.float32)
    model = plain_model(hidden)
    both = [programs(model, x, y), programs(bnn.integrate_output(model), x, y)]
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for kept, (program, z) in zip(seconds, both):
            begin = time.perf_counter()
            jax.block_until_ready(program(z))
            kept.append(time.perf_counter() - begin)
    plain, integrated = (float(np.median(kept[1:])) for kept in seconds)
    program, z = both[1]
    single = float(program(z)[0])
    with jax.enable_x64(True):
        exact = bnn.potential_of(bnn.integrate_output(model), x.astype(float), y.astype(float))
        double = float(jax.jit(exact)({name: jnp.asarray(v, float) for name, v in z.items()}))
    yield {
        "plain_ms": 1000 * plain,
        "integrated_ms": 1000 * integrated,
        "ratio": integrated / plain,
        "energy": double,
        "error_nats": abs(single - double),
    }


# -- mixing ------------------------------------------------------------------------------------


def mixing(given: Posterior, coordinates: str, seed: int, size: Size):
    x, y = given.split.x, given.split.y
    x_test, y_test = given.split.x_test[:TEST_ROWS], given.split.y_test[:TEST_ROWS]
    model = COORDINATES[coordinates](given.model)
    # Of an integrated layer there is nothing to start: it is drawn.
    latent = bnn.potential_of(model, x, y).structure.latent
    begin = starts(given.model, given.split, seed, CHAINS, 200)
    if coordinates == "output layer integrated out":
        begin = {name: value for name, value in begin.items() if name in latent}
    mcmc = bnn.MCMC(
        bnn.MCLMC(model),
        num_warmup=size.draws * size.thinning // 3,
        num_samples=size.draws * size.thinning,
        thinning=size.thinning,
        num_chains=CHAINS,
        progress_bar=False,
    )
    clock = time.perf_counter()
    mcmc.run(jax.random.key(seed), x, y, init_params=begin)
    run_seconds = time.perf_counter() - clock
    predictions = bnn.predict(None, mcmc, x_test)
    of_functions = summarize(functions(predictions.values), tail=False).rhat
    of_precisions = summarize(
        log_precisions(mcmc.get_samples(group_by_chain=True)), tail=False
    ).rhat
    own = scores_of_chains(np.asarray(predictions.log_prob(y_test), np.float64))
    yield {
        "gradients": size.draws * size.thinning * 4 // 3,
        "run_seconds": run_seconds,
        "functions_max_rhat": float(np.nanmax(of_functions)),
        "functions_median_rhat": float(np.nanmedian(of_functions)),
        "precisions_max_rhat": float(np.nanmax(of_precisions)),
        "precisions_median_rhat": float(np.nanmedian(of_precisions)),
        "log_scores_of_chains": " ".join(f"{v:.3f}" for v in own.mean(1)),
        "suspect": len(mcmc.suspect) + len(mcmc.left_out),
    }


COST_TABLE = {
    "rows": "rows",
    "hidden": "hidden units",
    "plain_ms": "as it is, ms",
    "integrated_ms": "integrated, ms",
    "ratio": "ratio",
    "energy": "energy, nats",
    "error_nats": "error of single precision, nats",
}
MIXING_TABLE = {
    "problem": "posterior",
    "coordinates": "coordinates",
    "seed": "seed",
    "gradients": "gradients a chain",
    "run_seconds": "seconds",
    "functions_max_rhat": "worst R-hat, functions",
    "functions_median_rhat": "median",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "precisions_median_rhat": "median, log precisions",
    "log_scores_of_chains": "log score of each chain",
}


def draw_cost(rows):
    figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for i, hidden in enumerate(sorted({r["hidden"] for r in rows})):
        here = sorted(select(rows, hidden=hidden), key=lambda r: r["rows"])
        xs, ys = [r["rows"] for r in here], [r["ratio"] for r in here]
        ax.plot(xs, ys, "o-", color=color_at(ax, i), label=f"{hidden:g} hidden units")
    ax.set_xscale("log")
    ax.set_yscale("log")
    label_axes(ax, "rows", "cost of a gradient, integrated / as it is")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def draw_mixing(rows):
    names = list(dict.fromkeys(r["problem"] for r in rows))
    figure, axes = plt.subplots(
        1, len(names), figsize=(1 + 3.4 * len(names), 3.6), layout="constrained", squeeze=False
    )
    labels = {
        "functions_max_rhat": "functions, worst",
        "functions_median_rhat": "functions, median",
        "precisions_max_rhat": "log precisions, worst",
    }
    for ax, name in zip(axes[0], names):
        for i, coordinates in enumerate(COORDINATES):
            for row in select(rows, problem=name, coordinates=coordinates):
                excess = [row[key] - 1 for key in labels]
                ax.plot(
                    range(len(labels)),
                    excess,
                    "o-",
                    color=color_at(ax, i),
                    label=coordinates if row["seed"] == 0 else None,
                )
        ax.set_xticks(range(len(labels)), list(labels.values()), rotation=20, ha="right")
        ax.set_yscale("log")
        ax.set_title(name, fontsize=10)
        label_axes(ax, "", "R-hat – 1")
        ax.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.35))
    return figure


def findings(costs, mixed):
    """What a gradient costs with the output layer integrated out, and how chains mix."""
    if costs:
        yield (
            f"A gradient costs {span([r['ratio'] for r in costs], 1)} times that of the model as it is; "
            f"single precision is at most {max(r['error_nats'] for r in costs):.2g} nats off."
        )
    for problem in dict.fromkeys(row["problem"] for row in mixed):
        told = ", ".join(
            f"{r['coordinates']} {r['functions_median_rhat']:.2f} and {r['precisions_max_rhat']:.2f}"
            for r in mixed
            if r["problem"] == problem
        )
        yield f"{problem}, median R-hat of functions and worst of log precisions: {told}."


def main(argv=None) -> None:
    made = parser(__doc__)
    made.add_argument("--problems", nargs="*", help="posteriors of the mixing (default: all)")
    made.add_argument("--seeds", type=int, help="runs of each (default: 1)")
    asked = made.parse_args(argv)
    size = SIZES[asked.size]
    problems = size.problems if asked.problems is None else tuple(asked.problems)
    costs = Study(__file__, ["rows", "hidden"], asked, "cost")
    costs.run(
        every_cell(rows=size.rows, hidden=size.hidden),
        lambda rows, hidden: cost(rows, hidden, size.repeats),
    )
    publish(costs, costs.rows, COST_TABLE, findings(costs.rows, []), lambda: draw_cost(costs.rows))
    mixed = Study(__file__, ["problem", "coordinates", "seed"], asked, "mixing")
    mixed.run(
        every_cell(
            seed=range(asked.seeds or size.seeds), problem=problems, coordinates=COORDINATES
        ),
        lambda problem, coordinates, seed: mixing(
            posterior(asked.data, problem, size.limit), coordinates, seed, size
        ),
    )
    if mixed.rows:
        publish(
            mixed,
            mixed.rows,
            MIXING_TABLE,
            findings([], mixed.rows),
            lambda: draw_mixing(mixed.rows),
        )


if __name__ == "__main__":
    main()
