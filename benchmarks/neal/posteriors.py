"""The posteriors of Neal's own examples, by several routes, against his program.

Models and priors of `../shared/fbm/FORMULAS.md`. z is a difference in joint Monte Carlo standard errors.

    python -m benchmarks.neal.posteriors --problems cdata --routes noncentered [--quick]
"""

import csv
import json
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import HMC
from numpyro.infer.util import log_likelihood

import numpyro_bnn as bnn
from benchmarks._shared import data_sets
from benchmarks._shared.rows_last_mlp import MLPByFeatures
from benchmarks._shared.sampled_runs import sampler
from benchmarks._shared.study import Results, parser
from benchmarks.neal.costs import PREDICTED, speed_rows
from numpyro_bnn import likelihoods, priors
from numpyro_bnn.diagnostics.convergence.rhat import mcse_mean, rhat

SHARED = data_sets.SHARED / "fbm"
COLUMNS = ("problem", "route", "quantity", "mean", "mcse", "rhat")
COLUMNS += ("reference", "reference_mcse", "z")
ROUTES = ("gibbs", "noncentered", "centered", "collapsed")
MINOR = 0.3  # sigma of the hidden biases above which a draw of rdata is in its minor mode

group = partial(priors.Hierarchical.width, group=0.5)
SITES = {
    "ih": "net/Dense_0.kernel.precision",
    "bh": "net/Dense_0.bias.precision",
    "ho": "net/Dense_1.kernel.precision",
    "noise": "y.precision",
}


def prior_of(problem, changed=None):
    """The prior of a problem; `changed` replaces priors by their patterns."""
    hidden = {
        "Dense_0.kernel": group(0.05),
        "Dense_0.bias": group(0.05),
        "Dense_1.kernel": group(0.05, scale_by_fan_in=True),
        "Dense_1.bias": priors.Normal(100.0),
    }
    if problem == "cdata":
        hidden["Dense_0.kernel"] = group(0.2, unit=1.0, scale_by_fan_in=True)
        hidden["Dense_1.bias"] = group(0.05)
    if problem == "surv":
        own = partial(priors.Hierarchical.width, 0.05, group=1.0)
        hidden |= {"Dense_0.kernel": own(), "Dense_0.bias": own()}
        hidden["Dense_1.kernel"] = own(scale_by_fan_in=True)
    return priors.ByPath(hidden | (changed or {}))


def model_of(problem, module=bnn.MLP, prior=None):
    """The model of a problem, ``model(x, y=None)``; `module` computes the network."""
    units, outputs = {"bdata": (15, 1), "cdata": (8, 3)}.get(problem, (8, 1))
    prior = prior or prior_of(problem)
    cases = {"rdata": None, "odata": 4.0}

    def model(x, y=None):
        net = bnn.random_module("net", module([units], outputs), prior, x[:1])
        if problem == "cdata":
            likelihoods.categorical(net, y, x=x)
            return
        f = net(x).squeeze(-1)
        if problem == "bdata":
            likelihoods.bernoulli(f, y)
        elif problem == "surv":
            likelihoods.survival(f, y)
        else:
            noise = likelihoods.Precision.width(0.05, common=0.5, case=cases[problem])
            likelihoods.gaussian(f, y, noise=noise)

    return model


def data_of(problem, shared):
    with np.load(shared / "data" / f"{problem}.npz") as file:
        parts = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    if problem == "surv":  # negative times are censored
        for name in ("y_train", "y_test"):
            parts[name] = np.stack([np.abs(parts[name]), parts[name] > 0], -1)
    return [jnp.asarray(a, None if a.dtype.kind == "i" else jnp.float32) for a in parts.values()]


def starts(problem, model, x, y, num_chains, key):
    """Optimised starts of all chains."""
    # A draw of the output bias from Normal(0, 100²) can be a hazard that overflows.
    bias = {"net/Dense_1.bias": jnp.zeros(3 if problem == "cdata" else 1)}
    return bnn.optimize(
        model, key, x, y, num_chains=num_chains, init_params=bias, progress_bar=False
    )


