"""What does a second call wait for? First, second and third calls on equal models, beside an earlier version.

Each call gets a new model object over the same code and data of the same shapes, as a user's script or the
folds of a cross-validation do. Two versions take turns, each in a process of its own.

    python -m benchmarks.speed.second_call --before FOLDER [--quick]

FOLDER is a checkout of the version to compare with; without it, only this one is measured.
"""

import statistics
import time

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.study import ROOT, Results, parser

CALLS = 3


def seconds(call):
    begin = time.perf_counter()
    found = call()
    jax.block_until_ready(jax.tree.leaves(found) if isinstance(found, dict) else 0)
    return time.perf_counter() - begin, found


def one_of_each(key, x, y):
    """Seconds of each call by name, on a model object of its own."""
    model = bnn.regression(bnn.MLP((16, 16), 1), bnn.priors.Hierarchical())
    quiet = {"num_chains": 4, "progress_bar": False}
    times = {}
    times["optimize"], starts = seconds(
        lambda: bnn.optimize(model, key, x, y, num_steps=100, **quiet)
    )
    lengths = {"num_warmup": 10, "num_samples": 20}
    mcmc = bnn.MCMC(bnn.MCLMC(model), **lengths, **quiet)
    calls = {
        "MCMC.run": lambda: mcmc.run(key, x, y, init_params=starts),
        "predict": lambda: bnn.predict(None, mcmc, x),
        "prior_predictive": lambda: bnn.prior_predictive(model, key, x, 5),
        "diagnose": lambda: bnn.diagnose(mcmc, x, y),
        "to_inference_data": lambda: bnn.to_inference_data(mcmc),
        "fit": lambda: bnn.fit(model, x, y, key=key, thinning=1, **lengths, **quiet),
    }
    return times | {name: seconds(call)[0] for name, call in calls.items()}


def measure():
    """Seconds of each call by name: `CALLS` times, one after another."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=200)
    times = [one_of_each(jax.random.key(call), x, y) for call in range(CALLS)]
    return {name: [each[name] for each in times] for name in times[0]}


def main(argv=None):
    arguments = parser(__doc__, toy=False)
    arguments.add_argument("--before", help="checkout of an earlier version")
    options = arguments.parse_args(argv)
    # Here: the package of another version comes with its own `benchmarks`.
    from benchmarks.speed.versions import in_version

    versions = {"now": ROOT} | ({"before": options.before} if options.before else {})
    found = {name: [] for name in versions}
    for _ in range(3 if options.size == "full" else 1):
        for name, folder in versions.items():
            found[name].append(in_version(folder, __file__, "measure()"))
    rows = []
    for name in found["now"][0]:
        row = {"call": name}
        for version, repeats in found.items():
            for place, label in ((0, "first"), (1, "second"), (2, "third")):
                times = [repeat[name][place] for repeat in repeats]
                row[f"{version}, {label}"] = round(statistics.median(times), 3)
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    Results(__file__, options).write_rows(rows)


if __name__ == "__main__":
    main()
