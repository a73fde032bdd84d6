"""Randomised versions of a model, with perturbed targets and prior means, for :func:`randomized_map`.

Each observed site with Gaussian noise of known scale gets perturbed targets y + σ ε in its own density: its
mean is moved by -σ ε, and its value stays as it is for other sites that are computed from it (the next value
of a series, a target whose covariate was measured with an error). Any other observed site gets an exponential
weight of mean 1 for every row: adding noise of a scale that is itself fitted would inflate that scale without
end. Given values that tell of no latent site, such as weights under ``condition``, stay as they are. Each
Gaussian prior is centred at a draw from itself (the anchor) in place of its mean; other priors stay as they
are.

A log density that counts w times (`handlers.scale`, weights of rows) is that of w equal rows: its noise has
the standard deviation σ / √w, its weight is the mean of w exponential ones, and an anchor is √w times nearer.
"""

import math
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
from numpyro_bnn.distributions.unwrap import GAUSSIAN, family_of
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.sites import Site, Structure
from numpyro_bnn.potential.structure import blanks

Noise = dict[str, jax.Array]


class perturbed(Messenger):
    """Handler that perturbs targets and prior means by standard normals, and other rows by weights."""

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
            msg["fn"] = moved(fn, shift_of(fn, noise))
            return
        event_dim = fn.event_dim if name in self.known else 0
        for frame in msg["cond_indep_stack"]:
            noise = jnp.take(noise, self.rows[frame.name], frame.dim - event_dim)
        if name in self.known:
            # As a target y + σ ε, which sites that are computed from y must not see.
            msg["fn"] = moved(fn, -lax.stop_gradient(shift_of(fn, noise)))
        else:
            msg["scale"] = noise if msg["scale"] is None else msg["scale"] * noise

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Note the rows that each plate selected, whose noise the sites inside it take."""
        # The rows of a minibatch are decided outside, and known once the plate was entered.
        if msg["type"] == "plate":
            self.rows[msg["name"]] = msg["value"]


def shift_of(distribution: dist.Distribution, noise: jax.Array) -> jax.Array:
    """Draws from a Gaussian distribution around its mean, made of standard normal values."""
    base = family_of(distribution)
    if isinstance(base, dist.Normal):
        return base.scale * noise
    return jnp.squeeze(_root(base) @ noise[..., None], -1)


def moved(distribution: dist.Distribution, shift: jax.Array) -> dist.Distribution:
    """A Gaussian distribution with another mean; masks around it stay."""
    if isinstance(distribution, dist.MaskedDistribution):
        return moved(distribution.base_dist, shift).mask(distribution._mask)
    if isinstance(distribution, dist.Independent):
        return moved(distribution.base_dist, shift).to_event(distribution.reinterpreted_batch_ndims)
    if isinstance(distribution, dist.ExpandedDistribution):
        return moved(distribution.base_dist, shift)
    if isinstance(distribution, dist.Normal):
        return dist.Normal(distribution.loc + shift, distribution.scale)
    return dist.MultivariateNormal(distribution.loc + shift, scale_tril=_root(distribution))


def _root(distribution: dist.Distribution) -> jax.Array:
    """The Cholesky factor of the covariance of a multivariate normal distribution."""
    root = getattr(distribution, "scale_tril", None)
    return jnp.linalg.cholesky(distribution.covariance_matrix) if root is None else root


def known_noise(potential: Potential) -> tuple[frozenset[str], Noise]:
    """Observed sites of known Gaussian noise, and how often sites count where that is not once."""

    @jax.jit
    def found(key: jax.Array) -> tuple[Noise, Noise]:
        drawn = substitute(seed(potential.bound, key), substitute_fn=init_to_sample)
        sites = trace(drawn).get_trace(*potential.args, **potential.kwargs)
        distributions = {
            name: family_of(sites[name]["fn"]) for name in potential.structure.evidence
        }
        gaussian = {name: fn for name, fn in distributions.items() if isinstance(fn, GAUSSIAN)}
        scales = {
            n: fn.covariance_matrix if fn.event_shape else fn.scale for n, fn in gaussian.items()
        }
        kept = {name: sites[name]["scale"] for name in potential.structure.sites if name in sites}
        return scales, {name: count for name, count in kept.items() if count is not None}

    (one, counts), (other, _) = (found(jax.random.key(i)) for i in (0, 1))
    known = frozenset(name for name in one if np.array_equal(one[name], other[name]))
    return known, {name: jnp.asarray(count) for name, count in counts.items()}


def refuse_common_weights(structure: Structure, known: frozenset[str], rows: set[int]) -> None:
    """Refuse a likelihood of which all rows together get one weight, which says nothing of their scatter."""
    # A single observation beside data, such as a constant that was measured, has a weight of its own.
    if rows == {1}:
        return
    # An input of one entry may be no row.
    rows = rows - {1}
    batches = {name: _batch_of(structure.sites[name]) for name in structure.evidence}
    for name in structure.evidence:
        site, batch = structure.sites[name], batches[name]
        event = _full_shape(site)[len(batch) :]
        others = [n for n in structure.evidence if n != name]
        beside = any(
            math.prod(structure.sites[n].shape if n in known else batches[n]) > 1 for n in others
        )
        together = math.prod(batch) == 1 and math.prod(event) != 1 and not beside
        over_rows = bool(rows.intersection(event)) and not rows.intersection(batch)
        if name in known or not (together or over_rows):
            continue
        what = f"'{name}' is one observation of shape {event}"
        if site.factor:
            what = f"the factor '{name}' is one number"
        raise ValueError(
            f"randomized_map: {what}, in which all rows are together, and its noise is not Gaussian of a "
            f"known scale. It would be randomised by weights of rows, of which it takes {math.prod(batch)}. "
            "Give the rows a batch axis (`numpyro.plate`, no `.to_event` over them), or take `laplace`, "
            "`mean_field` or a sampler for one distribution of all rows."
        )


def _full_shape(site: Site) -> tuple[int, ...]:
    """Batch and event shape: values under one distribution without batch axes count once each."""
    return np.broadcast_shapes(site.shape, site.distribution_shape)


def _batch_of(site: Site) -> tuple[int, ...]:
    full = _full_shape(site)
    return full[: len(full) - site.event_dim]


def gaussian_priors(marginal: Marginal) -> list[str]:
    """Sites of a marginal energy whose prior is Gaussian."""
    potential = marginal.centered
    found: list[str] = []

    def visit(key: jax.Array, blank: jax.Array) -> jax.Array:
        shaped = seed(substitute(potential.bound, substitute_fn=blanks(blank)), key)
        sites = trace(shaped).get_trace(*potential.args, **potential.kwargs)
        found.extend(
            name for name in marginal.sites if isinstance(family_of(sites[name]["fn"]), GAUSSIAN)
        )
        return key

    jax.eval_shape(visit, jax.random.key(0), 0.0)
    return found


def draw_noise(
    key: jax.Array, marginal: Marginal, anchored: list[str], known: frozenset[str], counts: Noise
) -> Noise:
    """The noise of one member, for every site that is perturbed."""
    structure = marginal.centered.structure
    noise = {}
    for i, name in enumerate([*anchored, *structure.evidence]):
        site = structure.sites[name]
        drawn = jax.random.fold_in(key, i)
        batch = _batch_of(site)
        gaussian = name in known or not site.observed
        if name in counts:
            count = jnp.broadcast_to(counts[name], batch)
            # What counts nothing has no noise.
            some = jnp.where(count > 0, count, 1)
            once = jnp.where(count > 0, 1 / some, 0)
            if gaussian:
                spread = jnp.sqrt(once).reshape(*batch, *(1,) * site.event_dim)
                noise[name] = spread * jax.random.normal(drawn, site.shape)
            else:
                noise[name] = once * jax.random.gamma(drawn, some)
        elif gaussian:
            noise[name] = jax.random.normal(drawn, site.shape)
        else:
            noise[name] = jax.random.exponential(drawn, batch)
    return noise
