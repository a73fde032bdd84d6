"""What pages say of averages beside other networks: shifted and foreign images, and small networks."""

import itertools

import numpy as np
from pages_of_studies import line, number

from benchmarks._shared import mnist_posteriors
from benchmarks._shared.sampled_runs import select
from benchmarks.predictions import (
    averaging_or_width,
    covariate_shift,
    out_of_distribution,
    shift_by_prior,
)
from benchmarks.predictions import shift_by_prior_words as words

FEW, MANY = 3000, 10_000
SCALES = (0.1, 0.3, 1)
SETTINGS = tuple(itertools.product((FEW, MANY), (*SCALES, words.EMPCOV)))
# Shifts under which an average of many draws is ahead.
MOVED = ("rotation", "shift", "occlusion")
# Wide priors under these shifts, with both numbers of rows: where 400 draws are ahead.
AHEAD = tuple(((count, a), kind) for count in (FEW, MANY) for a in (0.3, 1) for kind in MOVED)
BEYOND_MAP, BEYOND_ENSEMBLE = "score beyond MAP", "score beyond ensemble"


def listed(values, digits=3):
    """Numbers as they stand in a sentence: the last after an "and"."""
    *first, last = (number(value, digits) for value in values)
    return f"{', '.join(first)} and {last}"


def span(values, digits=3):
    """The least and the largest of some numbers."""
    return f"{number(min(values), digits)} to {number(max(values), digits)}"


# -- shifts by prior and number of rows -------------------------------------------------------------


def gap(rows, column, setting, kind, method=words.POSTERIOR):
    """A difference to another method under a shift, a mean over subsets."""
    count, prior = setting
    where = {"rows": count, "prior": prior, "kind": kind, "method": method}
    return words.over_subsets(rows, column, where)


def score(rows, setting, kind, method):
    """The log score of a method under a shift, a mean over subsets."""
    count, prior = setting
    own = select(rows, rows=count, prior=prior, method=method, kind=kind)
    return float(np.mean([row["log score"] for row in own]))


def cost_of(kind, rows, setting, method):
    """What noise of a kind takes from the log score of a method."""
    return score(rows, setting, "none", method) - score(rows, setting, kind, method)


def shifts_beside_the_ensemble(rows):
    """Lines of the tables of shifts: 400 draws beside MAP and the ensemble, and ten beside the ensemble."""
    for table in (
        words.averaged(rows),
        words.beside(rows, words.ENSEMBLE),
        words.beside(rows, words.ENSEMBLE, words.TEN),
    ):
        for row in table:
            yield line(*map(str, row.values()))


def dead_pixels_in_a_sentence(rows):
    """What noise at dead pixels costs the posterior; it costs MAP, and under EmpCov anyone, nothing."""
    for setting in SETTINGS:
        for method in (words.MAP, words.ENSEMBLE):
            assert abs(cost_of("dead pixels", rows, setting, method)) < 5e-4
    for count in (FEW, MANY):
        cost = cost_of("dead pixels", rows, (count, words.EMPCOV), words.POSTERIOR)
        assert abs(cost) < 5e-4
    few = [cost_of("dead pixels", rows, (FEW, a), words.POSTERIOR) for a in SCALES]
    yield f"{listed(few)} nats (α = 0.1, 0.3, 1"


def shifts_in_sentences(rows):
    """What noise at dead and at live pixels costs, and by how much 400 draws are ahead."""
    yield from dead_pixels_in_a_sentence(rows)
    few, many = (
        [cost_of("dead pixels", rows, (count, a), words.POSTERIOR) for a in SCALES]
        for count in (FEW, MANY)
    )
    yield f"{listed(many)} with 10,000"
    yield f"posterior up to {max(few + many):.2f} nats"
    more = [
        cost_of("as many live pixels", rows, (count, a), words.POSTERIOR)
        - cost_of("as many live pixels", rows, (count, a), words.MAP)
        for count in (FEW, MANY)
        for a in SCALES
    ]
    yield f"costs the posterior {span(more)} nats more than MAP"
    gains = [gap(rows, BEYOND_MAP, *at).value for at in AHEAD]
    yield f"400 draws are ahead* of MAP, by {span(gains, 1)} nats"
    wrong = [gap(rows, "error beyond MAP", *at).value for at in AHEAD]
    yield f"they differ by {max(map(abs, wrong)):.3f} at most"
    live = [
        row["live weights"]
        for row in rows
        if row["method"] == words.POSTERIOR and row["prior"] != words.EMPCOV
    ]
    yield f"{span(live, 2)} of its spread"


