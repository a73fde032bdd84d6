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
import numpy as np
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import table
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks._shared.study import Results, Study, parser
from benchmarks.predictions.other_regressors import (
    BDE,
    bde,
    gaussian_process,
    single,
    with_residual_scale,
)
from benchmarks.predictions.tabular_report import (
    TABLES,
    by_table,
    findings,
    first_split,
    picture,
    wide,
)
from numpyro_bnn.diagnostics import rhat
from numpyro_bnn.potential.potential import Potential

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
