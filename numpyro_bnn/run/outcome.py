"""Warnings at the end of a run: chains that hardly moved, chains left out, an early end."""

import warnings
from collections.abc import Collection
from typing import Protocol

import jax
import numpy as np
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import find_stack_level

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.suspects import suspect_chains
from numpyro_bnn.storage.stored_array import StoredArray


class _End(Protocol):
    """The reason why a run without a fixed length ended; its text is a sentence for a warning."""

    @property
    def is_early(self) -> bool: ...


def suspects_of_run(
    kernel: MCMCKernel, fields: dict[str, PyTree], sample_field: str, state: PyTree, thinning: int
) -> dict[int, str]:
    """Chains that never moved or whose moves failed: reason by chain."""
    stats = {name: values for name, values in fields.items() if name != sample_field}
    batch_size = getattr(getattr(kernel, "gradient", None), "batch_size", None)
    return suspect_chains(fields[sample_field], stats, state, thinning, batch_size is None)


def without_chains(fields: PyTree, left_out: Collection[int], num_chains: int) -> PyTree:
    """Draws without those of some chains, so that values that are not finite are never averaged."""
    kept = np.setdiff1d(np.arange(num_chains), list(left_out))
    return jax.tree.map(
        lambda x: x.take_chains(kept) if isinstance(x, StoredArray) else x[kept], fields
    )


def warn_of_early_end(stopped: _End | None, num_draws: int, planned: int, can_resume: bool) -> None:
    """Warn that a run was interrupted, or ended before its averages were known."""
    if stopped is None:
        early = num_draws < planned
        text = f"Interrupted: kept {num_draws} of {planned} draws of each chain."
    else:
        early, text = stopped.is_early, str(stopped)
    if early:
        more = " Go on with `mcmc.resume(…)`." if can_resume else ""
        warnings.warn(f"{text}{more}", stacklevel=find_stack_level())
