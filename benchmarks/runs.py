"""Runs of a study, all chains in one program, and whether they have converged."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from study import Row

import numpyro_bnn as bnn

RHAT_LIMIT, ESS_LIMIT = 1.01, 400
NOT_JUDGED = dict.fromkeys(("worst R-hat", "median R-hat", "least ESS", "converged"), "")


def sampler(
    kernel: Any,
    num_chains: int,
    num_warmup: int,
    num_samples: int,
    thinning: int = 1,
    **options: Any,
) -> bnn.MCMC:
    """A run to come.

    :param num_samples: draws a chain that are kept.
    :param thinning: steps to each of them.
    :param options: of ``bnn.MCMC``.
    """
    return bnn.MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples * thinning,
        thinning=thinning,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
        **options,
    )


def sampled(kernel: Any, key: jax.Array, *args: Any, starts: Any, **settings: Any) -> bnn.MCMC:
    """A finished run.

    :param starts: what ``bnn.optimize`` gives; as many chains as it has.
    :param settings: of :func:`sampler`.
    """
    mcmc = sampler(kernel, len(next(iter(starts.values()))), **settings)
    mcmc.run(key, *args, init_params=starts)
    jax.block_until_ready(mcmc.last_state)
    return mcmc


def convergence(values: Any) -> Row:
    """R-hat and ESS of function values (chain, draw, …), constants left out, and a word.

    Modes of an ensemble are no chain: one draw each has no R-hat, and the cells stay empty.

    :param values: an array, or a dict of them.
    """
    named = values if isinstance(values, Mapping) else {"functions": np.asarray(values)}
    chains, draws = next(iter(named.values())).shape[:2]
    if chains < 2 or draws < 4:
        return dict(NOT_JUDGED)
    space = bnn.diagnostics.diagnose_draws(predictions=named).predictions
    return {
        "worst R-hat": space.max_rhat,
        "median R-hat": space.median_rhat,
        "least ESS": space.min_ess,
        "converged": "yes" if space.within(RHAT_LIMIT, ESS_LIMIT) else "no",
    }
