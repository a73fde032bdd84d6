"""A run whose chains disagree, and what to do then: the example of the page on verdicts.

One hidden unit can follow one edge of a bump, the left or the right one: two modes of equal weight,
between which NUTS hardly crosses. Parallel tempering does.

    python -m benchmarks.diagnostics.two_modes [--quick]
"""

import sys

import jax
import numpy as np
from numpyro.infer import NUTS

import numpyro_bnn as bnn


def data(num_rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """A bump between -1 and 1, with noise."""
    x = np.linspace(-3, 3, num_rows)[:, None]
    noise = np.random.default_rng(0).normal(size=num_rows)
    return x, np.where(np.abs(x[:, 0]) < 1, 1.0, 0.0) + 0.3 * noise


def main(argv: list[str] | None = None) -> None:
    quick = "--quick" in (sys.argv[1:] if argv is None else argv)
    warmup, draws = (30, 60) if quick else (500, 1000)
    x, y = data()
    grid = np.linspace(-3, 3, 41)[:, None]
    model = bnn.regression(bnn.MLP((1,), 1), bnn.priors.Normal(3.0))
    quiet = {"num_warmup": warmup, "num_chains": 4, "progress_bar": False}

    starts = bnn.optimize(model, jax.random.key(0), x, y, num_chains=4, progress_bar=False)
    nuts = bnn.MCMC(NUTS(model), num_samples=draws, **quiet)
    nuts.run(jax.random.key(1), x, y, init_params=starts)
    print(bnn.diagnose(nuts, grid), "\n")

    tempered = bnn.MCMC(bnn.ParallelTempering(model), num_samples=2 * draws, **quiet)
    tempered.run(jax.random.key(1), x, y)
    print(bnn.diagnose(tempered, grid))


if __name__ == "__main__":
    main()
