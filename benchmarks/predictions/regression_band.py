"""The regression band: one input, a gap in the data, and four ways to be unsure in it.

After the figure of Houthooft et al. (2016, *VIME*) and Blundell et al. (2015, *Weight uncertainty in neural
networks*): targets sin 4x with Gaussian noise of known scale, inputs on both sides of a gap.

    python -m benchmarks.predictions.regression_band [--quick]
"""

from collections.abc import Iterator, Sequence

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC
from scipy.stats import norm

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import convergence, sampled
from benchmarks._shared.study import Row, as_text, begin, from_text
from benchmarks._shared.words import span
from numpyro_bnn import scores

NOISE, GAP, EDGE, HIDDEN, ROWS, BATCH = 0.1, (-0.3, 0.4), 1.0, 16, 60, 20
GRID = np.linspace(-1.5, 1.5, 61, dtype=np.float32)[:, None]
METHODS = ("HMC", "SGHMC", "deep ensemble", "mean field")
PRIOR = bnn.priors.ByPath({"Dense_0.*": bnn.priors.Normal(2.0), "Dense_1.*": bnn.priors.FanIn(4.0)})
SIZES = {
    "full": {
        "seeds": 3,
        "chains": 8,
        "draws": 1000,
        "leapfrogs": 64,
        "thinning": 400,
        "training": 10_000,
    },
    "quick": {
        "seeds": 1,
        "chains": 4,
        "draws": 500,
        "leapfrogs": 64,
        "thinning": 200,
        "training": 5000,
    },
    "toy": {"seeds": 1, "chains": 2, "draws": 20, "leapfrogs": 4, "thinning": 2, "training": 200},
}
MEMBERS = 20


def model(x, y=None):
    net = bnn.random_module("net", bnn.MLP([HIDDEN], 1), PRIOR, x[:1])
    bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=NOISE)


def data(rng: np.random.Generator, count: int, inside: bool = False):
    """Rows on both sides of the gap, or inside it."""
    sides = [GAP] if inside else [(-EDGE, GAP[0]), (GAP[1], EDGE)]
    widths = np.array([high - low for low, high in sides])
    side = rng.choice(len(sides), count, p=widths / widths.sum())
    x = np.array([rng.uniform(*sides[k]) for k in side])
    y = np.sin(4 * x) + NOISE * rng.normal(size=count)
    return x.astype(np.float32)[:, None], y.astype(np.float32)


def posteriors(x, y, key: jax.Array, size: Row):
    """Draws of each method, one after the other."""
    keys = jax.random.split(key, 5)
    starts = bnn.optimize(model, keys[0], x, y, num_chains=size["chains"], progress_bar=False)
    each = {"starts": starts, "num_warmup": size["draws"], "num_samples": size["draws"]}
    hmc = HMC(model, num_steps=size["leapfrogs"], trajectory_length=None, target_accept_prob=0.9)
    yield "HMC", sampled(hmc, keys[1], x, y, **each)
    sghmc = bnn.SGHMC(model, step_size="auto", friction=10.0, batch_size=BATCH)
    each["num_warmup"] = size["draws"] * size["thinning"] // 4
    yield "SGHMC", sampled(sghmc, keys[2], x, y, **each, thinning=size["thinning"])
    training = {"num_steps": size["training"], "progress_bar": False}
    yield "deep ensemble", bnn.deep_ensemble(model, keys[3], x, y, num_members=MEMBERS, **training)
    yield "mean field", bnn.mean_field(model, keys[4], x, y, num_samples=2000, **training)


def regions(values: np.ndarray) -> dict[str, float]:
    """Means of a function on the grid: in the gap, beyond the data, and among them."""
    at = GRID[:, 0]
    gap, beyond = (at > GAP[0]) & (at < GAP[1]), np.abs(at) > EDGE
    parts = {"in the gap": gap, "beyond the data": beyond, "at the data": ~gap & ~beyond}
    return {name: float(values[inside].mean()) for name, inside in parts.items()}


