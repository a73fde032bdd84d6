"""What do hundreds of chains on one wide machine know of the hard posteriors of yacht and airfoil?

The 16-16 relu networks with precisions of `hard_posteriors`, the output layer integrated out, all chains in
one program on one device:

- a ladder of 33 rungs with 64 replicas, HMC of 64 steps;
- MCLMC with 512 chains, each from a trained network of its own.

After every doubling of the number of draws: R-hat of functions at test rows and of log precisions over all
chains; and what many chains know that four do not, the average over all of them. Its Monte Carlo error is
the spread of the chains' own averages over the root of their number, which needs no chain to mix, only that
the average over chains no longer drifts: so the averages of the first and of the second half of the draws
are compared, in joint errors, and so are the two methods with each other.

A first table has the cost: milliseconds of an energy with its gradient for all rungs and replicas at once,
of the model as it is and with the layer integrated out, in single and in double precision. A second one has
what a checkpoint of all these states takes, and whether a ladder that goes on from its last checkpoint but
one ends with the same draws, bit for bit, as the one that was not stopped.

    python -m benchmarks.mixing.many_chains [--minutes 5] [--problems NAME …] [--methods NAME …]
        [--quick | --toy] [--data FOLDER] [--output FOLDER]

For a GPU: `JAX_DEFAULT_MATMUL_PRECISION=highest`, or products of single precision are rounded to TF32.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import publish, scores_of_chains, select
from benchmarks._shared.study import Row, Study, as_text, parser, without
from benchmarks._shared.words import number
from benchmarks.mixing import hard_posteriors, hierarchical_posteriors
from benchmarks.mixing.hard_posteriors import Found, by_all_chains, judged
from benchmarks.mixing.hierarchical_posteriors import (
    INTEGRATED,
    Posterior,
    begin_at,
    hmc,
    in_coordinates,
    ladder_columns,
    posterior,
)
from benchmarks.mixing.ladders import ladders_of, record_of

LADDER, MCLMC = "ladder, output integrated out", "MCLMC, output integrated out"
COST, RESUMED = "cost of a gradient", "a ladder that is resumed"


class Size(NamedTuple):
    """What is run.

    - **problems** - posteriors
    - **minutes** - of every run, at least
    - **rungs**, **replicas**, **steps** - of the ladder, and of its trajectories
    - **sweeps** - of its warm-up, and of a piece
    - **chains** - of MCLMC
    - **warmup**, **draws**, **thinning** - steps of its warm-up; draws of a piece, and steps to each
    - **rows** - of the table at most (0: all)
    - **repeats** - of the cost
    """

    problems: tuple[str, ...]
    minutes: float
    rungs: int
    replicas: int
    steps: int
    sweeps: tuple[int, int]
    chains: int
    warmup: int
    draws: int
    thinning: int
    rows: int
    repeats: int


SIZES = {
    "full": Size(("yacht", "airfoil"), 5.0, 33, 64, 64, (200, 50), 512, 10_000, 50, 200, 0, 20),
    "quick": Size(("yacht",), 0.5, 8, 4, 16, (40, 20), 8, 500, 20, 20, 100, 3),
    "toy": Size(("yacht",), 0.01, 4, 2, 4, (8, 8), 2, 20, 8, 5, 30, 1),
}


def cost(given: Posterior, size: Size) -> Iterator[Row]:
    """Milliseconds of an energy and its gradient at all rungs and replicas, in both precisions."""
    number = size.rungs * size.replicas
    for label, coordinates in (("as it is", "noncentered"), (INTEGRATED, INTEGRATED)):
        model = in_coordinates(given.model, coordinates)
        for bits in (32, 64):
            with jax.enable_x64(bits == 64):
                data = tuple(np.asarray(v, f"float{bits}") for v in given.split[:2])
                potential = bnn.potential_of(model, *data)
                program = jax.jit(jax.vmap(jax.value_and_grad(potential)))
                one = potential.unconstrain(jax.jit(potential.prior_draw)(jax.random.key(0)))
                z = {
                    name: jnp.asarray(v, f"float{bits}")
                    + 0.01
                    * jax.random.normal(jax.random.key(1), (number, *v.shape), f"float{bits}")
                    for name, v in one.items()
                }
                jax.block_until_ready(program(z))
                seconds = []
                for _ in range(size.repeats):
                    begin = time.perf_counter()
                    jax.block_until_ready(program(z))
                    seconds.append(time.perf_counter() - begin)
            yield {"coordinates": label, "bits": bits, "milliseconds": 1000 * np.median(seconds)}


def resumed(given: Posterior, size: Size) -> Iterator[Row]:
    """A ladder with four checkpoints; and the same from the third on, when the fourth is gone."""
    model = in_coordinates(given.model, INTEGRATED)
    every = size.sweeps[1] // 4
    begin = begin_at(given, INTEGRATED, 0, 200, size.replicas)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"

        def sampler() -> bnn.MCMC:
            return bnn.MCMC(
                bnn.ParallelTempering(model, hmc(model, size.steps), num_rungs=size.rungs),
                num_warmup=2 * every,
                num_samples=2 * every,
                num_chains=size.replicas,
                chain_method="vectorized",
                checkpoint=checkpoint,
                checkpoint_every=every,
                progress_bar=False,
            )

        whole, data = sampler(), given.split[:2]
        seconds = [time.perf_counter()]
        whole.run(jax.random.key(0), *data, init_params=begin)
        seconds.append(time.perf_counter())
        steps = sorted((checkpoint / "steps").iterdir(), key=lambda path: int(path.name))
        held = sum(f.stat().st_size for f in steps[-1].rglob("*") if f.is_file())
        shutil.rmtree(steps[-1])
        again = sampler()
        again.resume(*data)
        seconds.append(time.perf_counter())
        draws, others = (m.get_samples(group_by_chain=True) for m in (whole, again))
        same = all(np.array_equal(draws[name], others[name]) for name in draws)
    yield {
        "replicas": size.replicas,
        "rungs": size.rungs,
        "sweeps": 4 * every,
        "checkpoint_megabytes": held / 2**20,
        "run_seconds": seconds[1] - seconds[0],
        "resumed_seconds": seconds[2] - seconds[1],
        "same_draws": "yes" if same else "no",
    }


def known(found: Found) -> Row:
    """The average over chains and draws, its error in posterior standard deviations, and its drift."""
    row: Row = {}
    for label, values in (("functions", found.functions), ("precisions", found.precisions)):
        chains, draws = values.shape[:2]
        spread = values.std((0, 1))
        errors = values.mean(1).std(0, ddof=1) / math.sqrt(chains)
        halves = values[:, : draws // 2].mean(1), values[:, draws // 2 :].mean(1)
        # By chain, so that what both halves share is no part of the error.
        change = halves[1] - halves[0]
        drift = change.mean(0) / (change.std(0, ddof=1) / math.sqrt(chains))
        row |= {
            f"{label}_error": float((errors / spread).max()),
            f"{label}_drift": float(np.abs(drift).max()),
            f"{label}_drift_median": float(np.median(np.abs(drift))),
            f"{label}_drift_in_sd": float((np.abs(change.mean(0)) / spread).max()),
            f"{label}_mean": as_text(values.mean((0, 1))),
            f"{label}_se": as_text(errors),
        }
    own = scores_of_chains(found.log_prob)
    row["log_score"] = float(by_all_chains(own).mean())
    row["log_score_of_a_chain"] = float(own.mean())
    row["log_score_of_the_worst"] = float(own.mean(1).min())
    return row


ONLY_LADDERS = ("log_evidence", "log_evidence_error", *hierarchical_posteriors.LADDER)


def of_ladder(records: list[dict[str, np.ndarray]], sweeps: int) -> Row:
    """What replicas tell: the log of their average evidence, nats, and that average's relative error."""
    found = ladders_of(records)
    logs = np.asarray(found.log_evidence, np.float64)
    weights = np.exp(logs - logs.max())
    row = {
        "log_evidence": float(logs.max() + math.log(weights.mean())),
        "log_evidence_error": float(weights.std(ddof=1) / weights.mean() / math.sqrt(len(logs))),
    }
    return row | ladder_columns(found, sweeps)


