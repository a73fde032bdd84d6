"""What pages say of studies, and the rows that say it: studies of mixing."""

from claims import Claim
from pages_of_studies import (
    EVIDENCE,
    GUIDE,
    MIXING,
    line,
)
from sentences_of_gpu_runs import (
    all_images,
    cost_on_a_gpu,
    posterior_of_ten_digits,
    replicas_on_a_gpu,
    resumed_on_a_gpu,
    settled_images,
)
from sentences_of_hard_posteriors import (
    airfoil_by_seed,
    beside_the_posterior,
    boston_in_a_sentence,
    cost_of_integrating,
    fits_by_output_layer,
    integrated_beside_plain,
    ladders_that_travel,
    mixing_by_coordinates,
    output_integrated_out,
    output_layers_by_gibbs,
    tables_by_two_samplers,
)
from sentences_of_hmc import (
    conclusion_in_a_sentence,
    ensembles_in_a_sentence,
    findings_beside_hmc,
    nearer_than_mean_field,
    prior_scales,
    tables_beside_hmc,
)
from sentences_of_mixing import (
    acceptance_by_method,
    acceptance_in_a_sentence,
    beside_nuts,
    by_seed,
    chains_that_never_meet,
    heat_by_method,
    images_and_precisions,
    long_runs_of_images,
    minibatches_of_networks_in_a_sentence,
    modes_in_a_sentence,
    modes_in_sentences,
    next_best,
    precisions_in_a_sentence,
    shared_noise_in_a_sentence,
    shares_of_methods,
    units_in_a_sentence,
    units_matched,
)
from sentences_of_studies import (
    lines_of,
)

from benchmarks.mixing import (
    against_hmc_words,
    bias_by_dimension,
    modes_by_width,
    networks_beside_full_batch,
    which_sampler,
)
from benchmarks.mixing.against_hmc_methods import CHOSEN, NARROW

MCLMC = {"table": "yacht", "method": "four layers, MCLMC", "seed": 3}
RELU = {"table": "boston", "width": 16, "activation": "relu"}
DIGITS = {"problem": "digits", "method": which_sampler.SMALL}

