"""Does the bias of stochastic gradients grow with the number of weights, and with the number of rows?

A linear regression on D random features of bikesharing, tanh units with fixed inner weights, whose posterior
over functions is a Gaussian in closed form: weights N(0, 1) on features that are divided by √D, so that the
prior over functions and the noise are the same for every D. Up to 100,000 features on 2000 rows, and 1000 on
500 to 10,000. Minibatches of 100, the same steps for all methods, which tune their step size themselves.
Chains begin at exact posterior draws. Stored are the variance of predictions about the exact mean, over the
exact one, and the temperature of momenta.

    python -m benchmarks.mixing.bias_by_dimension [--quick]
"""

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from statistics import mode
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import select
from benchmarks._shared.study import Row, Study, parser
from benchmarks._shared.words import span
from benchmarks.mixing.hidden_heat import linear_regression, of_predictions, standardised_rows
from numpyro_bnn import gradients

CHAINS, BATCH, KEPT, PREDICTED = 4, 100, 200, 100
# Rows, features, and keys of the runs.
USUAL_ROWS = 2000
SIZES: dict[str, Row] = {
    "full": {
        "settings": (
            *((USUAL_ROWS, dimension, 2) for dimension in (10, 100, 1000, 4000)),
            (500, 1000, 2),
            (10_000, 1000, 2),
            *((USUAL_ROWS, dimension, 1) for dimension in (32_000, 100_000)),
        ),
        "warmup": 4000,
        "steps": 20_000,
    },
    "quick": {"settings": ((500, 10, 1), (500, 100, 1)), "warmup": 1000, "steps": 4000},
    "toy": {"settings": ((200, 10, 1),), "warmup": 100, "steps": 400},
}
# With all rows a step costs up to a hundred times as much: this method, which is to show that there is no
# other bias, runs up to this many numbers.
ALL_ROWS, MOST_OF_ALL_ROWS = "BAOAB, all rows", 2_000_000
# With 100,000 weights a run takes a third of an hour: there these run alone.
MANY_WEIGHTS, WITH_MANY_WEIGHTS = 100_000, ("BAOAB", "BAOAB, control variate", "SGHMC")
# Name to the kernel and what it differs in from its defaults.
METHODS: dict[str, Any] = {
    ALL_ROWS: (bnn.BAOAB, {}),
    "BAOAB": (bnn.BAOAB, {"batch_size": BATCH}),
    "BAOAB, noise taken off": (bnn.BAOAB, {"batch_size": BATCH, "gradient_noise": "auto"}),
    "BAOAB, control variate": (bnn.BAOAB, {"gradient": gradients.control_variate(BATCH)}),
    "BAOAB, SVRG, noise taken off": (
        bnn.BAOAB,
        {"gradient": gradients.svrg(BATCH, order="replacement"), "gradient_noise": "auto"},
    ),
    "SGHMC": (bnn.SGHMC, {"batch_size": BATCH}),
    "SGLD": (bnn.SGLD, {"batch_size": BATCH}),
    "MCLMC": (bnn.MCLMC, {"batch_size": BATCH}),
}
KEYS = ("rows", "dimension", "method", "seed")


