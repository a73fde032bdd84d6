"""How far is each method from the posterior at equal passes over the data; does being near predict better?

The prior scale of one posterior is chosen by `against_hmc_prior`; the methods are in `against_hmc_methods`.
Errors are over test rows, and a jackknife over chains or networks (over seeds where there is one chain).

    python -m benchmarks.mixing.against_hmc [--quick]

After table 4 and figure 8 of Izmailov, Vikram, Hoffman and Wilson, *What are Bayesian neural network
posteriors really like?* (2021).
"""

import math
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import spearmanr

import numpyro_bnn as bnn
from benchmarks._shared.chain_errors import jackknife_error, without_each
from benchmarks._shared.sampled_runs import (
    columns,
    convergence,
    means,
    publish,
    scores_of_chains,
    select,
)
from benchmarks._shared.study import Results, Row, Study, begin
from benchmarks._shared.words import number
from benchmarks.mixing import against_hmc_prior
from benchmarks.mixing.against_hmc_methods import (
    AGAIN,
    ALONE,
    CHOSEN,
    EQUAL,
    OPTIMISED,
    PROBLEMS,
    REFERENCE,
    SAMPLED,
    SIZES,
    SVRG,
    Case,
    Size,
    given,
    hmc_run,
    optimised,
    sampler_run,
)
from numpyro_bnn.plots.style import color_at, label_axes
from numpyro_bnn.posterior.predictive_draws import Predictions
from numpyro_bnn.workflow.compare import scored_row

ORDER = (REFERENCE, AGAIN, EQUAL, *OPTIMISED, *SAMPLED[1:])


def monte_carlo(same: Sequence[Row]) -> float | str:
    """Monte Carlo error of a mean log score: by chains or networks of each seed, else by seeds; or empty."""
    errors = [row["over_chains"] for row in same]
    if "" not in errors:
        return math.sqrt(sum(e**2 for e in errors)) / len(errors)
    if len(same) > 1:
        return float(np.std([row["log_score"] for row in same], ddof=1)) / math.sqrt(len(same))
    return ""


def averaged(rows: Sequence[Row]) -> list[Row]:
    """Means over the seeds of a method, with the Monte Carlo error of its difference from the reference.

    - **monte_carlo** - of the difference: that of the method and that of the reference together
    - **sure** - the difference over both errors together; 0 where one is not known
    - **seeds** - how many
    """
    out = []
    for same, mean in means(list(rows), "problem", "method"):
        (reference,) = select(rows, problem=mean["problem"], method=REFERENCE)
        own = monte_carlo(same)
        both: float | str = ""
        if mean["method"] == REFERENCE:
            both = 0.0
        elif own != "":
            both = math.hypot(float(own), reference["over_chains"])
        gap, over_rows = mean["difference"], mean["difference_error"]
        good = all(row["converged"] == "yes" for row in same)
        out.append(
            mean
            | {
                "over_chains": own,
                "monte_carlo": both,
                "sure": gap / math.hypot(over_rows, float(both)) if gap and both != "" else 0.0,
                "seeds": len(same),
                "converged": same[0]["converged"] and ("yes" if good else "no"),
            }
        )
    names = problems(rows)
    return sorted(out, key=lambda r: (names.index(r["problem"]), ORDER.index(r["method"])))


def problems(rows: Sequence[Row]) -> list[str]:
    """Those that have rows, in their order."""
    return list(dict.fromkeys(row["problem"] for row in rows))


