"""Makes the reference posteriors that the package ships: a run of our own beside Neal's program.

Two of his examples have a published run of his program (`../shared/fbm`): rdata and cdata. Here each is
sampled once more by a sampler, a start and a code that have nothing in common with his: rdata by parallel
tempering from prior draws, which crosses between its two modes, cdata by non-centred HMC from optimised
starts. Stored are the means of both routes with their Monte Carlo errors at 200 test rows, and 500 draws of
the functions of ours, far apart. Whether the routes agree is checked when a reference is loaded
(`Reference.certified`).

    python -m benchmarks.neal.references [rdata cdata] [--quick] [--output FOLDER] [--shared FOLDER]
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from benchmarks._shared.study import Results
from benchmarks.neal import posteriors, tempering
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean

PACKAGE = Path(__file__).resolve().parents[2] / "numpyro_bnn" / "references" / "data"
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


def our_run(problem, options):
    """Draws of all sites, how they were made, and the log evidence with its error."""
    x, y, *_ = posteriors.data_of(problem, options.shared)
    if problem == "cdata":
        draws, _ = posteriors.sample(problem, "noncentered", x, y, options)
        how = (
            f"HMC of {options.steps} steps in non-centred coordinates, {options.chains} chains of "
            f"{options.samples} draws from optimised starts"
        )
        return draws, how, (float("nan"), float("nan"))
    mcmc, *_ = tempering.sampled(problem, options, x, y)
    found = mcmc.tempering
    evidence, error = np.asarray(found.log_evidence), np.asarray(found.log_evidence_error)
    # Replicas are independent: their scatter is an error that needs no estimate of each.
    spread = max(float(evidence.std(ddof=1)), float(np.sqrt(np.mean(error**2))))
    how = (
        f"parallel tempering of HMC from draws of the prior, {tempering.CHAINS} ladders of {options.sweeps} "
        f"sweeps, {int(found.round_trips.sum())} round trips"
    )
    return (
        mcmc.get_samples(group_by_chain=True),
        how,
        (
            float(evidence.mean()),
            spread / len(evidence) ** 0.5,
        ),
    )


def made(problem, options):
    """Everything that is stored of a reference, by name."""
    x, y, x_test, y_test = posteriors.data_of(problem, options.shared)
    draws, how, evidence = our_run(problem, options)
    draws = {name: np.asarray(value) for name, value in draws.items()}
    scales = posteriors.scalars_of(problem, draws)
    _, functions = posteriors.test_densities(
        problem, draws, x_test[:ROWS], y_test[:ROWS], options.thin
    )
    return stored(problem, options.shared, scales, functions, how, evidence) | {
        "x": np.asarray(x),
        "y": np.asarray(y),
        "x_test": np.asarray(x_test[:ROWS]),
        "y_test": np.asarray(y_test[:ROWS]),
    }


def stored(problem, shared, scales, functions, how, evidence):
    """Means, errors and spreads of both routes.

    :param scales: log scales of our run by Neal's names, (chain, draw).
    :param functions: functions or probabilities of our run, (chain, draw, row, …).
    :param how: how our run was made.
    :param evidence: its log evidence and the error.
    """
    his = json.loads((shared / "reference_open.json").read_text())[problem]
    with np.load(shared / "predictions_open.npz") as file:
        known = {
            part: file[f"{posteriors.PREDICTED[problem]}_{part}"][:ROWS]
            for part in ("mean", "mcse", "sd")
        }
    names = list(his["log_sigma"])
    listed = np.stack([scales[name] for name in names], -1)
    table = {part: [his["log_sigma"][n][part] for n in names] for part in ("mean", "mcse", "sd")}
    masses = {}
    if problem == "rdata":
        minor = (np.exp(scales["bh"]) > posteriors.MINOR).astype(float)
        mass = his["minor_mode_prob_sigma_bh_gt_0.3"]
        own = [float(minor.mean()), float(mcse_mean(minor))]
        masses["mode of large hidden biases"] = [own, [mass["mean"], mass["mcse"]]]
    flat = functions.reshape(-1, *functions.shape[2:])
    about = {
        "scales": [NAMES[name] for name in names],
        "routes": [how, HIS],
        "masses": masses,
        "log_evidence": evidence,
    }
    return {
        "about": np.array(json.dumps(about)),
        "functions_sd": known["sd"].astype(np.float32),
        "functions_means": np.stack([functions.mean((0, 1)), known["mean"]]).astype(np.float32),
        "functions_errors": np.stack([mcse_mean(functions), known["mcse"]]).astype(np.float32),
        "scales_sd": np.array(table["sd"]),
        "scales_means": np.stack([listed.mean((0, 1)), table["mean"]]),
        "scales_errors": np.stack([mcse_mean(listed), table["mcse"]]),
        "draws": flat[np.linspace(0, len(flat) - 1, DRAWS).astype(int)].astype(np.float32),
    }


def settings_of(problem, given):
    """How long our run of a problem is, as `posteriors` and `tempering` take it."""
    if problem == "rdata":
        own = {"sweeps": 9000, "thin": 9}
        short = {"sweeps": 60, "steps": 20, "rungs": 4, "thin": 1}
    else:
        own = {"chains": 8, "warmup": 300, "samples": 2400, "steps": 1000, "every": 1, "thin": 2}
        short = {"chains": 2, "warmup": 20, "samples": 20, "steps": 10}
    usual = vars(tempering.options_of(["--shared", str(given.shared), "--seed", "1"]))
    return argparse.Namespace(**usual | own | (short if given.size == "quick" else {}))


def main(argv=None):
    parsed = posteriors.options_of(__doc__)
    parsed.add_argument("problems", nargs="*", default=list(posteriors.PREDICTED))
    given = parsed.parse_args(argv)
    folder = Results(__file__, given).folder if given.size == "quick" else given.output or PACKAGE
    for problem in given.problems:
        print(f"{problem}, JAX {jax.__version__}", flush=True)
        values = made(problem, settings_of(problem, given))
        np.savez_compressed(folder / f"{problem}.npz", **values)


if __name__ == "__main__":
    main()
