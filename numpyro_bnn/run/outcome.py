"""Warnings at the end of a run: chains that hardly moved, chains left out, an early end."""

import warnings
from collections.abc import Collection, Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import find_stack_level

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.samplers.suspects import suspect_chains
from numpyro_bnn.storage.stored_array import StoredArray

# Fewer draws than these say little of a spread; numbers of draws on disk that are read at a time.
_ENOUGH_FOR_A_SPREAD, _BLOCK = 20, 2**22


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


def warn_of_rounding(sites: Mapping[str, Array], latent: Collection[str], dtype: str) -> None:
    """Warn of sites whose draws on disk are too coarse: spacing of `dtype` above a tenth of the spread."""
    kind = jnp.finfo(dtype)
    for name in latent:
        draws = sites[name]
        count = draws.shape[0] * draws.shape[1]
        if (
            not (draws.size and np.issubdtype(draws.dtype, np.floating))
            or count < _ENOUGH_FOR_A_SPREAD
        ):
            continue
        first = np.asarray(draws[:1, :1], np.float64)[0, 0]
        total, squares = np.zeros_like(first), np.zeros_like(first)
        step = max(1, _BLOCK * draws.shape[1] // draws.size)
        for begin in range(0, draws.shape[1], step):
            off = np.asarray(draws[:, begin : begin + step], np.float64) - first
            total += off.sum((0, 1))
            squares += (off**2).sum((0, 1))
        off = total / count
        spread = np.sqrt(np.maximum(squares / count - off**2, 0.0))
        exponent = np.frexp(first + off)[1] - 1
        spacing = np.maximum(np.ldexp(float(kind.eps), exponent), float(kind.smallest_subnormal))
        coarse = spacing > 0.1 * spread
        if coarse.any():
            worst = np.unravel_index(np.argmax(spacing - 0.1 * spread), coarse.shape)
            warnings.warn(
                f"MCMC: draws_dtype={dtype!r} is too coarse for {coarse.sum()} of {coarse.size} numbers of "
                f"'{name}': around {(first + off)[worst]:.4g} its values lie {spacing[worst]:.2g} apart, and "
                f"the stored draws have a standard deviation of {spread[worst]:.2g}. Their spread on disk "
                "is that of rounding. Run again with draws_dtype=None.",
                stacklevel=find_stack_level(),
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
