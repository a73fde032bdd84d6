"""Draws from the prior of a model: states of the first rung of the ladder, and starts of the others."""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from numpyro.distributions import Normal
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_uniform

from numpyro_bnn.distributions.gamma import standard_gamma
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.potential.sites import Structure, altered
from numpyro_bnn.samplers.sgmcmc.noise import normal_like

# Number of prior draws for each rung, the best of which are starts.
_DRAWS_A_RUNG = 16
_NONE = np.zeros(0)


def prior_noise(
    structure: Structure, key: jax.Array, count: tuple[int, ...] = (), more: np.ndarray = _NONE
) -> tuple[Values, jax.Array]:
    """Standard noise for Gaussian and Gamma sites of `count` prior draws, and draws of Gamma(`more`, 1)."""
    # One call draws all normals, another one all Gamma variates: a loop of proposals for each
    # site would take half a second to compile. Leaves are (*count, …).
    key_normals, key_gammas = jax.random.split(key)
    sites = {name: structure.sites[name] for name in structure.latent}
    real = jnp.result_type(float)
    shapes = {name: (*count, *site.shape) for name, site in sites.items()}
    noise: Values = normal_like(
        key_normals,
        {
            n: jax.ShapeDtypeStruct(shapes[n], real)
            for n, s in sites.items()
            if s.distribution is Normal
        },
    )
    gammas = {n: site.concentration for n, site in sites.items() if site.concentration is not None}
    known = [np.full(prod(shapes[name]), number) for name, number in gammas.items()]
    flat = np.concatenate([*known, more.reshape(-1)])
    if not flat.size:
        return noise, jnp.zeros(more.shape, real)
    # The barrier keeps the compiler from repeating the work for each part.
    drawn = lax.optimization_barrier(standard_gamma(key_gammas, flat, flat.shape))
    *parts, rest = jnp.split(drawn, np.cumsum([len(one) for one in known]))
    by_site = {name: part.reshape(shapes[name]) for name, part in zip(gammas, parts)}
    return noise | by_site, rest.reshape(more.shape)


def prior_draw(potential: Potential, key: jax.Array, noise: Values | None = None) -> Values:
    """A draw from the prior, unconstrained; `noise` is that of :func:`prior_noise`."""
    if noise is None:
        key_noise, key = jax.random.split(key)
        noise, _ = prior_noise(potential.structure, key_noise)
    return potential.unconstrain(potential.prior_draw(key, noise=noise))


def finite_or_before(drawn: Values, before: Values) -> Values:
    """The drawn values; the values before where a drawn one is not finite."""
    fine = jnp.isfinite(ravel_pytree(drawn)[0]).all()
    return jax.tree.map(lambda new, old: jnp.where(fine, new, old), drawn, before)


def best_draws(potential: Potential, key: jax.Array, num_rungs: int) -> Values:
    """Prior draws of the highest likelihood, the highest for the posterior's rung."""
    count = _DRAWS_A_RUNG * num_rungs
    key_noise, key = jax.random.split(key)
    noise, _ = prior_noise(potential.structure, key_noise, (count,))
    # One after another: draws for a vector of keys take several times as long to compile.
    draws = lax.map(
        lambda given: prior_draw(potential, *given), (jax.random.split(key, count), noise)
    )
    prior, likelihood = jax.vmap(potential.energies)(draws)
    likelihood = jnp.where(jnp.isnan(likelihood), jnp.inf, likelihood)
    usable = jnp.isfinite(prior)
    best = jnp.argsort(jnp.where(usable, likelihood, jnp.inf))[:num_rungs][::-1]
    return jax.tree.map(lambda leaf: leaf[best], draws)


def refuse_improper(potential: Potential) -> None:
    """Refuse latent sites whose prior density is not that of draws from their distribution."""
    faults: dict[str, str] = {}

    def value(site: dict[str, Any]) -> Any:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        name = site["name"]
        fault = altered(site)
        if fault is not None:
            faults[name] = fault
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
