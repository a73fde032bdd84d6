"""Does the hierarchy help? Fixed prior scales against precisions that are learned, on UCI tables.

With one precision more for each input: automatic relevance determination (Neal 1996, MacKay 1994).
Differences are paired over splits, with errors that allow for the rows that splits share (`split_error`).

    python -m benchmarks.priors.hierarchy_helps [--quick | --toy]
"""

from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import NUTS
from scipy.stats import kstest

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import ESS_LIMIT, RHAT_LIMIT, sampler, select
from benchmarks._shared.splits import split_error
from benchmarks._shared.study import begin
from benchmarks.priors.small_tables import (
    ACTIVATIONS,
    PRIORS,
    few_rows,
    prior_named,
    regression_model,
    relevance,
    with_noise_columns,
)
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.plots import style as plots_style

KEYS = ("data", "noise_columns", "prior", "split")
ADDED = 10
# Rows of each table: those that a split does not test are what it may learn from.
TABLE_ROWS = {
    "yacht": 308,
    "boston": 506,
    "energy": 768,
    "concrete": 1030,
    "wine_red": 1599,
    "kin8nm": 8192,
}


class Size(NamedTuple):
    data: tuple[str, ...]
    with_noise: tuple[str, ...]
    splits: int
    rows: int
    test: int
    units: int
    warmup: int
    draws: int
    depth: int


SIZES = {
    "full": Size(
        ("yacht", "boston", "energy", "concrete", "wine_red", "kin8nm"),
        ("yacht", "concrete", "kin8nm"),
        *(4, 200, 500, 10, 300, 200, 7),
    ),
    "quick": Size(("yacht",), ("yacht",), 2, 100, 200, 5, 100, 100, 4),
    "toy": Size(("yacht",), ("yacht",), 2, 30, 50, 2, 30, 100, 2),
}


def cells(size):
    for name in size.data:
        for added in (0, ADDED) if name in size.with_noise else (0,):
            for prior in PRIORS:
                yield {"data": name, "noise_columns": added, "prior": prior}


def computer(size, folder):
    def compute(data, noise_columns, prior):
        model = regression_model(prior_named(prior), (size.units,), ACTIVATIONS["tanh"])
        nuts = NUTS(model, max_tree_depth=size.depth, target_accept_prob=0.9)
        mcmc = sampler(nuts, 4, size.warmup, size.draws, chain_method="parallel")
        starts = None
        for number in range(size.splits):
            split = few_rows(folder, data, number, size.rows, size.test)
            real = split.x.shape[1]
            split = with_noise_columns(split, noise_columns, number)
            if starts is None:
                # Prior draws with small kernels: no row of any split has a part in them.
                starts = bnn.optimize(
                    model,
                    jax.random.key(1),
                    *split[:2],
                    num_chains=mcmc.num_chains,
                    num_steps=0,
                    progress_bar=False,
                )
            yield {"split": number} | one(model, mcmc, starts, split, real)

    return compute


def one(model, mcmc, starts, split, real):
    """The scores of one posterior."""
    x, y, x_test, y_test = split
    mcmc.run(jax.random.key(0), x, y, init_params=starts)
    predictions = bnn.predict(model, mcmc, x_test)
    report = diagnose_draws(predictions=predictions)
    kernel = np.asarray(mcmc.get_samples(group_by_chain=True)["net/Dense_0.kernel"])
    return {
        "lppd": bnn.scores.lppd(predictions, y_test),
        "rmse": bnn.scores.rmse(predictions, y_test),
        "crps": float(np.mean(bnn.scores.crps(predictions, y_test))),
        "coverage90": bnn.scores.coverage(predictions, y_test, level=0.9),
        "pit_distance": float(kstest(bnn.scores.pit(predictions, y_test), "uniform").statistic),
        **relevance(kernel, real),
        "max_rhat": report.predictions.max_rhat,
        "median_rhat": report.predictions.median_rhat,
        "min_ess": report.predictions.min_ess,
    }


def values(rows, column, **where):
    """A column by split, of the rows that are asked for."""
    found = select(rows, **where)
    return np.array([r[column] for r in sorted(found, key=lambda r: r["split"])], float)


def paired(a, b, data, size):
    """Mean of a - b over splits of a table, and its standard error."""
    difference = a - b
    tested = min(size.test, TABLE_ROWS[data] - size.rows)
    error = split_error(difference, tested, TABLE_ROWS[data] - tested)
    return float(difference.mean()), error


