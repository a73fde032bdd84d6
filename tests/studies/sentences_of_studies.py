"""What the other pages say of stored rows: lines of tables, and numbers as they stand in sentences."""

import math

import numpy as np
from pages_of_studies import line, number, with_error

from benchmarks._shared.sampled_runs import RHAT_LIMIT, select
from benchmarks.neal import tail
from benchmarks.predictions import (
    averaging_or_width,
    calibration,
    out_of_distribution,
    polynomials,
    shift_by_width,
    tabular_report,
)
from benchmarks.priors import evidence, hierarchy_helps, weight_decay


def of_tables(rows, method, over="deep ensemble", tables=tabular_report.TABLES):
    """What a method gains by table, empty where not all splits are there."""
    base = tabular_report.base_of(method, over)
    found = [tabular_report.gain(rows, name, method, base) for name in tables]
    return [with_error(tabular_report.mean_and_error(g)) if len(g) > 1 else "" for g in found]


def gains_of_tables(rows):
    methods = ("MCLMC", "MAMS", "NUTS", "BAOAB", "four layers, MCLMC")
    columns = [of_tables(rows, method) for method in methods]
    return [line(*cells) for cells in zip(tabular_report.TABLES, *columns)]


def gains_in_a_sentence(rows):
    def listed(cells):
        return f"{', '.join(cells[:-1])} and {cells[-1]}"

    deep, two = of_tables(rows, "four layers, MCLMC"), of_tables(rows, "MCLMC")
    return [f"MCLMC gains {listed(two)} nats at", f"with four layers {listed(deep)} at"]


def gains_over_bde(rows):
    small = ("yacht", "energy", "concrete", "airfoil")
    return [" | ".join(of_tables(rows, m, "bde", small)) for m in ("MCLMC", "MCLMC, rough")]


def wide_tables(rows):
    return [*tabular_report.wide(rows), *tabular_report.first_split(rows)]


def training_beside_modes(rows):
    """Lines of the table of trainings, and how far the penalty ends from a mode at either end."""
    table = weight_decay.averaged(rows)
    yield from (line(*map(str, row.values())) for row in table)
    largest = {
        sd: max(
            (
                row["largest"]
                for row in table
                if row["prior sd"] == sd and "penalty" in row["method"]
            ),
            key=float,
        )
        for sd in ("0.3", "3")
    }
    yield f"within {largest['0.3']} noise sd"
    yield f"predictions still move by up to {largest['3']} noise sd"


def decoupled_decay_in_a_sentence(rows):
    """Nats above a mode for a prior of standard deviation 1."""
    nats = {
        row["method"]: row["nats above the mode: median"]
        for row in weight_decay.averaged(rows)
        if row["prior sd"] == "1"
    }
    decoupled, none = nats[weight_decay.DECOUPLED], nats[weight_decay.NO_DECAY]
    return [f"{decoupled} nats above the nearest mode for a prior of sd 1, no decay {none}"]


def lines_of(study):
    """A function of rows that gives the lines of the study's own table of means."""
    return lambda rows: [line(*map(str, row.values())) for row in study.averaged(rows)]


def shares_above_two(rows):
    """Percent of the draws of each sampler, by its name."""
    return {r["method"]: 100 * r["above 2"] for r in rows if r["method"] != tail.CURVE}