def as_many_networks(rows):
    """Ten draws beside the ensemble of ten, and what more draws add to them."""
    size = shift_by_prior.SIZES["full"]
    assert (size.chains, size.chains * size.trajectories[2]) == (10, 400)
    ten = {
        (*setting, kind): gap(rows, BEYOND_ENSEMBLE, setting, kind, words.TEN)
        for setting in SETTINGS
        for kind in words.kinds_of(rows)
    }
    # With many rows errors are over images alone, so that nothing is said to be sure.
    yield f"{span([ten[MANY, 0.3, kind].value for kind in MOVED])} nats above the ensemble"
    yield "at {}, {} and {}".format(*(ten[FEW, 0.3, kind] for kind in MOVED))
    for count, name in ((FEW, "3000"), (MANY, "10,000")):
        yield "{}, {} and {} with {}".format(*(ten[count, 1, kind] for kind in MOVED), name)
    assert all(ten[FEW, 1, kind].is_sure for kind in MOVED)
    behind = [-ten[FEW, 1, kind].value for kind in MOVED[:2]]
    yield "behind by {:.2f} and {:.2f} nats under rotation and shift".format(*behind)
    everywhere = ("none", "noise", "dead pixels", "as many live pixels")
    for setting in SETTINGS:
        for kind in (*everywhere, "null components", "first components"):
            assert ten[(*setting, kind)].value < 0
    for a in (0.3, 1):
        more = [
            score(rows, (count, a), kind, words.POSTERIOR)
            - score(rows, (count, a), kind, words.TEN)
            for count in (FEW, MANY)
            for kind in MOVED
        ]
        grown = [
            gap(rows, BEYOND_MAP, (count, a), kind, words.ENSEMBLE).value
            for count in (FEW, MANY)
            for kind in MOVED
        ]
        yield f"{span(more, 2)} nats with α = {a:g}"
        yield f"{span(grown, 2)} with α = {a:g}"


def as_many_networks_in_a_sentence(rows):
    """Over all settings with wide priors: the worst and the best of ten draws beside ten networks."""
    ten = [gap(rows, BEYOND_ENSEMBLE, *at, words.TEN).value for at in AHEAD]
    yield f"from {-min(ten):.2f} nats behind to {max(ten):.2f} ahead"
    gains = [gap(rows, BEYOND_MAP, *at).value for at in AHEAD]
    yield f"400 draws gain {span(gains, 1)} nats over MAP"


def plain_noise_in_a_sentence(rows):
    """Noise on all pixels: seven settings with the posterior behind MAP, and one with it ahead."""
    gaps = {setting: gap(rows, BEYOND_MAP, setting, "noise") for setting in SETTINGS}
    best = gaps.pop((MANY, 1))
    assert all(found.value < 0 for found in gaps.values())
    unsure = [setting for setting, found in gaps.items() if not found.is_sure]
    assert set(unsure) == {(FEW, 1), (FEW, words.EMPCOV)}
    yield f"behind MAP in seven of eight settings, by {span([-f.value for f in gaps.values()])} nats"
    yield f"ahead by {best} with 10,000 images and α = 1"


