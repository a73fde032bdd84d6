"""Parallel tempering on Neal's examples, from the prior, with the log evidence.

Run it in two sets of coordinates, or with another kernel on the rungs: no run of one kind can show that it is
right. Rows are stored with those of `posteriors`.

    python -m benchmarks.neal.tempering rdata [--sweeps 18000] [--inner mams] [--quick]
"""

import platform
import time

import jax
import numpy as np
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks.neal import costs, posteriors
from numpyro_bnn.diagnostics.convergence.rhat import rhat
from numpyro_bnn.samplers.tempering.rung_kernels import RungKernel

EXAMPLES = ("rdata", "cdata", "bdata", "odata", "surv")
CHAINS, LENGTH = 4, 1.0


def sampler(problem, options):
    model = bnn.parameterize(posteriors.model_of(problem, MLPByFeatures), options.coordinates)
    if options.integrated:
        model = bnn.integrate_output(model)
    length = None if options.steps else LENGTH
    kernel = HMC(model, num_steps=options.steps, trajectory_length=length)
    if options.inner == "nuts":
        kernel = NUTS(model, max_tree_depth=10)
    elif options.inner == "mams":
        kernel = bnn.MAMS
    return bnn.MCMC(
        bnn.ParallelTempering(model, kernel, num_rungs=options.rungs or "auto"),
        num_warmup=options.sweeps // 3,
        num_samples=options.sweeps,
        num_chains=CHAINS,
        progress_bar=False,
    )


def sampled(problem, options, x, y):
    """The run, its CPU seconds, and those after warm-up."""
    mcmc = sampler(problem, options)
    begin = time.process_time()
    mcmc.warmup(jax.random.key(options.seed), x, y)
    kept = time.process_time()
    mcmc.run(mcmc.post_warmup_state.rng_key, x, y)
    end = time.process_time()
    return mcmc, end - begin, end - kept


def steps_of(mcmc):
    """Leapfrog steps of a sweep (chain, rung), after warm-up; of trees, on the last rung."""
    step_size = mcmc.last_state.adaptation.step_size
    inner = RungKernel.of(mcmc.sampler.kernel, mcmc.sampler.model)
    if inner.max_tree_depth is not None:
        return mcmc.get_extra_fields(group_by_chain=True)["num_steps"].mean(1, keepdims=True)
    return np.asarray(inner.steps(step_size) * inner.trajectories_per_sweep(step_size))


def ladder_rows(mcmc, options, seconds):
    """What the ladder tells, and what it cost."""
    found = mcmc.tempering
    rungs = found.likelihood_powers.shape[1]
    kept = mcmc.get_extra_fields(group_by_chain=True)["swap_probs"].shape[1]
    steps = steps_of(mcmc)
    for chain in range(CHAINS):
        values = (v[chain] for v in (found.log_evidence, found.log_evidence_error))
        value, error = (f"{v:.5g}" for v in values)
        yield {"quantity": f"log_evidence_replica_{chain}", "mean": value, "mcse": error}
    numbers = {
        "rungs": rungs,
        "communication_barrier": f"{found.barrier.mean():.4g}",
        "round_trips": int(found.round_trips.sum()),
        "round_trips_fewest": int(found.round_trips.min()),
        "sweeps_kept": kept,
        "steps_on_last_rung": f"{steps[:, -1].mean():.4g}",
        "move_correlation_median": f"{np.median(found.move_correlations):.4g}",
        "move_correlation_highest": f"{found.move_correlations.max():.4g}",
        "cpu_seconds": f"{seconds[0]:.1f}",
        "cpu_seconds_kept": f"{seconds[1]:.1f}",
    }
    # What trees take on the rungs above the last is not kept.
    if options.inner != "nuts":
        gradients = int(kept * steps.sum())
        numbers |= {
            "steps_on_hottest_rung": f"{steps[:, 0].mean():.4g}",
            "gradients": gradients,
            "microseconds_a_gradient": f"{1e6 * seconds[1] / gradients:.3g}",
        }
    yield from ({"quantity": name, "mean": value} for name, value in numbers.items())


def rows_of(problem, mcmc, seconds, test, options):
    inner = "" if options.inner == "hmc" else f" {options.inner.upper()}"
    route = f"tempering {options.coordinates}{inner}{' integrated' * options.integrated}"
    draws = {n: np.asarray(v) for n, v in mcmc.get_samples(group_by_chain=True).items()}
    densities, predictions = posteriors.test_densities(problem, draws, *test, options.thin)
    scalars = posteriors.scalars_of(problem, draws)
    rows = posteriors.rows_of(problem, route, scalars, densities, predictions, test[1], options)
    worst = max(float(rhat(v)) for v in scalars.values())
    more = [{"quantity": "log_sigma_max_rhat", "mean": f"{worst:.4g}"}]
    more += ladder_rows(mcmc, options, seconds)
    gradients = next((row["mean"] for row in more if row["quantity"] == "gradients"), None)
    more += costs.speed_rows(problem, scalars, predictions, seconds, options, gradients)
    return rows + [{"problem": problem, "route": route} | row for row in more]


def options_of(argv=None):
    made = posteriors.options_of(__doc__)
    made.add_argument("problem", nargs="?", choices=EXAMPLES, default="rdata")
    made.add_argument("--sweeps", type=int, default=9000, help="after a third as many of warm-up")
    made.add_argument(
        "--inner", choices=("hmc", "nuts", "mams"), default="hmc", help="what moves a rung"
    )
    made.add_argument("--coordinates", choices=("noncentered", "centered"), default="noncentered")
    made.add_argument(
        "--integrated", action="store_true", help="integrate the output layer out on every rung"
    )
    made.add_argument("--seed", type=int, default=0)
    # Leapfrogs of a trajectory in place of its length; rungs in place of a pilot run; draws to a prediction.
    made.set_defaults(steps=None, rungs=None, thin=5)
    return made.parse_args(argv)


def main(argv=None):
    options = options_of(argv)
    if options.size == "quick":
        options.sweeps, options.steps, options.thin = 150, 50, 1
    print(
        f"JAX {jax.__version__}, Python {platform.python_version()}, {jax.device_count()} devices"
    )
    x, y, *test = posteriors.data_of(options.problem, options.shared)
    mcmc, *seconds = sampled(options.problem, options, x, y)
    rows = rows_of(options.problem, mcmc, seconds, test, options)
    posteriors.show(rows)
    # Of another model, whose rows the story of the routes does not compare.
    posteriors.store(rows, options, "integrated" if options.integrated else "")


if __name__ == "__main__":
    main()