CLAIMS = {
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
    "fit_integrated": Claim(
        "mixing/fit_integrated",
        (MIXING,),
        fits_by_output_layer,
        {"table": "energy", "method": "integrated out"},
        "log_score",
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
    "against_hmc: prior": Claim(
        "mixing/against_hmc_prior",
        (MIXING,),
        prior_scales,
        {"scale": 1},
        "calibration, held out",
    ),
    "against_hmc: tables": Claim(
        "mixing/against_hmc",
        (MIXING,),
        tables_beside_hmc,
        {"problem": "boston", "method": "MCLMC", "seed": 1},
        "over_chains",
    ),
    "against_hmc: ensembles": Claim(
        "mixing/against_hmc",
        (MIXING,),
        nearer_than_mean_field,
        {"problem": "boston", "method": "deep ensemble", "seed": 1},
        "total_variation",
    ),
    "against_hmc: findings": Claim(
        "mixing/against_hmc",
        (MIXING,),
        findings_beside_hmc,
        {"problem": NARROW, "method": "SGHMC", "seed": 0},
        "difference",
    ),
    "against_hmc: conclusion": Claim(
        "mixing/against_hmc",
        (EVIDENCE,),
        conclusion_in_a_sentence,
        {"problem": CHOSEN, "method": "BAOAB", "seed": 0},
        "total_variation",
    ),
    "against_hmc: sentence": Claim(
        "mixing/against_hmc",
        (EVIDENCE,),
        ensembles_in_a_sentence,
        {"problem": CHOSEN, "method": "mean field", "seed": 0},
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
        lambda rows: list(against_hmc_words.beside_published(against_hmc_words.averaged(rows))),
        {"problem": CHOSEN, "method": "SGD", "seed": 0},
        "total_variation",
    ),
    "flat_directions": Claim(
        "mixing/flat_directions", (MIXING,), units_matched, RELU, "between, matched"
    ),
    "flat_directions: sentence": Claim(
        "mixing/flat_directions", (EVIDENCE,), units_in_a_sentence, RELU, "between, matched"
    ),
    "hard_posteriors": Claim(
        "mixing/hard_posteriors",
        (MIXING,),
        output_integrated_out,
        {"problem": "yacht", "method": "MCLMC, output integrated out", "seed": 0, "draws": 7100},
        "functions_max_rhat",
    ),
    "hard_posteriors: airfoil": Claim(
        "mixing/hard_posteriors",
        (MIXING,),
        airfoil_by_seed,
        {"problem": "airfoil", "method": "MCLMC, output integrated out", "seed": 0, "draws": 250},
        "functions_max_rhat",
    ),
    "hard_posteriors: other tables": Claim(
        "mixing/hard_posteriors",
        (MIXING,),
        tables_by_two_samplers,
        {"problem": "boston", "method": "MAMS, output integrated out", "draws": 1350},
        "functions_max_rhat",
    ),
    "modes_or_posterior": Claim(
        "mixing/modes_or_posterior",
        (MIXING,),
        beside_the_posterior,
        {"table": "yacht", "method": "ensemble, stopped early", "split": 2},
        "log_score",
    ),
    "modes_or_posterior: boston": Claim(
        "mixing/modes_or_posterior",
        (EVIDENCE,),
        boston_in_a_sentence,
        {"table": "boston", "method": "ensemble, stopped early", "split": 2},
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
    "modes_by_width": Claim(
        "mixing/modes_by_width",
        (MIXING,),
        lines_of(modes_by_width),
        {"table": "energy", "rows": 200, "width": 4, "subset": 0},
        "modes",
    ),
    "modes_by_width: sentences": Claim(
        "mixing/modes_by_width",
        (MIXING,),
        modes_in_sentences,
        {"table": "energy", "rows": 100, "width": 64, "subset": 1},
        "low ones apart",
    ),
    "modes_by_width: sentence": Claim(
        "mixing/modes_by_width",
        (EVIDENCE,),
        modes_in_a_sentence,
        {"table": "energy", "rows": 200, "width": 4, "subset": 1},
        "median above the least",
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
    "mnist_gibbs_long": Claim(
        "mixing/mnist_gibbs_long",
        (MIXING,),
        long_runs_of_images,
        {"method": "Gibbs, SGHMC", "draws": 23},
        "log score, average",
    ),
    "output_by_gibbs": Claim(
        "mixing/output_by_gibbs",
        (MIXING,),
        output_layers_by_gibbs,
        {"problem": "digits", "method": "without", "seed": 0, "equal": "gradients"},
        "output_ess_per_second",
    ),
    "mnist_all_images": Claim(
        "mixing/mnist_all_images",
        (MIXING,),
        all_images,
        {"method": "Gibbs, HMC", "draws": 8},
        "accept prob",
    ),
    "mnist_gibbs_verdict": Claim(
        "mixing/mnist_gibbs_verdict",
        (MIXING,),
        settled_images,
        {"task": "ten digits", "method": "Gibbs, SGHMC", "draws": 23},
        "difference",
    ),
    "mnist_gibbs_verdict: sentence": Claim(
        "mixing/mnist_gibbs_verdict",
        (EVIDENCE,),
        posterior_of_ten_digits,
        {"task": "ten digits", "method": "Gibbs, SGHMC", "draws": 23},
        "difference",
    ),
    "many_chains: cost": Claim(
        "mixing/many_chains_cost",
        (MIXING,),
        cost_on_a_gpu,
        {"coordinates": "as it is", "bits": 64},
        "milliseconds",
    ),
    "many_chains: resumed": Claim(
        "mixing/many_chains_resumed",
        (MIXING,),
        resumed_on_a_gpu,
        {"problem": "yacht"},
        "checkpoint_megabytes",
    ),
    "many_chains": Claim(
        "mixing/many_chains",
        (MIXING,),
        replicas_on_a_gpu,
        {"problem": "airfoil", "draws": 50},
        "functions_max_rhat",
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
}