def plain_noise(rows):
    """What is said of noise on all pixels, and of contrast, beside the table."""
    behind, ahead = plain_noise_in_a_sentence(rows)
    yield behind
    yield ahead.replace("ahead by", "ahead of it by").replace(" with 10,000 images and α = 1", "")
    setting = (MANY, 1)
    yield f"and of the ensemble by {gap(rows, BEYOND_ENSEMBLE, setting, 'noise')}"
    lone = gap(rows, BEYOND_ENSEMBLE, setting, "noise", words.TEN)
    assert lone.value < 0
    yield f"Ten draws there are {str(lone).removeprefix('−')} behind the ensemble"
    empcov = [gap(rows, BEYOND_MAP, (count, words.EMPCOV), "noise") for count in (FEW, MANY)]
    yield "{} and {} behind MAP".format(*(str(found).removeprefix("−") for found in empcov))
    errors = [gap(rows, "error beyond MAP", (MANY, a), "noise") for a in SCALES]
    assert all(found.is_sure for found in errors)
    yield f"{span([-found.value for found in errors])} below MAP's"
    priors = (*SCALES, words.EMPCOV)
    flat = [gap(rows, "error beyond MAP", (MANY, prior), "contrast") for prior in priors]
    assert all(found.is_sure for found in flat)
    yield f"{span([found.value for found in flat])} above MAP's under every prior"
    scores = {prior: gap(rows, BEYOND_MAP, (MANY, prior), "contrast") for prior in priors}
    assert [prior for prior, found in scores.items() if not found.is_sure] == [1]
    yield f"the log score is {span([-found.value for found in scores.values()])} nats below"


# -- one prior scale, 1000 rows ---------------------------------------------------------------------

NORMAL = {"prior": "normal"}


def log_scores_under_shift(rows):
    """Lines of the table of log scores."""
    lengths = covariate_shift.LENGTHS["full"]
    return [line(*row.values()) for row in covariate_shift.log_scores(rows, lengths)]


def pixel_noise(rows):
    """What noise on all pixels and on dead ones does to error rates and log scores."""

    def mean(column, method, kind, **where):
        return mnist_posteriors.mean_of(
            rows, column, method=method, kind=kind, **{**NORMAL, **where}
        )

    errors = [mean("error", method, "noise") for method in ("posterior", "MAP")]
    yield "{:.3f} against {:.3f}".format(*errors)
    excess = covariate_shift.excess(rows, "noise", "posterior", "normal", ("MAP", "normal"))
    yield "{:.3f} ± {:.3f} more".format(*excess)
    for kind in set(covariate_shift.KINDS) - {"noise"}:
        found, error = covariate_shift.excess(rows, kind, "posterior", "normal", ("MAP", "normal"))
        assert abs(found) < 2 * error
    scores = [mean("log score", "posterior", kind) for kind in ("none", "dead pixels")]
    yield "from {} to {}".format(*(number(value, 3) for value in scores))
    for method in ("MAP", "ensemble"):
        assert (
            abs(mean("log score", method, "none") - mean("log score", method, "dead pixels")) < 5e-4
        )
    by_subset = [
        mean("log score", "posterior", "none", seed=seed)
        - mean("log score", "posterior", "dead pixels", seed=seed)
        for seed in (0, 1)
    ]
    yield f"by {listed(by_subset)} in the two subsets"
    more = [
        mean("log score", "posterior", "none")
        - mean("log score", "posterior", kind)
        - mean("log score", "MAP", "none")
        + mean("log score", "MAP", kind)
        for kind in ("as many live pixels", "noise")
    ]
    yield "{:.3f} more than MAP, and plain noise {:.3f}".format(*more)
    assert mean("dead weights", "MAP", "none") == 0
    yield f"under the prior ({mean('dead weights', 'posterior', 'none'):.2f} α)"
    yield f"the size of the prior, too ({mean('live weights', 'posterior', 'none'):.2f} α)"