def rank_correlation(rows: Sequence[Row], name: str) -> float:
    """Of the distance from HMC and the log score, over methods."""
    here = [r for r in select(rows, problem=name) if r["method"] != REFERENCE]
    columns = ([r[k] for r in here] for k in ("total_variation", "log_score"))
    return float(spearmanr(*columns).statistic)


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """Ensembles beside mean field, the nearest methods, and whether near ones score better."""
    names, told = problems(rows), []
    for name in names:
        far = {r["method"]: r["total_variation"] for r in select(rows, problem=name)}
        one, other = (far.get(method, math.nan) for method in ("deep ensemble", "mean field"))
        if one < other:
            told.append(f"{one:.3f} and {other:.3f} ({name})")
    yield (
        f"A deep ensemble is nearer to HMC than mean field on {len(told)} of {len(names)} posteriors: "
        f"{', '.join(told)}."
    )
    for name in names:
        others = [r for r in select(rows, problem=name) if r["method"] not in (REFERENCE, AGAIN)]
        nearest = min(others, key=lambda r: r["total_variation"])
        yield (
            f"{name}: nearest {nearest['method']} at {nearest['total_variation']:.3f}; rank correlation of "
            f"distance and log score {number(rank_correlation(rows, name))}."
        )


def distances(rows: Sequence[Row]) -> Iterator[Row]:
    """Distances from HMC; in brackets log scores beyond its own, where by more than two errors."""

    def shown(row: Row) -> str:
        gap = f" ({number(row['difference'], 3)})" if abs(row["sure"]) > 2 else ""
        return f"{row['total_variation']:.3f}{gap}"

    for method in ORDER[1:]:
        cells = {r["problem"]: shown(r) for r in select(rows, method=method)}
        if cells:
            yield {"method": method} | {name: cells.get(name, "") for name in problems(rows)}


TABLE = {
    "problem": "problem",
    "method": "method",
    "prior_scale": "prior scale",
    "seeds": "seeds",
    "gradients": "passes in all",
    "agreement": "agreement",
    "total_variation": "total variation, or distance of the mean",
    "predictive": "distance of predictive samples",
    "error": "error or RMSE",
    "log_score": "log score",
    "difference": "– HMC",
    "difference_error": "± over test rows",
    "monte_carlo": "± Monte Carlo",
    "calibration": "calibration error, or cover of 90 %",
    "fit_seconds": "seconds",
    "median R-hat": "median R-hat",
    "worst R-hat": "worst R-hat",
    "least ESS": "least ESS",
    "converged": "predictions converged",
}

TICKS = (-1, -0.1, 0, 0.1, 1)


def draw(rows: Sequence[Row]) -> Any:
    """Distance from HMC and difference of the log score by method; a row of panels a problem."""
    names = problems(rows)
    figure, axes = plt.subplots(
        len(names),
        2,
        figsize=(9, 3.3 * len(names)),
        layout="constrained",
        squeeze=False,
        sharey="row",
    )
    for (left, right), name in zip(axes, names):
        others = [r for r in select(rows, problem=name) if r["method"] != REFERENCE]
        others.sort(key=lambda r: -r["total_variation"])
        floor = [r["total_variation"] for r in others if r["method"] == AGAIN]
        for place, row in enumerate(others):
            color = "0.4" if row["method"] in (AGAIN, EQUAL) else color_at(left, 0)
            left.plot(row["total_variation"], place, "o", color=color)
            error = math.hypot(row["difference_error"], float(row["monte_carlo"] or 0.0))
            gap = row["difference"]
            right.errorbar(gap, place, xerr=2 * error, fmt="o", color=color, capsize=3)
            right.errorbar(gap, place, xerr=2 * row["difference_error"], color=color, linewidth=3)
        left.set_yticks(range(len(others)), [r["method"] for r in others], fontsize=8)
        for distance in floor:
            left.axvline(distance, color="0.4", linestyle=":", linewidth=1)
        left.set_xlim(left=0)
        right.axvline(0, color="0.4", linestyle=":", linewidth=1)
        # Thick: over test rows alone. Linear up to a tenth of a nat, logarithmic beyond.
        right.set_xscale("symlog", linthresh=0.1)
        right.set_xticks(TICKS, [f"{t:g}" for t in TICKS])
        right.minorticks_off()
        scale = others[0]["prior_scale"] if others else 0.0
        left.set_title(f"{name}, N(0, {scale:g}²) (dotted: HMC against HMC)", fontsize=10)
        what = "total variation" if others and others[0]["agreement"] != "" else "1-Wasserstein"
        label_axes(left, f"{what} distance from HMC", "")
        label_axes(right, "log score – that of HMC (nats, ± 2 s.e.)", "")
    return figure


