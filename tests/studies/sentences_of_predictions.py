"""What pages say of studies of predictions, with what it rests on: settings, splits, subsets and costs."""

import numpy as np
from pages_of_studies import number, with_error

from benchmarks._shared import mnist_posteriors
from benchmarks._shared.sampled_runs import select
from benchmarks.predictions import (
    averaging_or_width,
    boundary_by_rows,
    out_of_distribution,
    tabular_report,
)


def listed(texts):
    """Texts as they stand in a sentence: the last after an "and"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}"


def span(values, digits=2):
    """The least and the largest of some numbers."""
    return f"{number(min(values), digits)} to {number(max(values), digits)}"


# -- tables -----------------------------------------------------------------------------------------


def times_the_ensemble(rows, layers=""):
    """CPU seconds of MCLMC over those of its ensemble, by table a list of splits."""
    methods = f"{layers}MCLMC", f"{layers}deep ensemble"
    for table in tabular_report.TABLES:
        own, base = (
            {r["seed"]: r["CPU seconds"] for r in select(rows, table=table, method=method)}
            for method in methods
        )
        yield [own[seed] / base[seed] for seed in own]


def cost_of_sampling(rows):
    """What sampling costs beside training, with two layers and with four."""
    two, deep = (list(times_the_ensemble(rows, layers)) for layers in ("", tabular_report.DEEP))
    medians = [span([np.median(splits) for splits in found], 1) for found in (two, deep)]
    every = [span(np.concatenate(found), 1) for found in (two, deep)]
    yield f"{every[0]} times its CPU seconds, split by split (medians by table {medians[0]})"
    yield f"{every[1]} times ({medians[1]})"


def gains_of(rows, method, over):
    """Mean and error by table."""
    return [
        tabular_report.mean_and_error(tabular_report.gain(rows, table, method, over))
        for table in tabular_report.TABLES
    ]


def approximations_of_tables(rows):
    """What precisions lose to a fixed prior, and approximations to the ensemble."""
    found = gains_of(rows, "hierarchical, MCLMC", "MCLMC")
    yield f"{listed([with_error(pair, 3) for pair in found])} nats in the order of the table"
    lower, sure = sum(m < 0 for m, _ in found), sum(abs(m) > 2 * e for m, e in found)
    yield f"lower on {lower} of {len(found)} tables, beyond two errors on {sure}"
    field, laplace = (
        gains_of(rows, method, "deep ensemble") for method in ("mean field", "Laplace")
    )
    around = dict(zip(tabular_report.TABLES, gains_of(rows, "SWAG", "deep ensemble")))
    yield f"SWAG is worth an ensemble, and {around['concrete'][0]:.2f} more on concrete"
    nats = [-mean for mean, _ in field]
    yield f"mean field is {min(nats):.2f} to {max(nats):.1f} below the ensemble"
    mean, error = dict(zip(tabular_report.TABLES, field))["bikesharing"]
    within = "that is within two errors" if abs(mean) < 2 * error else "it is not"
    yield f"({-mean:.3f} ± {error:.3f} on bikesharing, where {within})"
    nats = [-mean for mean, _ in laplace]
    yield f"Laplace {min(nats):.2f} to {max(nats):.1f}"


def mixing_of_tables(rows):
    """Median R-hats of our samplers, of `bde` and of ladders, and what ladders cost."""
    ladder = "hierarchical, tempering"
    # Draws of a Gaussian around averaged weights are no chain.
    hats = {"ours": [], "bde": [], ladder: []}
    for row in rows:
        if row["median rhat"] > 0 and row["method"] != "SWAG":
            kind = "bde" if "bde" in row["method"] else row["method"]
            hats[kind if kind in hats else "ours"].append(row["median rhat"])
    times = []
    for row in select(rows, method=ladder):
        where = {"table": row["table"], "seed": row["seed"]}
        (beside,) = select(rows, method="hierarchical, MCLMC", **where)
        times.append(row["CPU seconds"] / beside["CPU seconds"])
    yield (
        f"Median R-hat of predictions {span(hats['ours'], 1)}, of `bde` {span(hats['bde'], 1)}, by "
        f"tempering {span(hats[ladder])} at {span(times, 1)} times the CPU seconds"
    )


# -- one network and the average ----------------------------------------------------------------------

NETWORKS = {
    "network": "N(0, 2²)",
    "network, prior sd 1": "N(0, 1)",
    "network, prior sd 0.5": "N(0, 0.5²)",
}


def sure_by_prior(rows, count):
    """Shares of the plane on which one network and the average are sure, by prior, the widest first."""
    for model in NETWORKS:
        own = select(rows, model=model, rows=count)
        yield [f"{np.mean([r[f'sure, {m}'] for r in own]):.2f}" for m in ("MAP", "average")]


def gains_of_averages(rows):
    """What the average gains over MAP, mean and error, by model and number of rows."""
    found = {}
    for model in boundary_by_rows.MODELS:
        for count in (20, 50, 200):
            own = select(rows, model=model, rows=count)
            found[model, count] = tuple(boundary_by_rows.gain_over_sets(own))
    return found


def verdicts_of_averages(rows):
    """Settings in which MAP is better beyond two errors, by how much, and in which the average is."""
    found = gains_of_averages(rows)
    worse = [-mean for mean, error in found.values() if mean < -2 * error]
    better = [mean for mean, error in found.values() if mean > 2 * error]
    return len(worse), len(found), span(worse, 4), len(better)


def boundary_in_a_sentence(rows):
    (wide, middle, narrow) = sure_by_prior(rows, 20)
    yield (
        f"sure of a class on {wide[0]} of the plane, the average on {wide[1]} (weights N(0, 2²); "
        f"{' and '.join(middle)} with N(0, 1), {' and '.join(narrow)} with N(0, 0.5²))"
    )
    worse, count, by, better = verdicts_of_averages(rows)
    yield (
        f"in {worse} of {count} settings one network is, beyond two errors, by {by} nats, the average in "
        f"{better}"
    )


def boundary_in_sentences(rows):
    """The same on the page of the study, with the largest losses and the one gain."""
    (wide, middle, narrow), many = sure_by_prior(rows, 20), list(sure_by_prior(rows, 200))
    yield f"with 20 rows it is sure on {wide[0]} of the plane and the average on {wide[1]}"
    yield f"on {' and '.join(middle)} (N(0, 1)), and on {' and '.join(narrow)} (N(0, 0.5²))"
    yield f"With 200 rows on {', '.join(' and '.join(pair) for pair in many)}"
    worse, count, by, better = verdicts_of_averages(rows)
    yield f"MAP is better beyond two errors in {worse} of the {count} lines, by {by} nats"
    yield f"The average is better beyond two errors in {better}"
    found = gains_of_averages(rows)
    of_map = [(-found[key][0], found[key][1]) for key in (("network", 50), (list(NETWORKS)[1], 20))]
    yield "50 rows and weights N(0, 2²), {}, and with 20 rows and N(0, 1), {}".format(
        *(with_error(pair, 4) for pair in of_map)
    )
    yield f"by {with_error(found[list(NETWORKS)[2], 20], 4)} with 20 rows and the narrowest prior"
    yield f"Scores are means over {boundary_by_rows.FRESH} fresh rows"


# -- small networks -----------------------------------------------------------------------------------


def beside_the_best_width(rows):
    """Averages of four and sixteen units over ten trained networks of the best width, and their cost."""
    tables = averaging_or_width.TABLES
    sixteen = [averaging_or_width.over_the_best(rows, table, 16) for table in tables]
    yield f"{listed(map(with_error, sixteen))} nats ahead"
    best = [averaging_or_width.best_width(rows, table) for table in tables]
    yield f"{listed(map(str, best))} units"
    times = []
    for table, width in zip(tables, best):
        own, trained = (
            select(rows, table=table, method=method, width=units)
            for method, units in (("posterior", 16), ("trained", width))
        )
        base = {r["split"]: r["seconds"] for r in trained}
        times += [r["seconds"] / base[r["split"]] for r in own]
    yield f"at {span(times, 1)} times their CPU seconds"
    yield f"ahead on both splits of {ahead(rows, 4)}"


def ahead(rows, width):
    """On how many tables posteriors gain over the best width on every split, in a word."""
    gains = (
        averaging_or_width.gains_over_the_best(rows, t, width) for t in averaging_or_width.TABLES
    )
    return ("none", "one", "two", "three", "four")[sum((gain > 0).all() for gain in gains)]


def width_of_trained_networks(rows):
    """What ten trained networks score with 256 units and with the best width, and four averaged over that."""
    found = [averaging_or_width.over_the_best(rows, t, 4) for t in averaging_or_width.TABLES]
    yield f"Four averaged units gain {listed(map(with_error, found))}"
    yield f"on four small tables (on both splits of {ahead(rows, 16)})"
    scores = {}
    for table in averaging_or_width.TABLES:
        scores[table] = [
            number(averaging_or_width.of_splits(rows, table, "ensemble of ten", width, 1).mean())
            for width in (256, averaging_or_width.best_width(rows, table))
        ]
    yield "{} with 256 units and {} with the best width on yacht".format(*scores["yacht"])
    yield "{} and {} on boston, {} and {} on concrete".format(
        *scores["boston"], *scores["concrete"]
    )
    last, best = scores["energy"]
    yield f"256 units are the best ({last})" if last == best else f"not the best ({last})"


# -- foreign images -----------------------------------------------------------------------------------


def by_subset(rows, column, method, kind="Fashion-MNIST"):
    """Values of both subsets."""
    found = select(rows, prior="normal", method=method, unfamiliar=kind)
    return [row[column] for row in sorted(found, key=lambda row: row["seed"])]


def lead_over_many_networks(rows, kind, method=out_of_distribution.LARGE):
    """AUROC of the posterior beyond that of a large ensemble, by mutual information, by subset."""
    own, other = (by_subset(rows, "mutual information", m, kind) for m in ("posterior", method))
    return " and ".join(number(a - b, 3) for a, b in zip(own, other))


def nearly_one_network_in_a_sentence(rows):
    """The prior of the pixels, what 100 members add to one, and the lead of the posterior."""
    yield f"weights N(0, {mnist_posteriors.SCALE:g}²) on the pixels"
    many, one = (by_subset(rows, "log score", m) for m in (out_of_distribution.LARGE, "MAP"))
    more = " and ".join(number(a - b, 3) for a, b in zip(many, one))
    yield f"{out_of_distribution.MEMBERS['full']} of them score {more} nats above one on digits"
    tuned, kind = out_of_distribution.TUNED, "Fashion-MNIST"
    yield f"the lead over the 100 is {lead_over_many_networks(rows, kind)}"
    yield f"over the tuned ones {lead_over_many_networks(rows, kind, tuned)}"
    known = (np.mean(by_subset(rows, "mutual information", tuned, k)) for k in (kind, "rotation"))
    yield "100 have {:.2f} and {:.2f}".format(*known)
    scores = (by_subset(rows, "log score", m) for m in (tuned, "posterior"))
    better = " and ".join(number(a - b, 3) for a, b in zip(*scores))
    yield f"score {better} nats above the posterior on digits"
    (scale,) = set(by_subset(rows, "scale", tuned))
    yield f"With a tuned decay (α = {scale:g})"


def nearly_one_network(rows):
    """The same on the page of the study, with the scores themselves."""
    yield f"of the table but one have weights N(0, {mnist_posteriors.SCALE:g}²) on the pixels"
    yield "of 100 on digits is {}, that of one {} (the posterior's {})".format(
        *(
            " and ".join(number(v, 4) for v in by_subset(rows, "log score", method))
            for method in (out_of_distribution.LARGE, "MAP", "posterior")
        )
    )
    kinds, tuned = out_of_distribution.UNFAMILIAR, out_of_distribution.TUNED
    yield "is {} for Fashion-MNIST, {} for noise, {} for turned digits".format(
        *(lead_over_many_networks(rows, kind) for kind in kinds)
    )
    yield "over 100 tuned ones {}, {}, {}".format(
        *(lead_over_many_networks(rows, kind, tuned) for kind in kinds)
    )
    scores = " and ".join(number(v, 4) for v in by_subset(rows, "log score", tuned))
    yield f"With the tuned decay it is {scores}"
    errors = (np.mean(by_subset(rows, "calibration error", m)) for m in (tuned, "posterior"))
    yield "calibration errors are {:.2f} where the posterior has {:.2f}".format(*errors)
    *few, last = (f"{scale:g}" for scale in out_of_distribution.DECAYS)
    yield f"decay from {', '.join(few)} and {last}"
