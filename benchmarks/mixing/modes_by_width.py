"""How many modes has the posterior of a network, by hidden units and by rows?

From prior draws the energy is minimised in double precision. Two minima are one mode where they are one
function; directions are flat where the likelihood is curved less than a tenth of what the prior is.

    python -m benchmarks.mixing.modes_by_width [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import uci
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Results, Row, begin, every_cell, without

NOISE, PREDICTED = 0.1, 100
# Most that lies between predictions of one mode, in standard deviations of the noise.
SAME = 0.1
# Most curvature of the likelihood in a flat direction; that of the prior is 1.
FLAT = 0.1
# Largest entry of the gradient at a minimum, in nats.
STILL = 0.01
# Energies of minima that a posterior visits, above the least, in nats.
NEAR = 3.0


class Size(NamedTuple):
    """Tables, rows to learn from, hidden units, minimisations, subsets of rows."""

    tables: tuple[str, ...]
    rows: tuple[int, ...]
    widths: tuple[int, ...]
    starts: int
    subsets: tuple[int, ...]


SIZES = {
    "full": Size(("energy", "yacht"), (10, 30, 100, 200), (1, 2, 4, 8, 16, 32, 64), 32, (0, 1)),
    "quick": Size(("energy",), (10, 100), (1, 4, 16), 12, (0,)),
    "toy": Size(("energy",), (10,), (2,), 3, (0,)),
}


class Minimum(NamedTuple):
    """Where a minimisation ended."""

    energy: float  # U in nats
    # At rows that were not learned from, in standard deviations of the noise
    predictions: np.ndarray
    gradient: float  # its largest entry, in nats
    # Eigenvalues of the Hessian in weights over the prior's scales, whose own part is 1
    curvatures: np.ndarray


class Problem(NamedTuple):
    """Energy and predictions as functions of weights over the scales of their priors, in one vector."""

    energy: Callable[[jax.Array], jax.Array]  # U in nats
    # At rows that were not learned from, in standard deviations of the noise
    predictions: Callable[[jax.Array], jax.Array]
    size: int  # number of weights


def problem(width: int, x: np.ndarray, y: np.ndarray, at: np.ndarray) -> Problem:
    """The network on rows x, y; what it predicts at other rows."""
    network, prior = bnn.MLP([width], 1), bnn.priors.FanIn()

    def model(x: jax.Array, y: jax.Array | None = None) -> None:
        net = bnn.random_module("net", network, prior, x[:1])
        bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=NOISE)

    potential = bnn.potential_of(model, x, y)
    sites = {name: potential.structure.sites[name].shape for name in potential.structure.latent}
    scales = {name: prior(name.removeprefix("net/"), shape).scale for name, shape in sites.items()}
    blank, unravel = ravel_pytree({name: jnp.zeros(shape) for name, shape in sites.items()})

    def weights(vector: jax.Array) -> dict[str, jax.Array]:
        return {name: scales[name] * value for name, value in unravel(vector).items()}

    def predictions(vector: jax.Array) -> jax.Array:
        params = bnn.to_params(weights(vector))
        return network.apply({"params": params}, at).squeeze(-1) / NOISE

    return Problem(lambda vector: potential(weights(vector)), predictions, blank.size)


def minima(given: Problem, starts: int, seed: int) -> list[Minimum]:
    """Where minimisations from so many prior draws end."""
    slope = jax.jit(jax.value_and_grad(given.energy))
    hessian, predictions = jax.jit(jax.hessian(given.energy)), jax.jit(given.predictions)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(starts):
        options = {"maxiter": 50_000, "maxfun": 100_000, "maxcor": 50, "ftol": 0, "gtol": 1e-4}
        begin = rng.normal(size=given.size)
        end = minimize(slope, begin, jac=True, method="L-BFGS-B", options=options)
        found.append(
            Minimum(
                float(end.fun),
                np.asarray(predictions(end.x)),
                float(np.abs(end.jac).max()),
                np.linalg.eigvalsh(np.asarray(hessian(end.x))),
            )
        )
    return found


def modes_of(found: Sequence[Minimum]) -> list[list[Minimum]]:
    """Minima by the function that they are, the lowest first."""
    modes: list[list[Minimum]] = []
    for minimum in sorted(found, key=lambda one: one.energy):
        for mode in modes:
            apart = minimum.predictions - mode[0].predictions
            if np.sqrt(np.mean(apart**2)) < SAME:
                mode.append(minimum)
                break
        else:
            modes.append([minimum])
    return modes


def described(found: Sequence[Minimum]) -> Row:
    """How many modes the minima are, how much mass each has, and how flat they are."""
    arrived = [minimum for minimum in found if minimum.gradient < STILL]
    modes = modes_of(arrived)
    once, twice = (sum(len(mode) == count for mode in modes) for count in (1, 2))
    energies = np.array([minimum.energy for minimum in arrived])
    low = [mode[0] for mode in modes if mode[0].energy < energies.min() + NEAR]
    curvatures = np.stack([minimum.curvatures for minimum in arrived]) - 1
    return {
        "arrived": len(arrived),
        "modes": len(modes),
        # Chao (1984): how many were seen once and twice tells how many were not seen.
        "modes in all": len(modes) + once * (once - 1) / (2 * (twice + 1)),
        "low modes": len(low),
        "minima that are low": float(np.mean(energies < energies.min() + NEAR)),
        "median above the least": float(np.median(energies) - energies.min()),
        "apart": apart([mode[0] for mode in modes]),
        "low ones apart": apart(low),
        "flat": float(np.mean(curvatures < FLAT)),
        "directions known": float(
            np.mean(np.sum(np.maximum(curvatures, 0) / (1 + np.maximum(curvatures, 0)), 1))
        ),
    }


def apart(modes: Sequence[Minimum]) -> float:
    """Root mean square distance between the predictions of two modes, in standard deviations of the noise."""
    if len(modes) < 2:
        return 0.0
    predictions = np.stack([mode.predictions for mode in modes])
    return float(np.sqrt(2 * predictions.var(0, ddof=1).mean()))


def cell(
    table: str, rows: int, width: int, subset: int, *, size: Size, folder: Path | None
) -> Iterator[Row]:
    """The minima of one network on one subset of a table."""
    data = uci(folder, table, subset)
    # The rows of a split are in the order of the table, which is that of a design.
    order = np.random.default_rng(subset).permutation(len(data.x))
    own, at = order[:rows], data.x_test[:PREDICTED].astype(float)
    with jax.enable_x64(True):
        given = problem(width, data.x[own].astype(float), data.y[own].astype(float), at)
        found = minima(given, size.starts, seed=subset)
    yield {"weights": given.size, "starts": size.starts, **described(found)}


def means(rows: Sequence[Row]) -> list[Row]:
    """Means over subsets of rows, by table, rows and hidden units."""
    made = []
    for key in dict.fromkeys((r["table"], r["rows"], r["width"]) for r in rows):
        own = without([r for r in rows if (r["table"], r["rows"], r["width"]) == key], "subset")
        first = {"table": key[0], "rows": key[1], "width": key[2]}
        rest = [name for name in own[0] if name not in first]
        made.append(first | {name: float(np.mean([r[name] for r in own])) for name in rest})
    return made


def averaged(rows: Sequence[Row]) -> list[Row]:
    """A line for each table and number of rows: modes that were found, in brackets those of low energy."""
    found = means(rows)
    return [
        {"table": table, "rows": str(count)}
        | {
            f"{r['width']} units": f"{r['modes']:.3g} ({r['low modes']:.3g})"
            for r in select(found, table=table, rows=count)
        }
        for table, count in dict.fromkeys((r["table"], r["rows"]) for r in found)
    ]


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Where most modes are found, and how deep the others are, by table and number of rows."""
    found = means(rows)
    for table, count in dict.fromkeys((r["table"], r["rows"]) for r in found):
        own = select(found, table=table, rows=count)
        most = max(own, key=lambda r: r["modes"])
        wide = own[-1]
        yield (
            f"{table}, {count} rows: most modes with {most['width']} units ({most['modes']:.3g}); the median "
            f"minimum lies {most['median above the least']:.2g} nats above the least there and "
            f"{wide['median above the least']:.2g} with {wide['width']} units, where "
            f"{wide['flat']:.0%} of directions are flat."
        )


