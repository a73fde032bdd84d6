"""Makes the reference posteriors of Neal's five examples, which the package ships: two routes to each.

Routes of an example differ in sampler, start and, where he has published a run, in code. surv has NUTS with
small steps: `tail` shows why neither usual NUTS nor tempering will do. Stored are the means of both routes
with their Monte Carlo errors, and draws of the functions of the first route, far apart.

    python -m benchmarks.neal.references [rdata …] [--quick]
"""

import argparse
import json
from functools import partial

import jax
import numpy as np
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split
from benchmarks._shared.reference_posteriors import (
    NO_EVIDENCE,
    PACKAGE,
    Known,
    Route,
    evidence_of,
    route,
    store,
)
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks._shared.sampled_runs import sampled
from benchmarks._shared.study import Results
from benchmarks.neal import posteriors, tempering
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean

ROWS, DRAWS = 200, 500
# Names of the scales in the package, by those of Neal's program.
NAMES = {
    "ih": "input to hidden",
    "ih_group": "input to hidden",
    "bh": "hidden biases",
    "ho": "hidden to output",
    "noise": "noise",
} | {f"ih_x{i}": f"each input {i}" for i in range(1, 5)}
HIS = (
    "R. M. Neal's program for flexible Bayesian modelling: hybrid Monte Carlo with windows and Gibbs updates "
    "of the precisions, 4 chains from zero weights"
)
MINOR = "mode of large hidden biases"


def hmc(problem, given, thin=2):
    """Non-centred HMC from optimised starts."""
    own = {"chains": 8, "warmup": 300, "samples": 2400, "steps": 1000}
    short = {"chains": 2, "warmup": 20, "samples": 20, "steps": 10}
    options = argparse.Namespace(**own | (short if given.size == "quick" else {}))
    x, y, *test = posteriors.data_of(problem, given.shared)
    draws, _ = posteriors.sample(problem, "noncentered", x, y, options)
    how = (
        f"HMC of {options.steps} steps in non-centred coordinates, {options.chains} chains of "
        f"{options.samples} draws from optimised starts"
    )
    return route(how, problem, draws, *(part[:ROWS] for part in test), thin)


def nuts(problem, given, thin=2):
    """Non-centred NUTS that accepts 0.99 of its points, from optimised starts of another key."""
    warmup, draws, depth = (20, 20, 3) if given.size == "quick" else (500, 1500, 11)
    x, y, *test = posteriors.data_of(problem, given.shared)
    model = bnn.parameterize(posteriors.model_of(problem, MLPByFeatures), "noncentered")
    key = jax.random.key(2)
    mcmc = sampled(
        NUTS(model, max_tree_depth=depth, target_accept_prob=0.99),
        key,
        x,
        y,
        starts=posteriors.starts(problem, model, x, y, 8, key),
        num_warmup=warmup,
        num_samples=draws,
    )
    how = f"NUTS that accepts 0.99, in non-centred coordinates, 8 chains of {draws} draws from other starts"
    return route(
        how, problem, mcmc.get_samples(group_by_chain=True), *(part[:ROWS] for part in test), thin
    )


def ladder(problem, given, sweeps, inner="hmc", seed=1, thin=9):
    """Parallel tempering from draws of the prior, with HMC or NUTS on the rungs."""
    options = tempering.options_of(["--shared", str(given.shared), "--seed", str(seed)])
    options.inner, options.sweeps = inner, sweeps
    if given.size == "quick":
        options.sweeps, options.steps, options.rungs, thin = 60, 20, 4, 1
    x, y, *test = posteriors.data_of(problem, given.shared)
    mcmc, *_ = tempering.sampled(problem, options, x, y)
    found = mcmc.tempering
    how = (
        f"parallel tempering of {inner.upper()} from draws of the prior, {tempering.CHAINS} ladders of "
        f"{options.sweeps} sweeps, {int(found.round_trips.sum())} round trips"
    )
    draws = mcmc.get_samples(group_by_chain=True)
    made = route(how, problem, draws, *(part[:ROWS] for part in test), thin, evidence_of(found))
    if problem != "rdata":
        return made
    precision = np.asarray(draws[posteriors.SITES["bh"]], np.float64)
    minor = (precision**-0.5 > posteriors.MINOR).astype(float)
    return made._replace(masses={MINOR: (float(minor.mean()), float(mcse_mean(minor)))})


def published(problem, given):
    """The run of his program."""
    his = json.loads((given.shared / "reference_open.json").read_text())[problem]
    with np.load(given.shared / "predictions_open.npz") as file:
        parts = (f"{posteriors.PREDICTED[problem]}_{part}" for part in ("mean", "mcse", "sd"))
        functions = Known(*(file[part][:ROWS] for part in parts))
    scales = {
        NAMES[name]: Known(*(np.array(known[part]) for part in ("mean", "mcse", "sd")))
        for name, known in his["log_sigma"].items()
    }
    masses = {}
    if problem == "rdata":
        mass = his["minor_mode_prob_sigma_bh_gt_0.3"]
        masses[MINOR] = (mass["mean"], mass["mcse"])
    return Route(HIS, functions, scales, masses, NO_EVIDENCE, None)


ROUTES = {
    "rdata": (partial(ladder, sweeps=9000), published),
    "cdata": (hmc, published),
    "bdata": (hmc, partial(ladder, sweeps=6000)),
    "odata": (partial(ladder, sweeps=18_000), partial(ladder, sweeps=12_000, inner="nuts", seed=2)),
    "surv": (hmc, nuts),
}


def main(argv=None):
    parsed = posteriors.options_of(__doc__)
    parsed.add_argument("problems", nargs="*", default=list(ROUTES))
    given = parsed.parse_args(argv)
    folder = Results(__file__, given).folder if given.size == "quick" else given.output or PACKAGE
    for problem in given.problems:
        print(f"{problem}, JAX {jax.__version__}", flush=True)
        x, y, x_test, y_test = (np.asarray(a) for a in posteriors.data_of(problem, given.shared))
        first, second = (made(problem, given) for made in ROUTES[problem])
        rows = Split(x, y, x_test[:ROWS], y_test[:ROWS])
        store(folder, problem, rows, (first, second), DRAWS)


if __name__ == "__main__":
    main()
