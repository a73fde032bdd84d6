"""The number of draws to drop at the beginning of a run, so that the two halves of the rest agree.

Chains that are still moving away from their starts have different averages in their two halves. From each
chain its own average is subtracted. Then the first halves of all chains form one chain, the second halves
another, and the two are tested as any two chains (:mod:`numpyro_bnn.diagnostics.monte_carlo.agreement`).
"""

from collections.abc import Mapping

import numpy as np

from numpyro_bnn.diagnostics.monte_carlo.agreement import agreement
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

# The dropped part grows by tenths of all draws, up to half of them.
_STEPS, _MOST = 10, 5
# Permutations of the test: enough for p < 0.01, at a seventh of the cost of a verdict.
_PERMUTATIONS = 299


def draws_to_drop(predictions: Mapping[str, np.ndarray], tolerance: Tolerance) -> int:
    """Number of draws, up to five tenths, to drop at the beginning so that halves of the rest agree."""
    count = next(iter(predictions.values())).shape[1]
    drop = 0
    for tenth in range(_MOST + 1):
        drop = tenth * count // _STEPS
        if not halves_differ({n: x[:, drop:] for n, x in predictions.items()}, tolerance):
            break
    return drop


def halves_differ(predictions: Mapping[str, np.ndarray], tolerance: Tolerance) -> bool:
    """Whether halves of all chains differ by more than chance (if it can be tested) and the tolerance."""
    if next(iter(predictions.values())).shape[1] < 2 * _STEPS:
        return False
    halves = {name: _as_two(x) for name, x in predictions.items()}
    result = agreement(halves, tolerance=tolerance, num_permutations=_PERMUTATIONS)
    # Drifting draws look strongly dependent, so that a short run of them cannot be tested.
    return result.disagree(tolerance) or (not result.tested and result.beyond(tolerance))


def _as_two(x: np.ndarray) -> np.ndarray:
    """Two chains: the first halves of all chains joined to one, and the second halves likewise."""
    half = x.shape[1] // 2
    centers = x.mean(axis=1, keepdims=True, dtype=np.float64)
    # All chains get the common average: the units of predictions depend on it.
    moved = x - (centers - centers.mean(axis=0)).astype(x.dtype)
    parts = (moved[:, :half], moved[:, x.shape[1] - half :])
    return np.stack([part.reshape(-1, *x.shape[2:]) for part in parts])
