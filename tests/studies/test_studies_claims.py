"""Numbers on the pages are those of the stored rows: a row that changes is seen."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from pages_of_studies import (
    EVIDENCE,
    GUIDE,
    MIXING,
    PREDICTIONS,
    PRIORS,
    SPEED,
    line,
    page,
    plain,
    rows_of,
)
from sentences_of_mixing import (
    acceptance_by_method,
    acceptance_in_a_sentence,
    beside_nuts,
    beside_the_posterior,
    by_seed,
    chains_that_never_meet,
    cost_of_integrating,
    ensembles_in_a_sentence,
    heat_by_method,
    images_and_precisions,
    integrated_beside_plain,
    ladders_that_travel,
    minibatches_of_networks_in_a_sentence,
    mixing_by_coordinates,
    nearer_than_mean_field,
    next_best,
    output_integrated_out,
    precisions_in_a_sentence,
    shared_noise_in_a_sentence,
    shares_of_methods,
    units_in_a_sentence,
    units_matched,
)
from sentences_of_studies import (
    better_beyond_two_errors,
    boundary_in_a_sentence,
    columns_of_noise,
    covered,
    decoupled_decay_in_a_sentence,
    gains_in_a_sentence,
    gains_of_tables,
    gains_over_bde,
    lines_of,
    networks_averaged,
    not_converged,
    on_one_vector,
    polynomials_in_a_sentence,
    small_networks_in_a_sentence,
    third_table,
    training_beside_modes,
    wide_tables,
)

from benchmarks._shared import mnist_posteriors
from benchmarks.mixing import (
    against_hmc,
    bias_by_dimension,
    networks_beside_full_batch,
    which_sampler,
)
from benchmarks.predictions import (
    averaging_or_width,
    boundary_by_rows,
    covariate_shift,
    polynomials,
)


class Claim(NamedTuple):
    """What pages say of the stored rows of a study.

    - **study** - whose rows they are, ``theme/name``
    - **pages** - texts that hold all that is told, below the root of the checkout
    - **tell** - rows to the lines or parts of sentences that they make
    - **row**, **column** - a number that it is told of, which the test changes
    """

    study: str
    pages: tuple[str, ...]
    tell: Callable[[list], Iterable[str]]
    row: dict
    column: str


MCLMC = {"table": "yacht", "method": "four layers, MCLMC", "seed": 3}
RELU = {"table": "boston", "width": 16, "activation": "relu"}
DIGITS = {"problem": "digits", "method": which_sampler.SMALL}
NOISY = {"data": "yacht", "prior": "unit", "noise_columns": 10, "split": 2}

CLAIMS = {
    "tabular: gains": Claim("predictions/tabular", (PREDICTIONS,), gains_of_tables, MCLMC, "lppd"),
    "tabular: sentence": Claim(
        "predictions/tabular", (EVIDENCE,), gains_in_a_sentence, MCLMC, "lppd"
    ),
    "tabular: over bde": Claim(
        "predictions/tabular",
        (PREDICTIONS,),
        gains_over_bde,
        {"table": "airfoil", "method": "bde", "seed": 2},
        "lppd",
    ),
    "tabular: scores": Claim("predictions/tabular", (EVIDENCE,), wide_tables, MCLMC, "lppd"),
    "which_sampler: shares": Claim(
        "mixing/which_sampler",
        (MIXING,),
        shares_of_methods,
        {"problem": "rdata", "method": "MCLMC, collapsed"},
        "precisions_min_by_1000",
    ),
    "which_sampler: stuck": Claim(
        "mixing/which_sampler",
        (MIXING,),
        chains_that_never_meet,
        {"problem": "airfoil", "method": "NUTS, non-centred, depth 10, moves"},
        "functions_min_ess",
    ),
    "which_sampler: NUTS": Claim(
        "mixing/which_sampler",
        (MIXING,),
        lambda rows: [line(name, *beside_nuts(rows, name)) for name in ("rdata", "digits")],
        DIGITS,
        "functions_min_by_1000",
    ),
    "which_sampler: guide": Claim(
        "mixing/which_sampler",
        (GUIDE,),
        lambda rows: [
            "{} and {} times those of NUTS accepting 0.95 (precisions, functions), "
            "{} and {} times at 0.8".format(*beside_nuts(rows))
        ],
        DIGITS,
        "functions_min_by_1000",
    ),
    "which_sampler: output layer integrated out": Claim(
        "mixing/which_sampler_added",
        (MIXING,),
        integrated_beside_plain,
        {"problem": "rdata", "method": "MAMS, output integrated out", "seed": 1},
        "precisions_max_rhat",
    ),
    "which_sampler: range of seeds": Claim(
        "mixing/which_sampler_seeds",
        (EVIDENCE,),
        lambda rows: [
            f"{rows[0]['functions_max_rhat']} to {rows[2]['functions_max_rhat']} by seed"
        ],
        {"seed": 2},
        "functions_max_rhat",
    ),
    "which_sampler: seeds": Claim(
        "mixing/which_sampler_seeds", (MIXING,), by_seed, {"seed": 2}, "functions_max_rhat"
    ),
    "ladders": Claim(
        "mixing/ladders",
        (MIXING,),
        ladders_that_travel,
        {"ladder": "plain", "sweeps": 600},
        "barrier",
    ),
    "acceptance: sentence": Claim(
        "mixing/acceptance",
        (EVIDENCE,),
        acceptance_in_a_sentence,
        {"model": "network", "method": "MALA", "scale": 0.05},
        "rejected",
    ),
    "weight_decay": Claim(
        "priors/weight_decay",
        (PRIORS,),
        training_beside_modes,
        {"table": "boston", "spread": 1, "method": "decoupled decay, AdamW", "split": 0},
        "lppd",
    ),
    "weight_decay: sentence": Claim(
        "priors/weight_decay",
        (EVIDENCE,),
        decoupled_decay_in_a_sentence,
        {"table": "energy", "spread": 1, "method": "no decay, Adam", "split": 1},
        "nats above the mode",
    ),
    "acceptance": Claim(
        "mixing/acceptance",
        (MIXING,),
        acceptance_by_method,
        {"model": "network", "method": "MALA", "scale": 0.00625},
        "rejected",
    ),
    "hidden_heat": Claim(
        "mixing/hidden_heat",
        (MIXING,),
        heat_by_method,
        {"rows": 1000, "batch": 100, "temperature": 1, "method": "SGLD", "seed": 0},
        "variance of predictions",
    ),
    "against_hmc: ensembles": Claim(
        "mixing/against_hmc",
        (MIXING,),
        nearer_than_mean_field,
        {"problem": "boston", "method": "deep ensemble", "seed": 1},
        "total_variation",
    ),
    "against_hmc: sentence": Claim(
        "mixing/against_hmc",
        (EVIDENCE,),
        ensembles_in_a_sentence,
        {"problem": "mnist", "method": "mean field", "seed": 0},
        "total_variation",
    ),
    "which_sampler: next": Claim(
        "mixing/which_sampler",
        (EVIDENCE,),
        next_best,
        {"problem": "digits", "method": "tempering, HMC, non-centred"},
        "precisions_min_by_1000",
    ),
    "against_hmc: published": Claim(
        "mixing/against_hmc",
        (MIXING,),
        lambda rows: list(against_hmc.beside_published(against_hmc.averaged(rows))),
        {"problem": "mnist", "method": "SGD", "seed": 0},
        "total_variation",
    ),
    "flat_directions": Claim(
        "mixing/flat_directions", (MIXING,), units_matched, RELU, "between, matched"
    ),
    "flat_directions: sentence": Claim(
        "mixing/flat_directions", (EVIDENCE,), units_in_a_sentence, RELU, "between, matched"
    ),
    "hierarchy_helps: noise": Claim(
        "priors/hierarchy_helps", (PRIORS,), columns_of_noise, NOISY, "lppd"
    ),
    "hierarchy_helps: third table": Claim(
        "priors/hierarchy_helps", (PRIORS, EVIDENCE, GUIDE), third_table, NOISY, "lppd"
    ),
    "hierarchy_helps: gains": Claim(
        "priors/hierarchy_helps",
        (PRIORS,),
        better_beyond_two_errors,
        {"data": "kin8nm", "prior": "weight", "noise_columns": 0, "split": 1},
        "lppd",
    ),
    "prior_scale": Claim(
        "priors/prior_scale",
        (PRIORS, EVIDENCE),
        not_converged,
        {"problem": "boston", "alpha": 0.3, "split": 0, "family": "N(0, α²/n)"},
        "converged",
    ),
    "calibration": Claim(
        "predictions/calibration",
        (PREDICTIONS,),
        covered,
        {"table": "airfoil", "split": 4, "method": "cdf"},
        "coverage after",
    ),
    "hard_posteriors": Claim(
        "mixing/hard_posteriors",
        (MIXING,),
        output_integrated_out,
        {"method": "MCLMC, output integrated out", "seed": 0, "draws": 7100},
        "functions_max_rhat",
    ),
    "modes_or_posterior": Claim(
        "mixing/modes_or_posterior",
        (MIXING,),
        beside_the_posterior,
        {"method": "ensemble, stopped early", "split": 2},
        "log_score",
    ),
    "integrated_output: cost": Claim(
        "mixing/integrated_output_cost",
        (MIXING,),
        cost_of_integrating,
        {"rows": 1000, "hidden": 32},
        "ratio",
    ),
    "integrated_output: mixing": Claim(
        "mixing/integrated_output_mixing",
        (MIXING,),
        mixing_by_coordinates,
        {"problem": "airfoil", "coordinates": "output layer integrated out"},
        "precisions_max_rhat",
    ),
    "mnist_gibbs": Claim(
        "mixing/mnist_gibbs",
        (MIXING,),
        images_and_precisions,
        {"task": "two digits", "method": "start", "start": "optimize"},
        "error, average",
    ),
    "mnist_gibbs: sentence": Claim(
        "mixing/mnist_gibbs",
        (EVIDENCE,),
        precisions_in_a_sentence,
        {"task": "ten digits", "method": "Gibbs, HMC", "draws": 23},
        "mean Dense_0.kernel",
    ),
    "bias_by_dimension": Claim(
        "mixing/bias_by_dimension",
        (MIXING,),
        lines_of(bias_by_dimension),
        {"dimension": 1000, "method": "BAOAB, noise taken off", "seed": 0},
        "variance of predictions",
    ),
    "bias_by_dimension: sentence": Claim(
        "mixing/bias_by_dimension",
        (EVIDENCE,),
        shared_noise_in_a_sentence,
        {"dimension": 1000, "method": "BAOAB, noise taken off", "seed": 1},
        "variance of predictions",
    ),
    "networks_beside_full_batch": Claim(
        "mixing/networks_beside_full_batch",
        (MIXING,),
        lines_of(networks_beside_full_batch),
        {"units": 50, "batch": 10, "method": "MCLMC", "seed": 0},
        "variance of predictions",
    ),
    "networks_beside_full_batch: sentence": Claim(
        "mixing/networks_beside_full_batch",
        (EVIDENCE,),
        minibatches_of_networks_in_a_sentence,
        {"units": 256, "batch": 100, "method": "BAOAB, noise taken off", "seed": 1},
        "variance of predictions",
    ),
    "averaging_or_width: sentence": Claim(
        "predictions/averaging_or_width",
        (EVIDENCE, PREDICTIONS),
        small_networks_in_a_sentence,
        {"table": "energy", "split": 0, "method": "posterior", "width": 16},
        "lppd",
    ),
    "boundary_by_rows": Claim(
        "predictions/boundary_by_rows",
        (PREDICTIONS,),
        lines_of(boundary_by_rows),
        {"model": "network", "rows": 20, "seed": 3},
        "sure, average",
    ),
    "boundary_by_rows: sentence": Claim(
        "predictions/boundary_by_rows",
        (EVIDENCE,),
        boundary_in_a_sentence,
        {"model": "network", "rows": 20, "seed": 5},
        "lppd, average",
    ),
    "polynomials: sentence": Claim(
        "predictions/polynomials",
        (EVIDENCE,),
        polynomials_in_a_sentence,
        {"table": "yacht", "kind": "at random", "split": 0, "method": "network"},
        "lppd",
    ),
    "polynomials": Claim(
        "predictions/polynomials",
        (PREDICTIONS,),
        lines_of(polynomials),
        {"table": "yacht", "kind": "beyond", "split": 1, "method": "network"},
        "lppd",
    ),
    "averaging_or_width": Claim(
        "predictions/averaging_or_width",
        (PREDICTIONS,),
        lines_of(averaging_or_width),
        {"table": "boston", "split": 0, "method": "posterior", "width": 8},
        "lppd",
    ),
    "one_vector": Claim(
        "speed/one_vector",
        (SPEED,),
        on_one_vector,
        {"network": "10-100-1", "kernel": "MCLMC"},
        "ratio",
    ),
    "out_of_distribution": Claim(
        "predictions/out_of_distribution",
        (PREDICTIONS,),
        networks_averaged,
        {"method": "ensemble", "seed": 1, "unfamiliar": "noise"},
        "mutual information",
    ),
}


def test_what_averages_over_shifted_images_are_over_is_said():
    length = covariate_shift.LENGTHS["full"]
    counts = [mnist_posteriors.averaged_over(m, length) for m in ("ensemble", "posterior")]
    assert "{} networks of the ensemble and {} of the posterior".format(*counts) in page(
        PREDICTIONS
    )


def missing(claim, rows):
    """What the rows tell and a page does not."""
    told = [plain(text) for text in claim.tell(rows)]
    return [text for text in told for name in claim.pages if text not in page(name)]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_page_says_what_the_rows_say(name):
    claim = CLAIMS[name]
    assert not missing(claim, rows_of(claim.study))


@pytest.mark.parametrize("name", CLAIMS)
def test_a_row_that_changes_is_seen(name):
    claim = CLAIMS[name]
    rows = rows_of(claim.study)
    found = [row for row in rows if all(row[k] == v for k, v in claim.row.items())]
    assert len(found) == 1
    old = found[0][claim.column]
    found[0][claim.column] = {"yes": "no", "no": "yes"}[old] if isinstance(old, str) else 1.5 * old
    assert missing(claim, rows)