def across(means):
    """Mean over tables, and its standard error; NaN where there is only one."""
    means = np.asarray(means, float)
    error = means.std(ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.nan
    return float(means.mean()), float(error)


def converged(row):
    """Whether predictions keep the limits of all studies."""
    return row["max_rhat"] <= RHAT_LIMIT and row["min_ess"] >= ESS_LIMIT


def tables_of(rows, noise_columns):
    """Tables of which every prior is there."""
    have = {(r["data"], r["prior"]) for r in rows if r["noise_columns"] == noise_columns}
    names = dict.fromkeys(r["data"] for r in rows)
    return [name for name in names if all((name, prior) in have for prior in PRIORS)]


def summary(rows):
    """A line for each prior, and one more of the noise columns."""
    lines = []
    for added in (0, ADDED):
        names = tables_of(rows, added)
        for prior in PRIORS if names else ():
            get = [values(rows, "lppd", data=n, noise_columns=added, prior=prior) for n in names]
            base = [
                values(rows, "lppd", data=n, noise_columns=added, prior="fan_in") for n in names
            ]
            mean, error = across([(a - b).mean() for a, b in zip(get, base)])
            mine = [r for r in rows if r["prior"] == prior and r["noise_columns"] == added]
            mine = [r for r in mine if r["data"] in names]
            column = {k: np.array([r[k] for r in mine], float) for k in mine[0] if k in NUMBERS}
            lines.append(
                {
                    "prior": prior,
                    "noise columns": added,
                    "tables": len(names),
                    "lppd": column["lppd"].mean(),
                    "lppd - fan_in": mean,
                    "± s.e.": error,
                    "RMSE": column["rmse"].mean(),
                    "coverage of 90 %": column["coverage90"].mean(),
                    "PIT distance": column["pit_distance"].mean(),
                    "noise / real weights": (
                        column["weights_noise"] / column["weights_real"]
                    ).mean(),
                    "P(noise > real)": column["noise_above"].mean(),
                    "worst R-hat": column["max_rhat"].max(),
                    "median R-hat": np.median(column["median_rhat"]),
                    "converged": f"{sum(map(converged, mine))} of {len(mine)}",
                }
            )
    return lines


NUMBERS = {
    *("lppd", "rmse", "coverage90", "pit_distance", "weights_real", "weights_noise"),
    *("noise_above", "max_rhat", "median_rhat"),
}


def losses(rows, prior, size=SIZES["full"]):
    """What noise columns cost a prior, by table: (mean, standard error) of paired differences."""
    return {
        name: paired(
            values(rows, "lppd", data=name, noise_columns=ADDED, prior=prior),
            values(rows, "lppd", data=name, noise_columns=0, prior=prior),
            name,
            size,
        )
        for name in tables_of(rows, ADDED)
    }


def gains(rows, prior, size=SIZES["full"]):
    """What a prior gains over scales by fan-in, by table: (mean, standard error)."""
    return {
        name: paired(
            values(rows, "lppd", data=name, noise_columns=0, prior=prior),
            values(rows, "lppd", data=name, noise_columns=0, prior="fan_in"),
            name,
            size,
        )
        for name in tables_of(rows, 0)
    }


def findings(rows, size=SIZES["full"]):
    """Sentences whose numbers all come from the rows."""
    names = tables_of(rows, 0)
    for prior in PRIORS:
        if prior == "fan_in":
            continue
        own = gains(rows, prior, size)
        above = sum(mean > 2 * error for mean, error in own.values())
        below = sum(mean < -2 * error for mean, error in own.values())
        mean, error = across([mean for mean, _ in own.values()])
        yield (
            f"{prior} against fan_in: lppd {mean:+.3f} ± {error:.3f} over {len(names)} tables; beyond "
            f"two standard errors of the splits better on {above}, worse on {below}."
        )
    for prior in PRIORS:
        lost = losses(rows, prior, size)
        if lost:
            mean, error = across([value for value, _ in lost.values()])
            by_table = ", ".join(f"{name} {m:+.2f} ± {e:.2f}" for name, (m, e) in lost.items())
            yield (
                f"{ADDED} columns of noise change the lppd of {prior} by {mean:+.3f} ± {error:.3f}: "
                f"{by_table}."
            )


def figure(rows, size=SIZES["full"]):
    """Gain over fan-in by table, coverage, and the loss by noise columns."""
    drawing, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    names, noisy = tables_of(rows, 0), tables_of(rows, ADDED)
    for i, prior in enumerate(PRIORS):
        look = {"color": plots_style.color_at(axes[0], i), "marker": plots_style.MARKERS[i]}
        shift = 0.14 * (i - 2)

        def points(ax, pairs, shift=shift, look=look, prior=prior):
            mean, error = np.array(pairs).T
            at = np.arange(len(mean)) + shift
            ax.errorbar(at, mean, error, linestyle="none", capsize=2, label=prior, **look)

        covered = [values(rows, "coverage90", data=n, noise_columns=0, prior=prior) for n in names]
        points(axes[0], list(gains(rows, prior, size).values()))
        points(axes[1], [paired(c, 0.0, n, size) for c, n in zip(covered, names)])
        if noisy:
            points(axes[2], list(losses(rows, prior, size).values()))
    axes[1].axhline(0.9, color="0.6", zorder=0)
    titles = (
        "log score minus that of fan-in",
        "coverage of central 90 %",
        f"log score with {ADDED} noise columns, minus without",
    )
    for ax, title, ticks in zip(axes, titles, (names, names, noisy)):
        plots_style.label_axes(ax, "", title)
        ax.set_xticks(range(len(ticks)), ticks, rotation=20)
    for ax in axes[::2]:
        ax.axhline(0.0, color="0.6", zorder=0)
    axes[1].legend(frameon=False, fontsize="small")
    return drawing


def main(argv=None):
    study, given, size = begin(__file__, __doc__, KEYS, SIZES, argv)
    study.run(cells(size), computer(size, given.data))
    study.publish(summary(study.rows), findings(study.rows, size), lambda: figure(study.rows, size))


if __name__ == "__main__":
    main()
