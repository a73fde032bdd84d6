"""What does sampling add on tables? Point estimates, approximations and samplers, one network each.

Scores are of standardised test targets. The share of seconds of each method is stated, not equalised. Tables
above 5000 rows get samplers with minibatches, and one of all rows; what NUTS would take there is printed. The
longest methods run for the first split only. `bde` (`pip install sklearn-contrib-bde`) needs an interpreter
that has it.

    python -m benchmarks.predictions.tabular [--quick] [--bde-python PYTHON]
"""

import os
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import table
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks._shared.splits import split_error
from benchmarks._shared.study import Results, Study, parser
from benchmarks._shared.words import span, with_error
from benchmarks.predictions.other_regressors import (
    BDE,
    bde,
    gaussian_process,
    single,
    with_residual_scale,
)
from numpyro_bnn.diagnostics import rhat
from numpyro_bnn.potential.potential import Potential

TABLES = ("yacht", "energy", "concrete", "airfoil", "bikesharing", "protein")
# Published lppd of standardised targets: bde (four layers of 16), deep ensembles beside it, and
# microcanonical Langevin ensembles.
MARKS = {
    "published, bde": {"airfoil": 0.9126, "bikesharing": 0.7315},
    "published, deep ensemble": {"airfoil": -0.176, "bikesharing": 0.455},
    "published, microcanonical": {"airfoil": 0.28, "bikesharing": 0.132, "energy": 2.018},
}
# Shares of a table that a split tests and fits; the rest stops the optimisation.
TESTED, FITTED = 0.2, 0.7
DEEP = "four layers, "


def mean_and_error(values):
    """Mean over splits, and its standard error, which allows for the rows that splits share."""
    return float(np.mean(values)), split_error(values, TESTED, FITTED)


def base_of(method, over="deep ensemble"):
    """What a method is compared with: networks of as many layers."""
    return DEEP + over if method.startswith(DEEP) else over


def scores_by_split(rows, table, method):
    """Log scores of one method on one table, by split."""
    return {r["seed"]: r["lppd"] for r in rows if (r["table"], r["method"]) == (table, method)}


def gain(rows, table, method, over):
    """What a method gains over another, for each split that both have."""
    own, base = (scores_by_split(rows, table, name) for name in (method, over))
    return np.array([own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())])


def wide(rows):
    """Log score by method and table, means over all splits of a table, the best in bold; and what it took.

    :func:`first_split` has the methods that ran on fewer splits.
    """
    names = [name for name in TABLES if any(row["table"] == name for row in rows)]
    cells = {}
    for name in names:
        found = [row for row in rows if row["table"] == name]
        scores = {m: [r["lppd"] for r in found if r["method"] == m] for m in by_method(found)}
        most = max(map(len, scores.values()))
        full = {method: own for method, own in scores.items() if len(own) == most}
        best = max(full, key=lambda method: np.mean(full[method]))
        for method, own in full.items():
            text = "{:.3f} ± {:.3f}".format(*mean_and_error(own)) if most > 1 else f"{own[0]:.3f}"
            cells[method, name] = f"**{text}**" if method == best else text
    for method, every in by_method(rows).items():
        own = [row for row in every if (method, row["table"]) in cells]
        if not own:
            continue
        hats = [row["median rhat"] for row in own if np.isfinite(row["median rhat"])]
        yield {
            "method": method,
            **{name: cells.get((method, name), "") for name in names},
            "median R-hat": span(hats) if hats else "",
            "CPU seconds": span([row["CPU seconds"] for row in own], 0),
        }
    for method, marks in MARKS.items():
        shown = {name: f"{marks[name]:.3f}" if name in marks else "" for name in names}
        yield {"method": method, **shown, "median R-hat": "", "CPU seconds": ""}


def by_method(rows):
    """Rows of each method, in the order in which they came."""
    found = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return found


def first_split(rows):
    """lppd of the methods that ran once, and of what they are to be held against, on that split."""
    first = min(row["seed"] for row in rows)
    names = [name for name in TABLES if any(row["table"] == name for row in rows)]
    cells = {(r["method"], r["table"]): r["lppd"] for r in rows if r["seed"] == first}
    once = [m for m, name in cells if len(scores_by_split(rows, name, m)) == 1]
    beside = ["deep ensemble", "MCLMC", "hierarchical, MCLMC"]
    beside += [DEEP + "deep ensemble", DEEP + "MCLMC"]
    for method in dict.fromkeys([*beside, *once]):
        found = [cells.get((method, name)) for name in names]
        if any(value is not None for value in found):
            shown = ["" if value is None else f"{value:.3f}" for value in found]
            yield {"method, first split": method} | dict(zip(names, shown))


