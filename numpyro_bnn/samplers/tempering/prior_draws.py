"""Draws from the prior of a model: states of the first rung of the ladder, and starts of the others."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.distributions import MaskedDistribution
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_uniform

from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.samplers.gibbs.precision_redraw import top_precisions

# Starts come from the best of so many prior draws a rung.
_DRAWS_A_RUNG = 16


def prior_draw(potential: Potential, key: jax.Array) -> Values:
    """A draw from the prior, unconstrained."""
    key_tops, key = jax.random.split(key)
    # Precisions by one call: a loop of proposals for each would take half a second to compile.
    return potential.unconstrain(potential.prior_draw(key, top_precisions(key_tops, potential)))


def finite_or_before(drawn: Values, before: Values) -> Values:
    """The drawn values; the values before where a drawn one is not finite."""
    fine = jnp.isfinite(ravel_pytree(drawn)[0]).all()
    return jax.tree.map(lambda new, old: jnp.where(fine, new, old), drawn, before)


def best_draws(potential: Potential, key: jax.Array, num_rungs: int) -> Values:
    """Prior draws of the highest likelihood, the highest for the posterior's rung."""
    keys = jax.random.split(key, _DRAWS_A_RUNG * num_rungs)
    # One after another: draws for a vector of keys take several times as long to compile.
    draws = lax.map(partial(prior_draw, potential), keys)
    prior, likelihood = jax.vmap(potential.energies)(draws)
    likelihood = jnp.where(jnp.isnan(likelihood), jnp.inf, likelihood)
    usable = jnp.isfinite(prior)
    best = jnp.argsort(jnp.where(usable, likelihood, jnp.inf))[:num_rungs][::-1]
    return jax.tree.map(lambda leaf: leaf[best], draws)


def refuse_improper(potential: Potential) -> None:
    """Refuse latent sites whose prior density is not that of draws from their distribution.

    :raises ValueError: naming the sites.
    """
    faults: dict[str, str] = {}

    def value(site: dict[str, Any]) -> Any:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        name, distribution = site["name"], site["fn"]
        while distribution is not None:
            if isinstance(distribution, MaskedDistribution):
                faults[name] = "masked"
            distribution = getattr(distribution, "base_dist", None)
        if site["scale"] is not None:
            faults[name] = "scaled"
        try:
            return site["fn"](**site["kwargs"])
        except NotImplementedError:
            faults[name] = "improper"
            return init_to_uniform(site)

    def trace_model(key: jax.Array) -> jax.Array:
        model = substitute(seed(potential.bound, key), substitute_fn=value)
        trace(model).get_trace(*potential.args, **potential.kwargs)
        return key

    jax.eval_shape(trace_model, jax.random.key(0))
    if faults:
        named = ", ".join(f"'{name}' ({fault})" for name, fault in faults.items())
        raise ValueError(
            f"ParallelTempering begins at the prior, and there is none to draw from at {named}. Give "
            "these sites a proper distribution, without `mask` or `scale` around it."
        )
