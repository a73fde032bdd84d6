"""Does the judge of a run tell the truth? Draws whose distribution is known, judged many times.

Beside it stands what a limit of 1.01 or 1.05 on the worst R-hat says of the same draws, the limit that
belongs to the number of scalars (with the bulk ESS that reports print), and nested R-hat with its own.

Scalars are autoregressive of order one, all with one coefficient, and depend on each other through 20 latent
factors; heavy tails are a multivariate t with three degrees of freedom. They are made into rows of ten class
probabilities, 0.1 + 0.05 x; the sums are not one, which nothing here uses.

    python -m benchmarks.diagnostics.verdict_calibration [--quick | --toy]
"""

import functools
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
from scipy.signal import lfilter

from benchmarks._shared.study import Study, parser
from numpyro_bnn.diagnostics.convergence.rhat import (
    nested_rhat,
    nested_rhat_limit,
    rhat_limit,
    summarize,
)
from numpyro_bnn.diagnostics.monte_carlo.agreement import agreement
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import mean_errors
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

KEYS = ("part", "case", "chains", "draws", "correlation", "scalars", "tails")
FACTORS, CLASSES, SCALE = 20, 10, 0.05
# Numbers drawn for a cell, and the runs that it has at least and at most.
WORK = {"full": (5e6, 2, 60), "quick": (1e6, 2, 40), "toy": (1e4, 1, 2)}
# Draws of one run at most: 64 chains of 5000 draws have no 10,000 scalars here.
MOST = {"full": 4.1e7, "quick": 4e6, "toy": 2e5}
MINOR_MASS, MINOR_SHIFT, MINOR_DWELL = 0.04, 4.0, 20


def autoregressive(rng, shape, coefficient):
    """Stationary AR(1) of unit variance along the second axis."""
    noise = rng.standard_normal(shape, dtype=np.float32)
    noise[:, 1:] *= np.float32(np.sqrt(1 - coefficient**2))
    return lfilter([np.float32(1)], np.array([1, -coefficient], np.float32), noise, axis=1)


def stationary(rng, chains, draws, coefficient, scalars, tails):
    """Draws `(chain, draw, scalar)` of unit variance and mean zero."""
    factors = autoregressive(rng, (chains, draws, min(FACTORS, scalars)), coefficient)
    loadings = rng.standard_normal((factors.shape[2], scalars), dtype=np.float32)
    x = factors @ (loadings / np.linalg.norm(loadings, axis=0))
    if tails == "heavy":
        # A t of three degrees of freedom has variance three.
        x /= np.sqrt(rng.chisquare(3, (chains, draws, 1))).astype(np.float32)
    return x


def shifted(x, rng, by, share):
    """The first chain is `by` standard deviations off in a share of the scalars."""
    x[0, :, : max(1, round(share * x.shape[2]))] += by
    return x


