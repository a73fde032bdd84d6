"""What pages say of studies, and the rows that say it: studies of all themes but mixing."""

from claims import Claim
from claims_of_shifts import CLAIMS as OF_SHIFTS
from pages_of_studies import (
    EVIDENCE,
    GUIDE,
    NEAL,
    PREDICTIONS,
    PRIORS,
    SPEED,
)
from sentences_of_studies import (
    better_beyond_two_errors,
    columns_of_noise,
    covered,
    decoupled_decay_in_a_sentence,
    depth_in_sentences,
    evidence_in_a_sentence,
    evidence_in_sentences,
    gains_in_a_sentence,
    gains_of_tables,
    gains_over_bde,
    lines_of,
    networks_averaged,
    noise_by_spread,
    not_converged,
    on_one_vector,
    polynomials_in_a_sentence,
    small_networks_in_a_sentence,
    tail_in_a_sentence,
    tail_in_sentences,
    third_table,
    training_beside_modes,
    wide_tables,
    yacht_in_sentences,
)
from sentences_of_temperatures import (
    averages_of_few_draws,
    beside_full_batch,
    both_subsets_of_many_rows,
    cold_in_a_sentence,
    cold_with_shifts,
    decays_of_ensembles,
    hierarchical_on_many_rows,
    other_temperatures_with_shifts,
    posterior_and_ensemble_without_end,
    wide_priors_on_3000_rows,
)

from benchmarks.neal import tail
from benchmarks.predictions import (
    averaging_or_width,
    boundary_by_rows,
    polynomials,
    shift_by_width,
)
from benchmarks.priors import temperature_by_rows

MCLMC = {"table": "yacht", "method": "four layers, MCLMC", "seed": 3}
SUBSET = {"rows": 1000, "subset": 0, "shifts": "none"}
COLD = SUBSET | {"prior": 0.3, "temperature": 0.1, "method": "HMC"}
DARK = {"units": 50, "prior": 0.1, "method": "posterior", "pixels": "dead"}
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
    "shift_by_width": Claim(
        "predictions/shift_by_width", (PREDICTIONS,), lines_of(shift_by_width), DARK, "cost"
    ),
    "shift_by_width: sentences": Claim(
        "predictions/shift_by_width", (PREDICTIONS,), noise_by_spread, DARK, "spread"
    ),
    "tail": Claim("neal/tail", (NEAL,), lines_of(tail), {"method": "NUTS"}, "above 2"),
    "tail: sentences": Claim(
        "neal/tail", (NEAL,), tail_in_sentences, {"method": "NUTS"}, "above 2"
    ),
    "tail: sentence": Claim(
        "neal/tail", (EVIDENCE,), tail_in_a_sentence, {"method": "NUTS"}, "above 2"
    ),
    "tail: the curve": Claim(
        "neal/tail", (NEAL,), lines_of(tail), {"method": tail.CURVE, "log scale": 0.0}, "slope"
    ),
    "evidence": Claim(
        "priors/evidence",
        (PRIORS,),
        evidence_in_sentences,
        {"data": "function", "width": 32, "activation": "tanh", "prior": "group"},
        "log_evidence",
    ),
    "evidence: depth": Claim(
        "priors/evidence",
        (PRIORS,),
        depth_in_sentences,
        {"data": "function", "width": 8, "layers": 2, "activation": "tanh", "prior": "group"},
        "log_evidence",
    ),
    "evidence: yacht": Claim(
        "priors/evidence",
        (PRIORS,),
        yacht_in_sentences,
        {"data": "yacht", "width": 2, "layers": 1, "activation": "tanh", "prior": "group"},
        "log_evidence",
    ),
    "evidence: sentence": Claim(
        "priors/evidence",
        (EVIDENCE,),
        evidence_in_a_sentence,
        {"data": "function", "width": 32, "activation": "tanh", "prior": "group"},
        "log_evidence",
    ),
    "temperature_by_rows": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        lines_of(temperature_by_rows),
        COLD,
        "gain",
    ),
    "temperature_by_rows: minibatches": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        beside_full_batch,
        COLD | {"method": "BAOAB, SVRG"},
        "along gradients",
    ),
    "temperature_by_rows: few draws": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        averages_of_few_draws,
        COLD | {"prior": 2},
        "log_score",
    ),
    "temperature_by_rows: without end": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        posterior_and_ensemble_without_end,
        COLD | {"prior": 2, "temperature": 1},
        "log_score",
    ),
    "temperature_by_rows: ensembles": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        decays_of_ensembles,
        SUBSET | {"method": "ensemble"},
        "decay",
    ),
    "temperature_by_rows: wide priors": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        wide_priors_on_3000_rows,
        {"rows": 3000, "subset": 1, "shifts": "none", "prior": 1, "temperature": 3},
        "gain",
    ),
    "temperature_by_rows: hierarchical": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        hierarchical_on_many_rows,
        {"rows": 3000, "subset": 0, "prior": "hierarchical", "temperature": 3},
        "gain",
    ),
    "temperature_by_rows: shifts": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        cold_with_shifts,
        COLD | {"shifts": "one pixel"},
        "gain",
    ),
    "temperature_by_rows: shifts, other temperatures": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        other_temperatures_with_shifts,
        {"rows": 1000, "subset": 0, "prior": 1, "temperature": 0.3, "shifts": "one pixel"},
        "gain",
    ),
    "temperature_by_rows: subsets": Claim(
        "priors/temperature_by_rows",
        (PRIORS,),
        both_subsets_of_many_rows,
        COLD | {"rows": 10_000, "subset": 1},
        "gain",
    ),
    "temperature_by_rows: sentence": Claim(
        "priors/temperature_by_rows", (EVIDENCE,), cold_in_a_sentence, COLD, "gain"
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
} | OF_SHIFTS
