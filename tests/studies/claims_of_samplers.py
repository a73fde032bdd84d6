"""What pages say of samplers beside each other, and the rows that say it."""

from claims import Claim
from pages_of_studies import EVIDENCE, GUIDE, MIXING, line
from sentences_of_hard_posteriors import integrated_beside_plain
from sentences_of_samplers import (
    ADDED,
    FIRST,
    MAMS,
    MCLMC,
    PLAIN,
    SEEDS,
    beside_nuts,
    by_second,
    chains_that_never_meet,
    ensembles_of_one_network,
    ensembles_of_the_guide,
    means_within_modes,
    methods_on_both,
    pairs_of_the_guide,
    runs_on_the_digits,
    runs_that_differ,
    samplers_in_a_sentence,
    samplers_in_the_guide,
    seeds_begin_with_the_first_table,
    tempering_on_the_digits,
    told_of,
    units_in_a_sentence,
    units_matched,
    what_fit_rests_on,
)

from benchmarks.mixing import which_sampler

SMALL = {"problem": "digits", "method": which_sampler.SMALL}
NUTS = {"problem": "digits", "method": PLAIN}
FIRST_RUN = {"problem": "digits", "method": MCLMC}
# The worst of the five runs on the digits, by R-hat of functions.
WORST = FIRST_RUN | {"seed": 0}
RELU = {"table": "boston", "width": 16, "activation": "relu"}
TANH = {"table": "boston", "width": 16, "activation": "tanh"}


def of(changing, tell, row, column, page=MIXING):
    """A claim of all three tables of `which_sampler`, a row of one of which is changed."""
    return Claim(changing, (page,), told_of(tell, changing), row, column)


CLAIMS = {
    "which_sampler: all runs": of(ADDED, runs_on_the_digits, WORST, "functions_max_rhat"),
    "which_sampler: all runs, first": of(
        FIRST, runs_on_the_digits, FIRST_RUN, "functions_min_by_1000"
    ),
    "which_sampler: all runs, seeds": of(
        SEEDS, runs_on_the_digits, {"seed": 1}, "precisions_min_by_1000"
    ),
    "which_sampler: methods": of(FIRST, methods_on_both, NUTS, "functions_max_rhat"),
    "which_sampler: methods, rdata": of(
        ADDED,
        methods_on_both,
        {"problem": "rdata", "method": MCLMC, "seed": 1},
        "functions_min_by_1000",
    ),
    "which_sampler: methods, MAMS": of(
        ADDED,
        methods_on_both,
        {"problem": "digits", "method": MAMS, "seed": 1},
        "precisions_max_rhat",
    ),
    "which_sampler: runs that differ": of(ADDED, runs_that_differ, WORST, "functions_min_by_1000"),
    "which_sampler: by second": of(ADDED, by_second, WORST, "functions_min_by_second"),
    "which_sampler: what fit rests on": of(FIRST, what_fit_rests_on, SMALL, "functions_max_rhat"),
    "which_sampler: tempering": of(
        FIRST,
        tempering_on_the_digits,
        {"problem": "digits", "method": "tempering, HMC, non-centred"},
        "functions_max_rhat",
    ),
    "which_sampler: seeds": Claim(
        SEEDS, (MIXING,), seeds_begin_with_the_first_table, {"seed": 1}, "precisions_min_by_1000"
    ),
    "which_sampler: sentence": of(
        ADDED, samplers_in_a_sentence, WORST, "functions_max_rhat", EVIDENCE
    ),
    "which_sampler: sentence, NUTS": of(
        FIRST, samplers_in_a_sentence, NUTS, "functions_max_rhat", EVIDENCE
    ),
    "which_sampler: guide, all runs": of(
        ADDED, samplers_in_the_guide, WORST, "functions_max_rhat", GUIDE
    ),
    "which_sampler: guide, NUTS": of(
        FIRST, samplers_in_the_guide, NUTS, "functions_max_rhat", GUIDE
    ),
    "which_sampler: stuck": Claim(
        FIRST,
        (MIXING,),
        chains_that_never_meet,
        {"problem": "airfoil", "method": "NUTS, non-centred, depth 10, moves"},
        "functions_min_ess",
    ),
    "which_sampler: NUTS": Claim(
        FIRST,
        (MIXING,),
        lambda rows: [line(name, *beside_nuts(rows, name)) for name in ("rdata", "digits")],
        SMALL,
        "functions_min_by_1000",
    ),
    "which_sampler: guide": Claim(
        FIRST,
        (GUIDE,),
        lambda rows: [
            "{} and {} times those of NUTS accepting 0.95 (precisions, functions), "
            "{} and {} times at 0.8".format(*beside_nuts(rows))
        ],
        SMALL,
        "functions_min_by_1000",
    ),
    "which_sampler: output layer integrated out": Claim(
        ADDED,
        (MIXING,),
        integrated_beside_plain,
        {"problem": "rdata", "method": "MAMS, output integrated out", "seed": 1},
        "precisions_max_rhat",
    ),
    "flat_directions": Claim(
        "mixing/flat_directions", (MIXING,), units_matched, RELU, "between, matched"
    ),
    "flat_directions: index": Claim(
        "mixing/flat_directions", (MIXING,), units_matched, TANH, "between, matched"
    ),
    "flat_directions: sentence": Claim(
        "mixing/flat_directions", (EVIDENCE,), units_in_a_sentence, RELU, "between, matched"
    ),
    "neal/posteriors: sentence": Claim(
        "neal/posteriors",
        (EVIDENCE,),
        means_within_modes,
        {
            "problem": "rdata",
            "route": "tempering noncentered NUTS",
            "quantity": "main_mode_test_log_predictive",
        },
        "mean",
    ),
    "evidence: guide": Claim(
        "priors/evidence",
        (GUIDE,),
        pairs_of_the_guide,
        {"data": "function", "width": 32, "activation": "tanh", "prior": "group"},
        "log_evidence",
    ),
    "tabular: guide": Claim(
        "predictions/tabular",
        (GUIDE,),
        ensembles_of_the_guide,
        {"table": "yacht", "method": "MCLMC", "seed": 3},
        "lppd",
    ),
    "sgd_as_inference: guide": Claim(
        "predictions/sgd_as_inference",
        (GUIDE,),
        ensembles_of_one_network,
        {"model": "network", "method": "deep ensemble"},
        "lppd",
    ),
}
