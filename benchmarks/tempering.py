"""Parallel tempering on Neal's rdata, whose minor mode other samplers miss or never leave.

The 1-8-1 network, priors and data of `ex-netgp/rdata` in Radford Neal's FBM, whose long run is the
reference (`../shared/fbm`): 0.040 ± 0.016 of the posterior has a prior scale of the hidden biases
above 0.3. Four replicas in non-centred coordinates; the figures are printed and stored in
`results/tempering.csv` with Monte Carlo errors from the draws' own effective sizes.

    python benchmarks/tempering.py [--quick] [--coordinates centered]
"""

import argparse
import csv
import json
import pathlib
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn import diagnostics, priors

RESULTS = pathlib.Path(__file__).parent / "results"
FBM = pathlib.Path(__file__).resolve().parents[2] / "shared" / "fbm"
HIDDEN, STEPS, CHAINS = 8, 400, 4
# FBM's names of the scales, and our sites of the precisions.
SCALES = {
    "ih": "net/Dense_0.kernel.precision",
    "bh": "net/Dense_0.bias.precision",
    "ho": "net/Dense_1.kernel.precision",
    "noise": "noise.precision",
}


def group(width: float) -> bnn.priors.Hierarchical:
    """FBM's prior `width:0.5`: precision ~ Gamma(0.5 / 2, 0.5 width² / 2)."""
    return priors.Hierarchical(0.25, 0.25 * width**2)


PRIOR = priors.ByPath(
    {
        "Dense_0.*": group(0.05),
        "Dense_1.kernel": group(0.05 / HIDDEN**0.5),
        "Dense_1.bias": priors.Normal(100.0),
    }
)


def model(x, y=None):
    net = bnn.random_module("net", bnn.MLP([HIDDEN], 1), PRIOR, x[:1])
    precision = numpyro.sample("noise.precision", dist.Gamma(0.25, 0.25 * 0.05**2))
    scale = 1 / jnp.sqrt(precision)
    bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=scale)


def data(folder: pathlib.Path):
    """Training and test rows of rdata."""
    table = np.load(folder / "data" / "rdata.npz")
    shaped = {k: np.asarray(table[k]).reshape(len(table[k]), -1) for k in table if k != "source"}
    return (
        shaped["x_train"],
        shaped["y_train"][:, 0],
        shaped["x_test"],
        shaped["y_test"][:, 0],
    )


def sampler(num_warmup: int, num_samples: int, num_rungs="auto", coordinates="noncentered", **more):
    own = bnn.parameterize(model, coordinates)
    kernel = HMC(own, num_steps=STEPS, trajectory_length=None)
    return bnn.MCMC(
        bnn.ParallelTempering(own, kernel, num_rungs=num_rungs),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=CHAINS,
        **more,
    )


def with_error(draws) -> tuple[float, float]:
    """Mean and Monte Carlo error of (chain, draw)."""
    return float(np.mean(draws)), float(diagnostics.mcse_mean(np.asarray(draws, np.float64)))


def log_scales(mcmc) -> dict[str, np.ndarray]:
    draws = mcmc.get_samples(group_by_chain=True)
    return {name: -0.5 * np.log(np.asarray(draws[site])) for name, site in SCALES.items()}


def minor_mode(mcmc) -> tuple[float, float]:
    """Mass of the mode whose biases have a prior scale above 0.3, and its error."""
    return with_error(np.exp(log_scales(mcmc)["bh"]) > 0.3)


def figures(mcmc, seconds: float, reference: dict, x_test, y_test):
    """What is stored: name, value, Monte Carlo error or None, FBM's value, FBM's error."""
    found = mcmc.tempering
    rungs = found.likelihood_powers.shape[1]
    sweeps = mcmc.num_warmup + mcmc.num_samples
    yield "rungs", rungs, None, None, None
    yield "gradients", sweeps * CHAINS * (rungs - 1) * STEPS, None, None, None
    yield "seconds, compilation and pilot included", seconds, None, None, None
    for chain in range(CHAINS):
        yield (
            f"log evidence, replica {chain}",
            *(float(v[chain]) for v in (found.log_evidence, found.log_evidence_error)),
            None,
            None,
        )
    yield "communication barrier", float(found.barrier.mean()), None, None, None
    yield "round trips", int(found.round_trips.sum()), None, None, None
    known = reference["minor_mode_prob_sigma_bh_gt_0.3"]
    yield "mass of the minor mode", *minor_mode(mcmc), known["mean"], known["mcse"]
    scales = log_scales(mcmc)
    for name, draws in scales.items():
        known = reference["log_sigma"][name]
        yield f"mean log scale, {name}", *with_error(draws), known["mean"], known["mcse"]
    worst = max(float(diagnostics.rhat(draws)) for draws in scales.values())
    yield "worst R-hat, log scales", worst, None, None, None
    predictions = bnn.predict(model, mcmc, x_test)
    report = diagnostics.diagnose_draws(predictions=predictions)
    yield "worst R-hat, predictions", report.predictions.max_rhat, None, None, None
    known = reference["test_mean_log_predictive"]
    score = bnn.scores.lppd(predictions, y_test)
    yield "test log probability", float(score), None, known["mean"], known["mcse"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of the sweeps")
    parser.add_argument("--sweeps", type=int, default=1500, help="after a third as many of warm-up")
    parser.add_argument("--coordinates", choices=("noncentered", "centered"), default="noncentered")
    parser.add_argument("--data", type=pathlib.Path, default=FBM, help="folder of the reference")
    options = parser.parse_args()
    sweeps = options.sweeps // 20 if options.quick else options.sweeps
    print(
        f"JAX {jax.__version__}, Python {platform.python_version()}, {jax.device_count()} devices"
    )
    x, y, x_test, y_test = data(options.data)
    mcmc = sampler(sweeps // 3, sweeps, coordinates=options.coordinates, progress_bar=False)
    begin = time.perf_counter()
    mcmc.run(jax.random.key(0), x, y)
    jax.block_until_ready(mcmc.last_state.z)
    seconds = time.perf_counter() - begin
    rows = [("what", "value", "error", "FBM", "FBM's error")]
    reference = json.loads((options.data / "reference_open.json").read_text())["rdata"]
    for what, *numbers in figures(mcmc, seconds, reference, x_test, y_test):
        rows.append((what, *("" if n is None else round(n, 4) for n in numbers)))
        print(f"{what:<42}" + "".join(f"{text!s:>13}" for text in rows[-1][1:]), flush=True)
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        suffix = "" if options.coordinates == "noncentered" else "_centered"
        with (RESULTS / f"tempering{suffix}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    main()
