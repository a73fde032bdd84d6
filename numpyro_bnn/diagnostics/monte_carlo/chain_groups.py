"""Groups of chains that agree with each other, for chains that do not all agree."""

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from numpyro_bnn.diagnostics.convergence.blocks import powers_of

# Number of scalars used, evenly spaced; and of shufflings, which show how far apart chance puts chains.
_MOST_SCALARS = 200
_SHUFFLES = 200


def chain_groups(means: np.ndarray, seed: int = 0) -> np.ndarray:
    """Number of the group of each chain: average linkage while chains differ by no more than chance."""
    chains, count, scalars = means.shape
    chosen = np.unique(np.linspace(0, scalars - 1, _MOST_SCALARS).astype(int))
    batches = means[:, :, chosen].astype(np.float64)
    batches = np.ldexp(batches, -powers_of(batches, (0, 1)))
    centers = batches.mean(axis=1)
    # Batches without differences between chains; subtracting the average of a chain shrinks them a little.
    inner = (batches - centers[:, None]) * np.sqrt(count / (count - 1))
    scale = np.sqrt(np.square(inner).mean(axis=(0, 1)))
    scale[scale == 0] = 1.0
    apart = pdist(centers / scale, "sqeuclidean")
    rng = np.random.default_rng(seed)
    flat = (inner / scale).reshape(chains * count, -1)
    largest = 0.0
    for _ in range(_SHUFFLES):
        dealt = flat[rng.permutation(len(flat))].reshape(chains, count, -1)
        largest = max(largest, float(pdist(dealt.mean(axis=1), "sqeuclidean").max()))
    tree = linkage(apart, "average")
    # The test has found a difference, so there is more than one group.
    cut = min(largest, float(np.nextafter(tree[-1, 2], 0)))
    labels = fcluster(tree, cut, "distance")
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
