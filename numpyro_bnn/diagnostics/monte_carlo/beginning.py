"""How much of the beginning of a run to drop: a first part while the halves of the rest differ.

Chains that still come from their starts have other averages in their first half than in their second.
Each chain is moved so that its own average does not count, the first halves of all of them stand for
one chain and the second halves for another, and these two are tested like any
(:mod:`numpyro_bnn.diagnostics.monte_carlo.agreement`).
"""

from collections.abc import Mapping

import numpy as np

from numpyro_bnn.diagnostics.monte_carlo.agreement import agreement
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

# The first part grows by tenths of all draws, up to half of them.
_STEPS, _MOST = 10, 5
# Enough for p < 0.01, in a tenth of the time that a verdict takes.
_PERMUTATIONS = 199


def draws_to_drop(predictions: Mapping[str, np.ndarray], tolerance: Tolerance) -> int:
    """Draws at the beginning without which the halves of the chains tell the same story.

    :param predictions: name to finite `(chain, draw, input, ...)`.
    :param tolerance: halves that differ by less are alike.
    :return: tenths of the draws, up to five; as many tenths as make the halves agree.
    """
    count = next(iter(predictions.values())).shape[1]
    drop = 0
    for tenth in range(_MOST + 1):
        drop = tenth * count // _STEPS
        if not halves_differ({n: x[:, drop:] for n, x in predictions.items()}, tolerance):
            break
    return drop


def halves_differ(predictions: Mapping[str, np.ndarray], tolerance: Tolerance) -> bool:
    """Whether first and second halves of all chains differ, by more than chance and the tolerance.

    Where there are too few batches to tell what is chance, by more than the tolerance.

    :param predictions: name to finite `(chain, draw, input, ...)`.
    :param tolerance: what is accepted.
    """
    if next(iter(predictions.values())).shape[1] < 2 * _STEPS:
        return False
    halves = {name: _as_two(x) for name, x in predictions.items()}
    found = agreement(halves, tolerance=tolerance, num_permutations=_PERMUTATIONS)
    # A drift makes draws look dependent for long, so that a short run of it cannot be tested.
    return found.disagree(tolerance) or (not found.tested and found.beyond(tolerance))


def _as_two(x: np.ndarray) -> np.ndarray:
    """First and second halves of all chains, each joined to one."""
    half = x.shape[1] // 2
    centers = x.mean(axis=1, keepdims=True, dtype=np.float64)
    # All chains around one centre: units of predictions need where that is.
    moved = x - (centers - centers.mean(axis=0)).astype(x.dtype)
    parts = (moved[:, :half], moved[:, x.shape[1] - half :])
    return np.stack([part.reshape(-1, *x.shape[2:]) for part in parts])
