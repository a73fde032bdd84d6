"""How much wider do minibatches make the predictions of a network than the posterior does?

Full-batch MAMS is the reference, and its last draws are where all others begin.

    python -m benchmarks.mixing.networks_beside_full_batch [--quick]
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import sampler, select
from benchmarks._shared.study import Row, begin
from benchmarks._shared.words import span
from benchmarks.mixing.hidden_heat import CONSTANT, of_predictions, standardised_rows
from numpyro_bnn import gradients

CHAINS, PREDICTED, KEPT, NOISE = 4, 100, 200, 0.4


class Size(NamedTuple):
    """Rows; (units, rows of a minibatch) by cell; draws of the reference and of warm-up; steps; seeds."""

    rows: int
    networks: tuple[tuple[int, int], ...]
    reference: int
    warmup: int
    steps: int
    seeds: tuple[int, ...]


SIZES = {
    "full": Size(1000, ((16, 100), (50, 100), (256, 100), (50, 10)), 1000, 500, 20_000, (0, 1)),
    "quick": Size(300, ((16, 50),), 300, 200, 4000, (0,)),
    "toy": Size(60, ((4, 20),), 20, 20, 400, (0,)),
}
ALL_ROWS = "BAOAB, all rows"


def settings(method: str, batch: int) -> tuple[Any, dict[str, Any]]:
    """The kernel of a method, and what it differs in from its defaults."""
    order = "replacement"
    return {
        ALL_ROWS: (bnn.BAOAB, {}),
        "BAOAB": (bnn.BAOAB, {"batch_size": batch}),
        "BAOAB, noise taken off": (bnn.BAOAB, {"batch_size": batch, "gradient_noise": "auto"}),
        "BAOAB, control variate, noise taken off": (
            bnn.BAOAB,
            {"gradient": gradients.control_variate(batch, order=order), "gradient_noise": "auto"},
        ),
        "BAOAB, SVRG": (bnn.BAOAB, {"gradient": gradients.svrg(batch, order=order)}),
        "BAOAB, SVRG, noise taken off": (
            bnn.BAOAB,
            {"gradient": gradients.svrg(batch, order=order), "gradient_noise": "auto"},
        ),
        "SGHMC": (bnn.SGHMC, {"batch_size": batch}),
        "MCLMC": (bnn.MCLMC, {"batch_size": batch}),
        "MCLMC, SVRG": (bnn.MCLMC, {"gradient": gradients.svrg(batch, order=order)}),
    }[method]


METHODS = (
    ALL_ROWS,
    "BAOAB",
    "BAOAB, noise taken off",
    "BAOAB, control variate, noise taken off",
    "BAOAB, SVRG",
    "BAOAB, SVRG, noise taken off",
    "SGHMC",
    "MCLMC",
    "MCLMC, SVRG",
)
KEYS = ("units", "batch", "method", "seed")


class Reference(NamedTuple):
    """A network with its data and the draws of full-batch MAMS."""

    model: Any  # regression with known noise
    data: tuple[np.ndarray, np.ndarray]  # inputs and targets
    at: np.ndarray  # rows at which predictions are compared
    last: dict[str, np.ndarray]  # last draw of each chain, by site
    mean: np.ndarray  # of predictions, (row,)
    variance: np.ndarray  # of predictions, (row,)
    between: float  # share of their variance that is between chains, a measure of what is not known
    rhat: float  # worst R-hat of predictions


@cache
def reference(folder: Path | None, size: Size, units: int) -> Reference:
    """Full-batch MAMS, once for a network."""
    x, y = standardised_rows(folder, size.rows + PREDICTED)
    x, y = x.astype(np.float32), y.astype(np.float32)
    data, at = (x[: size.rows], y[: size.rows]), x[size.rows :]
    model = bnn.regression(bnn.MLP([units], 1), bnn.priors.FanIn(), noise=NOISE)
    run = sampler(bnn.MAMS(model), CHAINS, size.warmup, size.reference, chain_method="parallel")
    run.run(jax.random.key(100), *data)
    found = means(run, at)
    last = {name: np.asarray(v)[:, -1] for name, v in run.get_samples(group_by_chain=True).items()}
    variance = found.var((0, 1))
    between = float((found.mean(1).var(0) / variance).mean())
    rhat = float(np.max(bnn.diagnostics.summarize(found).rhat))
    return Reference(model, data, at, last, found.mean((0, 1)), variance, between, rhat)


def means(run: bnn.MCMC, at: np.ndarray) -> np.ndarray:
    """Means of the target by draw, (chain, draw, row)."""
    found = np.asarray(bnn.predict(None, run, at).mean, np.float64)
    return found.reshape(*found.shape[:2], len(at))


def cell(
    units: int, batch: int, method: str, seed: int, *, size: Size, folder: Path | None
) -> Iterator[Row]:
    """One run, and its predictions beside those of the reference."""
    known = reference(folder, size, units)
    kind, own = settings(method, batch)
    kernel = kind(known.model, step_size="auto", **own)
    thinning = size.steps // KEPT
    run = sampler(kernel, CHAINS, size.steps // 4, KEPT, thinning, chain_method="parallel")
    fields = ("step_size", "kinetic_temperature", "gradient_temperature")
    start = jax.tree.map(jnp.asarray, known.last)
    run.run(jax.random.key(seed), *known.data, init_params=start, extra_fields=fields)
    extra = {
        name: float(np.mean(v)) for name, v in run.get_extra_fields().items() if name in fields
    }
    # Momenta of constant size have no temperature but along a direction, and runs on all rows measure none
    # along gradients.
    kinetic = float("nan") if method in CONSTANT else extra["kinetic_temperature"]
    yield {
        "kinetic": kinetic,
        "along gradients": extra["gradient_temperature"],
        "step size": extra["step_size"],
        **of_predictions(means(run, known.at) - known.mean, known.variance),
        "reference R-hat": known.rhat,
        "reference between": known.between,
    }


def cells_of(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """The networks that there are rows of: units, and rows of a minibatch."""
    return list(dict.fromkeys((int(row["units"]), int(row["batch"])) for row in rows))


def averaged(rows: Sequence[Row]) -> list[Row]:
    """One row for each method: the variance of predictions by network, means over seeds, and temperatures."""
    made = []
    for method in METHODS:
        row: Row = {"method": method}
        for units, batch in cells_of(rows):
            own = select(rows, units=units, batch=batch, method=method)
            ratio = np.mean([r["variance of predictions"] for r in own])
            error = np.sqrt(np.mean([r["error"] ** 2 for r in own]) / len(own))
            row[f"{units} units, {batch} rows"] = f"{ratio:.3g} ± {error:.2g}"
        for name in ("kinetic", "along gradients"):
            found = [r[name] for r in rows if r["method"] == method]
            row[name] = "" if np.isnan(found).any() else f"{min(found):.2f} to {max(found):.2f}"
        made.append(row)
    return made


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """The range of variances of each method over networks, by size of the minibatch."""
    for row in averaged(rows):
        told = []
        for batch in dict.fromkeys(batch for _, batch in cells_of(rows)):
            own = select(rows, method=row["method"], batch=batch)
            told.append(f"{span([r['variance of predictions'] for r in own])} ({batch} rows)")
        yield (
            f"{row['method']}: predictions vary {', '.join(told)} times as much as is right; temperature "
            f"along gradients {row['along gradients']}."
        )


def picture(rows: Sequence[Row]) -> Any:
    """Variance of predictions against the temperature along gradients, one mark a run."""
    figure, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
    colors = plt.get_cmap("tab20").colors
    for method, color in zip(METHODS, colors):
        for j, (own, marker) in enumerate(zip(cells_of(rows), "os^D")):
            here = select(rows, units=own[0], batch=own[1], method=method)
            ax.plot(
                [r["along gradients"] for r in here],
                [r["variance of predictions"] for r in here],
                marker,
                color=color,
                label=None if j else method,
            )
    for (units, batch), marker in zip(cells_of(rows), "os^D"):
        label = f"{units} units, minibatches of {batch}"
        ax.plot([], [], marker, color="0.4", markerfacecolor="none", label=label)
    ax.axhline(1.0, color="0.6", lw=1)
    ax.axvline(2.2, color="0.6", lw=1, ls=":")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="temperature along gradients (from the dotted line on a report complains)",
        ylabel="variance of predictions over the exact one",
    )
    figure.legend(loc="outside right", frameon=False, fontsize=8)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, KEYS, SIZES, argv)
    study.run(
        [
            {"units": units, "batch": batch, "method": method, "seed": seed}
            for units, batch in size.networks
            for seed in size.seeds
            for method in METHODS
        ],
        partial(cell, size=size, folder=given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
