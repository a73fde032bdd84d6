"""What does a first fit wait for? CPU-seconds in a fresh process, with no program kept on disk.

`optimize`, `MCMC.run` and `diagnose` of a few steps by four chains, so that nearly all of it is set-up; then
all again on an equal model, and again with a longer warm-up. Versions take turns, each in its own process.

    python -m benchmarks.speed.cold_start [--before FOLDER] [--programs] [--quick]

FOLDER is a checkout of the version to compare with; `--programs` shows what is traced, lowered and compiled.
"""

import os
import statistics

import jax
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

import numpyro_bnn as bnn
from benchmarks._shared.study import ROOT, Results, parser

KERNELS = ("MCLMC", "BAOAB", "NUTS")
QUIET = {"num_chains": 4, "progress_bar": False}
# Parts of the work of the compiler, as JAX names them.
PARTS = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "compile",
}


def digits():
    """64-16-10 with hierarchical precisions."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:1347].astype(np.float32) / 16, y[:1347]
    return bnn.classification(bnn.MLP((16,), 10), bnn.priors.Hierarchical()), x, y


def diabetes():
    """The default network of the estimators."""
    x, y = (np.asarray(a, np.float32) for a in load_diabetes(return_X_y=True))
    network = bnn.BNNRegressor()._network(2)
    return bnn.regression(network, bnn.priors.Hierarchical(), likelihood="heteroscedastic"), x, y


def kernel_of(name, model):
    if name == "NUTS":
        from numpyro.infer import NUTS

        return NUTS(model, max_tree_depth=3)
    return getattr(bnn, name)(model)


def used():
    """CPU-seconds of this process."""
    times = os.times()
    return times.user + times.system


def cpu(call):
    begin = used()
    found = call()
    jax.block_until_ready(jax.tree.leaves(found) if isinstance(found, dict) else 0)
    return used() - begin, found


def measure(network, name):
    """CPU-seconds of each call by name, cold and again, and the work of the compiler by program."""
    programs, last = [], [used()]

    def heard(event, seconds, fun_name="?", **_):
        part = PARTS.get(event.rsplit("/", 1)[-1])
        if part:
            # Since the event before: on a busy machine JAX's own seconds say little.
            now = used()
            programs.append((part, fun_name, now - last[0]))
            last[0] = now

    jax.monitoring.register_event_duration_secs_listener(heard)

    def calls(seed, num_warmup=20):
        model, x, y = globals()[network]()
        key, times = jax.random.key(seed), {}
        times["optimize"], starts = cpu(
            lambda: bnn.optimize(model, key, x, y, num_steps=100, **QUIET)
        )
        mcmc = bnn.MCMC(kernel_of(name, model), num_warmup=num_warmup, num_samples=20, **QUIET)
        times["run"], _ = cpu(lambda: mcmc.run(key, x, y, init_params=starts))
        times["diagnose"], _ = cpu(lambda: bnn.diagnose(mcmc, x, y))
        return times

    first = calls(0)
    cold = list(programs)
    second = calls(1)
    third = calls(2, 30)
    return {
        **first,
        "all": sum(first.values()),
        "all again": sum(second.values()),
        "run, longer": third["run"],
        "programs": cold,
    }


def show(programs):
    """A line a program, the longest first."""
    found = {}
    for part, name, seconds in programs:
        row = found.setdefault(name, dict.fromkeys(PARTS.values(), 0.0) | {"count": 0})
        row[part] += seconds
        row["count"] += part == "compile"
    longest = sorted(found.items(), key=lambda item: -sum(list(item[1].values())[:3]))
    for name, row in longest[:40]:
        print(f"{name[:50]:50}", *(f"{part} {value:6.2f}" for part, value in row.items()))


def main(argv=None):
    arguments = parser(__doc__, toy=False)
    arguments.add_argument("--before", help="checkout of an earlier version")
    arguments.add_argument("--programs", action="store_true", help="show each program")
    options = arguments.parse_args(argv)
    # Here: the package of another version comes with its own `benchmarks`.
    from benchmarks.speed.versions import in_version

    variables = {"PYTHONWARNINGS": "ignore", "JAX_COMPILATION_CACHE_DIR": None}
    versions = {"now": ROOT} | ({"before": options.before} if options.before else {})
    rows = []
    for network in ("digits", "diabetes"):
        for name in KERNELS if options.size == "full" else KERNELS[:1]:
            found = {version: [] for version in versions}
            for _ in range(3 if options.size == "full" else 1):
                for version, folder in versions.items():
                    call = f"measure({network!r}, {name!r})"
                    found[version].append(in_version(folder, __file__, call, **variables))
            for version, repeats in found.items():
                row = {"network": network, "kernel": name, "version": version}
                for call in list(repeats[0])[:-1]:
                    row[call] = round(statistics.median(repeat[call] for repeat in repeats), 2)
                rows.append(row)
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
                if options.programs:
                    show(repeats[0]["programs"])
    Results(__file__, options).write_rows(rows)


if __name__ == "__main__":
    main()
