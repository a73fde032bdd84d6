"""Removes the wrappers for batch and event shapes that NumPyro puts around a distribution."""

import numpyro.distributions as dist


def unwrapped(distribution: dist.Distribution) -> dist.Distribution:
    """A distribution without the batch and event shapes that were put around it."""
    while isinstance(distribution, (dist.Independent, dist.ExpandedDistribution)):
        distribution = distribution.base_dist
    return distribution
