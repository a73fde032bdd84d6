"""Removes the wrappers that NumPyro puts around a distribution."""

import numpyro.distributions as dist

_SHAPES = (dist.Independent, dist.ExpandedDistribution)
GAUSSIAN = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)


def unwrapped(distribution: dist.Distribution) -> dist.Distribution:
    """The distribution inside of wrappers of batch and event shapes."""
    while isinstance(distribution, _SHAPES):
        distribution = distribution.base_dist
    return distribution


def unmasked(distribution: dist.Distribution) -> dist.Distribution:
    """The same distribution without masks: its log density counts all values."""
    if isinstance(distribution, dist.MaskedDistribution):
        return unmasked(distribution.base_dist)
    if not isinstance(distribution, _SHAPES) or family_of(distribution) is unwrapped(distribution):
        return distribution
    base = unmasked(distribution.base_dist)
    if isinstance(distribution, dist.Independent):
        return base.to_event(distribution.reinterpreted_batch_ndims)
    return base.expand(distribution.batch_shape)


def family_of(distribution: dist.Distribution) -> dist.Distribution:
    """The distribution inside of all wrappers, masks included."""
    while isinstance(distribution, (*_SHAPES, dist.MaskedDistribution)):
        distribution = distribution.base_dist
    return distribution
