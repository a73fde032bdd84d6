"""What pages say of studies of predictions, with what it rests on, and the rows that say it."""

from claims import Claim
from pages_of_studies import EVIDENCE, PREDICTIONS
from sentences_of_predictions import (
    approximations_of_tables,
    beside_the_best_width,
    boundary_in_a_sentence,
    boundary_in_sentences,
    cost_of_sampling,
    mixing_of_tables,
    nearly_one_network,
    nearly_one_network_in_a_sentence,
    width_of_trained_networks,
)

AVERAGED = {"table": "concrete", "split": 1, "method": "posterior", "width": 16}
DIGITS = {"prior": "normal", "seed": 0, "method": "large ensemble", "unfamiliar": "Fashion-MNIST"}

CLAIMS = {
    "tabular: cost": Claim(
        "predictions/tabular",
        (EVIDENCE, PREDICTIONS),
        cost_of_sampling,
        {"table": "concrete", "method": "MCLMC", "seed": 5},
        "CPU seconds",
    ),
    "tabular: approximations": Claim(
        "predictions/tabular",
        (PREDICTIONS,),
        approximations_of_tables,
        {"table": "energy", "method": "hierarchical, MCLMC", "seed": 2},
        "lppd",
    ),
    "tabular: mean field": Claim(
        "predictions/tabular",
        (PREDICTIONS,),
        approximations_of_tables,
        {"table": "bikesharing", "method": "mean field", "seed": 2},
        "lppd",
    ),
    "tabular: mixing": Claim(
        "predictions/tabular",
        (PREDICTIONS,),
        mixing_of_tables,
        {"table": "airfoil", "method": "hierarchical, tempering", "seed": 1},
        "CPU seconds",
    ),
    "boundary_by_rows: sentence": Claim(
        "predictions/boundary_by_rows",
        (EVIDENCE,),
        boundary_in_a_sentence,
        {"model": "network", "rows": 50, "seed": 5},
        "gain",
    ),
    "boundary_by_rows: sentences": Claim(
        "predictions/boundary_by_rows",
        (PREDICTIONS,),
        boundary_in_sentences,
        {"model": "network, prior sd 0.5", "rows": 200, "seed": 5},
        "sure, average",
    ),
    "averaging_or_width: the best width": Claim(
        "predictions/averaging_or_width",
        (EVIDENCE, PREDICTIONS),
        beside_the_best_width,
        AVERAGED,
        "lppd",
    ),
    "averaging_or_width: the best width, costs": Claim(
        "predictions/averaging_or_width",
        (EVIDENCE, PREDICTIONS),
        beside_the_best_width,
        AVERAGED,
        "seconds",
    ),
    "averaging_or_width: trained": Claim(
        "predictions/averaging_or_width",
        (PREDICTIONS,),
        width_of_trained_networks,
        {"table": "yacht", "split": 0, "method": "trained", "width": 8},
        "lppd",
    ),
    "out_of_distribution: one network": Claim(
        "predictions/out_of_distribution",
        (PREDICTIONS,),
        nearly_one_network,
        DIGITS,
        "log score",
    ),
    "out_of_distribution: one network, sentence": Claim(
        "predictions/out_of_distribution",
        (EVIDENCE,),
        nearly_one_network_in_a_sentence,
        DIGITS,
        "mutual information",
    ),
}