def priors_under_shift(rows):
    """What the posterior loses and gains under the two other priors."""

    def mean(kind, prior, column="log score"):
        return mnist_posteriors.mean_of(rows, column, method="posterior", kind=kind, prior=prior)

    kinds = ("none", *covariate_shift.KINDS)
    for prior in ("EmpCov", "ARD"):
        yield f"costs its log score {mean('none', prior) - mean('dead pixels', prior):.3f}"
    assert all(mean(k, "EmpCov", "error") > mean(k, "normal", "error") for k in kinds)
    yield "{:.2f} clean against {:.2f}".format(
        *(mean("none", prior, "error") for prior in ("EmpCov", "normal"))
    )
    assert [k for k in kinds if mean(k, "EmpCov") > mean(k, "normal")] == ["shift"]
    worse = [k for k in kinds if mean(k, "ARD") < mean(k, "normal")]
    assert worse == ["noise", "rotation", "shift", "occlusion"]
    more = covariate_shift.excess(rows, "dead pixels", "posterior", "ARD", ("MAP", "normal"))
    yield "its error there is {:.3f} ± {:.3f} above that of MAP".format(*more)


# -- foreign images -----------------------------------------------------------------------------------

LARGE = out_of_distribution.LARGE


def foreign_images_in_a_sentence(rows):
    """AUROC for Fashion-MNIST by mutual information, with the numbers of networks averaged."""
    table = out_of_distribution.summary(
        rows, out_of_distribution.LENGTHS["full"], out_of_distribution.MEMBERS["full"]
    )
    own = {row["method"]: row for row in table if row["prior"] == "normal"}
    auroc = {method: f"{row['Fashion-MNIST, MI']:.2f}" for method, row in own.items()}
    count = {method: row["networks averaged"] for method, row in own.items()}
    assert count["mean field"] == count["SWAG"]
    yield f"AUROC {auroc['posterior']} for Fashion-MNIST against digits ({count['posterior']} draws)"
    yield (
        f"mean field {auroc['mean field']} and SWAG {auroc['SWAG']} ({count['SWAG']} draws); "
        f"an ensemble of {count[LARGE]} has {auroc[LARGE]}, of {count['ensemble']} {auroc['ensemble']}"
    )
    turned = {m: f"{own[m]['rotation, MI']:.2f}" for m in (LARGE, "posterior")}
    assert len(set(turned.values())) == 1
    yield f"an ensemble of {count[LARGE]} knows as well ({turned[LARGE]})"


def networks_of_foreign_images(rows):
    """The line of the list of studies."""
    table = out_of_distribution.summary(
        rows, out_of_distribution.LENGTHS["full"], out_of_distribution.MEMBERS["full"]
    )
    own = {row["method"]: row for row in table if row["prior"] == "normal"}
    known = {
        kind: max(own, key=lambda method, kind=kind: own[method][f"{kind}, MI"])
        for kind in out_of_distribution.UNFAMILIAR
    }
    assert known["rotation"] == out_of_distribution.TUNED
    best = known["Fashion-MNIST"]
    told = " and ".join(kind for kind, method in known.items() if method == best)
    count = {method: row["networks averaged"] for method, row in own.items()}
    yield (
        f"mutual information of {count[best]} draws of the {best} under N(0, 0.1²) tells {told} best; "
        f"an ensemble of {count[known['rotation']]} with a tuned decay tells turned digits as well or better"
    )


# -- small networks -----------------------------------------------------------------------------------


def small_networks_beside_wide(rows):
    """The table of what the two methods are, and how many times the CPU seconds averages take."""
    for row in averaging_or_width.what_they_cost(rows):
        yield line(*row.values())
    four, sixteen = times_the_seconds(rows, 4), times_the_seconds(rows, 16)
    yield f"Sixteen averaged units take {span(sixteen, 1)} times the CPU seconds of ten networks of 256"
    yield f"four {span(four, 1)} times"


def times_the_seconds(rows, units):
    """CPU seconds of an average over those of ten trained networks of 256 units, by table and split."""

    def seconds(method, width, table, split):
        (row,) = select(rows, method=method, width=width, table=table, split=split)
        return row["seconds"]

    return [
        seconds(averaging_or_width.POSTERIOR, units, table, split)
        / seconds(averaging_or_width.TRAINED, 256, table, split)
        for table in averaging_or_width.TABLES
        for split in (0, 1)
    ]