def judged(name: str, run, fresh, inside, reference: np.ndarray | None, rng):
    """A row about one method, and its predictive samples on the grid."""
    # One call, so that one program is compiled.
    every = bnn.predict(model, run, np.concatenate([GRID, fresh[0], inside[0]])).mean
    functions, *predicted = np.split(every, np.cumsum([len(GRID), len(fresh[0])]), axis=-1)
    samples = functions + NOISE * rng.normal(size=functions.shape)
    flat = functions.reshape(-1, len(GRID))
    # The floor of the distance: half of the chains of HMC against the other half.
    pair = (samples, reference)
    if reference is None:
        half = len(samples) // 2
        pair = (samples[:half], samples[half:])
    row = {
        "method": name,
        **{f"sd {where}": value for where, value in regions(flat.std(0)).items()},
    }
    for where, mean, (_, y) in zip(("fresh rows", "rows in the gap"), predicted, (fresh, inside)):
        row |= {
            f"coverage, {where}": scores.coverage(mean, y, NOISE),
            f"lppd, {where}": scores.lppd(norm.logpdf(y, mean, NOISE)),
            f"RMSE, {where}": scores.rmse(mean, y),
        }
    row |= {
        "Wasserstein to HMC": scores.wasserstein(*pair),
        **convergence(functions),
        "mean on the grid": as_text(flat.mean(0)),
        "sd on the grid": as_text(np.hypot(flat.std(0), NOISE)),
    }
    return row, samples


def cell(seed: int, size: Row) -> Iterator[Row]:
    """All methods on the data of one seed."""
    rng = np.random.default_rng(seed)
    x, y = data(rng, ROWS)
    fresh, inside = data(rng, 500), data(rng, 500, inside=True)
    reference = None
    for name, run in posteriors(x, y, jax.random.key(seed), size):
        row, samples = judged(name, run, fresh, inside, reference, rng)
        reference = samples if reference is None else reference
        yield row


def averaged(rows: Sequence[Row]) -> list[Row]:
    """A row a method: means over data sets, the worst R-hat, and how many runs converged."""
    table = []
    for name in METHODS:
        own = [row for row in rows if row["method"] == name]
        numbers = [k for k, v in own[0].items() if isinstance(v, float) and k != "seconds"]
        means: Row = {"method": name}
        for column in numbers:
            values = [row[column] for row in own]
            extreme = {"worst R-hat": max, "least ESS": min}.get(column, np.mean)
            means[column] = float(extreme(values))
        means |= {k: means.get(k, "") for k in ("worst R-hat", "median R-hat", "least ESS")}
        runs = [row["converged"] for row in own]
        means["converged"] = f"{runs.count('yes')} of {len(runs)}" if runs[0] else ""
        table.append(means)
    return table


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Widths of bands beside those of HMC on the same data set, and what intervals hold in the gap."""
    by = {(row["method"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    for name in METHODS:
        own = [by[name, seed] for seed in seeds]
        widening = [row["sd in the gap"] / row["sd at the data"] for row in own]
        gap, data = (
            span([row[f"sd {part}"] / by["HMC", row["seed"]][f"sd {part}"] for row in own])
            for part in ("in the gap", "at the data")
        )
        beside = "" if name == "HMC" else f", {gap} of HMC's there and {data} at the data"
        held = span([100 * row["coverage, rows in the gap"] for row in own], 0)
        yield (
            f"{name}: the band is {span(widening, 1)} times as wide in the gap as at the data{beside}; 90 % "
            f"intervals hold {held} % of fresh rows of the gap."
        )


def picture(rows: Sequence[Row]):
    """Four panels: the band of each method on the data of the first seed."""
    first = [row for row in rows if row["seed"] == 0]
    figure, panels = plt.subplots(
        1, 4, figsize=(15, 4), sharex=True, sharey=True, layout="constrained"
    )
    points = data(np.random.default_rng(0), ROWS)
    for ax, row in zip(panels, first):
        mean, sd = (from_text(row[f"{what} on the grid"]) for what in ("mean", "sd"))
        bnn.plots.plot_predictive_band(
            GRID, mean[None], sd, data=points, label="posterior mean", ax=ax
        )
        at = np.linspace(-1.5, 1.5, 300)
        ax.plot(at, np.sin(4 * at), color="0.4", linestyle="--", linewidth=1, label="truth")
        ax.axvspan(*GAP, color="0.5", alpha=0.12, linewidth=0)
        ax.set(title=row["method"], ylim=(-2.6, 2.6), xlabel="x", ylabel="y")
        ax.legend().remove()
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, frameon=False, loc="outside lower center", ncols=5)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    study, _, size = begin(__file__, __doc__, ("seed", "method"), SIZES, argv)
    study.run(
        ({"seed": seed} for seed in range(size["seeds"])), lambda seed: cell(seed=seed, size=size)
    )
    table = averaged(study.rows)
    study.publish(table, findings(study.rows), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
