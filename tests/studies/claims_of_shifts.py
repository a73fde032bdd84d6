"""What pages say of averages beside other networks, and the rows that say it."""

from claims import Claim
from pages_of_studies import EVIDENCE, PREDICTIONS
from sentences_of_shifts import (
    as_many_networks,
    as_many_networks_in_a_sentence,
    dead_pixels_in_a_sentence,
    foreign_images_in_a_sentence,
    log_scores_under_shift,
    networks_of_foreign_images,
    pixel_noise,
    plain_noise,
    plain_noise_in_a_sentence,
    priors_under_shift,
    shifts_beside_the_ensemble,
    shifts_in_sentences,
    small_networks_beside_wide,
)

NOISED = {"rows": 3000, "subset": 1, "prior": 1, "method": "posterior"}
TEN_DRAWS = NOISED | {"method": "posterior, last draws"}
SHIFTED = {"prior": "normal", "seed": 1, "method": "posterior", "severity": 5}
FOREIGN = {"prior": "normal", "seed": 1, "unfamiliar": "Fashion-MNIST"}
SMALL = {"table": "boston", "split": 0, "method": "posterior", "width": 16}

CLAIMS = {
    "averaging_or_width: costs": Claim(
        "predictions/averaging_or_width",
        (PREDICTIONS,),
        small_networks_beside_wide,
        SMALL | {"width": 2},
        "seconds",
    ),
    "out_of_distribution: networks": Claim(
        "predictions/out_of_distribution",
        (PREDICTIONS,),
        networks_of_foreign_images,
        FOREIGN | {"method": "mean field"},
        "mutual information",
    ),
    "out_of_distribution: sentence": Claim(
        "predictions/out_of_distribution",
        (EVIDENCE,),
        foreign_images_in_a_sentence,
        FOREIGN | {"method": "ensemble"},
        "mutual information",
    ),
    "covariate_shift": Claim(
        "predictions/covariate_shift",
        (PREDICTIONS,),
        log_scores_under_shift,
        SHIFTED | {"kind": "blur"},
        "log score",
    ),
    "covariate_shift: noise": Claim(
        "predictions/covariate_shift",
        (PREDICTIONS,),
        pixel_noise,
        SHIFTED | {"kind": "dead pixels"},
        "log score",
    ),
    "covariate_shift: priors": Claim(
        "predictions/covariate_shift",
        (PREDICTIONS,),
        priors_under_shift,
        SHIFTED | {"prior": "ARD", "kind": "dead pixels"},
        "error",
    ),
    "shift_by_prior": Claim(
        "predictions/shift_by_prior",
        (PREDICTIONS,),
        shifts_beside_the_ensemble,
        {**NOISED, "kind": "blur"},
        "score beyond ensemble",
    ),
    "shift_by_prior: sentences": Claim(
        "predictions/shift_by_prior",
        (PREDICTIONS,),
        shifts_in_sentences,
        {**NOISED, "kind": "as many live pixels"},
        "log score",
    ),
    "shift_by_prior: sentence": Claim(
        "predictions/shift_by_prior",
        (EVIDENCE,),
        dead_pixels_in_a_sentence,
        {**NOISED, "kind": "dead pixels"},
        "log score",
    ),
    "shift_by_prior: ten draws": Claim(
        "predictions/shift_by_prior",
        (PREDICTIONS,),
        shifts_beside_the_ensemble,
        TEN_DRAWS | {"kind": "blur"},
        "score beyond ensemble",
    ),
    "shift_by_prior: as many networks": Claim(
        "predictions/shift_by_prior",
        (PREDICTIONS,),
        as_many_networks,
        TEN_DRAWS | {"kind": "shift"},
        "score beyond ensemble",
    ),
    "shift_by_prior: as many networks, sentence": Claim(
        "predictions/shift_by_prior",
        (EVIDENCE,),
        as_many_networks_in_a_sentence,
        TEN_DRAWS | {"kind": "shift"},
        "score beyond ensemble",
    ),
    "shift_by_prior: plain noise": Claim(
        "predictions/shift_by_prior",
        (PREDICTIONS,),
        plain_noise,
        {**NOISED, "rows": 10_000, "subset": 0, "kind": "noise"},
        "score beyond ensemble",
    ),
    "shift_by_prior: plain noise, sentence": Claim(
        "predictions/shift_by_prior",
        (EVIDENCE,),
        plain_noise_in_a_sentence,
        {**NOISED, "rows": 10_000, "subset": 0, "kind": "noise"},
        "score beyond MAP",
    ),
}