def tail_in_sentences(rows):
    of = shares_above_two(rows)
    yield f"above 2 in {of[tail.LONG]:.0f} and {of[tail.CAREFUL]:.0f} % of their draws"
    yield f"its usual steps has {of[tail.SHORT]:.1f} % and"
    curve, spread = tail.curve_with_errors(rows)
    apart = [
        (curve.above(2) - select(rows, method=m)[0]["above 2"])
        / np.hypot(spread["above 2"], select(rows, method=m)[0]["error above 2"])
        for m in (tail.LONG, tail.CAREFUL)
    ]
    yield "{:.1f} and {:.1f} joint errors more than those two".format(*apart)

    one = {r["method"]: r for r in rows if r["method"] != tail.CURVE}
    kept = {r["worst R-hat"] <= RHAT_LIMIT for r in (one[tail.MAMS], one[tail.LONG])}
    assert kept == {True}
    told = [one[m]["verdict"] for m in (tail.SHORT, tail.LADDER)]
    assert told == ["within tolerance", "chains disagree"]
    yield "NUTS ({:.3f}) and the ladder ({:.3f}) do not keep it".format(
        *(one[m]["worst R-hat"] for m in (tail.SHORT, tail.LADDER))
    )
    full = tail.SIZES["full"]

    def spent(method):
        draws = full.chains * full.lengths[method][1]
        return f"{draws * one[method]['gradients'] / 1e6:.1f}·10⁶"

    assert spent(tail.SHORT) == spent(tail.MAMS)
    yield f"are {spent(tail.LONG)} of HMC, {spent(tail.MAMS)} of NUTS and of MAMS"
    yield f"of MAMS, {spent(tail.CAREFUL)} of NUTS accepting"


def tail_in_a_sentence(rows):
    of = shares_above_two(rows)
    curve, spread = tail.curve_with_errors(rows)
    low, *others = (
        select(rows, method=m)[0]["worst R-hat"] for m in (tail.MAMS, tail.SHORT, tail.LADDER)
    )
    yield (
        f"a tail that has {of[tail.LONG]:.1f} % of the draws of HMC with 1000 small steps "
        f"({100 * curve.above(2):.0f} ± {100 * spread['above 2']:.0f} % by slopes of the evidence) has "
        f"{of[tail.MAMS]:.1f} % of those of MAMS, with R-hat of {low:.3f}, {of[tail.SHORT]:.1f} % of "
        f"those of NUTS and {of[tail.LADDER]:.1f} % of a ladder's ({{:.2f}} and {{:.2f}})".format(
            *others
        )
    )


def polynomials_in_a_sentence(rows):
    gains = [
        float(row["network over polynomial"].split()[0])
        for row in polynomials.averaged(rows)
        if row["split"] == "at random"
    ]
    assert len(gains) == 4
    yield f"between rows by {min(gains):.1f} to {max(gains):.1f} nats on four tables"


def small_networks_in_a_sentence(rows):
    gains = [
        float(value.split()[0])
        for row in averaging_or_width.averaged(rows)
        for name, value in row.items()
        if row["width"] == "16" and name.startswith("posterior over")
    ]
    yield f"by {min(gains):.1f} to {max(gains):.1f} nats"


NAMES = {
    "normal": "N(0, 1)",
    "fan_in": "scales by fan-in",
    "group": "precisions by group",
    "unit": "precisions by unit",
    "weight": "precisions by weight",
}


def columns_of_noise(rows):
    own = {prior: hierarchy_helps.losses(rows, prior).values() for prior in NAMES}
    names = NAMES | {"unit": "precisions by unit (one an input)"}
    return [line(names[prior], *map(with_error, found)) for prior, found in own.items()]


def third_table(rows):
    mean, error = hierarchy_helps.losses(rows, "unit")["yacht"]
    return [f"loses {with_error((-mean, error))}"]


def better_beyond_two_errors(rows):
    lines = {row["prior"]: row for row in hierarchy_helps.summary(rows) if not row["noise columns"]}
    for prior in ("group", "unit", "weight", "normal"):
        found = hierarchy_helps.gains(rows, prior).values()
        count = sum(mean > 2 * error for mean, error in found)
        assert not any(mean < -2 * error for mean, error in found)
        over = with_error((lines[prior]["lppd - fan_in"], lines[prior]["± s.e."]), 3)
        yield line(NAMES[prior], over, f"{count} table{'' if count == 1 else 's'}")


def not_converged(rows):
    return [f"{sum(r['converged'] == 'no' for r in rows)} of {len(rows)} runs have not converged"]


def covered(rows):
    return [
        line(f"{r['table']}, `{r['method']}`", r["coverage before"], r["coverage after"])[:-2]
        for r in calibration.averaged(rows)
    ]