def run(given: Posterior, method: str, size: Size) -> Iterator[Row]:
    """A row at every doubling of the number of pieces, and at the end."""
    model = in_coordinates(given.model, INTEGRATED)
    if method == LADDER:
        kernel: Any = bnn.ParallelTempering(model, hmc(model, size.steps), num_rungs=size.rungs)
        warmup, draws = size.sweeps
        chains, thinning = size.replicas, 1
        gradients = draws * size.steps * (size.rungs - 1)
    else:
        kernel = bnn.MCLMC(model)
        warmup, draws, thinning = size.warmup // size.thinning, size.draws, size.thinning
        chains, gradients = size.chains, draws * thinning
    begin = begin_at(given, INTEGRATED, 0, 200, chains)
    settings = hard_posteriors.Size((), 0.0, warmup, draws, size.steps, size.rows)
    parts, records = [], []
    pieces = hard_posteriors.pieces(
        kernel, given, settings, thinning, begin, num_chains=chains, chain_method="vectorized"
    )
    for piece, (part, mcmc, seconds) in enumerate(pieces, 1):
        parts.append(part)
        if method == LADDER:
            records.append(record_of(mcmc))
        done = seconds > 60 * size.minutes
        if not done and piece & (piece - 1):
            continue
        found = hard_posteriors.joined(parts)
        row = {"draws": piece * draws, "gradients": piece * gradients, "run_seconds": seconds}
        row |= {"chains": len(found.functions)} | judged(found, piece * gradients) | known(found)
        ladder = of_ladder(records, piece * draws) if records else dict.fromkeys(ONLY_LADDERS, "")
        yield row | ladder
        if done:
            return


