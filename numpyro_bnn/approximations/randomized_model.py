"""Randomised versions of a model, with perturbed targets and prior means, for :func:`randomized_map`.

Each observed site with Gaussian noise of known scale gets perturbed targets y + σ ε. Any other
observed site gets an exponential weight of mean 1 for every row: adding noise of a scale that is
itself fitted would inflate that scale without end. Each Gaussian prior is centred at a draw from
itself (the anchor) in place of its mean; other priors stay as they are.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_sample
from numpyro.primitives import Messenger

from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.structure import blanks

Noise = dict[str, jax.Array]


class perturbed(Messenger):
    """Handler that perturbs a model by given noise.

    :param fn: the model.
    :param noise: by site: standard normal values like the site for observed sites of known
        Gaussian noise and for latent sites, a weight a row for other observed sites.
    :param known: observed sites whose targets are perturbed.
    """

    def __init__(self, fn: Callable | None, noise: Noise, known: frozenset[str]) -> None:
        self.noise = noise
        self.known = known
        self.rows: dict[str, jax.Array] = {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Perturb a site by the noise of this member: a prior mean, a target or a weight of rows."""
        if msg["type"] != "sample" or msg["name"] not in self.noise:
            return
        name, noise, fn = msg["name"], self.noise[msg["name"]], msg["fn"]
        if not msg["is_observed"]:
            base = unwrapped(fn)
            anchor = base.loc + base.scale * noise
            msg["fn"] = dist.Normal(anchor, base.scale).to_event(fn.event_dim)
            return
        event_dim = fn.event_dim if name in self.known else 0
        for frame in msg["cond_indep_stack"]:
            noise = jnp.take(noise, self.rows[frame.name], frame.dim - event_dim)
        if name in self.known:
            msg["value"] = msg["value"] + lax.stop_gradient(unwrapped(fn).scale) * noise
        else:
            msg["scale"] = noise if msg["scale"] is None else msg["scale"] * noise

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Note the rows that each plate selected, whose noise the sites inside it take."""
        # The rows of a minibatch are decided outside, and known once the plate was entered.
        if msg["type"] == "plate":
            self.rows[msg["name"]] = msg["value"]


def known_noise(potential: Potential) -> frozenset[str]:
    """Observed sites that are Gaussian with a scale that no latent site enters."""

    @jax.jit
    def scales(key: jax.Array) -> dict[str, jax.Array]:
        drawn = substitute(seed(potential.bound, key), substitute_fn=init_to_sample)
        sites = trace(drawn).get_trace(*potential.args, **potential.kwargs)
        found = {name: unwrapped(sites[name]["fn"]) for name in potential.structure.observed}
        return {name: fn.scale for name, fn in found.items() if isinstance(fn, dist.Normal)}

    one, other = (scales(jax.random.key(i)) for i in (0, 1))
    return frozenset(name for name in one if np.array_equal(one[name], other[name]))


def gaussian_priors(marginal: Marginal) -> list[str]:
    """Sites of a marginal energy whose prior is Gaussian."""
    potential = marginal.centered
    found: list[str] = []

    def visit(key: jax.Array, blank: jax.Array) -> jax.Array:
        shaped = seed(substitute(potential.bound, substitute_fn=blanks(blank)), key)
        sites = trace(shaped).get_trace(*potential.args, **potential.kwargs)
        found.extend(
            name for name in marginal.sites if isinstance(unwrapped(sites[name]["fn"]), dist.Normal)
        )
        return key

    jax.eval_shape(visit, jax.random.key(0), 0.0)
    return found


def draw_noise(
    key: jax.Array, marginal: Marginal, anchored: list[str], known: frozenset[str]
) -> Noise:
    """The noise of one member, for every site that is perturbed.

    :param key: random key.
    :param marginal: energy of the model as it is.
    :param anchored: latent sites with Gaussian priors.
    :param known: observed sites with known Gaussian noise.
    """
    structure = marginal.centered.structure
    noise = {}
    for i, name in enumerate([*anchored, *structure.observed]):
        site = structure.sites[name]
        drawn = jax.random.fold_in(key, i)
        if name in known or not site.observed:
            noise[name] = jax.random.normal(drawn, site.shape)
        else:
            batch = site.distribution_shape[: len(site.distribution_shape) - site.event_dim]
            noise[name] = jax.random.exponential(drawn, batch)
    return noise
