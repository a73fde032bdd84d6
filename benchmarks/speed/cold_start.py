"""What does a first fit wait for? CPU-seconds in a fresh process, with no program kept on disk.

`optimize`, `MCMC.run` and `diagnose` of a few steps by four chains, so that nearly all of it is set-up; then
all again on an equal model, with a longer warm-up, and with another scale of the prior, in turns.

    python -m benchmarks.speed.cold_start [--before FOLDER] [--quick]

FOLDER is a checkout of the version to compare with.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import jax
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

import numpyro_bnn as bnn
from benchmarks._shared.study import ROOT, Results, parser

QUIET = {"num_chains": 4, "progress_bar": False}
ASKED = "import json, cold_start; print(json.dumps(cold_start.measure({network!r})))"


def digits(rate):
    """64-16-10 with hierarchical precisions."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:1347].astype(np.float32) / 16, y[:1347]
    return bnn.classification(bnn.MLP((16,), 10), bnn.priors.Hierarchical(1.0, rate)), x, y


def diabetes(rate):
    """The default network of the estimators."""
    x, y = (np.asarray(a, np.float32) for a in load_diabetes(return_X_y=True))
    network, prior = bnn.BNNRegressor()._network(2), bnn.priors.Hierarchical(1.0, rate)
    return bnn.regression(network, prior, likelihood="heteroscedastic"), x, y


def cpu(call):
    begin = time.process_time()
    found = call()
    jax.block_until_ready(jax.tree.leaves(found) if isinstance(found, dict) else 0)
    return time.process_time() - begin, found


def measure(network):
    """CPU-seconds of each call by name, cold and again."""

    def calls(seed, num_warmup=20, rate=1.0):
        model, x, y = globals()[network](rate)
        key, times = jax.random.key(seed), {}
        optimize = lambda: bnn.optimize(model, key, x, y, num_steps=100, **QUIET)  # noqa: E731
        times["optimize"], starts = cpu(optimize)
        mcmc = bnn.MCMC(bnn.MCLMC(model), num_warmup=num_warmup, num_samples=20, **QUIET)
        times["run"], _ = cpu(lambda: mcmc.run(key, x, y, init_params=starts))
        times["diagnose"], _ = cpu(lambda: bnn.diagnose(mcmc, x, y))
        return times

    first, second, third, fourth = calls(0), calls(1), calls(2, 30), calls(3, rate=0.3)
    whole = {"all": sum(first.values()), "all again": sum(second.values())}
    return first | whole | {"run, longer": third["run"], "another prior": sum(fourth.values())}


def measured_in(folder, network):
    """What `measure` returns with the package of a checkout, in a process of its own."""
    paths = [str(folder), os.path.dirname(os.path.abspath(__file__)), str(ROOT)]
    others = os.environ.get("PYTHONPATH", "")
    set_to = {"PYTHONPATH": os.pathsep.join([*paths, others]), "PYTHONWARNINGS": "ignore"}
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-c", ASKED.format(network=network)]
    # Python looks for modules in its working folder first.
    options = {"env": environment | set_to, "cwd": folder, "check": True}
    done = subprocess.run(command, **options, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(argv=None):
    arguments = parser(__doc__, toy=False)
    arguments.add_argument("--before", help="checkout of an earlier version")
    given = arguments.parse_args(argv)
    versions = {"now": ROOT} | ({"before": given.before} if given.before else {})
    rows = []
    for network in ("digits", "diabetes"):
        found = {version: [] for version in versions}
        for _ in range(3 if given.size == "full" else 1):
            for version, folder in versions.items():
                found[version].append(measured_in(folder, network))
        for version, repeats in found.items():
            row = {"network": network, "version": version}
            for call in repeats[0]:
                row[call] = round(statistics.median(repeat[call] for repeat in repeats), 2)
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    Results(__file__, given).write_rows(rows)


if __name__ == "__main__":
    main()