def gains(rows, method, over="deep ensemble"):
    """What a method gains over another by table: mean and error, where all splits of both are there."""
    found = {}
    for name in TABLES:
        base = base_of(method, over)
        own = gain(rows, name, method, base)
        if 1 < len(own) == len(scores_by_split(rows, name, base)):
            found[name] = mean_and_error(own)
    return found


def by_table(rows):
    """Gains over an ensemble of the same networks, a row a table."""
    columns = {m: gains(rows, m) for m in ("MCLMC", "MAMS", "NUTS", "BAOAB", DEEP + "MCLMC")}
    for name in dict.fromkeys(row["table"] for row in rows):
        cells = {m: with_error(own[name]) if name in own else "" for m, own in columns.items()}
        yield {"gain over a deep ensemble, nats": name} | cells


def times_the_ensemble(rows, layers=""):
    """CPU seconds of MCLMC over those of its ensemble, split by split."""
    seconds = {(r["method"], r["table"], r["seed"]): r["CPU seconds"] for r in rows}
    own, base = f"{layers}MCLMC", f"{layers}deep ensemble"
    return [
        value / seconds[base, *where]
        for (method, *where), value in seconds.items()
        if method == own and (base, *where) in seconds
    ]


def told(found):
    """Gains as they stand in a sentence."""
    return ", ".join(f"{with_error(pair)} ({name})" for name, pair in found.items()) or "unknown"


def findings(rows):
    """What sampling gains over ensembles and over bde, what it costs, and how far chains agree."""
    yield f"MCLMC gains over a deep ensemble of the same networks: {told(gains(rows, 'MCLMC'))} nats a row."
    times, deep = (times_the_ensemble(rows, layers) for layers in ("", DEEP))
    yield (
        f"It takes {span(times, 1)} times the CPU seconds of the ensemble, split by split; with four layers "
        f"{span(deep, 1)} times."
    )
    for method in ("MCLMC", "MCLMC, rough"):
        yield f"{method}, over bde of two layers: {told(gains(rows, method, 'bde'))}."
    yield f"Learned precisions, over N(0, 1): {told(gains(rows, 'hierarchical, MCLMC', 'MCLMC'))}."
    for method in ("SWAG", "mean field", "Laplace"):
        yield f"{method}, over the ensemble: {told(gains(rows, method))}."
    # Draws of a Gaussian around averaged weights are no chain.
    chains = [r for r in rows if r["median rhat"] > 0 and r["method"] != "SWAG"]
    ladder, other = [], []
    for row in chains:
        (ladder if "tempering" in row["method"] else other).append(row["median rhat"])
    yield f"Median R-hat of predictions: {span(other)} of chains, {span(ladder)} of tempering."