def networks_averaged(rows):
    """Lines of the table of foreign images: how many networks, and AUROC of both subsets."""
    lines = out_of_distribution.summary(
        rows, out_of_distribution.LENGTHS["full"], out_of_distribution.MEMBERS["full"]
    )
    for found in lines:
        own = select(rows, method=found["method"], prior="normal")
        if (found["prior"], found["method"] == "MAP") == ("normal", False):
            by_subset = (
                [number(r["mutual information"], 3) for r in select(own, unfamiliar=kind)]
                for kind in out_of_distribution.UNFAMILIAR
            )
            yield line(found["method"], str(found["networks averaged"]), *map(", ".join, by_subset))


def on_one_vector(rows):
    """The table of steps on one vector and on sites apart."""
    return [
        line(
            f"{row['network']}, {row['numbers']:.0f} numbers",
            row["kernel"],
            number(row["ratio"]),
            f"{number(row['least_ratio'])} to {number(row['largest_ratio'])}",
            number(row["one_first"] / row["apart_first"]),
        )
        for row in rows
    ]


def noise_by_spread(rows):
    """What noise costs the posterior beyond MAP, by how much the images say of the weights there."""
    found = select(rows, method=shift_by_width.POSTERIOR)
    dead, live, bright = (select(found, pixels=p) for p in ("dead", "live", "bright"))
    yield "of {:.2f} to {:.2f} (1 is exact there".format(*_range(dead, "spread"))
    yield f"in all {len(dead)} settings"
    assert all(shift_by_width.beyond_map(row).is_sure for row in dead)
    narrow, middle, wide = ([r for r in live if r["units"] == count] for count in (4, 12, 50))
    for own in (narrow, middle, wide):
        spreads = "spread {:.2f} to {:.2f}".format(*_range(own, "spread"))
        yield f"{spreads}, {' to '.join(number(v, 3) for v in _range(own, 'beyond MAP'))}"
    yield "from {:.2f} to {:.2f} in every setting".format(*_range(found, "size"))
    few = [r for r in bright if r["units"] == 4]
    yield "down to {:.2f} at bright pixels".format(_range(few, "spread")[0])


def _range(rows, column):
    values = [row[column] for row in rows]
    return min(values), max(values)


def correlation(rows):
    """Rank correlation of evidence and score over models, and its error."""
    return evidence.rank_correlation(*evidence.arrays(rows), np.random.default_rng(0))


def correlated(rows):
    """Models of the function, all with a verdict, and their rank correlation of evidence and score."""
    found = select(rows, data="function")
    assert {row["verdict"] for row in found} == {"replicas agree"}
    return found, correlation(found)


def evidence_in_a_sentence(rows):
    judged, found = correlated(rows)
    yield f"rank correlation {with_error(found)} over {len(judged)} models"
    learned = select(judged, prior="group")
    yield f"{with_error(correlation(learned))} over the {len(learned)} with learned scales"
    yacht = select(rows, data="yacht")
    yield f"as far as all {len(yacht)} go the correlation is {with_error(correlation(yacht))}"


def evidence_in_sentences(rows):
    """Rank correlations, what choosing by evidence loses, what precisions gain, and how ladders travel."""
    judged, found = correlated(rows)
    yield f"{with_error(found)} over the {len(judged)} models, all of which have a verdict"
    learned, fixed = (select(judged, prior=prior) for prior in ("group", "fan_in"))
    yield (
        f"{with_error(correlation(learned))} over the {len(learned)} with learned precisions "
        f"({correlation(select(learned, activation='tanh'))[0]:.2f} with tanh, "
        f"{correlation(select(learned, activation='relu'))[0]:.2f} with relu, seven each) and "
        f"{with_error(correlation(fixed))} over the {len(fixed)} by fan-in"
    )
    chosen, best = (max(judged, key=lambda r: r[k]) for k in ("log_evidence", "lppd"))
    loss = with_error(evidence.lost(chosen, best), 3)
    yield (
        f"{chosen['activation']} of width {chosen['width']} with learned precisions, is {loss} nats below "
        f"the best, which has width {best['width']}"
    )
    by_key = {tuple(r[k] for k in evidence.KEYS): r for r in judged}
    pairs = [
        (row, by_key[*key[:-1], "fan_in"])
        for key, row in by_key.items()
        if key[-1] == "group" and (*key[:-1], "fan_in") in by_key
    ]
    gains = [one["log_evidence"] - other["log_evidence"] for one, other in pairs]
    wider = [one["lppd"] - other["lppd"] for one, other in pairs if one["width"] > 2]
    yield (
        f"Learned precisions gain {min(gains):.1f} to {max(gains):.0f} nats of evidence over scales by "
        f"fan-in in all {len(pairs)} pairs that have a verdict, most in wide networks, and "
        f"{min(wider):.2f} to {max(wider):.2f} nats of score from width 4 on"
    )
    integrated = [row for row in judged if row["coordinates"] != "as it is"]
    trips = [row["round_trips_fewest"] for row in integrated]
    yield (
        f"{min(trips)} to {max(trips)} round trips in 4000 sweeps, errors of at most "
        f"{max(r['log_evidence_error'] for r in integrated):.2f} nats, R-hat of predictions at most "
        f"{max(r['max_rhat'] for r in integrated):.3f}"
    )