def sample(problem, route, x, y, options):
    """Draws of all sites by chain, and the CPU seconds: all, and after warm-up."""
    model = model_of(problem, MLPByFeatures)
    if route == "gibbs":
        window = min(10, options.steps // 2)
        kernel = bnn.neal(model, num_steps=options.steps, window=window)
    else:
        settings = {"num_steps": options.steps, "trajectory_length": None}
        kernel = HMC(bnn.parameterize(model, route), target_accept_prob=0.9, **settings)
    begin_at = starts(problem, model, x, y, options.chains, jax.random.key(1))
    lengths = options.chains, options.warmup, options.samples
    mcmc = sampler(kernel, *lengths, chain_method=jax.vmap)
    begin = time.process_time()
    mcmc.warmup(jax.random.key(0), x, y, init_params=begin_at)
    kept = time.process_time()
    mcmc.run(mcmc.post_warmup_state.rng_key, x, y)
    draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
    end = time.process_time()
    return draws, (end - begin, end - kept)


def scalars_of(problem, draws):
    """log sigma by the reference's names, (chain, draw)."""
    sites = dict(SITES)
    if problem == "cdata":
        sites["ih_group"] = sites.pop("ih")
    found = {
        name: -np.log(np.asarray(draws[site], np.float64)) / 2
        for name, site in sites.items()
        if site in draws
    }
    if problem == "cdata":
        units = -np.log(np.asarray(draws["net/Dense_0.kernel.unit_precision"], np.float64)) / 2
        found |= {f"ih_x{i + 1}": units[..., i] for i in range(4)}
    return found


def test_densities(problem, draws, x, y, thin):
    """p(y_i | x_i, draw), (chain, draw, case), and predictions: functions or probabilities."""
    some = {n: v[:, ::thin] for n, v in draws.items()}
    chains, count = next(iter(some.values())).shape[:2]
    flat = {n: v.reshape(-1, *v.shape[2:]) for n, v in some.items()}
    model = bnn.parameterize(model_of(problem), "centered")
    densities = log_likelihood(model, flat, x, y)["y"]
    densities = np.exp(np.asarray(densities, np.float64)).reshape(chains, count, -1)
    first, bias = flat["net/Dense_0.kernel"], flat["net/Dense_0.bias"]
    hidden = jnp.tanh(jnp.einsum("ni,dih->dnh", x, first) + bias[:, None])
    out = hidden @ flat["net/Dense_1.kernel"] + flat["net/Dense_1.bias"][:, None]
    predictions = jax.nn.softmax(out) if out.shape[-1] > 1 else out[..., 0]
    if problem == "bdata":
        predictions = jax.nn.sigmoid(predictions)
    predictions = np.asarray(predictions, np.float64)
    return densities, predictions.reshape(chains, count, *predictions.shape[1:])


class Estimate:
    """A mean over draws, of those where `inside` holds, with its Monte Carlo error."""

    def __init__(self, values, inside=None):
        inside = np.ones_like(values) if inside is None else inside.astype(float)
        share = inside.mean()
        self.mean = (values * inside).mean() / share
        self.series = (values - self.mean) * inside / share
        self.mcse = float(mcse_mean(self.series))
        self.rhat = float(rhat(values))


def log_predictive(densities, inside=None):
    """Mean over cases of the log of the average density, with the error of FORMULAS.md."""
    weight = np.ones(densities.shape[:2]) if inside is None else inside.astype(float)
    mean = (densities * weight[..., None]).mean((0, 1)) / weight.mean()
    estimate = Estimate((densities / mean).mean(-1), weight)
    estimate.mean = np.log(mean).mean()
    return estimate


def compared(problem, route, quantity, estimate, reference=None):
    row = {"problem": problem, "route": route, "quantity": quantity}
    row |= {n: f"{getattr(estimate, n):.5g}" for n in ("mean", "mcse", "rhat")}
    if reference is not None:
        error = np.hypot(estimate.mcse, reference["mcse"])
        row |= {"reference": reference["mean"], "reference_mcse": reference["mcse"]}
        row["z"] = f"{(estimate.mean - reference['mean']) / error:.2f}"
    return row


def rows_of(problem, route, scalars, densities, predictions, y_test, options):
    reference = json.loads((options.shared / "reference_open.json").read_text()).get(problem, {})
    row = partial(compared, problem, route)
    rows = [
        row(f"log_sigma_{n}", Estimate(v), reference.get("log_sigma", {}).get(n))
        for n, v in scalars.items()
    ]
    rows.append(
        row(
            "test_log_predictive",
            log_predictive(densities),
            reference.get("test_mean_log_predictive"),
        )
    )
    if problem == "rdata":
        minor = np.exp(scalars["bh"]) > MINOR
        known = reference["minor_mode_prob_sigma_bh_gt_0.3"]
        rows.append(row("minor_mode_mass", Estimate(minor.astype(float)), known))
        for label, inside in (("main", ~minor), ("minor", minor)):
            if inside.mean() * inside.size < 100:
                continue
            known = reference[f"log_sigma_within_{label}_mode"]
            rows += [
                row(f"{label}_mode_log_sigma_{n}", Estimate(v, inside), known[n])
                for n, v in scalars.items()
            ]
            score = log_predictive(densities, inside[:, :: options.thin])
            own = reference[f"test_within_{label}_mode"]
            own = {"mean": own["mean_log_predictive"], "mcse": own["mean_log_predictive_mcse"]}
            rows.append(row(f"{label}_mode_test_log_predictive", score, own))
    rows.append(error_row(problem, route, predictions, y_test, reference))
    rows += case_rows(problem, route, predictions, options.shared)
    return [r for r in rows if r]


def error_row(problem, route, predictions, y, reference):
    """Squared error of the posterior mean, or the share of classes that are wrong."""
    average = predictions.mean((0, 1))
    row = {"problem": problem, "route": route}
    if problem in ("cdata", "bdata"):
        label = average.argmax(-1) if problem == "cdata" else average > 0.5
        wrong = np.mean(label != np.asarray(y))
        known = reference.get("test_error_rate", {}).get("mean", "")
        return row | {"quantity": "test_error_rate", "mean": f"{wrong:.5g}", "reference": known}
    if problem in ("rdata", "odata"):
        error = np.mean((average - np.asarray(y)) ** 2)
        known = reference.get("test_mean_squared_error", {}).get("mean", "")
        return row | {"quantity": "test_squared_error", "mean": f"{error:.5g}", "reference": known}
    return None


def case_rows(problem, route, predictions, shared):
    """The largest difference of a prediction, in joint Monte Carlo errors, and the share above 3."""
    row = {"problem": problem, "route": route}
    worst = np.asarray(rhat(predictions)).max()
    rows = [row | {"quantity": "predictions_max_rhat", "mean": f"{worst:.4g}"}]
    name = PREDICTED.get(problem)
    if name is None:
        return rows
    with np.load(shared / "predictions_open.npz") as file:
        mean, error = file[f"{name}_mean"], file[f"{name}_mcse"]
    z = (predictions.mean((0, 1)) - mean) / np.hypot(error, mcse_mean(predictions))
    return [
        *rows,
        row | {"quantity": "predictions_max_abs_z", "mean": f"{np.abs(z).max():.3g}"},
        row | {"quantity": "predictions_share_above_3", "mean": f"{np.mean(np.abs(z) > 3):.3g}"},
    ]


def show(rows):
    for row in rows:
        print(*(row.get(name, "") for name in COLUMNS), sep="  ", flush=True)


def store(rows, options, part=""):
    """Replace what is stored of the same problems and routes, by this study or by `tempering`."""
    done = {(row["problem"], row["route"]) for row in rows}
    results = Results(__file__, options, part)
    kept = []
    if results.path("csv").exists():
        with results.path("csv").open() as file:
            kept = [r for r in csv.DictReader(file) if (r["problem"], r["route"]) not in done]
    blank = dict.fromkeys(COLUMNS, "")
    results.write_rows([blank | row for row in (*kept, *rows)])


def options_of(doc):
    """The options that the studies of these posteriors share."""
    made = parser(doc, toy=False)
    made.add_argument("--shared", type=Path, default=SHARED, help="folder of data and reference")
    return made


def main(argv=None):
    made = options_of(__doc__)
    made.add_argument("--problems", nargs="+", default=["rdata", "cdata"])
    made.add_argument("--routes", nargs="+", default=["gibbs", "noncentered"], choices=ROUTES)
    made.add_argument("--chains", type=int, default=16)
    made.add_argument("--warmup", type=int, default=1000)
    made.add_argument("--samples", type=int, default=2000)
    made.add_argument("--steps", type=int, default=100, help="leapfrog steps of a trajectory")
    made.add_argument("--thin", type=int, default=10, help="of draws that predictions are made of")
    options = made.parse_args(argv)
    if options.size == "quick":
        options.chains, options.warmup, options.samples, options.steps = 4, 50, 100, 10
        options.thin = 1
    for problem in options.problems:
        *train, x_test, y_test = data_of(problem, options.shared)
        for route in options.routes:
            draws, seconds = sample(problem, route, *train, options)
            scalars = scalars_of(problem, draws)
            tested = test_densities(problem, draws, x_test, y_test, options.thin)
            rows = rows_of(problem, route, scalars, *tested, y_test, options)
            count = options.chains * options.samples * options.steps
            cost = {"cpu_seconds": f"{seconds[0]:.1f}", "cpu_seconds_kept": f"{seconds[1]:.1f}"}
            cost |= {"gradients": count, "steps": options.steps}
            more = [{"quantity": name, "mean": value} for name, value in cost.items()]
            more += speed_rows(problem, scalars, tested[1], seconds, options, count)
            rows += [{"problem": problem, "route": route} | row for row in more]
            show(rows)
            store(rows, options)


if __name__ == "__main__":
    main()