def with_minor_mode(x, rng, missed):
    """A mode of mass 0.04 that shifts a third of the scalars; the first chain may never visit it."""
    chains, draws, scalars = x.shape
    leave, enter = 1 / MINOR_DWELL, MINOR_MASS / (1 - MINOR_MASS) / MINOR_DWELL
    inside = rng.random(chains) < MINOR_MASS
    there = np.empty((chains, draws), np.float32)
    for t in range(draws):
        there[:, t] = inside
        inside = rng.random(chains) < np.where(inside, 1 - leave, enter)
    if missed:
        there[0] = 0
    x[:, :, : scalars // 3] += MINOR_SHIFT * (there - MINOR_MASS)[:, :, None]
    return x


def drifting(x, rng, alike):
    """What is left of the start decays over a third of the run, in all scalars."""
    chains, draws, _ = x.shape
    start = np.ones(chains) if alike else 2 * rng.standard_normal(chains)
    x += (start[:, None] * np.exp(-3 * np.arange(draws) / draws)).astype(np.float32)[:, :, None]
    return x


CASES = {"stationary": lambda x, rng: x}
CASES |= {
    f"one chain {by} sd off in {share:.0%}": functools.partial(shifted, by=by, share=share)
    for by in (0.2, 0.5, 1.0)
    for share in (0.01, 0.1, 1.0)
}
CASES |= {
    "minor mode": functools.partial(with_minor_mode, missed=False),
    "minor mode, one chain misses it": functools.partial(with_minor_mode, missed=True),
    "drift of all chains alike": functools.partial(drifting, alike=True),
    "drift from scattered starts": functools.partial(drifting, alike=False),
}


def cells(size):
    """What is judged: `(part, case, chains, draws, correlation, scalars, tails)`."""
    toy, full = size == "toy", size == "full"
    lengths = (300,) if toy else (50, 300, 1000, 5000) if full else (50, 300, 1000)
    grid = product(
        ((100, "light"), (1, "light"), (100, "heavy"), (10_000, "light"))[: 2 if toy else 4],
        (4,) if toy else (4, 16, 64),
        lengths,
        (0.5,) if toy else (0.0, 0.5, 0.9, 0.99),
    )
    null = [
        ("null", "stationary", chains, draws, correlation, scalars, tails)
        for (scalars, tails), chains, draws, correlation in grid
        if chains * draws * scalars <= MOST[size]
    ]
    power = []
    for case in list(CASES)[1:]:
        for correlation in (0.5, 0.9):
            power.append(("power", case, 4, 100 if toy else 1000, correlation, 300, "light"))
        if "off" not in case and full:
            power.append(("power", case, 4, 5000, 0.5, 300, "light"))
    # The dearest last.
    dear = [cell for cell in null if cell[5] > 100]
    grid = [cell for cell in null if cell[5] <= 100] + power + dear
    return [dict(zip(KEYS, cell)) for cell in grid]


def superchains(chains):
    """Superchains of nested R-hat, of at least two chains each."""
    return {4: 2, 16: 4, 64: 8}[chains]


def judged(x, true_mean=0.0):
    """What one run is told, and how far its averages are from the truth."""
    chains, draws, scalars = x.shape
    tolerance = Tolerance()
    rows = (0.1 + SCALE * x).reshape(chains, draws, -1, CLASSES) if scalars > 1 else None
    given = {"value": x} if rows is None else {"probs": rows}
    errors = {name: mean_errors(array) for name, array in given.items()}
    error = monte_carlo_error(given, errors=errors)
    found = agreement(given, errors=errors, tolerance=tolerance)
    (each,) = errors.values()
    truth = 0.1 + SCALE * true_mean if scalars > 1 else true_mean
    off = np.abs(each.mean - truth)
    actual = 0.5 * off.sum(axis=-1).mean() if scalars > 1 else float(off[0] / each.sd[0])
    stated = error.total_variation if scalars > 1 else np.sqrt(2 / np.pi) * error.relative
    summary = summarize(x, tail=False)
    worst = np.nanmax(summary.rhat)
    limit = rhat_limit(scalars, chains, summary.ess_bulk)
    k = superchains(chains)
    # Effective draws from within chains, of which each chain has at least one.
    ess = np.maximum(each.ess.reshape(-1), chains)
    nested = nested_rhat(x, k, method="identity") > nested_rhat_limit(scalars, k, chains, ess)
    disagree = found.disagree(tolerance)
    within = error.within(tolerance) and not disagree
    return {
        "tested": found.tested,
        "disagree": disagree,
        "within": within,
        # A run's own: the share of its scalars whose error is as small as stated with 90 %.
        "covered": (off <= 1.645 * each.error).mean() if within else np.nan,
        "stated": stated if within else np.nan,
        "actual": actual if within else np.nan,
        "R-hat above 1.01": worst > 1.01,
        "R-hat above 1.05": worst > 1.05,
        "R-hat above its limit": (summary.rhat > limit).any(),
        "nested R-hat above its limit": nested.any(),
    }


def compute(size, part, case, chains, draws, correlation, scalars, tails):
    work, least, most = WORK[size]
    runs = int(np.clip(work / (chains * draws * scalars), least, most))
    if part == "power":
        runs = {"full": 20, "quick": 4, "toy": 1}[size]
    name = f"{part} {case} {chains} {draws} {correlation} {scalars} {tails}"
    rng = np.random.default_rng(list(name.encode()))
    rows = []
    for _ in range(runs):
        x = stationary(rng, chains, draws, correlation, scalars, tails)
        rows.append(judged(CASES[case](x, rng)))
    mean = {}
    for key in rows[0]:
        values = np.array([float(row[key]) for row in rows])
        mean[key] = float(np.nanmean(values)) if np.isfinite(values).any() else np.nan
    yield {"runs": runs, **mean}


def share(rows, column):
    """Mean over runs of a column, its binomial error, and the number of runs."""
    runs = sum(row["runs"] for row in rows)
    p = sum(row[column] * row["runs"] for row in rows) / runs
    return p, np.sqrt(max(p * (1 - p), 1 / runs) / runs), runs


SAID = ("disagree", "R-hat above 1.01", "R-hat above 1.05", "R-hat above its limit",
        "nested R-hat above its limit", "within")  # fmt: skip


def summarized(rows):
    """The table: groups of null cells, and every power cell."""
    table = []

    def add(label, chosen):
        if chosen:
            shares = {column: share(chosen, column) for column in SAID}
            told = [row for row in chosen if row["within"] > 0]
            weight = [row["within"] * row["runs"] for row in told]
            mean = {
                c: np.average([row[c] for row in told], weights=weight) if told else np.nan
                for c in ("covered", "stated", "actual")
            }
            table.append(
                {"draws": label, "runs": shares["within"][2]}
                | {column: f"{p:.3f} ± {error:.3f}" for column, (p, error, _) in shares.items()}
                | {"tested": f"{share(chosen, 'tested')[0]:.2f}"}
                | {"covered by 1.645 s": f"{mean['covered']:.3f}"}
                | {"stated / actual": f"{mean['stated'] / mean['actual']:.3f}"}
            )

    null = [row for row in rows if row["part"] == "null"]
    add("stationary, all", null)
    for column in ("chains", "draws", "correlation", "scalars", "tails"):
        for value in dict.fromkeys(row[column] for row in null):
            named = f"{value} tails" if column == "tails" else f"{column} {value}"
            add(f"stationary, {named}", [row for row in null if row[column] == value])
    for row in rows:
        if row["part"] == "power":
            add(f"{row['case']}, 4 × {row['draws']}, {row['correlation']}", [row])
    return table


def short_of(row):
    """By how many of its errors a cell's coverage is below 90 %: its runs times independent scalars."""
    numbers = row["within"] * row["runs"] * min(row["scalars"], FACTORS)
    return (0.9 - row["covered"]) / np.sqrt(0.9 * 0.1 / numbers)


def findings(rows):
    null = [row for row in rows if row["part"] == "null"]
    p, error, runs = share(null, "disagree")
    yield f"Stationary chains count as disagreeing in {p:.2%} ± {error:.2%} of {runs} runs (mark 1 %)."
    tested = [row | {"runs": row["runs"] * row["tested"]} for row in null if row["tested"] > 0]
    if tested:
        p, error, runs = share(
            [row | {"disagree": row["disagree"] / row["tested"]} for row in tested], "disagree"
        )
        yield f"Of those that were tested, {p:.2%} ± {error:.2%} of {runs:.0f}."
    told = [row for row in null if row["within"] > 0]
    low = [r for r in told if r["covered"] < 0.88]
    yield f"In {len(low)} of {len(told)} cells fewer than 88 % of scalars are within 1.645 errors."
    beyond = [sum(short_of(row) > errors for row in told) for errors in (2, 3)]
    yield (
        f"In {beyond[0]} the share is below 90 % by more than two of its errors, in {beyond[1]} by three."
    )
    ratios = [row["stated"] / row["actual"] for row in told]
    if ratios:
        yield f"Stated over actual error by cell: {min(ratios):.2f} to {max(ratios):.2f}."


def draw(rows):
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    null = [row for row in rows if row["part"] == "null"]
    styles = (("disagree", "this test", "o-"), ("R-hat above 1.01", "R-hat above 1.01", "s--"),
              ("R-hat above 1.05", "R-hat above 1.05", "^--"),
              ("R-hat above its limit", "R-hat above its limit", "v:"),
              ("nested R-hat above its limit", "nested R-hat above its limit", "d:"))  # fmt: skip
    for column, label, style in styles:
        at = sorted({row["draws"] for row in null})
        values = [share([r for r in null if r["draws"] == d], column)[0] for d in at]
        left.plot(at, values, style, label=label)
    left.axhline(0.01, color="0.6", linewidth=1)
    left.set(xscale="log", xlabel="draws a chain", ylabel="share of stationary runs convicted")
    left.legend(frameon=False, fontsize=8)
    power = [row for row in rows if row["part"] == "power" and row["correlation"] == 0.5]
    shortest = min(row["draws"] for row in power)
    power = [row for row in power if row["draws"] == shortest]
    places = np.arange(len(power))
    for k, (column, label, _) in enumerate(styles[:3]):
        right.barh(places + 0.27 * (k - 1), [row[column] for row in power], 0.25, label=label)
    right.set_yticks(places, [row["case"] for row in power], fontsize=7)
    right.invert_yaxis()
    right.set(xlabel="share of runs convicted, 4 chains, autocorrelation 0.5", xlim=(0, 1.02))
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
    return figure


def main(argv=None) -> None:
    given = parser(__doc__).parse_args(argv)
    study = Study(__file__, KEYS, given)
    study.run(cells(given.size), functools.partial(compute, given.size))
    study.publish(summarized(study.rows), findings(study.rows), lambda: draw(study.rows))


if __name__ == "__main__":
    main()
