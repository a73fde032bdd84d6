"""How many runs of each study have not converged, by one limit: the first line of its section."""

from benchmarks._shared.sampled_runs import ESS_LIMIT, RHAT_LIMIT
from benchmarks._shared.study import ROOT, read_rows
from benchmarks.mixing import mnist_gibbs_words
from benchmarks.neal import story


def rows_of(name, **wanted):
    """Stored rows of a study, ``theme/name``, that have these values."""
    theme, stem = name.split("/")
    rows = read_rows(ROOT / "benchmarks" / theme / "results" / f"{stem}.csv")
    return [row for row in rows if all(row[k] == v for k, v in wanted.items())]


def said(name, **wanted):
    """By a column that says so; empty for what is no chain."""
    return [row["converged"] == "yes" for row in rows_of(name, **wanted) if row["converged"]]


def by_limits(name, rhat="worst R-hat", ess=None, **wanted):
    """By the limits of all studies; of what is no chain R-hat is 0 or NaN."""
    rows = [row for row in rows_of(name, **wanted) if row[rhat] != "" and row[rhat] > 0]
    return [row[rhat] <= RHAT_LIMIT and (ess is None or row[ess] >= ESS_LIMIT) for row in rows]


def both_limits(rows):
    """Functions and log precisions."""
    return [max(r["functions_max_rhat"], r["precisions_max_rhat"]) <= RHAT_LIMIT for r in rows]


def last_of_each(rows, *keys):
    return list({tuple(row[k] for k in keys): row for row in rows}.values())


def routes(of):
    """Of Neal's examples, by the worst R-hat of log scales and predictions."""
    found = story.read(ROOT / "benchmarks" / "neal" / "results" / "posteriors.csv")
    return [story.worst_rhat(rows) <= RHAT_LIMIT for (_, route), rows in found.items() if of(route)]


def tempered(route):
    return route.startswith("tempering")


def images(name, *more):
    """One posterior a prior and subset."""
    runs = last_of_each(rows_of(name, method="posterior"), "prior", *(more or ("seed",)))
    return [row["worst R-hat"] <= RHAT_LIMIT and row["least ESS"] >= ESS_LIMIT for row in runs]


def verdicts(name, *good):
    return [row["verdict"] in good for row in rows_of(name)]


def estimators(name):
    """Runs of `BNNRegressor`, beside methods that have no verdict."""
    return [row["verdict"].startswith("within") for row in rows_of(name) if row["verdict"]]


def precisions_of_images(name):
    """Of networks with four precisions on MNIST, each run but the starts."""
    return [
        mnist_gibbs_words.verdict_of(row) == "converged"
        for row in mnist_gibbs_words.ends(rows_of(name))
        if row["method"] != mnist_gibbs_words.START
    ]


def references(name):
    """Of a study that judges its references alone: one for each network."""
    runs = last_of_each(rows_of(name), "units")
    return [row["reference R-hat"] <= RHAT_LIMIT for row in runs]


# Whether each run of a study has converged.
CONVERGED = {
    # The first of the seeds is a row of the first table, rounded.
    "mixing/which_sampler": lambda: both_limits(
        rows_of("mixing/which_sampler")
        + rows_of("mixing/which_sampler_added")
        + rows_of("mixing/which_sampler_seeds")[1:]
    ),
    "mixing/networks_beside_full_batch": lambda: references("mixing/networks_beside_full_batch"),
    "mixing/hard_posteriors": lambda: both_limits(
        last_of_each(rows_of("mixing/hard_posteriors"), "problem", "method", "seed")
    ),
    "mixing/modes_or_posterior": lambda: both_limits(
        [row for row in rows_of("mixing/modes_or_posterior") if row["functions_max_rhat"] != ""]
    ),
    "mixing/against_hmc": lambda: said("mixing/against_hmc") + said("mixing/against_hmc_prior"),
    "mixing/against_blackjax": lambda: by_limits("mixing/against_blackjax"),
    "mixing/verdicts": lambda: verdicts("mixing/verdicts", "within tolerance"),
    "mixing/flat_directions": lambda: said("mixing/flat_directions"),
    "mixing/mnist_gibbs_verdict": lambda: precisions_of_images("mixing/mnist_gibbs_verdict"),
    "diagnostics/against_references": lambda: verdicts(
        "diagnostics/against_references", "within_tolerance", "within_tolerance_on_average"
    ),
    "neal/posteriors": lambda: routes(lambda route: not tempered(route)),
    "neal/tempering": lambda: routes(tempered),
    "neal/story": lambda: routes(bool),
    "neal/tail": lambda: said("neal/tail"),
    "predictions/starts": lambda: by_limits("predictions/starts", "worst rhat"),
    # Draws of a Gaussian around averaged weights are no chain.
    "predictions/tabular": lambda: [
        row["worst rhat"] <= RHAT_LIMIT
        for row in rows_of("predictions/tabular")
        if row["worst rhat"] > 0 and row["method"] != "SWAG"
    ],
    "predictions/against_boosting": lambda: by_limits("predictions/against_boosting", "worst rhat"),
    "predictions/anytime": lambda: estimators("predictions/anytime"),
    "predictions/calibration": lambda: [
        row["verdict"] == "within_tolerance"
        for row in last_of_each(rows_of("predictions/calibration"), "table", "split")
    ],
    "predictions/regression_band": lambda: said("predictions/regression_band"),
    "predictions/step_size": lambda: said("predictions/step_size"),
    "predictions/boundary_by_rows": lambda: said("predictions/boundary_by_rows"),
    "predictions/polynomials": lambda: estimators("predictions/polynomials"),
    "predictions/averaging_or_width": lambda: estimators("predictions/averaging_or_width"),
    "predictions/sgd_as_inference": lambda: said("predictions/sgd_as_inference"),
    "predictions/shift_by_prior": lambda: images("predictions/shift_by_prior", "rows", "subset"),
    "predictions/out_of_distribution": lambda: images("predictions/out_of_distribution"),
    "priors/hierarchy_helps": lambda: by_limits("priors/hierarchy_helps", "max_rhat", "min_ess"),
    "priors/prior_scale": lambda: said("priors/prior_scale"),
    "priors/evidence": lambda: verdicts("priors/evidence", "replicas agree"),
    "priors/temperature_by_rows": lambda: said("priors/temperature_by_rows"),
    "priors/gaussian_process_limit": lambda: said("priors/gaussian_process_limit"),
}
# What their runs are told is a verdict, or a sampler's own doubt, in place of R-hat.
BY_VERDICT = {
    "mixing/verdicts": "Not within tolerance",
    "diagnostics/against_references": "Not within tolerance",
    "predictions/anytime": "Not within tolerance",
    "predictions/calibration": "Not within tolerance",
    "predictions/polynomials": "Not within tolerance",
    "predictions/averaging_or_width": "Not within tolerance",
    "priors/evidence": "No verdict",
}


def head(name):
    """The first line of a study of which some runs have not converged, or nothing."""
    runs = CONVERGED[name]()
    word = BY_VERDICT.get(name, "Not converged")
    return "" if all(runs) else f"**{word}: {runs.count(False)} of {len(runs)} runs.**"
