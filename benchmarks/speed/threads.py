"""Do threads get the right answers, and do they use the cores? Predictions from many threads at once.

Sixteen threads call `predict` on four fitted models with 32 numbers of rows, while every fiftieth call fits
another model; each answer is compared with that of the same call alone. Then two threads on two cores predict
as many rows as one thread on one core does, and one thread on two, interleaved: XLA divides the products of
one call among cores, whatever its flags say, so that one thread has more than one core where it may.

    python -m benchmarks.speed.threads [--quick]
"""

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.study import Results, parser

CORES = sorted(os.sched_getaffinity(0))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
SHORT = {"num_members": 4, "num_steps": 50, "progress_bar": False}


def fitted(number):
    """An ensemble of a small network: of a regression, or of a classification."""
    normal = bnn.priors.Normal(1.0)
    if number % 2:
        model, y = bnn.classification(bnn.MLP((6 + number,), 2), normal), (X[:, 0] > 0).astype(int)
    else:
        model, y = bnn.regression(bnn.MLP((6 + number,), 1), normal), X[:, 0] + number
    return bnn.deep_ensemble(model, jax.random.key(number), X, y, **SHORT)


def answers(calls):
    """How many of so many calls of sixteen threads differ from the same call alone."""
    runs = [fitted(number) for number in range(4)]

    def call(kind):
        number, rows, fits = kind
        if fits:
            return dict(fitted(number))
        return bnn.average(bnn.predict(None, runs[number], np.resize(X, (rows, 2))))

    kinds = [(i % 4, i % 32 + 1, i % 50 == 49) for i in range(calls)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(call, kinds))
    alone = {kind: call(kind) for kind in set(kinds)}
    equal = [
        all(map(np.array_equal, jax.tree.leaves(answer), jax.tree.leaves(alone[kind])))
        for kind, answer in zip(kinds, found)
    ]
    return len(kinds) - sum(equal)


def on_cores(count):
    """Let all threads of this process run on so many cores."""
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), CORES[:count])


def throughput(repeats, calls, rows):
    """Calls a second of two threads, as a multiple of one on one core, and of one on two; medians."""
    model = bnn.regression(bnn.MLP((64, 64), 1), bnn.priors.Normal(1.0))
    y = X[:, 0]
    members = bnn.deep_ensemble(model, jax.random.key(0), X, y, **SHORT)
    draws = {name: np.repeat(value, 100, axis=1) for name, value in members.items()}
    x = np.resize(X, (rows, 2))

    def seconds(threads, cores):
        on_cores(cores)
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: bnn.average(bnn.predict(model, draws, x)), range(calls)))
        return time.perf_counter() - begin

    seconds(1, 2)
    times = np.array([(seconds(1, 1), seconds(1, 2), seconds(2, 2)) for _ in range(repeats)])
    alone = f"{rows} rows: ms a call, one thread, one core"
    labels = [f"{rows} rows: two threads over one, its one core", f"{rows} rows: its two cores"]
    ratios = np.median(times[:, :2] / times[:, 2:], 0)
    return [(alone, 1000 * float(np.median(times[:, 0])) / calls), *zip(labels, map(float, ratios))]


def main(argv=None):
    options = parser(__doc__, toy=False).parse_args(argv)
    full = options.size == "full"
    calls = 10_000 if full else 200
    rows = [
        ("calls of 16 threads, one in 50 a fit", calls),
        ("answers other than those alone", answers(calls)),
    ]
    for of_one in ((30, 100), (1000, 20), (4000, 6)):
        rows += throughput(9 if full else 3, of_one[1], of_one[0])
    print(f"JAX {jax.__version__}, Python {platform.python_version()}")
    for label, value in rows:
        print(f"{label:<45} {value:10.4f}")
    Results(__file__, options).write_values(rows)


if __name__ == "__main__":
    main()
