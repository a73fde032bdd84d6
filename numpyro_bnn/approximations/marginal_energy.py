"""The energy of weights with their hierarchical precisions integrated out.

Weights and precisions have no joint mode worth finding: their joint density is highest where all
weights of a group are nearly zero and their precision is large, whatever the data say. So optimisers and
expansions around an optimum work on the weights (and all other sites) alone,

    U(w) = -log ∫ p(τ) p(w | τ) p(y | w) dτ,

in unconstrained values of the sites that the model has in centred coordinates. By Bayes' rule

    log p(w, y) = log p(w, τ, y) - log p(τ | w, y),        the same number for every τ,

and the last term is known: precisions are conjugate, and depend on the data through the weights only. In a
hierarchy of several levels this holds for the lowest level given the next; the upper levels are treated as
ordinary sites, like the scale of the noise.

Near zero n weights of a group have a density of about |w|^(-n) under this prior, down to a |w| that
depends on the prior of their precision: for a wide first layer a spike that outweighs any likelihood, at a
network that predicts nothing, and with hardly any mass. So a precision is integrated out only where its
conditional mean is below its prior's 99.9 % quantile. For smaller weights it is held there, their prior
being Gaussian. U and its gradient are continuous.
"""

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import block
from numpyro.infer.util import potential_energy

from numpyro_bnn.distributions.stable_densities import Gamma
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.starts import (
    centered,
    check_names,
    fill_precisions,
    gentle_draw,
    own_coordinates,
)
from numpyro_bnn.priors.hierarchical import parameterize
from numpyro_bnn.priors.precision_conditionals import largest_likely


class Marginal:
    """The energy U(w) of a model, with its hierarchical precisions integrated out."""

    def __init__(self, model: Callable, args: tuple = (), kwargs: dict | None = None) -> None:
        self.model = model
        self.centered = centered(model, args, kwargs)
        self.groups = self.centered.structure.groups

    def at(self, args: tuple, kwargs: dict, model: Callable | None = None) -> "Marginal":
        """This energy for other arguments of the same shapes, or another model of the same sites."""
        other = copy.copy(self)
        other.__dict__.pop("original", None)
        other.model = self.model if model is None else model
        in_coordinates = None if model is None else parameterize(model, "centered")
        other.centered = self.centered.at(args, kwargs, in_coordinates)
        return other

    @cached_property
    def original(self) -> Potential:
        """The potential energy in the model's own coordinates, which most programs do without."""
        return Potential(self.model, self.centered.args, self.centered.kwargs)

    @property
    def sites(self) -> list[str]:
        """Names of the sites that U depends on."""
        return [name for name in self.centered.structure.latent if name not in self.groups]

    def __call__(self, z: Values) -> jax.Array:
        return self._integrated(z, self.centered)

    def minibatch(self, z: Values, *rows: Any) -> jax.Array:
        """U(w; I), the likelihood of some rows scaled by N/B; see ``Potential`` for what says which."""
        return self._integrated(z, lambda full: self.centered.minibatch(full, *rows))

    def _integrated(self, z: Values, energy: Callable[[Values], jax.Array]) -> jax.Array:
        full = self.with_precisions(z)
        total = energy(full)
        for name, distribution in self._likely(z).items():
            # The unconstrained precision is its logarithm, whose Jacobian `energy` counts.
            total += jnp.sum(distribution.log_prob(jnp.exp(full[name])) + full[name])
        return total

    def _conditionals(self, z: Values) -> dict[str, dist.Gamma]:
        """Distributions of the precisions given unconstrained values of all other sites."""
        above = {n: jnp.exp(z[n]) for n in self.centered.structure.levels if n not in self.groups}
        return {n: self.centered.levels[n].conditional(z | above) for n in self.groups}

    def _likely(self, z: Values) -> dict[str, dist.Gamma]:
        """These distributions, of means that the prior allows, at which a precision is held."""
        distributions, largest = {}, largest_likely(self.centered.levels)
        for name, distribution in self._conditionals(z).items():
            rate = jnp.maximum(distribution.rate, distribution.concentration / largest[name])
            distributions[name] = Gamma(distribution.concentration, rate)
        return distributions

    def prior_energy(self, z: Values, precisions: Values) -> jax.Array:
        """-log p(w | τ) up to a constant: the energy of the prior at given unconstrained precisions."""
        prior = block(self.centered.bound, hide=self.centered.structure.observed)
        return potential_energy(prior, self.centered.args, self.centered.kwargs, z | precisions)

    def log_likelihood(self, z: Values, model: Callable | None = None) -> jax.Array:
        """log p(y | w) of all observed sites together; `model` may be one of some rows (`rows_of`)."""
        values = self.centered.constrain(self.with_precisions(z))
        by_site = self.centered.log_joint_by_site(values, model)
        return sum((by_site[name] for name in self.centered.structure.observed), jnp.zeros(()))

    def with_precisions(self, z: Values) -> Values:
        """Add unconstrained precisions, as constants: conditional means as far as the prior allows."""
        to_unconstrained = biject_to(constraints.positive).inv
        full = dict(z)
        for name, distribution in self._likely(z).items():
            full[name] = lax.stop_gradient(to_unconstrained(distribution.mean))
        return full

    def begin(self, key: jax.Array, given: Values, shrunk: bool | jax.Array = False) -> Values:
        """A start from a prior draw, of root mean square 1 at most in each site where `shrunk`."""
        drawn = gentle_draw(self.centered, key)
        check_names(given, drawn)
        for name, value in given.items():
            if jnp.shape(value) != jnp.shape(drawn[name]):
                raise ValueError(
                    f"init_params give '{name}' the shape {jnp.shape(value)}, the model has "
                    f"{jnp.shape(drawn[name])}. Give one start, which serves every chain."
                )
        levels = self.centered.structure.levels
        weights = {name: value for name, value in drawn.items() if name not in levels} | given
        z = self.reduce(fill_precisions(self.centered, weights))
        return {
            name: value if name in given else jnp.where(shrunk, _at_most_one(value), value)
            for name, value in z.items()
        }

    def reduce(self, values: Values) -> Values:
        """Unconstrained values from constrained ones of all sites in centred coordinates."""
        unconstrained = self.centered.unconstrain(values)
        return {name: unconstrained[name] for name in self.sites}

    def complete(self, z: Values, key: jax.Array | None = None) -> Values:
        """Unconstrained values of the model's own sites; precisions are drawn by a key, or means."""
        values = self.centered.constrain(self.with_precisions(z))
        if key is None:
            values |= {name: distribution.mean for name, distribution in self._likely(z).items()}
        else:
            for i, (name, distribution) in enumerate(self._conditionals(z).items()):
                values[name] = distribution.sample(jax.random.fold_in(key, i))
        return own_coordinates(self.original, values)

    def draw(self, z: Values, key: jax.Array | None = None) -> Values:
        """Values of every site, like one of ``mcmc.get_samples()``; see :meth:`complete`."""
        return self.original.constrain(self.complete(z, key), deterministic=True)


def _at_most_one(value: jax.Array) -> jax.Array:
    """Scale an array down to a root mean square of 1."""
    largest = jnp.max(jnp.abs(value), initial=1.0)
    # Dividing by the largest value first keeps the squares from overflowing.
    return value / jnp.maximum(largest * jnp.sqrt(jnp.mean((value / largest) ** 2)), 1.0)
