"""What the pages say of posteriors that are hard to sample: ladders, and the output layer by itself."""

import numpy as np
from pages_of_studies import line, number

from benchmarks._shared.sampled_runs import RHAT_LIMIT, select
from benchmarks.mixing import (
    fit_integrated,
    hard_posteriors,
    modes_or_posterior,
)


def ladders_that_travel(rows):
    """A line for each row: gradients, R-hat, evidence, barrier, round trips, and moves by rung."""

    def spread(cell, digits):
        values = sorted(float(v) for v in str(cell).split())
        return f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"

    for row in rows:
        by_rung = np.array(row["move_correlations"].split(), float)
        yield line(
            f"{row['ladder']}, {row['sweeps']} sweeps",
            f"{row['gradients'] / 1e5:.1f}",
            f"{row['functions_max_rhat']:.2f} ({row['functions_median_rhat']:.2f})",
            spread(row["log_evidence"], 0),
            f"{row['barrier']:.1f}",
            f"{row['round_trips']} ({row['round_trips_at_best']:.0f})",
            f"{by_rung.min():.2f}, {np.median(by_rung):.2f}, {by_rung.max():.2f}",
        )


def fits_by_output_layer(rows):
    """A line for each fit; and what the integrated layer gains over more steps, by table."""
    for row in rows:
        yield line(
            row["table"],
            row["method"],
            f"{row['sampling_seconds']:.0f}",
            f"{row['functions_max_rhat']:.2f} ({row['functions_median_rhat']:.2f})",
            f"{row['precisions_max_rhat']:.2f}",
            number(row["log_score"], 3),
        )
    gains = fit_integrated.gains(rows, fit_integrated.INTEGRATED, fit_integrated.LONGER)
    first, *others = (number(gain, 3) for gain in gains)
    yield f"{first} nats above three times the steps on yacht"
    yield f"{', '.join(others[:-1])} and {others[-1]} on the others; mean {number(gains.mean(), 3)}"


def cost_of_integrating(rows):
    """Lines of the table of costs, and their range."""
    for row in rows:
        yield line(
            f"{row['rows']:,}",
            str(row["hidden"]),
            *(f"{row[c]:.3g}" for c in ("plain_ms", "integrated_ms", "ratio")),
            f"{row['error_nats']:.1g}",
        )
    ratios, errors = ([row[c] for row in rows] for c in ("ratio", "error_nats"))
    yield f"costs {min(ratios):.1f} to {max(ratios):.0f} times that of the model"
    yield f"at most {max(errors):.3f} nats off"


def mixing_by_coordinates(rows):
    for row in rows:
        pairs = [
            f"{row[f'{what}_max_rhat']:.2f} ({row[f'{what}_median_rhat']:.2f})"
            for what in ("functions", "precisions")
        ]
        scores = " ".join(f"{float(v):.2f}" for v in row["log_scores_of_chains"].split())
        seconds = f"{row['run_seconds']:.0f}"
        yield line(row["problem"], row["coordinates"], seconds, *pairs, scores)


def integrated_beside_plain(rows):
    def by_seed_of(method, coordinates, column, digits):
        own = [
            r for r in rows if (r["problem"], r["method"]) == ("rdata", f"{method}, {coordinates}")
        ]
        assert [row["seed"] for row in own] == [0, 1]
        return " and ".join(f"{row[column]:.{digits}f}" for row in own)

    for method in ("MCLMC", "MAMS"):
        for column, digits in (("precisions_max_rhat", 3), ("precisions_min_by_1000", 2)):
            integrated = by_seed_of(method, "output integrated out", column, digits)
            plain = by_seed_of(method, "non-centred", column, 2 if digits == 3 else 3)
            yield f"{integrated} for {method} ({plain} without)"
    alone = [row["precisions_max_rhat"] for row in rows if row["method"] == "MALA, non-centred"]
    yield f"MALA is last: {min(alone):.1f} to {max(alone):.1f}"


def ends_of(rows, problem):
    """The last row of each run on a problem."""
    return hard_posteriors.last_rows(select(rows, problem=problem))


