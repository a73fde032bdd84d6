"""The likelihood of a model at any power between 0, the prior, and 1, the posterior.

Most observed sites are tempered as p(y | θ)^b. A site with integrated weights w
(:class:`~numpyro_bnn.distributions.linear_gaussian.LinearGaussian`) is tempered before the integral:
∫ p(w) p(y | w, θ)^b dw, so that the path from prior to posterior is that of the model with its weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class TemperedLikelihood(NamedTuple):
    """Energy of the likelihood at given values of the latent sites, as a function of its power."""

    product: jax.Array  # -log p(y | θ) of the sites that are raised to the power, in nats
    # For each other site, its energy at a power.
    integrals: tuple[Callable[[Any], jax.Array], ...] = ()

    def __call__(self, power: Any) -> jax.Array:
        """The energy at one power, in nats."""
        return power * self.product + sum(one(power) for one in self.integrals)

    def between(self, low: jax.Array, high: jax.Array) -> jax.Array:
        """The rise of the energy from one power to another, over the rise of the power."""
        # Without integrated weights this is the energy of the likelihood, whatever the powers. With them it
        # is its mean over their conditional distribution, averaged over the powers between the two.
        ends = jnp.stack([low, high])
        # One call for all powers, so that the integral is compiled once.
        energies = (jax.vmap(one)(ends.reshape(-1)).reshape(ends.shape) for one in self.integrals)
        means = ((above - below) / (high - low) for below, above in energies)
        return self.product + sum(means, start=jnp.zeros(jnp.shape(low)))


def tempered_likelihood(
    energies: dict[str, jax.Array], sites: dict[str, Any]
) -> TemperedLikelihood:
    """The likelihood of observed sites in a trace, from -log p(y | θ) of each in nats."""
    own = [name for name in energies if hasattr(sites[name]["fn"], "tempered_log_prob")]

    def integral(name: str, power: Any) -> jax.Array:
        site = sites[name]
        return -site["fn"].tempered_log_prob(site["value"], power)

    return TemperedLikelihood(
        sum((e for name, e in energies.items() if name not in own), start=jnp.zeros(())),
        tuple(partial(integral, name) for name in own),
    )
