"""Is weight decay a prior? How far the nearest mode of the posterior is from where training ends.

A tanh network is trained by hand on the mean loss: with the penalty λ|θ|²/2, λ = 1/(N s²), with the same λ
decoupled from the gradient (AdamW), and with no decay. Then `map_estimate` begins where training ended; how
many nats are left where it ends, ½ gᵀG⁻¹g, is stored too.

    python -m benchmarks.priors.weight_decay [--quick]
"""

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax import lax
from scipy.stats import norm

import numpyro_bnn as bnn
from benchmarks._shared.study import Row, begin, every_cell
from benchmarks.priors.small_tables import few_rows

TABLES = ("yacht", "boston", "energy")
SPREADS = (0.3, 1.0, 3.0)
NOISE, HIDDEN, TESTED = 0.3, 16, 200
NETWORK = bnn.MLP((HIDDEN,), 1)
DECOUPLED, NO_DECAY = "decoupled decay, AdamW", "no decay, Adam"
METHODS = ("penalty, Adam", "penalty, momentum", DECOUPLED, NO_DECAY)
SIZES: dict[str, Row] = {
    "full": {"tables": TABLES, "splits": 3, "rows": 100, "steps": 30_000},
    "quick": {"tables": TABLES[:1], "splits": 2, "rows": 100, "steps": 20_000},
    "toy": {"tables": TABLES[:1], "splits": 1, "rows": 40, "steps": 2000},
}


def optimizer(method: str, decay: float, steps: int) -> optax.GradientTransformation:
    """Of the mean loss, its steps falling to zero."""
    rate = optax.cosine_decay_schedule(1e-2, steps)
    if method == DECOUPLED:
        return optax.adamw(rate, weight_decay=decay)
    return optax.sgd(rate, momentum=0.9) if method == "penalty, momentum" else optax.adam(rate)


def trained(
    method: str, x: Any, y: Any, decay: float, steps: int, seed: int, network: Any = NETWORK
) -> Any:
    """Flax parameters at the end of training."""
    optimize = optimizer(method, decay, steps)
    penalty = decay if method.startswith("penalty") else 0.0

    def loss(params: Any) -> jax.Array:
        residual = y - network.apply({"params": params}, x)[:, 0]
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return jnp.mean(residual**2) / (2 * NOISE**2) + penalty * squares / 2

    @jax.jit
    def run(params: Any) -> Any:
        def step(carry: tuple, _: None) -> tuple[tuple, None]:
            params, state = carry
            update, state = optimize.update(jax.grad(loss)(params), state, params)
            return (optax.apply_updates(params, update), state), None

        return lax.scan(step, (params, optimize.init(params)), None, length=steps)[0][0]

    return run(network.init(jax.random.key(seed), x[:1])["params"])


def cell(
    table: str, spread: float, method: str, split: int, *, size: Row, folder: Path | None
) -> Iterator[Row]:
    """One training, and the mode that is nearest to its end."""
    rows = few_rows(folder, table, split, size["rows"], TESTED)
    x, y = np.float32(rows.x), np.float32(rows.y)
    params = trained(method, x, y, 1 / (len(x) * spread**2), size["steps"], split)

    def model(x: Any, y: Any = None) -> None:
        net = bnn.random_module("net", NETWORK, bnn.priors.Normal(spread), x[:1])
        bnn.likelihoods.gaussian(lambda rows: net(rows)[:, 0], y, x=x, noise=NOISE)

    start = bnn.from_params(params)
    energy = float(jax.jit(bnn.potential_of(model, x, y))(start))
    options = {"num_steps": 20_000, "tolerance": 0, "progress_bar": False}
    with warnings.catch_warnings():
        # How far the mode still is, in nats, stands in the row.
        warnings.filterwarnings("ignore", "map_estimate: the mode was not reached")
        mode = bnn.map_estimate(model, jax.random.key(0), x, y, init_params=start, **options)
    x_test = np.float32(rows.x_test)
    there = bnn.predict(model, mode, x_test).mean[0, 0]
    here = np.asarray(NETWORK.apply({"params": params}, x_test))[:, 0]
    yield {
        "nats left at the mode": float(mode.info["newton_decrement"][0]),
        "nats above the mode": energy - float(mode.stats["potential_energy"][0, 0]),
        "predictions move": float(np.sqrt(np.mean((there - here) ** 2)) / NOISE),
        "lppd": float(norm(here, NOISE).logpdf(rows.y_test).mean()),
        "lppd of the mode": float(norm(there, NOISE).logpdf(rows.y_test).mean()),
    }


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Medians and largest values over tables and splits, for each scale and method."""
    made = []
    for spread in SPREADS:
        for method in METHODS:
            own = [r for r in rows if (r["spread"], r["method"]) == (spread, method)]
            nats, move = (
                [r[column] for r in own] for column in ("nats above the mode", "predictions move")
            )
            made.append(
                {
                    "prior sd": f"{spread:g}",
                    "method": method,
                    "nats above the mode: median": f"{np.median(nats):.2g}",
                    "most": f"{max(nats):.2g}",
                    "left there, most": f"{max(r['nats left at the mode'] for r in own):.1g}",
                    "predictions move, noise sd: median": f"{np.median(move):.2g}",
                    "largest": f"{max(move):.2g}",
                    "log score": f"{np.mean([r['lppd'] for r in own]):.2f}",
                    "of the mode": f"{np.mean([r['lppd of the mode'] for r in own]):.2f}",
                }
            )
    return made


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """How far each training ends above the nearest mode, by the scale of the prior."""
    table = averaged(rows)
    for method in dict.fromkeys(r["method"] for r in table):
        told = ", ".join(
            f"{r['nats above the mode: median']} (s = {r['prior sd']})"
            for r in table
            if r["method"] == method
        )
        yield f"{method}, nats above the nearest mode in the median, prior N(0, s²): {told}."


def picture(rows: Sequence[Row]) -> Any:
    """Every training: how far predictions move to the nearest mode."""
    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    for k, method in enumerate(METHODS):
        own = [r for r in rows if r["method"] == method]
        place = [SPREADS.index(r["spread"]) + 0.18 * (k - 1.5) for r in own]
        moves = [max(r["predictions move"], 1e-6) for r in own]
        ax.plot(place, moves, "os^D"[k], color=bnn.plots.PALETTE[k], label=method, alpha=0.7, ms=5)
    ax.set(
        yscale="log",
        ylabel="predictions move by, noise sd",
        xlabel="standard deviation of the prior",
        xticks=range(len(SPREADS)),
        xticklabels=SPREADS,
    )
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(
        __file__, __doc__, ("table", "spread", "method", "split"), SIZES, argv
    )
    study.run(
        every_cell(
            table=size["tables"], split=range(size["splits"]), spread=SPREADS, method=METHODS
        ),
        partial(cell, size=size, folder=given.data),
    )
    study.publish(averaged(study.rows), findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
