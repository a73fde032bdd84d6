"""How long `diagnose` takes, and how much memory, for made-up draws: what it does does not depend on them.

python -m benchmarks.speed.diagnose [--quick]
"""

import resource
import time

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.study import Results, machine, parser
from numpyro_bnn import diagnose

NUM_CHAINS, NUM_ROWS, INPUTS, CLASSES = 8, 1000, 784, 10
LABELS = np.arange(NUM_ROWS) % CLASSES


def draws_of_network(model, x, num_draws):
    rng = np.random.default_rng(0)
    point = bnn.optimize(model, jax.random.key(0), x, LABELS, num_steps=0, progress_bar=False)
    draws = {}
    for name, value in point.items():
        shape = (NUM_CHAINS, num_draws, *value.shape[1:])
        draws[name] = rng.standard_normal(shape, dtype=np.float32)
        draws[name] *= 0.1
        draws[name] += np.asarray(value[:1], np.float32)
    return draws


def peak_gib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(argv=None):
    options = parser(__doc__, toy=False).parse_args(argv)
    num_draws = 1000 if options.size == "full" else 100
    rng = np.random.default_rng(1)
    x = rng.standard_normal((NUM_ROWS, INPUTS), dtype=np.float32)
    model = bnn.classification(bnn.MLP([100], CLASSES), bnn.priors.FanIn(), x, LABELS)
    draws = draws_of_network(model, x, num_draws)
    before = peak_gib()
    begin = time.perf_counter()
    report = diagnose(draws, x, model=model)
    row = {
        "chains": NUM_CHAINS,
        "draws": num_draws,
        "weights": sum(v[0, 0].size for v in draws.values()),
        "rows": NUM_ROWS,
        "seconds": time.perf_counter() - begin,
        "GiB of draws": sum(v.nbytes for v in draws.values()) / 2**30,
        "GiB at most": peak_gib(),
        "GiB beyond the draws": peak_gib() - before,
    }
    print(machine())
    print(report)
    print(row)
    Results(__file__, options).write_rows([row])


if __name__ == "__main__":
    main()
