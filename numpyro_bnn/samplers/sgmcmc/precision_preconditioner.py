r"""A preconditioner from the precisions that Gibbs holds fixed: Neal's step sizes for any network.

Given its precisions, a weight has the prior curvature :math:`\tau`, and the data add about the
diagonal of the Fisher information. Neal bounds the latter by a backward pass through layers that his
program knows, with each squared weight replaced by its prior expectation. Here weights are drawn from
that prior instead, with a few fixed keys, and targets from the likelihood at these weights; the
squared gradient of the log likelihood then has the Fisher information as its expectation, whatever
the layers. Like Neal's it depends on precisions and inputs alone and not on the current weights, so
that a trajectory is reversible.

Source: R. M. Neal, *Bayesian Learning for Neural Networks* (1996), appendix A.4, for the idea.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._checks import check_whole
from numpyro_bnn._text import call_of
from numpyro_bnn._types import PyTree
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.potential.flat_position import by_site, flat_like
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.priors.precision_conditionals import levels_of


@dataclass(frozen=True)
class _GivenPrecisions:
    num_draws: int

    varies = False
    needs_warmup = False

    def __repr__(self) -> str:
        return call_of("given_precisions", vars(self))

    def init(self, position: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.ones_like(jnp.asarray(x)), position)

    def update(
        self,
        state: PyTree,
        gradient: PyTree,
        position: PyTree,
        adapting: jax.Array,
        hessian_diagonal: PyTree = None,
    ) -> PyTree:
        return state

    def inverse_mass_matrix(self, state: PyTree) -> PyTree:
        return state

    def divergence(self, state: PyTree) -> PyTree:
        return 0.0

    def after_gibbs(self, potential: Any, state: PyTree) -> PyTree:
        if not isinstance(potential, Potential):
            raise ValueError(
                "given_precisions: a potential function has no precisions to follow. Give the kernel a "
                "model, or use `preconditioners.from_warmup()`."
            )
        keys = jax.random.split(jax.random.key(0), self.num_draws)
        prior, scores = jax.vmap(lambda key: _curvature(potential, key))(keys)
        curvatures = {
            name: (1 / (prior[name].mean(axis=0) + _mean_square(scores[name]))).astype(old.dtype)
            for name, old in by_site(state).items()
        }
        return flat_like(state, curvatures)


def _mean_square(scores: jax.Array) -> jax.Array:
    """Mean square over draws, without those that a wide prior makes non-finite, e.g. a hazard of exp(100)."""
    # A single NaN in the metric would freeze the chain.
    finite = jnp.isfinite(scores**2)
    total = jnp.where(finite, scores**2, 0.0).sum(axis=0)
    return total / jnp.maximum(finite.sum(axis=0), 1)


def _curvature(potential: Potential, key: jax.Array) -> tuple[Values, Values]:
    """Prior curvature and score of unconstrained weights drawn from their prior."""
    key_prior, key_targets = jax.random.split(key)
    drawn = potential.prior_draw(key_prior)

    def sites_at(values: Values) -> dict[str, Any]:
        bound = seed(substitute(potential.bound, data=values), jax.random.key(0))
        return trace(bound).get_trace(*potential.args, **potential.kwargs)

    sites = sites_at(drawn)
    own = [name for name in levels_of(sites) if name in drawn]
    if own:
        raise ValueError(
            f"given_precisions: the precisions {own} move with the weights here, so that the metric "
            "could not follow them. Use it inside Gibbs, which `bnn.neal(model)` builds."
        )
    z = {n: biject_to(sites[n]["fn"].support).inv(drawn[n]) for n in drawn}
    likelihoods = [
        n for n in potential.structure.observed if not isinstance(sites[n]["fn"], dist.Unit)
    ]
    keys = jax.random.split(key_targets, max(1, len(likelihoods)))
    targets = {
        name: jax.lax.stop_gradient(sites[name]["fn"].sample(key))
        for name, key in zip(likelihoods, keys)
    }

    def log_likelihood(z: Values) -> jax.Array:
        at = sites_at(potential.constrain(z))
        terms = [jnp.sum(at[name]["fn"].log_prob(target)) for name, target in targets.items()]
        return sum(terms, start=jnp.zeros(()))

    prior = {name: _prior_curvature(sites[name]["fn"], z[name]) for name in z}
    return prior, jax.grad(log_likelihood)(z)


def _prior_curvature(distribution: dist.Distribution, z: jax.Array) -> jax.Array:
    """1/scale² where the prior has a scale and is on the whole line; 1 in other coordinates."""
    distribution = unwrapped(distribution)
    scale = getattr(distribution, "scale", None)
    if scale is None or distribution.support is not dist.constraints.real:
        return jnp.ones_like(z)
    return jnp.broadcast_to(1 / scale**2, z.shape)


def given_precisions(num_draws: int = 8) -> _GivenPrecisions:
    """The inverse of prior precision plus Fisher information, given the precisions that Gibbs holds fixed.

    It is computed whenever a block of Gibbs has changed the precisions, with `num_draws` gradients on all
    rows. In between it is constant, so that the target is exactly invariant. Step sizes are in units of a
    standard deviation. The likelihood must be a distribution that can be sampled; factors are left out.

    :param num_draws: prior draws averaged; 1 or more.
    :raises ValueError: if `num_draws` is below 1; when run, for precisions in the same block.
    """
    return _GivenPrecisions(check_whole("given_precisions", "num_draws", num_draws))
