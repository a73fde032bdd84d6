"""Minibatch samplers beside an exact posterior: how hot they run, and what their noise taken off changes.

A linear regression whose posterior is a Gaussian in closed form. Its noise is taken as the same for every
row, which it is not, so that the noise of minibatches is another in every direction.

    python -m benchmarks.mixing.hidden_heat [--quick]
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import mnist
from benchmarks._shared.data_sets import table as stored_table
from benchmarks._shared.sampled_runs import sampler, select
from benchmarks._shared.study import Row, begin
from numpyro_bnn import gradients, preconditioners

CHAINS = 4
# The last are all images of MNIST, the others rows of bikesharing.
ROWS, IMAGES = (1000, 10_000, 60_000), 60_000
BATCHES, TEMPERATURES = (10, 100), (1.0, 0.1)
# Steps of a minibatch of ten; larger minibatches take as many rows in fewer steps.
SIZES: dict[str, Row] = {
    "full": {"warmup": 10_000, "steps": 100_000, "seeds": (0, 1)},
    "quick": {"warmup": 4000, "steps": 20_000, "seeds": (0,)},
    "toy": {"warmup": 400, "steps": 1000, "seeds": (0,)},
}
FEWEST_STEPS = 4
THIN = 10
# Steps between the anchors of SVRG.
PERIOD = 100
NUM_PREDICTED = 200
# What `fit` takes.
SVRG = "BAOAB, SVRG, noise taken off"


def plain(size: int) -> Row:
    return {"batch_size": size}


def taken_off(size: int) -> Row:
    return {"batch_size": size, "gradient_noise": "auto"}


# Name to the kernel and what it differs in from its defaults, given the rows of a minibatch.
METHODS: dict[str, Any] = {
    "BAOAB": (bnn.BAOAB, plain),
    "BAOAB, independent rows": (
        bnn.BAOAB,
        lambda size: {"gradient": gradients.minibatch(size, "replacement")},
    ),
    "BAOAB, noise taken off": (bnn.BAOAB, taken_off),
    "BAOAB, control variate": (
        bnn.BAOAB,
        lambda size: {"gradient": gradients.control_variate(size)},
    ),
    "BAOAB, SVRG": (bnn.BAOAB, lambda size: {"gradient": gradients.svrg(size, PERIOD)}),
    SVRG: (
        bnn.BAOAB,
        lambda size: {
            "gradient": gradients.svrg(size, order="replacement"),
            "gradient_noise": "auto",
        },
    ),
    "SGHMC": (bnn.SGHMC, plain),
    "SGHMC, noise taken off": (bnn.SGHMC, taken_off),
    "SGLD": (bnn.SGLD, plain),
    "SGLD, noise taken off": (bnn.SGLD, taken_off),
    "SGNHT": (bnn.SGNHT, plain),
    "MCLMC": (bnn.MCLMC, plain),
    "AMAGOLD": (bnn.AMAGOLD, plain),
}
# Momenta of constant size have no temperature to measure.
CONSTANT = ("MCLMC", "MCLMC, SVRG")
KEYS = ("rows", "batch", "temperature", "method", "seed")


def squares_of_images(folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """All training images of MNIST: 44 of 49 mean pixels of squares, and whether the digit is odd."""
    images = mnist(folder, IMAGES, 1)
    x = images.x.reshape(-1, 7, 4, 7, 4).mean((2, 4), dtype=np.float64).reshape(-1, 49)
    y = images.y % 2.0
    x = x[:, x.std(0) > 0.01]
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def standardised_rows(folder: Path | None, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of bikesharing, random rows of it, with mean 0 and standard deviation 1."""
    x, y = stored_table(folder, "bikesharing")
    chosen = np.random.default_rng(0).permutation(len(x))[:rows]
    # The first column is the number of the record.
    x, y = x[chosen, 1:], y[chosen]
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def linear_regression(noise: float) -> Callable:
    """A model of weights N(0, 1) and known noise."""

    def model(x: Any, y: Any) -> None:
        size = x.shape[-1]
        weights = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)

    return model