COLUMNS = {
    "modes": "modes found by 32 descents",
    "low modes": f"of these within {NEAR:.0f} nats of the least",
    "median above the least": "median energy above the least, nats",
    "low ones apart": "predictions of low modes apart, sd of noise",
    "flat": "share of flat directions",
}


def picture(rows: Sequence[Row]) -> Any:
    """Modes, their energies and distances, and flat directions against hidden units, a line for each n."""
    found = means(rows)
    tables = list(dict.fromkeys(row["table"] for row in found))
    figure, axes = plt.subplots(
        len(tables), len(COLUMNS), figsize=(19, 3.6 * len(tables)), layout="constrained", squeeze=False
    )  # fmt: skip
    for line, table in zip(axes, tables):
        counts = dict.fromkeys(row["rows"] for row in found if row["table"] == table)
        for ax, (name, label) in zip(line, COLUMNS.items()):
            for color, count in zip(bnn.plots.PALETTE, counts):
                own = select(found, table=table, rows=count)
                values = [r[name] for r in own]
                ax.plot([r["width"] for r in own], values, "o-", color=color, label=f"{count} rows")
            widths = sorted({row["width"] for row in found})
            ax.set_xscale("log", base=2)
            ax.set(
                xlabel="hidden units", ylabel=label, title=table, xticks=widths, xticklabels=widths
            )
            if name != "flat":
                ax.set_yscale("symlog", linthresh=1.0 if "modes" in name else 0.1)
                ax.set_ylim(bottom=0)
        line[0].legend(frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, ("table", "rows", "width", "subset"), SIZES, argv)
    study.run(
        every_cell(table=size.tables, width=size.widths, rows=size.rows, subset=size.subsets),
        lambda **which: cell(**which, size=size, folder=given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))
    Results(__file__, given, "means").report(means(study.rows))


if __name__ == "__main__":
    main()
