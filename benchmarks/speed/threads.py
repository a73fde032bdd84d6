"""Do threads get the right answers, and do they use the cores? Predictions from many threads at once.

Sixteen threads call `predict` on four fitted models with 32 numbers of rows, while every fiftieth call fits
another model; each answer is compared with that of the same call alone. Then two threads predict as many rows
as one does, interleaved.

    python -m benchmarks.speed.threads [--quick]
"""

import os
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

# One core a call, so that two calls can have one each.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.study import Results, parser

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


def throughput(repeats, calls, rows):
    """Rows a second of two threads, as a multiple of one thread's; the median over pairs."""
    model = bnn.regression(bnn.MLP((64, 64), 1), bnn.priors.Normal(1.0))
    y = X[:, 0]
    members = bnn.deep_ensemble(model, jax.random.key(0), X, y, **SHORT)
    draws = {name: np.repeat(value, 100, axis=1) for name, value in members.items()}
    x = np.resize(X, (rows, 2))

    def seconds(threads):
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: bnn.average(bnn.predict(model, draws, x)), range(calls)))
        return time.perf_counter() - begin

    seconds(1)
    pairs = [(seconds(1), seconds(2)) for _ in range(repeats)]
    return statistics.median(one / two for one, two in pairs)


def main(argv=None):
    options = parser(__doc__, toy=False).parse_args(argv)
    full = options.size == "full"
    calls = 10_000 if full else 200
    rows = [
        ("calls of 16 threads, one in 50 a fit", calls),
        ("answers other than those alone", answers(calls)),
        (
            "two threads over one, rows a second",
            throughput(*((9, 8, 20_000) if full else (3, 4, 4000))),
        ),
    ]
    print(f"JAX {jax.__version__}, Python {platform.python_version()}")
    for label, value in rows:
        print(f"{label:<45} {value:10.4f}")
    Results(__file__, options).write_values(rows)


if __name__ == "__main__":
    main()
