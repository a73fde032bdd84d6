"""What the studies that end in pictures share: runs, whether they converged, curves in a cell."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from study import Row

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics import ess, rhat

RHAT_LIMIT, ESS_LIMIT = 1.01, 400


def sampled(
    kernel: Any,
    key: jax.Array,
    *args: Any,
    starts: Any,
    num_warmup: int,
    num_samples: int,
    thinning: int = 1,
    **options: Any,
) -> bnn.MCMC:
    """A finished run with all chains in one program.

    :param starts: what ``bnn.optimize`` gives; as many chains as it has.
    :param num_samples: draws a chain that are kept.
    :param thinning: steps to each of them.
    :param options: of ``bnn.MCMC``.
    """
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples * thinning,
        thinning=thinning,
        num_chains=len(next(iter(starts.values()))),
        chain_method="vectorized",
        progress_bar=False,
        **options,
    )
    mcmc.run(key, *args, init_params=starts)
    jax.block_until_ready(mcmc.last_state)
    return mcmc


def convergence(functions: Any) -> Row:
    """R-hat and ESS of function values (chain, draw, …), constants left out, and a word.

    Modes of an ensemble are no chain: one draw each has no R-hat, and the cells stay empty.
    """
    values = np.asarray(functions, np.float64)
    if len(values) < 2 or values.shape[1] < 4:
        return {"worst R-hat": "", "median R-hat": "", "least ESS": "", "converged": ""}
    each, effective = np.ravel(rhat(values)), np.ravel(ess(values))
    each, effective = each[np.isfinite(each)], effective[np.isfinite(effective)]
    good = each.max() <= RHAT_LIMIT and effective.min() >= ESS_LIMIT
    return {
        "worst R-hat": float(each.max()),
        "median R-hat": float(np.median(each)),
        "least ESS": float(effective.min()),
        "converged": "yes" if good else "no",
    }


def as_text(values: Any) -> str:
    """Numbers of a curve or a surface as the text of one cell, four digits each."""
    return " ".join(f"{v:.4g}" for v in np.ravel(np.asarray(values, np.float64)))


def from_text(text: Any) -> np.ndarray:
    """The numbers that :func:`as_text` wrote."""
    return np.array(str(text).split(), np.float64)


def without(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Rows for a table: without these columns, and without seconds and the machine."""
    hidden = {"seconds", "machine", *columns}
    return [{k: v for k, v in row.items() if k not in hidden} for row in rows]
