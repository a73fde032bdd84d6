"""Where do chains begin: at a noise of 0, or where held-out rows are likeliest?

A network that can interpolate its rows has no mode: density grows without bound as the noise goes to 0. Noise
is e^(-l) / √(2πe) in standard deviations of the target, l the mean log density of the rows to learn from.

    python -m benchmarks.predictions.starts [--quick | --toy]
"""

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import uci
from benchmarks._shared.sampled_runs import sampler, select
from benchmarks._shared.study import Row, begin, every_cell, without
from benchmarks._shared.words import number, span
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer, TrainingOptions
from numpyro_bnn.approximations.modes import ensemble_of
from numpyro_bnn.diagnostics import rhat
from numpyro_bnn.potential.starts import BoundModel

TABLES = ("diabetes", "yacht", "boston", "energy", "concrete")
TABLES += ("wine_red", "kin8nm", "power", "naval", "protein")
PRIORS = {"N(0, 1)": partial(bnn.priors.Normal, 1.0), "hierarchical": bnn.priors.Hierarchical}
LIKELIHOODS = ("gaussian", "student_t", "heteroscedastic")
FIRST = {"priors": ("N(0, 1)",), "likelihoods": LIKELIHOODS[:1]}
RULES = ("before", "now")
MEMBERS, MOST_ROWS, MOST_TESTED = 4, 350, 500
SIZES: dict[str, Row] = {
    "full": {"tables": TABLES, "draws": 200, "priors": PRIORS, "likelihoods": LIKELIHOODS},
    "quick": {"tables": TABLES[:2], "draws": 100} | FIRST,
    "toy": {"tables": TABLES[:1], "draws": 20} | FIRST,
}


