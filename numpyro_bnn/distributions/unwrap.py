"""Removes the wrappers that NumPyro puts around a distribution."""

import numpyro.distributions as dist

_SHAPES = (dist.Independent, dist.ExpandedDistribution)


def unwrapped(distribution: dist.Distribution) -> dist.Distribution:
    """A distribution without the batch and event shapes that were put around it."""
    while isinstance(distribution, _SHAPES):
        distribution = distribution.base_dist
    return distribution


def family_of(distribution: dist.Distribution) -> dist.Distribution:
    """A distribution without these and without masks, which leave its values alone and change what counts."""
    while isinstance(distribution, (*_SHAPES, dist.MaskedDistribution)):
        distribution = distribution.base_dist
    return distribution