KEYS = ("problem", "method", "seed")
# Of each problem of the toy size, to see in seconds whether all kinds run.
IN_TOY = {CHOSEN: ("mean field", SVRG), "boston": (EQUAL, "deep ensemble")}


@cache
def predicted(case: Case, seed: int) -> Predictions:
    """Predictions of long HMC at the test rows."""
    return bnn.predict(None, hmc_run(case, seed).draws, given(case).split.x_test)


def one_method(case: Case, method: str, seed: int) -> Iterator[Row]:
    """The row of one method, as ``bnn.compare`` judges it, with the errors over chains and R-hat."""
    reference, theirs = hmc_run(case, 0), predicted(case, 0)
    model, data = given(case)
    begin = time.perf_counter()
    if method in (REFERENCE, AGAIN):
        which = 0 if method == REFERENCE else 1
        own = reference if which == 0 else hmc_run(case, which)
        passes, seconds, mine = own.passes, own.seconds, predicted(case, which)
    else:
        compute = optimised if method in OPTIMISED else sampler_run
        run, passes = compute(case, method, seed)
        seconds = time.perf_counter() - begin
        mine = bnn.predict(model, run, data.x_test)
    found = scored_row(method, mine, theirs, data.y_test, math.nan, passes, seconds)
    row = found._asdict()
    for name in ("method", "max_rhat", "suspect"):
        del row[name]
    row = {"prior_scale": case.scale, "predictive": "", "over_chains": ""} | row
    by_chain = scores_of_chains(mine.log_prob(data.y_test))
    if len(by_chain) > 1:
        row["over_chains"] = jackknife_error(without_each(by_chain).mean(1))
    if not given(case).has_classes:
        row["agreement"] = ""
        keys = jax.random.split(jax.random.key(0))
        samples = [p.sample(key) for p, key in zip((mine, theirs), keys)]
        row["predictive"] = bnn.scores.wasserstein(*samples)
    yield row | {"fit_seconds": row.pop("seconds")} | convergence(mine.values)


def cells(size: Size) -> Iterator[Row]:
    """One by problem, method and seed, the first seed first; the reference and its repeat have their own."""
    first, *others = size.seeds
    for name in size.problems:
        for method in (REFERENCE, AGAIN, *methods(size, name)):
            yield {"problem": name, "method": method, "seed": first}
    for seeds, again in ((others, methods(size, size.problems[0])), (size.more, ALONE)):
        for seed in seeds:
            for method in again:
                for name in size.problems:
                    yield {"problem": name, "method": method, "seed": seed}


def methods(size: Size, name: str) -> tuple[str, ...]:
    """The methods that are held against HMC."""
    return IN_TOY[name] if size is SIZES["toy"] else (*OPTIMISED, *SAMPLED)


def main(argv: Sequence[str] | None = None) -> None:
    study, given, size = begin(__file__, __doc__, KEYS, SIZES, argv)
    prior = Study(__file__, against_hmc_prior.KEYS, given, "prior")
    of_scale = partial(against_hmc_prior.cell, size=size, folder=given.data)
    prior.run([{"scale": scale} for scale in size.scales], of_scale)
    scale = against_hmc_prior.chosen(prior.rows)
    table = columns(prior.rows, against_hmc_prior.TABLE)
    prior.publish(table, against_hmc_prior.findings(prior.rows))

    def one(problem: str, method: str, seed: int) -> Iterator[Row]:
        own = PROBLEMS[problem].scale or scale
        return one_method(Case(given.data, size, problem, own), method, seed)

    study.run(cells(size), one)
    rows = averaged(study.rows)
    publish(study, rows, TABLE, findings(rows), lambda: draw(rows))
    Results(__file__, given, "distances").report(list(distances(rows)))


if __name__ == "__main__":
    main()