def rows_of(folder, table: str) -> tuple[np.ndarray, ...]:
    """x, y, x_test, y_test, standardised by the rows to learn from."""
    if table == "diabetes":
        x, y = load_diabetes(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        fit, test = order[:MOST_ROWS], order[MOST_ROWS:]
        parts = (x[fit], y[fit], x[test], y[test])
    else:
        split = uci(folder, table, 0)
        fit = np.random.default_rng(0).permutation(len(split.y))[:MOST_ROWS]
        parts = split.x[fit], split.y[fit], split.x_test, split.y_test
    x, y, x_test, y_test = (np.asarray(part, np.float64)[:MOST_TESTED] for part in parts)
    spread = np.where(x.std(0) > 0, x.std(0), 1.0)
    inputs = ((part - x.mean(0)) / spread for part in (x, x_test))
    targets = ((part - y.mean()) / y.std() for part in (y, y_test))
    (x, x_test), (y, y_test) = inputs, targets
    return x, y, x_test, y_test


def compute(folder, draws: int, table: str, prior: str, likelihood: str) -> Iterator[Row]:
    """Starts by both rules, and chains from them."""
    x, y, x_test, y_test = rows_of(folder, table)
    outputs = 2 if likelihood == "heteroscedastic" else 1
    network = bnn.MLP([16, 16], outputs)
    model = bnn.regression(network, PRIORS[prior](), likelihood=likelihood)
    for rule in RULES:
        members = MemberOptimizer("optimize", BoundModel.of(model, (x, y), {}))
        options = TrainingOptions(progress_bar=False)
        z, _ = members.fit(jax.random.key(1), MEMBERS, options, to_mode=rule == "before")
        starts = members.compiled(members.completed)(z, members.arrays)
        ensemble = ensemble_of(BoundModel.of(model, (x, y), {}), starts)
        log_density = bnn.scores.lppd(bnn.predict(None, ensemble, x), y, pointwise=False)
        energies = jax.jit(jax.vmap(bnn.potential_of(model, x, y).energies))(starts)[1]
        noise = np.exp(np.asarray(energies) / len(y)) / np.sqrt(2 * np.pi * np.e)
        mcmc = sampler(bnn.MCLMC(model), MEMBERS, 2000, draws, 20, chain_method="parallel")
        mcmc.run(jax.random.key(2), x, y, init_params=starts)
        predictions = bnn.predict(None, mcmc, x_test)
        of_means = rhat(np.asarray(predictions.mean))
        yield {
            "rule": rule,
            "noise": float(np.median(noise)),
            "steps": members.steps,
            "training score": float(log_density),
            "ensemble": float(bnn.scores.lppd(bnn.predict(None, ensemble, x_test), y_test)),
            "chains": float(bnn.scores.lppd(predictions, y_test)),
            "worst rhat": float(np.nanmax(of_means)),
            "median rhat": float(np.nanmedian(of_means)),
            "guess": float(-0.5 * np.mean(y_test**2) - 0.5 * np.log(2 * np.pi)),
        }


def summary(rows: Sequence[Row]) -> list[Row]:
    """Both rules beside each other, a line for each table, prior and likelihood."""
    found = []
    for first in (row for row in rows if row["rule"] == RULES[0]):
        keys = {k: first[k] for k in ("table", "prior", "likelihood")}
        (second,) = select(rows, rule=RULES[1], **keys)
        line = keys | {"guess": f"{first['guess']:.2f}"}
        for what, digits in (("noise", 3), ("ensemble", 2), ("chains", 2), ("median rhat", 3)):
            line[what] = f"{first[what]:.{digits}f} → {second[what]:.{digits}f}"
        line["worst rhat"] = f"{first['worst rhat']:.2f} → {second['worst rhat']:.2f}"
        found.append(line)
    return found


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """In how many cells chains gain by the new starts, and how starts and runs look by either rule."""
    pairs: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        key = tuple(row[k] for k in ("likelihood", "prior", "table"))
        pairs.setdefault(key, {})[row["rule"]] = row
    gains = {k: p["now"]["chains"] - p["before"]["chains"] for k, p in pairs.items()}
    ensembles = sum(p["now"]["ensemble"] >= p["now"]["guess"] for p in pairs.values())
    yield (
        f"Starts that stop by held-out rows give chains with better log scores in "
        f"{sum(g > 0 for g in gains.values())} of {len(gains)} cells, and ensembles that are better than "
        f"guessing in {ensembles}."
    )
    for likelihood in dict.fromkeys(key[0] for key in gains):
        own = [gain for key, gain in gains.items() if key[0] == likelihood]
        yield (
            f"Likelihood {likelihood}: better in {sum(g > 0 for g in own)} of {len(own)} cells, median gain "
            f"{number(float(np.median(own)))} nats, {span(own)}."
        )
    for rule in RULES:
        ours = [row for row in rows if row["rule"] == rule]
        low = sum(row["noise"] < 0.05 for row in ours)
        worse = sum(row["ensemble"] < row["guess"] for row in ours)
        apart = sum(row["worst rhat"] > 1.1 for row in ours)
        worst = float(np.median([row["worst rhat"] for row in ours]))
        yield (
            f"Rule {rule!r}: {low} of {len(ours)} cells begin at a noise below 0.05, {worse} ensembles are "
            f"worse than guessing, {apart} runs have an R-hat above 1.1 (median of the worst {worst:.2f})."
        )


def picture(rows: Sequence[Row]):
    """Log scores of the chains by both rules, a point a cell."""
    figure, ax = plt.subplots(figsize=(4, 4))
    pairs = zip(*([r["chains"] for r in rows if r["rule"] == rule] for rule in RULES))
    ax.plot(*zip(*pairs), "o", ms=4)
    ends = np.array([min(r["chains"] for r in rows), max(r["chains"] for r in rows)])
    ax.plot(ends, ends, color="0.6", lw=1)
    # One cell scores -137, most between -2 and 4.
    ax.set(xscale="symlog", yscale="symlog")
    ax.set(xlabel="log score of chains, starts of before", ylabel="starts by held-out rows")
    return figure


def main(argv: list[str] | None = None) -> None:
    study, given, size = begin(
        __file__, __doc__, ("table", "prior", "likelihood", "rule"), SIZES, argv
    )
    cells = every_cell(table=size["tables"], prior=size["priors"], likelihood=size["likelihoods"])
    study.run(cells, partial(compute, given.data, size["draws"]))
    study.publish(summary(study.rows), findings(without(study.rows)), lambda: picture(study.rows))


if __name__ == "__main__":
    main()