def picture(rows):
    """lppd of every method, seed by seed; one panel a table."""
    names = [name for name in TABLES if any(row["table"] == name for row in rows)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    with plt.rc_context({"font.size": 8}):
        figure, axes = plt.subplots(
            1, len(names), figsize=(3 * len(names), 4), sharey=True, squeeze=False
        )
        for axis, name in zip(axes[0], names):
            own = [row for row in rows if row["table"] == name]
            axis.plot(
                [row["lppd"] for row in own], [methods.index(row["method"]) for row in own], "o"
            )
            # A method that failed would squeeze all others together.
            low, high = np.quantile([row["lppd"] for row in own], [0.1, 1.0])
            axis.set_xlim(low - 0.3 * (high - low), high + 0.1 * (high - low))
            axis.set_title(name)
            axis.set_xlabel("lppd")
        axes[0, 0].set_yticks(range(len(methods)), methods)
        axes[0, 0].invert_yaxis()
    return figure


MEMBERS = 8
# Above so many rows, samplers see minibatches of so many.
MANY, BATCH = 5000, 500
TREE_DEPTH = 8
# What takes more than five CPU-minutes on some tables, and runs once.
LONG = (
    "hierarchical, tempering",
    "all rows, MCLMC",
    "four layers, MCLMC, rough",
    "four layers, bde",
)
# What short forms run.
SHORT = {
    "quick": ("MAP", "deep ensemble", "Laplace", "MCLMC", "NUTS", "gradient boosting", "bde"),
    "toy": ("MAP", "MCLMC", "gradient boosting", "Gaussian process"),
}


class Parts(NamedTuple):
    """Rows to fit, to validate, to test: each (x, y), standardised by those to fit."""

    fit: tuple[jax.Array, jax.Array]
    validate: tuple[jax.Array, jax.Array]
    test: tuple[jax.Array, jax.Array]


def network(prior, layers=2):
    """The model of all methods, around one prior."""

    def model(x, y=None):
        net = bnn.random_module("net", MLPByFeatures((16,) * layers, 2, jax.nn.relu), prior, x[:1])
        bnn.likelihoods.heteroscedastic(net, y, x=x)

    return model


def split(folder, name, seed, most=None):
    """A table in parts; `most` bounds its rows."""
    x, y = (values[:most].astype(np.float64) for values in table(folder, name))
    order = np.random.default_rng(seed).permutation(len(y))
    fit = order[: round(0.7 * len(y))]
    spread = np.where(x[fit].std(0) > 0, x[fit].std(0), 1.0)
    x, y = (x - x[fit].mean(0)) / spread, (y - y[fit].mean()) / y[fit].std()
    ends = [round(0.7 * len(y)), round(0.8 * len(y))]
    return Parts(
        *(
            (jnp.asarray(x[rows], jnp.float32), jnp.asarray(y[rows], jnp.float32))
            for rows in np.split(order, ends)
        )
    )


def scored(predictions, y):
    """RMSE, lppd and R-hats of the predictions of draws."""
    found = {
        "rmse": float(bnn.scores.rmse(predictions, np.asarray(y))),
        "lppd": float(bnn.scores.lppd(predictions, np.asarray(y))),
        "worst rhat": float("nan"),
        "median rhat": float("nan"),
        "draws": predictions.mean.shape[0] * predictions.mean.shape[1],
    }
    if predictions.mean.shape[0] > 1 and predictions.mean.shape[1] >= 100:
        values = rhat(predictions.mean)
        found |= {"worst rhat": float(values.max()), "median rhat": float(np.median(values))}
    return found


def approximations(num_rows, quiet):
    """Name to a function of (key, parts) that gives draws."""
    model, deep = (network(bnn.priors.Normal(1.0), layers) for layers in (2, 4))
    batch = {"batch_size": BATCH} if num_rows > MANY else {}
    sgd = {"batch_size": min(BATCH, max(20, num_rows // 10))}

    def method(function, model=model, early=False, **options):
        def run(key, parts):
            more = {"validation": parts.validate} if early else {}
            return function(model, key, *parts.fit, **(quiet | batch | more | options))

        return run

    few = {"num_samples": 100}
    return {
        "MAP": method(bnn.map_estimate, early=True),
        "deep ensemble": method(bnn.deep_ensemble, early=True, num_members=MEMBERS),
        "four layers, deep ensemble": method(
            bnn.deep_ensemble, deep, early=True, num_members=MEMBERS
        ),
        "randomised MAP": method(bnn.randomized_map, num_members=MEMBERS),
        "SWAG": method(bnn.swag, num_members=MEMBERS, **sgd, **few),
        "Laplace": method(partial(bnn.laplace, linearized=True), **few),
        "mean field": method(bnn.mean_field, **few),
    }


def samplers(budget, num_rows, quiet):
    """Name to a function of (key, parts) that gives draws; long ones of all rows for small tables."""
    models = [network(bnn.priors.Normal(1.0)), network(bnn.priors.Hierarchical())]
    deep = network(bnn.priors.Normal(1.0), 4)

    def recipe(kernel, model, number, **settings):
        def run(key, parts):
            fitted = bnn.fit(
                model,
                *parts.fit,
                key=key,
                kernel=kernel(model) if callable(kernel) else kernel,
                num_chains=MEMBERS,
                num_samples=number,
                x_test=parts.test[0][:2],
                **({"num_warmup": number} | quiet | settings),
            )
            return fitted.draws

        return run

    def tempered(model):
        def run(key, parts):
            kernel = HMC(model, num_steps=100, trajectory_length=None)
            ladder = bnn.ParallelTempering(model, kernel, num_rungs=32)
            mcmc = bnn.MCMC(
                ladder, num_warmup=draws(300), num_samples=draws(600), num_chains=2, **quiet
            )
            mcmc.run(key, *parts.fit)
            return mcmc

        return run

    def draws(number):
        return max(100, int(number * budget))

    batch = {"batch_size": BATCH} if num_rows > MANY else {}
    thinned = {"thinning": 50}
    unadjusted = {"number": draws(400), **thinned, **batch}
    found = {
        "BAOAB": recipe("baoab", models[0], **unadjusted),
        "MCLMC": recipe("mclmc", models[0], **unadjusted),
        "four layers, MCLMC": recipe("mclmc", deep, **unadjusted),
        "hierarchical, MCLMC": recipe("mclmc", models[1], **unadjusted),
    }
    if num_rows > MANY:
        return found | {"all rows, MCLMC": recipe("mclmc", models[0], draws(200), **thinned)}
    nuts = partial(NUTS, target_accept_prob=0.9, max_tree_depth=TREE_DEPTH)
    mams = partial(bnn.MAMS, trajectory_length=3.0)
    # The error of a step that bde accepts, 200 times ours, with its share of warm-up.
    rough = partial(bnn.MCLMC, energy_variance=0.1)
    return found | {
        "MCLMC, rough": recipe(rough, models[0], draws(250), **thinned),
        "four layers, MCLMC, rough": recipe(
            rough, deep, draws(400), num_warmup=draws(1600), **thinned
        ),
        "MAMS": recipe(mams, models[0], draws(200)),
        "NUTS": recipe(nuts, models[0], draws(200)),
        "hierarchical, NUTS": recipe(nuts, models[1], draws(200)),
        "hierarchical, tempering": tempered(models[1]),
    }


def nuts_hours(parts):
    """What NUTS would take: a gradient of all rows and chains, by the steps of full trees."""
    potential = Potential(network(bnn.priors.Normal(1.0)), parts.fit)
    keys = jax.random.split(jax.random.key(0), MEMBERS)
    states = jax.vmap(potential.prior_draw)(keys)
    gradient = jax.jit(jax.vmap(jax.grad(potential)))
    jax.block_until_ready(gradient(states))
    begin = time.perf_counter()
    jax.block_until_ready(gradient(states))
    return (time.perf_counter() - begin) * 400 * (2**TREE_DEPTH - 1) / 3600


def boosting(parts):
    """The mean by boosted trees, one scale from the validation rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    trees = HistGradientBoostingRegressor(random_state=0).fit(*map(np.asarray, parts.fit))
    return with_residual_scale(trees, tuple(map(np.asarray, parts.validate)))(
        np.asarray(parts.test[0])
    )


def process(parts):
    """A Gaussian process."""
    return single(*gaussian_process(*parts.fit, parts.test[0]))


OTHERS = {"gradient boosting": boosting, "Gaussian process": process}


def cpu_seconds():
    """Of this process and its children, on all cores."""
    return sum(os.times()[:4])


def compute(given, budget, most):
    """The function that a study calls for a cell."""
    quiet = {"progress_bar": False}

    def one(table, seed, method):
        parts = split(given.data, table, seed, most)
        num_rows = len(parts.fit[1])
        named = approximations(num_rows, quiet) | samplers(budget, num_rows, quiet)
        begin = cpu_seconds()
        if method in BDE:
            settings = BDE[method] | {"seed": seed}
            predictions = bde(given.bde_python, settings, *parts.fit, parts.test[0])
            found = scored(predictions, parts.test[1])
        elif method in OTHERS:
            found = scored(OTHERS[method](parts).predictions, parts.test[1])
        else:
            draws = named[method](jax.random.key(seed), parts)
            found = scored(bnn.predict(None, draws, parts.test[0]), parts.test[1])
        spent = cpu_seconds() - begin
        yield {"table": table, "seed": seed, "method": method} | found | {"CPU seconds": spent}

    return one


def main(argv=None):
    made = parser(__doc__)
    made.add_argument("--bde-python", help="an interpreter with sklearn-contrib-bde")
    given = made.parse_args(argv)
    full = given.size == "full"
    tables, seeds = (TABLES, (1, 2, 3, 4, 5)) if full else (("yacht",), (1,))
    most = {"full": None, "quick": 300, "toy": 60}[given.size]
    study = Study(__file__, ("table", "seed", "method"), given)
    for seed in () if given.report else seeds:
        for name in tables:
            parts = split(given.data, name, seed, most)
            if len(parts.fit[1]) > MANY:
                print(f"{name}: NUTS would take up to {nuts_hours(parts):.1f} hours; not run.")
            names = [*approximations(0, {}), *samplers(1.0, len(parts.fit[1]), {}), *OTHERS]
            names += BDE if given.bde_python else ()
            cells = [
                {"table": name, "seed": seed, "method": method}
                for method in names
                if (full or method in SHORT[given.size])
                and (seed == seeds[0] or method not in LONG)
            ]
            study.run(cells, compute(given, 1.0 if full else 0.25, most))
    gained = list(by_table(study.rows))
    study.publish(gained, findings(study.rows), lambda: picture(study.rows))
    Results(__file__, given, "scores").report(list(wide(study.rows)))
    Results(__file__, given, "first_split").report(list(first_split(study.rows)))


if __name__ == "__main__":
    main()
