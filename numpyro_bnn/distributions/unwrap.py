"""Removes the wrappers that NumPyro puts around a distribution."""

import numpyro.distributions as dist

_SHAPES = (dist.Independent, dist.ExpandedDistribution)
GAUSSIAN = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)


def unwrapped(distribution: dist.Distribution) -> dist.Distribution:
    """A distribution without the batch and event shapes that were put around it."""
    while isinstance(distribution, _SHAPES):
        distribution = distribution.base_dist
    return distribution


def unmasked(distribution: dist.Distribution) -> dist.Distribution:
    """A distribution of the same shapes whose log density counts all of its values, hidden ones too."""
    if isinstance(distribution, dist.MaskedDistribution):
        return unmasked(distribution.base_dist)
    if not isinstance(distribution, _SHAPES) or family_of(distribution) is unwrapped(distribution):
        return distribution
    base = unmasked(distribution.base_dist)
    if isinstance(distribution, dist.Independent):
        return base.to_event(distribution.reinterpreted_batch_ndims)
    return base.expand(distribution.batch_shape)


def family_of(distribution: dist.Distribution) -> dist.Distribution:
    """A distribution without these and without masks, which leave its values alone and change what counts."""
    while isinstance(distribution, (*_SHAPES, dist.MaskedDistribution)):
        distribution = distribution.base_dist
    return distribution
