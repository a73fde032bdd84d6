"""The regularised horseshoe, a prior that keeps most weights near zero."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from numpyro_bnn.priors.base import Prior, parameter, positive
from numpyro_bnn.priors.coordinates import Standardized
from numpyro_bnn.priors.enclosing_handlers import enclosing_handlers
from numpyro_bnn.priors.paths import Shape, Shapes, site_name


class Horseshoe(Prior):
    """Regularised horseshoe: most weights are near zero, and a few as large as the slab allows.

    For each array, with z standard normal and λ a local scale a weight,

        w = z τ λ̃,   λ̃² = c² λ² / (c² + τ² λ²),   λ ~ HalfCauchy(1),   τ ~ HalfCauchy(global_scale),
        c² ~ InverseGamma(slab_df / 2, slab_df slab_scale² / 2).

    Sites beside ``"{name}/{path}"``: ``.global_scale``, ``.local_scale``, ``.slab_variance`` and
    ``.base`` (z).

    :param global_scale: scale of τ.
    :param slab_scale: scale of the t distribution that large weights follow.
    :param slab_df: its degrees of freedom.
    :raises ValueError: if a number is not positive.

    Source: Piironen and Vehtari, *Sparsity information and regularization in the horseshoe and
    other shrinkage priors* (2017), eqs. (2.8) and (2.11).
    """

    def __init__(
        self, global_scale: float = 1.0, slab_scale: float = 2.0, slab_df: float = 4.0
    ) -> None:
        positive("Horseshoe", global_scale=global_scale, slab_scale=slab_scale, slab_df=slab_df)
        self.global_scale = global_scale
        self.slab_scale = slab_scale
        self.slab_df = slab_df

    def sample(self, name: str, shapes: Shapes) -> dict[str, jax.Array]:
        """Sample all parameters of a network, and the scales above them.

        :param name: name of the network, the first part of the names of sites.
        :param shapes: shape of each parameter, by path.
        :return: values by path.
        """
        return {path: self._array(site_name(name, path), shape) for path, shape in shapes.items()}

    def _array(self, site: str, shape: Shape) -> jax.Array:
        def each(distribution: dist.Distribution) -> dist.Distribution:
            return distribution.expand(shape).to_event(len(shape))

        tau = numpyro.sample(f"{site}.global_scale", dist.HalfCauchy(self.global_scale))
        local = numpyro.sample(f"{site}.local_scale", each(dist.HalfCauchy(1.0)))
        half_df = self.slab_df / 2
        slab = numpyro.sample(
            f"{site}.slab_variance", dist.InverseGamma(half_df, half_df * self.slab_scale**2)
        )
        scale = tau * local * jnp.sqrt(slab / (slab + (tau * local) ** 2))
        if any(enclosing_handlers(site)):
            return numpyro.sample(site, each(dist.Normal(0.0, scale)))
        base = numpyro.sample(
            f"{site}.base", each(dist.Normal(0.0, 1.0)), infer={"hierarchy": Standardized(scale)}
        )
        return parameter(site, base * scale)