def output_integrated_out(rows):
    """The last row of each run with the output layer integrated out, in the table of yacht and below it."""
    ends = [row for row in ends_of(rows, "yacht") if "integrated" in row["method"]]
    (mams,) = [row for row in ends if row["method"].startswith("MAMS")]
    first, *others = [row for row in ends if row is not mams]
    for row in ends:
        functions = f"{row['functions_max_rhat']:.2f} ({row['functions_median_rhat']:.2f})"
        yield f"{row['run_seconds'] / 60:.0f} | {functions}"
        yield f"| {row['precisions_max_rhat']:.2f} |"
    yield f"after {first['gradients'] / 1e6:.3g}·10⁶ gradients a chain {first['apart']:.0f} of 62 functions"
    yield "after 10 minutes: {:.0f} and {:.0f})".format(*(row["apart"] for row in others))
    yield (
        f"at most {mams['precisions_max_z']:.1f} joint errors away in log precisions and "
        f"{mams['functions_max_z']:.1f} in functions, with {mams['apart']:.0f} functions above 1.05"
    )


def airfoil_by_seed(rows):
    """The last row of each run on airfoil with the output layer integrated out, in its table."""
    for row in ends_of(rows, "airfoil"):
        if "integrated" in row["method"]:
            yield line(
                f"MCLMC, output layer integrated out, seed {row['seed']}",
                f"{row['run_seconds'] / 60:.0f}",
                f"{row['functions_max_rhat']:.2f} ({row['functions_median_rhat']:.2f})",
                f"{row['precisions_max_rhat']:.2f}",
            )


# What has two samplers with the output layer integrated out, in the order of the page.
BY_TWO_SAMPLERS = ("boston", "concrete", "energy", "airfoil, four layers")


def tables_by_two_samplers(rows):
    """The last row of each sampler on the other tables, and below it how far the two are apart."""
    for problem in BY_TWO_SAMPLERS:
        mclmc, mams = ends_of(rows, problem)
        for row in (mclmc, mams):
            yield line(
                problem,
                row["method"].split(",")[0],
                f"{row['run_seconds'] / 60:.0f}",
                f"{row['gradients'] / 1e5:.1f}",
                f"{row['functions_max_rhat']:.3f} ({row['functions_median_rhat']:.3f})",
                f"{row['precisions_max_rhat']:.3f}",
                f"{row['apart']:.0f} of {row['of']:.0f}",
                " ".join(number(float(v), 2) for v in row["log_scores_of_chains"].split()),
            )
        yield (
            f"{problem}: {mclmc['functions_max_z']:.1f} and {mclmc['precisions_max_z']:.1f} joint errors"
        )


def beside_the_posterior(rows):
    """The table of the posterior, chains in their modes and ensembles, and two errors."""
    posterior, long_chains, *_ = found = modes_or_posterior.by_table(rows)
    yield f"{long_chains['rmse']:.3f} for {posterior['rmse']:.3f}"
    for row in found:
        yield line(
            row["table"],
            row["method"],
            row["gain"],
            number(row["log_score"], 3),
            row["functions_max_rhat"],
            row["functions_median_rhat"],
            row["precisions_max_rhat"],
            f"{row['run_seconds']:.0f}",
        ).replace("-0", "−0")


def boston_in_a_sentence(rows):
    """What the converged posterior of boston gains."""
    found = [row for row in modes_or_posterior.by_table(rows) if row["table"] == "boston"]
    gains = [row["gain"].replace("-", "−") for row in found]
    runs = select(rows, table="boston", method="posterior")
    rhat = [row["functions_max_rhat"] for row in runs]
    reached = sum(value <= RHAT_LIMIT for value in rhat)
    yield (
        f"converged in functions on {reached} of {len(runs)} splits (R-hat at most {max(rhat):.3f}), it "
        f"gains {gains[1]} nats over long chains, {gains[2]} over short ones and {gains[4]} over the ensemble"
    )


def output_layers_by_gibbs(rows):
    """Lines of the table at equal gradients, and the shares of effective draws a second."""
    found = {(r["problem"], r["seed"], r["method"]): r for r in rows if r["equal"] == "gradients"}
    for (problem, seed, method), row in found.items():
        yield line(
            problem,
            str(seed),
            method,
            f"{row['run_seconds']:.3g}",
            f"{row['functions_max_rhat']:.2f} ({row['functions_median_rhat']:.2f})",
            f"{row['precisions_max_rhat']:.2f}",
            *(f"{row[f'{layer}_ess_per_second']:.3g}" for layer in ("output", "first")),
        )
    ends = []
    for layer in ("output", "first"):
        name = f"{layer}_ess_per_second"
        shares = [
            found[problem, seed, "with the Gibbs step"][name] / row[name]
            for (problem, seed, method), row in found.items()
            if method == "without"
        ]
        ends += [min(shares), max(shares)]
    yield "output layer has {:.1f} to {:.1f} times the effective draws".format(*ends)
    yield "first layer {:.1f} to {:.1f} times".format(*ends[2:])