class Posterior:
    """A linear regression with weights N(0, 1), an intercept, and known noise; its posterior in closed form.

    Its `rows` are drawn at random; with `IMAGES` they are all images of MNIST.
    """

    def __init__(self, folder: Path | None, rows: int) -> None:
        x, y = squares_of_images(folder) if rows == IMAGES else standardised_rows(folder, rows)
        self.x = np.concatenate([x, np.ones((rows, 1))], 1)
        self.y = y
        residuals = y - self.x @ np.linalg.lstsq(self.x, y, rcond=None)[0]
        self.noise = float(residuals.std())
        precision = np.eye(self.x.shape[1]) + self.x.T @ self.x / self.noise**2
        self.covariance = np.linalg.inv(precision)
        self.mean = self.covariance @ self.x.T @ y / self.noise**2
        self.model = linear_regression(self.noise)

    @property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, float32."""
        return self.x.astype(np.float32), self.y.astype(np.float32)


def cell(
    rows: int,
    batch: int,
    temperature: float,
    method: str,
    seed: int,
    *,
    size: Row,
    folder: Path | None,
) -> Iterator[Row]:
    """One run, and its draws beside the exact posterior."""
    posterior = Posterior(folder, rows)
    kind, own = METHODS[method]
    # Equal rows: what a step of ten rows costs, a call of AMAGOLD being ten steps and a look at all rows.
    passes = {
        "BAOAB, control variate": 2.0,
        "BAOAB, SVRG": 2 + rows / batch / PERIOD,
        # Its anchors are as many steps apart as go through all rows.
        SVRG: 3.0,
        "AMAGOLD": 10 + rows / batch,
    }
    share = batch / BATCHES[0] * passes.get(method, 1.0)
    warmup, steps = (max(FEWEST_STEPS, int(size[k] / share)) for k in ("warmup", "steps"))
    if method == SVRG:
        # Four anchors, so that they need not be nearer to each other than that.
        warmup = max(warmup, 4 * rows // batch)
    thinning = 1 if method == "AMAGOLD" else min(THIN, max(1, steps // 100))
    kernel = kind(
        posterior.model,
        step_size="auto",
        temperature=temperature,
        **({"preconditioner": preconditioners.from_warmup()} | own(batch)),
    )
    run = sampler(kernel, CHAINS, warmup, steps // thinning, thinning, chain_method="parallel")
    start = jnp.tile(jnp.asarray(posterior.mean, jnp.float32), (CHAINS, 1))
    fields = ("step_size",) + (("kinetic_temperature",) if kernel.dynamics.has_momentum else ())
    run.run(jax.random.key(seed), *posterior.data, init_params={"w": start}, extra_fields=fields)
    draws = np.asarray(run.get_samples(group_by_chain=True)["w"], np.float64)
    extra = run.get_extra_fields(group_by_chain=True)
    heat = extra.get("kinetic_temperature")
    measured = float(np.mean(heat)) / temperature if heat is not None else float("nan")
    yield {
        "kinetic": float("nan") if method in CONSTANT else measured,
        "step size": float(np.mean(np.asarray(extra["step_size"]))),
        "steps": steps,
    } | against_exact(posterior, draws, temperature)


def against_exact(posterior: Posterior, draws: np.ndarray, temperature: float) -> Row:
    """Draws (chain, draw, weight) beside the tempered Gaussian: ratios of variances, errors over chains."""
    x = posterior.x[:NUM_PREDICTED]
    exact_weights = temperature * np.diag(posterior.covariance)
    exact = temperature * np.einsum("ij,jk,ik->i", x, posterior.covariance, x)
    # Around the exact mean, so that a chain that has drifted away counts.
    gap = draws - posterior.mean
    by_chain = (gap**2).mean(1) / exact_weights
    return {
        "variance of weights": float(by_chain.mean()),
        "largest": float(by_chain.mean(0).max()),
        "smallest": float(by_chain.mean(0).min()),
        **of_predictions(gap @ x.T, exact),
    }


def of_predictions(gap: np.ndarray, exact: np.ndarray) -> Row:
    """Predictions less their exact means, (chain, draw, row), beside their exact variances, (row,)."""
    ratio = (gap**2).mean(1) / exact
    bias = gap.mean((0, 1)) / np.sqrt(exact)
    return {
        "variance of predictions": float(ratio.mean()),
        "error": float(ratio.mean(1).std(ddof=1) / np.sqrt(len(gap))),
        "bias of predictions": float(np.sqrt(np.mean(bias**2))),
    }


def averaged(rows: Sequence[Row]) -> list[Row]:
    """One row for each method and setting: means over seeds."""
    made = []
    settings = sorted(
        {tuple(row[k] for k in KEYS[:3]) for row in rows}, key=lambda s: (s[0], -s[1], -s[2])
    )
    columns = (
        "kinetic",
        "variance of predictions",
        "error",
        "smallest",
        "largest",
        "bias of predictions",
    )
    for setting in settings:
        for method in METHODS:
            own = select(rows, **dict(zip(KEYS, setting)), method=method)
            if own:
                made.append(
                    dict(zip(KEYS, (*setting, method)))
                    | {"seeds": len(own)}
                    | {name: float(np.mean([row[name] for row in own])) for name in columns}
                )
    return made


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """The range of variances and temperatures of each method over all settings."""
    table = averaged(rows)
    for method in METHODS:
        own = select(table, method=method)
        if not own:
            continue
        heat, variance = ([row[k] for row in own] for k in ("kinetic", "variance of predictions"))
        momenta = "" if np.isnan(heat).any() else f"; momenta {within(heat)} times the temperature"
        yield f"{method}: predictions vary {within(variance)} times as much as is right{momenta}."


def within(values: Sequence[float]) -> str:
    """The least and the largest of some ratios; those that left all bounds are not told in digits."""
    most = max(values)
    digits = 2 if most < 10 else 0
    return f"{min(values):.2f} to " + (f"{most:.{digits}f}" if most < 900 else "above 900")


def picture(rows: Sequence[Row]):
    """Variance of predictions by method, one mark a setting, on a logarithmic scale."""
    table = averaged(rows)
    names = [name for name in METHODS if any(row["method"] == name for row in table)]
    figure, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for (size, batch), mark in zip(
        sorted({(row["rows"], row["batch"]) for row in table}), "osD^vP"
    ):
        for temperature, color in zip(TEMPERATURES, ("C3", "C0")):
            own = select(table, rows=size, batch=batch, temperature=temperature)
            ax.plot(
                [np.clip(row["variance of predictions"], 0.006, 900) for row in own],
                [names.index(row["method"]) for row in own],
                mark,
                color=color,
                alpha=0.8,
                label=f"{size:g} rows, minibatches of {batch}, T = {temperature:g}",
            )
    ax.axvline(1.0, color="0.5", linewidth=1, zorder=0)
    # Chains that fly away stand at one edge, those that have hardly moved at the other.
    ax.set_xscale("log")
    ax.set_xlim(0.005, 1000)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("variance of predictions, divided by the exact one (at the edges: beyond)")
    figure.legend(loc="outside upper center", ncol=2, fontsize=8, frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, KEYS, SIZES, argv)
    full = given.size == "full"
    cells = (
        dict(zip(KEYS, (rows, batch, temperature, method, seed)))
        for seed in size["seeds"]
        for rows in (ROWS if full else ROWS[:1])
        for batch in (BATCHES if full else BATCHES[-1:])
        for temperature in TEMPERATURES
        for method in METHODS
    )
    study.run(cells, partial(cell, size=size, folder=given.data))
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
