"""What do the checks of a run cost? A short run with them and without, interleaved.

A 16-16 network on scikit-learn's diabetes data, 4 chains of 200 draws by NUTS, compiling included: the
shortest run that somebody would make. Every check that looks at the model, the data, the starts or
the draws is timed where it stands, and taken out in every other run.

    python -m benchmarks.speed.checks [--quick | --toy]
"""

import statistics
import time
from contextlib import ExitStack
from importlib import import_module
from unittest.mock import patch

import jax
import numpy as np
from numpyro.infer import NUTS
from sklearn.datasets import load_diabetes

import numpyro_bnn as bnn
from benchmarks._shared.study import Results, parser

# Where each check is looked up, and what it gives when it finds nothing.
CHECKS = {
    "numpyro_bnn.potential.structure.check_arguments": None,
    "numpyro_bnn.potential.structure.check_targets": None,
    "numpyro_bnn.potential.structure.check_observed": None,
    "numpyro_bnn.potential.structure.check_classes": None,
    "numpyro_bnn.potential.potential.check_targets": None,
    "numpyro_bnn.run.refusals.refuse_host_rows": None,
    "numpyro_bnn.run.refusals.refuse_subsampling": None,
    "numpyro_bnn.run.refusals.refuse_sites_of_host_rows": None,
    "numpyro_bnn.run.compiled_runs.suspect_chains": {},
}
# Chains, draws of each, and pairs of runs.
SIZES = {"full": (4, 200, 7), "quick": (4, 200, 2), "toy": (1, 5, 1)}


class Timed:
    """A function, and the CPU seconds spent in it."""

    def __init__(self, function):
        self.function, self.seconds = function, 0.0

    def __call__(self, *args, **kwargs):
        begin = time.process_time()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.process_time() - begin


def found(path):
    """What a dotted path names."""

    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def run(size, checks):
    """CPU seconds of a run, compiled anew, with `checks` in the place of those of the package."""
    chains, draws, _ = size
    x, y = load_diabetes(return_X_y=True)
    model = bnn.regression(bnn.MLP((16, 16), 1), bnn.priors.FanIn())
    mcmc = bnn.MCMC(
        NUTS(model, max_tree_depth=4),
        num_warmup=draws // 2,
        num_samples=draws,
        num_chains=chains,
        progress_bar=False,
    )
    jax.clear_caches()
    with ExitStack() as stack:
        for path, function in checks.items():
            stack.enter_context(patch(path, function))
        begin = time.process_time()
        mcmc.run(jax.random.key(0), x.astype(np.float32), y.astype(np.float32))
        jax.block_until_ready(mcmc.last_state)
        return time.process_time() - begin


def main(argv=None):
    options = parser(__doc__).parse_args(argv)
    size = SIZES[options.size]
    without = {path: (lambda *_, given=given, **__: given) for path, given in CHECKS.items()}
    run(size, {})
    pairs, spent = [], []
    for i in range(size[2]):
        timed = {path: Timed(found(path)) for path in CHECKS}
        # Each goes first in every other pair.
        both = [timed, without] if i % 2 == 0 else [without, timed]
        seconds = [run(size, checks) for checks in both]
        pairs.append(tuple(seconds if i % 2 == 0 else seconds[::-1]))
        spent.append({path: check.seconds for path, check in timed.items()})
    rows = [
        ("with checks, CPU seconds, median", statistics.median(a for a, _ in pairs)),
        ("without, CPU seconds, median", statistics.median(b for _, b in pairs)),
        ("ratio, median over pairs", statistics.median(a / b for a, b in pairs)),
        ("smallest ratio", min(a / b for a, b in pairs)),
        ("largest ratio", max(a / b for a, b in pairs)),
        *(
            (f"CPU seconds in {path.rpartition('.')[2]}", statistics.median(s[path] for s in spent))
            for path in CHECKS
        ),
        (
            "share of all checks, median",
            statistics.median(sum(s.values()) / a for s, (a, _) in zip(spent, pairs)),
        ),
    ]
    for label, value in rows:
        print(f"{label:<40} {value:10.4f}")
    Results(__file__, options).write_values(rows)


if __name__ == "__main__":
    main()
