"""Makes the reference posterior of the digits, which the package ships: two samplers from different starts.

HMC with moves from optimised starts, MAMS with moves from draws of the prior; both are exact in the limit.
Stored are means by both, with Monte Carlo errors, of the probability of the true class at the 100 test images
at which it is least sure, and draws of it by HMC, far apart.

    python -m benchmarks.mixing.reference_digits [--quick]
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpyro.infer import Predictive

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split
from benchmarks._shared.reference_posteriors import PACKAGE, route, store
from benchmarks._shared.sampled_runs import sampled
from benchmarks._shared.study import Results
from benchmarks.mixing.hierarchical_posteriors import (
    CHAINS,
    METHODS,
    Method,
    Posterior,
    begin_at,
    kernel_of,
    posterior,
)
from benchmarks.neal import posteriors
from numpyro_bnn.references.grading import functions_of
from numpyro_bnn.references.reference import PROBLEMS

NAME = "digits"
ROWS, DRAWS = 100, 500
HMC = METHODS["HMC, non-centred, long, moves"]
MAMS = Method("noncentered", lambda model, _: bnn.MAMS(model), moves=True)
# Of each size: leapfrog steps of a fifth of a trajectory of HMC; warm-up and draws of a chain, by sampler.
SIZES = {"full": (100, (300, 2000), (500, 5000)), "quick": (4, (8, 8), (20, 20))}


def drawn_from_prior(given: Posterior) -> dict[str, Any]:
    """A start of each chain: a draw of the prior."""
    draws = Predictive(given.model, num_samples=CHAINS)(jax.random.key(7), given.split.x)
    latent = bnn.potential_of(given.model, given.split.x, given.split.y).structure.latent
    return {name: value for name, value in draws.items() if name in latent}


def drawn(
    given: Posterior,
    method: Method,
    steps: int,
    length: tuple[int, int],
    begin: Mapping[str, Any],
    seed: int,
) -> dict[str, np.ndarray]:
    """Draws of all sites, (chain, draw, …)."""
    mcmc = sampled(
        kernel_of(method, given, steps),
        jax.random.key(seed),
        given.split.x,
        given.split.y,
        starts=begin,
        num_warmup=length[0],
        num_samples=length[1],
    )
    return mcmc.get_samples(group_by_chain=True)


def least_sure(draws: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The test rows at which the average probability of the true class is nearest to a half."""
    some = {site: value[:, :: max(1, value.shape[1] // 500)] for site, value in draws.items()}
    average = functions_of(some, PROBLEMS[NAME], x, y).mean((0, 1))
    return np.sort(np.argsort(np.abs(average - 0.5))[:ROWS])


def main(argv: Sequence[str] | None = None) -> None:
    asked = posteriors.options_of(__doc__ or "").parse_args(argv)
    folder = Results(__file__, asked).folder if asked.size == "quick" else asked.output or PACKAGE
    given = posterior(asked.data, NAME, 0)
    steps, of_hmc, of_mams = SIZES[asked.size]
    by_hmc = drawn(given, HMC, steps, of_hmc, begin_at(given, HMC.coordinates, 0, 200), 0)
    by_mams = drawn(given, MAMS, steps, of_mams, drawn_from_prior(given), 1)
    # The package's model takes images as the network sees them.
    units = given.model.standardization  # type: ignore[attr-defined]
    x, x_test = (
        np.float32((part - units.x_mean) / units.x_scale)
        for part in (given.split.x, given.split.x_test)
    )
    rows = least_sure(by_hmc, x_test, given.split.y_test)
    test = x_test[rows], given.split.y_test[rows]
    first = route(
        f"HMC of {5 * steps} steps in non-centred coordinates with moves of precisions, {CHAINS} chains of "
        f"{of_hmc[1]} draws from optimised starts",
        NAME,
        by_hmc,
        *test,
        1 + of_hmc[1] // 1000,
    )
    second = route(
        f"MAMS in non-centred coordinates with moves of precisions, {CHAINS} chains of {of_mams[1]} draws "
        "from draws of the prior",
        NAME,
        by_mams,
        *test,
        1 + of_mams[1] // 1000,
    )
    store(folder, NAME, Split(x, given.split.y, *test), (first, second), DRAWS)


if __name__ == "__main__":
    main()