def findings(rows: list[Row]) -> Iterator[str]:
    """How far chains agree after the minutes of each run, and how far averages drift."""
    for name, method in dict.fromkeys((r["problem"], r["method"]) for r in rows):
        end = select(rows, problem=name, method=method)[-1]
        yield (
            f"{name}, {method}, {end['chains']:.0f} chains, {end['run_seconds'] / 60:.1f} minutes: worst "
            f"R-hat of functions {end['functions_max_rhat']:.2f} (median "
            f"{end['functions_median_rhat']:.2f}), of log precisions {end['precisions_max_rhat']:.2f}; "
            f"averages drift by up to {max(end['functions_drift'], end['precisions_drift']):.1f} joint "
            f"errors between halves; log score {number(end['log_score'])}, of a chain alone "
            f"{number(end['log_score_of_a_chain'])}."
        )


def draw(rows: list[Row]):
    import matplotlib.pyplot as plt

    from numpyro_bnn.plots.style import color_at, label_axes

    names = list(dict.fromkeys(r["problem"] for r in rows))
    figure, axes = plt.subplots(
        2, len(names), figsize=(1 + 4 * len(names), 6), layout="constrained", squeeze=False
    )
    for column, name in zip(axes.T, names):
        for i, method in enumerate((LADDER, MCLMC)):
            if not (own := select(rows, problem=name, method=method)):
                continue
            minutes = [r["run_seconds"] / 60 for r in own]
            for label, style in (("functions", "-"), ("precisions", ":")):
                shown = {"color": color_at(column[0], i), "label": f"{method}, {label}"}
                for ax, what in zip(column, ("max_rhat", "drift_in_sd")):
                    values = [r[f"{label}_{what}"] for r in own]
                    ax.plot(minutes, values, "o" + style, **shown, markersize=3)
        for ax, text in zip(column, ("worst R-hat", "drift of the average, posterior sd")):
            ax.set(xlim=(0, None), ylim=(1 if "R-hat" in text else 0, None))
            label_axes(ax, "minutes", text)
        column[0].set_title(name, fontsize=10)
    axes[0][0].legend(frameon=False, fontsize=7)
    return figure


TABLE = {
    "problem": "posterior",
    "method": "method",
    "chains": "chains",
    "draws": "draws a chain",
    "gradients": "gradients a chain",
    "run_seconds": "seconds",
    "functions_max_rhat": "worst R-hat, functions",
    "functions_median_rhat": "median",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "functions_error": "error of average functions, posterior sd",
    "precisions_error": "of log precisions",
    "functions_drift": "drift between halves, functions, joint errors",
    "precisions_drift": "log precisions",
    "log_score": "log score",
    "log_score_of_a_chain": "of a chain alone",
    "log_evidence": "log evidence",
    "log_evidence_error": "relative error of the evidence",
    "round_trips": "round trips",
}


def main(argv: Any = None) -> None:
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, help="of every run (default: 5)")
    made.add_argument("--problems", nargs="+", help="default: all")
    made.add_argument(
        "--methods", nargs="+", default=(COST, RESUMED, LADDER, MCLMC), help="default: all"
    )
    asked = made.parse_args(argv)
    size = SIZES[asked.size]
    size = size._replace(
        problems=tuple(asked.problems or size.problems), minutes=asked.minutes or size.minutes
    )
    if COST in asked.methods:
        costs = Study(__file__, ["problem", "coordinates", "bits"], asked, "cost")
        costs.run(
            ({"problem": name} for name in size.problems),
            lambda problem: cost(posterior(asked.data, problem, size.rows), size),
        )
        costs.publish(without(costs.rows))
    if RESUMED in asked.methods:
        runs = Study(__file__, ["problem"], asked, "resumed")
        runs.run(
            [{"problem": size.problems[0]}],
            lambda problem: resumed(posterior(asked.data, problem, size.rows), size),
        )
        runs.publish(without(runs.rows))
    study = Study(__file__, ["problem", "method", "draws"], asked)
    study.run(
        (
            {"problem": problem, "method": method}
            for problem in size.problems
            for method in asked.methods
            if method not in (COST, RESUMED)
        ),
        lambda problem, method: run(posterior(asked.data, problem, size.rows), method, size),
    )
    if study.rows:
        publish(study, study.rows, TABLE, findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
