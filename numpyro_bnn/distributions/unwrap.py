"""Removes the wrappers that NumPyro puts around a distribution, and gives sites placeholder values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from numpyro_bnn._types import Array

_SHAPES = (dist.Independent, dist.ExpandedDistribution)
GAUSSIAN = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)


def unwrapped(distribution: dist.Distribution) -> dist.Distribution:
    """The distribution inside of wrappers of batch and event shapes."""
    while isinstance(distribution, _SHAPES):
        distribution = distribution.base_dist
    return distribution


def blanks(
    blank: jax.Array, preset: set[str] | None = None
) -> Callable[[dict[str, Any]], jax.Array | None]:
    """A substitution for abstract traces: placeholder values of continuous latent sites."""
    # Tracing a draw of each site takes longer than tracing the rest. `blank` is traced, so that no model
    # can branch on it; `preset` gets the names of latent sites that have a value already.

    def value(site: dict[str, Any]) -> jax.Array | None:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        if site["value"] is not None:
            if preset is not None:
                preset.add(site["name"])
            return None
        if site["fn"].support.is_discrete:
            return None
        return jnp.broadcast_to(blank, site["fn"].shape(site["kwargs"].get("sample_shape") or ()))

    return value


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


def of_known(distribution: dist.Distribution, known: Array) -> dist.Distribution:
    """The marginal distribution of the known entries of each row; others have the density 1 at 0."""
    base = unwrapped(distribution)
    if isinstance(base, GAUSSIAN[1:]):
        both = known[..., :, None] & known[..., None, :]
        unit = jnp.eye(known.shape[-1]) / (2 * jnp.pi)
        covariance = jnp.where(both, base.covariance_matrix, unit)
        return dist.MultivariateNormal(jnp.where(known, base.loc, 0.0), covariance)
    if isinstance(base, dist.Normal):
        scale = jnp.where(known, base.scale, (2 * jnp.pi) ** -0.5)
        return dist.Normal(jnp.where(known, base.loc, 0.0), scale).to_event(distribution.event_dim)
    # Entries of one event that are not independent stay as they are.
    return distribution if base.event_dim else base.mask(known).to_event(distribution.event_dim)


def family_of(distribution: dist.Distribution) -> dist.Distribution:
    """The distribution inside of all wrappers, masks included."""
    while isinstance(distribution, (*_SHAPES, dist.MaskedDistribution)):
        distribution = distribution.base_dist
    return distribution
