"""Finds chains that failed (exploded, or with draws that are not finite), to leave them out of averages."""

import warnings
from typing import Any

import numpy as np
from numpyro.util import find_stack_level

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.not_finite import not_finite

_BY_SCHEDULE = "its schedule"


def failed_chains(state: PyTree, bad: dict[int, int]) -> dict[int, str]:
    """The reason of failure by chain; `bad` is the first draw that is not finite, by chain."""
    return exploded_chains(state) | not_finite(bad)


def warn_of_failed(failed: dict[int, str], num_chains: int, about_data: str = "") -> None:
    """Warn of the chains that are left out, with the reason; refuse a run with no chain left."""
    # `about_data` is a sentence on data that are not finite, which goes before other advice.
    reasons = "; ".join(f"chain {chain}: {why}" for chain, why in failed.items())
    advice = "Use a smaller step size, or start from `bnn.optimize`."
    if any(why.startswith(_BY_SCHEDULE) for why in failed.values()):
        advice = (
            "Correct the schedule: what it gives must be finite and not negative at every count."
        )
    advice = about_data + advice
    if len(failed) == num_chains:
        raise RuntimeError(f"No chain stayed finite ({reasons}). {advice}")
    warnings.warn(
        f"Left out {len(failed)} of {num_chains} chains ({reasons}). {advice}",
        stacklevel=find_stack_level(),
    )


def exploded_chains(state: PyTree, before: float = float("inf")) -> dict[int, str]:
    """Chains frozen before step `before`, by a kernel or a block of Gibbs, because they became non-finite."""
    left_out = {}
    for part in (state, *getattr(state, "block_states", ())):
        steps = np.atleast_1d(np.asarray(getattr(part, "exploded_at", -1)))
        for chain in np.flatnonzero((steps >= 0) & (steps < before)):
            left_out[int(chain)] = f"{_cause(part, chain)} at step {steps[chain]}, warm-up included"
    return left_out


def _cause(state: PyTree, chain: Any) -> str:
    """The reason why a chain was frozen, read from its state."""
    for field, name in (("step_size", "step size"), ("temperature", "temperature")):
        value = float(np.atleast_1d(np.asarray(getattr(state, field)))[chain])
        if not (np.isfinite(value) and value >= 0):
            return f"{_BY_SCHEDULE} gave the {name} {value:.4g}"
    return "exploded"