class Posterior:
    """A linear regression on random features, and its posterior over functions in closed form.

    :param folder: the folder of data sets; None for the one beside the checkout.
    :param rows: how many rows it has, drawn at random.
    :param dimension: features, D.
    """

    def __init__(self, folder: Path | None, rows: int, dimension: int) -> None:
        x, y = standardised_rows(folder, rows)
        rng = np.random.default_rng(1)
        inner = rng.normal(size=(x.shape[1], dimension)) / np.sqrt(x.shape[1])
        features = np.tanh(x @ inner + rng.normal(size=dimension))
        self.x, self.y, self.noise = features / np.sqrt(dimension), y, 0.5
        self.model = linear_regression(self.noise)
        self.kernel = self.x @ self.x.T
        # The covariance of the targets, and their precision times them.
        self.factor = cho_factor(self.kernel + self.noise**2 * np.eye(rows))
        self.mean = self.kernel @ cho_solve(self.factor, y)
        gain = cho_solve(self.factor, self.kernel)
        self.variance = np.diag(self.kernel) - np.einsum("ij,ji->i", self.kernel, gain)

    @property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Features and targets, float32."""
        return self.x.astype(np.float32), self.y.astype(np.float32)

    def draws(self, count: int, seed: int) -> np.ndarray:
        """Exact draws of the weights, (draw, D): prior draws that are moved by what they miss of the targets.

        Matheron's rule, as in Wilson et al. (2020, *Efficiently sampling functions from Gaussian process
        posteriors*, equation 9).
        """
        rng = np.random.default_rng(seed)
        prior = rng.normal(size=(count, self.x.shape[1]))
        noise = self.noise * rng.normal(size=(count, len(self.y)))
        missed = self.y - prior @ self.x.T - noise
        return prior + cho_solve(self.factor, missed.T).T @ self.x


def against_exact(posterior: Posterior, draws: np.ndarray) -> Row:
    """Predictions of draws (chain, draw, D) at the first rows: their variance over the exact one.

    It is taken about the exact mean, so that a chain that has drifted away counts. The error is over
    chains, each of which gives a ratio.
    """
    rows = slice(0, PREDICTED)
    gap = np.asarray(draws, np.float64) @ posterior.x[rows].T - posterior.mean[rows]
    return of_predictions(gap, posterior.variance[rows])


# Of ten thousand rows it takes a minute.
posterior_of = lru_cache(maxsize=1)(Posterior)


def cell(
    rows: int, dimension: int, method: str, seed: int, *, size: Row, folder: Path | None
) -> Iterator[Row]:
    """One run, and its draws beside the exact posterior."""
    posterior = posterior_of(folder, rows, dimension)
    kind, own = METHODS[method]
    begin = time.process_time()
    kernel = kind(posterior.model, step_size="auto", **own)
    run = bnn.MCMC(
        kernel,
        num_warmup=size["warmup"],
        num_samples=size["steps"],
        num_chains=CHAINS,
        thinning=max(1, size["steps"] // KEPT),
        progress_bar=False,
    )
    start = jnp.asarray(posterior.draws(CHAINS, seed), jnp.float32)
    with_momentum = kernel.dynamics.has_momentum and method != "MCLMC"
    fields = ("step_size",) + (("kinetic_temperature",) if with_momentum else ())
    run.run(jax.random.key(seed), *posterior.data, init_params={"w": start}, extra_fields=fields)
    extra = run.get_extra_fields()
    # SGLD has no momenta, and those of MCLMC are of constant size: they have no temperature to measure.
    heat = float(np.mean(extra["kinetic_temperature"])) if with_momentum else float("nan")
    yield {
        "kinetic": heat,
        "step size": float(np.mean(np.asarray(extra["step_size"]))),
        **against_exact(posterior, run.get_samples(group_by_chain=True)["w"]),
        "seconds": time.process_time() - begin,
    }


def methods_of(rows: int, dimension: int) -> list[str]:
    """The methods that run on so many rows and weights."""
    return [
        method
        for method in METHODS
        if (method != ALL_ROWS or rows * dimension <= MOST_OF_ALL_ROWS)
        and (dimension < MANY_WEIGHTS or method in WITH_MANY_WEIGHTS)
    ]


def setting_of(row: Row) -> str:
    """The number of features, and of rows where they are not the usual ones."""
    rows = "" if row["rows"] == USUAL_ROWS else f"{row['rows']:,} rows, "
    return f"{rows}D = {row['dimension']}"


def averaged(rows: Sequence[Row]) -> list[Row]:
    """One row for each method: the variance of predictions by setting, means over seeds."""
    made = []
    settings = dict.fromkeys(setting_of(r) for r in sorted(rows, key=_by_rows_and_dimension))
    for method in METHODS:
        row: Row = {"method": method}
        for setting in settings:
            own = [r for r in rows if (r["method"], setting_of(r)) == (method, setting)]
            if not own:
                row[setting] = ""
                continue
            ratio = np.mean([r["variance of predictions"] for r in own])
            error = np.sqrt(np.mean([r["error"] ** 2 for r in own]) / len(own))
            row[setting] = f"{ratio:.3g} ± {error:.2g}"
        for name in ("kinetic", "bias of predictions"):
            found = [r[name] for r in rows if r["method"] == method]
            told = f"{min(found):.2f} to {max(found):.2f}"
            row[name] = "" if np.isnan(found).any() else told
        made.append(row)
    return made


def _by_rows_and_dimension(row: Row) -> tuple[bool, int, int]:
    """The usual number of rows first."""
    return row["rows"] != USUAL_ROWS, row["rows"], row["dimension"]


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """The range of variances of each method over numbers of weights and of rows."""
    for method in METHODS:
        own = select(rows, method=method)
        usual = [r["variance of predictions"] for r in own if r["rows"] == USUAL_ROWS]
        others = [r["variance of predictions"] for r in own if r["rows"] != USUAL_ROWS]
        rest = f", {span(others)} with other numbers of rows" if others else ""
        yield (
            f"{method}: predictions vary {span(usual)} times as much as is right with "
            f"{min(r['dimension'] for r in own):,} to {max(r['dimension'] for r in own):,} weights{rest}."
        )


def picture(rows: Sequence[Row]) -> Any:
    """Variance of predictions against the number of weights, and of rows with as many weights each."""
    import matplotlib.pyplot as plt

    # The numbers of rows and of weights that most settings have.
    settings = sorted({(r["rows"], r["dimension"]) for r in rows})
    usual, weights = map(mode, zip(*settings))
    panels = (
        ("dimension", f"weights, {usual:,} rows", select(rows, rows=usual)),
        ("rows", f"rows, {weights:,} weights", select(rows, dimension=weights)),
    )
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for ax, (by, label, shown) in zip(axes, panels):
        for k, method in enumerate(METHODS):
            own = select(shown, method=method)
            at = sorted({r[by] for r in own})
            values = [
                np.mean([r["variance of predictions"] for r in select(own, **{by: v})]) for v in at
            ]
            color, marker = bnn.plots.PALETTE[k % len(bnn.plots.PALETTE)], "os^Dv<>P"[k]
            ax.plot(at, values, marker + "-", color=color, label=method)
        ax.axhline(1.0, color="0.6", lw=1)
        ax.set(xscale="log", yscale="log", xlabel=label)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("variance of predictions over the exact one")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    given = parser(__doc__ or "").parse_args(argv)
    size = SIZES[given.size]
    study = Study(__file__, KEYS, given)
    study.run(
        [
            {"rows": rows, "dimension": dimension, "method": method, "seed": seed}
            for rows, dimension, seeds in size["settings"]
            for seed in range(seeds)
            for method in methods_of(rows, dimension)
        ],
        partial(cell, size=size, folder=given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