def depth_in_sentences(rows):
    """What a second layer of the same width changes: evidence and score."""
    judged, _ = correlated(rows)
    known = {(r["prior"], r["activation"], r["width"], r["layers"]): r for r in judged}
    wider = sorted({key[:3] for key in known if key[3] == 2})
    gaps = [evidence.lost(known[*key, 1], known[*key, 2]) for key in wider]
    assert all(gap > 0 for gap, _ in gaps)
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    sure = sum(gap > 2 * error for gap, error in gaps)
    yield f"better in all {words[len(gaps)]} pairs, by more than two errors in {words[sure]}"
    for prior, kind, width in wider:
        one, two = known[prior, kind, width, 1], known[prior, kind, width, 2]
        scales = {"group": "learned", "fan_in": "by fan-in"}[prior]
        error = math.hypot(one["log_evidence_error"], two["log_evidence_error"])
        gap = two["log_evidence"] - one["log_evidence"]
        score = with_error(evidence.lost(one, two), 3)
        yield f"| {scales} | {kind}, width {width} | {with_error((gap, error), 1)} | {score} |"


def yacht_in_sentences(rows):
    """Which models of yacht have a verdict, and what their evidence and that of the others is worth."""
    every = select(rows, data="yacht")
    judged = {
        (r["layers"], r["width"], r["activation"], r["prior"]): r
        for r in every
        if r["verdict"] != "no verdict"
    }
    told = [(1, 2, kind, prior) for prior in ("group", "fan_in") for kind in ("tanh", "relu")]
    told += [(1, 4, "relu", "fan_in"), *((1, width, "tanh", "fan_in") for width in (4, 8))]
    told.append((2, 4, "tanh", "fan_in"))
    assert set(judged) == set(told)
    known = [judged[model] for model in told]
    yield f"{len(known)} of {len(every)} models have a verdict"
    values = [with_error((r["log_evidence"], r["log_evidence_error"]), 1) for r in known]
    yield "log evidence {} (tanh) and {} (relu) with learned precisions, {} and {} by fan-in".format(
        *values[:4]
    )
    yield "relu of width 4, {}, and tanh of width 4, {}, 8, {}, and 4-4, {}".format(*values[4:])
    *trips, last = (str(r["round_trips_fewest"]) for r in known)
    yield f"They made {', '.join(trips)} and {last} round trips"
    yield "of the last two is {:.2f} and {:.2f}".format(*(r["max_rhat"] for r in known[-2:]))
    integrated = [r for r in every if r["coordinates"] != "as it is"]
    others = [r for r in integrated if r["verdict"] == "no verdict"]
    apart, rhat = (_range(others, name) for name in ("replicas_differ", "max_rhat"))
    yield f"{len(others)} other integrated ladders"
    yield f"replicas are {apart[0]:.1f} to {apart[1]:.1f} nats apart"
    yield f"worst R-hat of predictions is {rhat[0]:.2f} to {rhat[1]:.2f}"
    for some in (integrated, every):
        which = "all" if some is every else "these"
        yield f"{with_error(correlation(some))} over {which} {len(some)}"
