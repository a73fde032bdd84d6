"""How many draws to drop from the beginning of a run: until the two halves of the rest agree.

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
# Permutations of the test: enough for p < 0.01, at a tenth of the cost of a verdict.
_PERMUTATIONS = 199


def draws_to_drop(predictions: Mapping[str, np.ndarray], tolerance: Tolerance) -> int:
    """The number of first draws to drop so that the two halves of the remaining chains agree.

    :param predictions: name to finite `(chain, draw, input, ...)`.
    :param tolerance: halves that differ by less are alike.
    :return: a number of draws a chain: as many tenths of all, up to five, as make the halves agree.
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
    :param tolerance: the accepted difference.
    """
    if next(iter(predictions.values())).shape[1] < 2 * _STEPS:
        return False
    halves = {name: _as_two(x) for name, x in predictions.items()}
    found = agreement(halves, tolerance=tolerance, num_permutations=_PERMUTATIONS)
    # A drift makes draws look dependent for long, so that a short run of it cannot be tested.
    return found.disagree(tolerance) or (not found.tested and found.beyond(tolerance))


def _as_two(x: np.ndarray) -> np.ndarray:
    """Two chains: the first halves of all chains joined to one, and the second halves likewise."""
    half = x.shape[1] // 2
    centers = x.mean(axis=1, keepdims=True, dtype=np.float64)
    # All chains around one centre: units of predictions need where that is.
    moved = x - (centers - centers.mean(axis=0)).astype(x.dtype)
    parts = (moved[:, :half], moved[:, x.shape[1] - half :])
    return np.stack([part.reshape(-1, *x.shape[2:]) for part in parts])
