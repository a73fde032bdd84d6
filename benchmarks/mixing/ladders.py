"""Which moves make a ladder travel? Round trips of parallel tempering on yacht, by what its rungs do.

The 16-16 relu network with precisions on yacht of `hard_posteriors`, from optimised starts, on a ladder of
24 rungs with four replicas and HMC of 64 steps; the output layer sampled with all else, or integrated out on
every rung, alone or with moves that change functions. After every doubling of the sweeps: the worst and the
median R-hat of the functions at test rows and of the log precisions, log evidence, barrier, round trips made
and those of moves that would draw a new state each time, 1/(2 + 2Λ) a sweep. And by rung: the correlation of
the log likelihood before and after the moves of a sweep.

    python -m benchmarks.mixing.ladders [--ladders NAME …] [--sweeps 600] [--quick | --toy]
        [--data FOLDER] [--output FOLDER]

Gradients are those of trajectories; an energy of a move counts as one. Those of warm-up are not counted.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import publish, select, starts
from benchmarks._shared.study import Row, Study, every_cell, from_text, parser
from benchmarks.mixing import hard_posteriors
from benchmarks.mixing.hierarchical_posteriors import CHAINS, ladder_columns, numbers, posterior
from numpyro_bnn import moves
from numpyro_bnn.plots.style import label_axes
from numpyro_bnn.samplers.tempering.evidence import Tempering, tempering_of

FIELDS = ("log_likelihoods", "likelihood_powers", "swap_probs", "round_trips", "move_correlations")


class Size(NamedTuple):
    """Rungs, steps of a trajectory; sweeps of warm-up, of a piece, and in all; rows of the table (0: all)."""

    rungs: int
    steps: int
    warmup: int
    piece: int
    sweeps: int
    rows: int


SIZES = {
    "full": Size(24, 64, 300, 100, 600, 0),
    "quick": Size(12, 16, 60, 20, 60, 100),
    "toy": Size(4, 4, 8, 8, 16, 30),
}
LADDERS = ("plain", "integrated", "integrated, moves")


def kernel_of(name: str, model: Callable, size: Size) -> bnn.ParallelTempering:
    """A ladder over the model in non-centred coordinates."""
    hmc = HMC(model, num_steps=size.steps, trajectory_length=None)
    layer = "net/Dense_{}.{}".format
    units = [moves.UnitRefresh(layer(i, "kernel"), [layer(i, "bias")]) for i in (0, 1)]
    more = [*units, moves.RidgeScaling()] if name.endswith("moves") else []
    return bnn.ParallelTempering(model, hmc, num_rungs=size.rungs, moves=more)


def gradients_a_sweep(name: str, size: Size) -> int:
    """Gradients of a sweep of one replica."""
    # One for every unit and one more for each layer; one for each of four groups of weights and one more.
    energies = 2 * (16 + 1) + 4 + 1 if name.endswith("moves") else 0
    return (size.rungs - 1) * (size.steps + energies)


def record_of(mcmc: bnn.MCMC) -> dict[str, np.ndarray]:
    """What the ladders of a piece of a run told of each sweep."""
    extra = mcmc.get_extra_fields(group_by_chain=True)
    return {field: np.asarray(extra[field]) for field in FIELDS}


def ladders_of(records: list[dict[str, np.ndarray]]) -> Tempering:
    """What the ladders of all replicas tell after all pieces."""
    return tempering_of({f: np.concatenate([one[f] for one in records], 1) for f in FIELDS})


def ladder_row(found: Tempering, sweeps: int) -> Row:
    """Columns of the ladders of all replicas after so many sweeps."""
    return {
        "log_evidence": numbers(found.log_evidence),
        "log_evidence_error": numbers(found.log_evidence_error),
        "likelihood_powers": numbers(found.likelihood_powers.mean(0)),
        "swap_rates": numbers(found.swap_rates.mean(0)),
    } | ladder_columns(found, sweeps)


def counts(size: Size) -> list[int]:
    """Numbers of sweeps that have a row: doublings of a piece, and all."""
    pieces = (size.piece * 2**i for i in range(size.sweeps))
    return [*itertools.takewhile(lambda sweeps: sweeps < size.sweeps, pieces), size.sweeps]


@functools.cache
def run(name: str, folder: Any, size: Size) -> Iterator[Row]:
    """One row after the other of the same ladder."""
    given = posterior(folder, "yacht", size.rows)
    model = given.model if name == "plain" else bnn.integrate_output(given.model)
    begin: Any = starts(model, given.split, 0, CHAINS, 200)
    kernel = kernel_of(name, model, size)
    settings = hard_posteriors.Size((), 0.0, size.warmup, size.piece, size.steps, size.rows)
    parts, records = [], []
    pieces = hard_posteriors.pieces(kernel, given, settings, 1, begin)
    for number, (part, mcmc, seconds) in enumerate(pieces, 1):
        parts.append(part)
        records.append(record_of(mcmc))
        sweeps = number * size.piece
        if sweeps not in counts(size):
            continue
        gradients = float(sweeps * gradients_a_sweep(name, size))
        found = hard_posteriors.joined(parts)
        score = hard_posteriors.disagreement(found)
        row = {"sweeps": sweeps, "gradients": gradients, "run_seconds": seconds}
        row |= hard_posteriors.judged(found, gradients) | ladder_row(ladders_of(records), sweeps)
        yield row | {k: score[k] for k in ("log_score", "log_scores_of_chains")}


def findings(rows: list[Row]) -> Iterator[str]:
    """Round trips, functions and evidence of every ladder at its end."""
    ends = [select(rows, ladder=name)[-1] for name in dict.fromkeys(r["ladder"] for r in rows)]
    trips = (sum(r[k] for r in ends) for k in ("round_trips", "round_trips_at_best"))
    yield "{} ladders made {:.0f} round trips, where good moves would make {:.0f}.".format(
        len(ends), *trips
    )
    evidence = {r["ladder"]: float(np.mean(from_text(r["log_evidence"]))) for r in ends}
    for row in sorted(ends, key=lambda r: r["functions_median_rhat"]):
        yield (
            f"{row['ladder']}, {row['gradients']:.2g} gradients a replica: median R-hat of functions "
            f"{row['functions_median_rhat']:.2f} (worst {row['functions_max_rhat']:.2f}), mean log evidence "
            f"{evidence[row['ladder']]:.0f}."
        )


def draw(rows: list[Row]):
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    colors = plt.get_cmap("tab10").colors
    for i, name in enumerate(dict.fromkeys(r["ladder"] for r in rows)):
        own = [r for r in rows if r["ladder"] == name]
        look = {"color": colors[i % len(colors)], "marker": "os^vD"[i % 5], "markersize": 4}
        powers, kept = (
            np.array(own[-1][k].split(), float) for k in ("likelihood_powers", "move_correlations")
        )
        left.plot(powers[1:], kept, **look, linewidth=1)
        gradients = [r["gradients"] for r in own]
        medians = [r["functions_median_rhat"] - 1 for r in own]
        middle.plot(gradients, medians, **look, label=name)
        evidence = [np.mean(np.array(r["log_evidence"].split(), float)) for r in own]
        right.plot(gradients, evidence, **look)
    left.set_xscale("log")
    label_axes(left, "power of the likelihood", "correlation over a move")
    for ax, text in ((middle, "median R-hat of functions – 1"), (right, "log evidence, nats")):
        ax.set_xlim(0, None)
        label_axes(ax, "gradients a replica", text)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


TABLE = {
    "ladder": "ladder",
    "sweeps": "sweeps",
    "gradients": "gradients a replica",
    "run_seconds": "seconds",
    "functions_max_rhat": "worst R-hat, functions",
    "functions_median_rhat": "median",
    "precisions_max_rhat": "worst R-hat, log precisions",
    "log_evidence": "log evidence of each replica",
    "barrier": "barrier",
    "round_trips": "round trips",
    "round_trips_at_best": "those of good moves",
    "move_correlations": "correlation of the log likelihood over a move, by rung",
    "log_score": "log score",
}


def main(argv: Any = None) -> None:
    made = parser(__doc__)
    made.add_argument("--ladders", nargs="+", choices=LADDERS, default=LADDERS)
    made.add_argument("--sweeps", type=int, help="after warm-up (default: 600)")
    asked = made.parse_args(argv)
    size = SIZES[asked.size]
    size = size._replace(sweeps=asked.sweeps or size.sweeps)
    study = Study(__file__, ["ladder", "sweeps"], asked)
    cells = every_cell(ladder=asked.ladders, sweeps=counts(size))

    def row_of(ladder: str, sweeps: int) -> Iterator[Row]:
        found = run(ladder, asked.data, size)
        yield next(row for row in found if row["sweeps"] == sweeps)

    study.run(cells, row_of)
    publish(study, study.rows, TABLE, findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
