"""The compiled program that predicts a block of rows; whether predictions of rows depend on one another."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.units import taken
from numpyro_bnn.distributions.distribution_functions import (
    distribution_function,
    in_double_precision,
)
from numpyro_bnn.distributions.unwrap import family_of, of_known, unmasked
from numpyro_bnn.posterior.draws import group_by_chain, one_draw
from numpyro_bnn.posterior.prediction_sites import ModelCall
from numpyro_bnn.posterior.predictive_draws import OF_KNOWN
from numpyro_bnn.potential.compiled_arguments import Arguments, map_in_blocks
from numpyro_bnn.potential.data_dependencies import Place
from numpyro_bnn.potential.rows_in_parts import same_in_parts

# Draws in one vector.
VECTOR = 32
# What is drawn: a target under each draw, or several.
DRAWN = ("sample", "targets")


def flat_draws(draws: PyTree) -> PyTree:
    """Draws of all chains in a row, (draw, …)."""
    return draws.reshape(draws.shape[0] * draws.shape[1], *draws.shape[2:])


def programs_of(model: Callable, target: str, static: tuple) -> Callable[[str], Program]:
    """Compiled programs ``(draws, arrays, extra, keys) -> values by name``, by what they compute."""

    def over_draws(what: str, draws: Any, arrays: Any, extra: Any, prior_keys: Any) -> Any:
        args, kwargs = Arguments.join(arrays, static)

        def one(given: tuple) -> dict[str, jax.Array]:
            draw, key, prior_key = given
            # This key serves the target, and latent values of single rows that have no draws.
            seeded = seed(model, jax.random.key(0) if prior_key is None else prior_key)
            site = trace(substitute(seeded, data=draw)).get_trace(*args, **kwargs)[target]
            if site["type"] == "deterministic":
                return {"mean": site["value"]}
            if what == "parameters":
                return parameters_of(site["fn"])
            fn = in_double_precision(site["fn"])
            if what.startswith("log_"):
                part = unmasked(fn) if what.startswith("log_prob") else fn
                if what not in OF_KNOWN:
                    return {what: part.log_prob(extra)}
                # The distribution may allow for rows without any target.
                known = ~jnp.isnan(extra) | jnp.isnan(extra).all(-1, keepdims=True)
                return {what: of_known(part, known).log_prob(jnp.where(known, extra, 0))}
            if what == "cdf":
                return {"cdf": distribution_function(fn, extra)}
            if what == "sample":
                return {"sample": fn.sample(key)}
            return {"targets": jnp.moveaxis(jax.vmap(fn.sample)(key), 0, -1)}

        # Flattened in here: outside, the shape of every site would be compiled by itself.
        flat, own = jax.tree.map(flat_draws, (draws, prior_keys))
        keys = flat_draws(extra) if what in DRAWN else None
        return map_in_blocks(one, (flat, keys, own), VECTOR)

    return cache(lambda what: Program(partial(over_draws, what)))


def parameters_of(fn: dist.Distribution) -> dict[str, jax.Array]:
    """The parameters of a target's distribution that predictions hold: probabilities, or mean and scale."""
    base = family_of(fn)
    if isinstance(base, (dist.CategoricalProbs, dist.CategoricalLogits)):
        shape = (*fn.batch_shape, *fn.event_shape, base.probs.shape[-1])
        return {"probs": jnp.broadcast_to(base.probs, shape)}
    if isinstance(base, (dist.BernoulliProbs, dist.BernoulliLogits)):
        p = jnp.broadcast_to(base.probs, fn.batch_shape + fn.event_shape)
        return {"probs": jnp.stack([1 - p, p], -1)}
    shape = fn.batch_shape + fn.event_shape
    try:
        mean, scale = fn.mean, _scale_of(fn)
    except NotImplementedError:
        raise NotImplementedError(
            f"predict: the distribution of the target, {type(base).__name__}, has no mean or no variance in "
            "NumPyro. Use one that has both, such as dist.Normal(loc + scale * f, …) for a transformed one, "
            "or a subclass with the properties `mean` and `variance`."
        ) from None
    return {"mean": jnp.broadcast_to(mean, shape), "scale": jnp.broadcast_to(scale, shape)}


def _scale_of(fn: dist.Distribution) -> jax.Array:
    """The standard deviation, also where NumPyro's variance overflows or subtracts large numbers."""
    base = family_of(fn)
    if isinstance(base, dist.LogNormal):
        return base.mean * jnp.sqrt(jnp.expm1(base.scale**2))
    if isinstance(base, dist.Weibull):
        x = 1 / base.concentration
        # log Γ(1 + 2x) - 2 log Γ(1 + x) by its series where nothing is left of the difference.
        series = x**2 * (1.6449341 - x * (2.4041138 - x * (3.7881313 - x * 6.2215665)))
        apart = jnp.where(x < 0.03, series, gammaln(1 + 2 * x) - 2 * gammaln(1 + x))
        return base.mean * jnp.sqrt(jnp.expm1(apart))
    if isinstance(base, (dist.ZeroInflatedProbs, dist.HurdleProbs)):
        part, missing = base.base_dist, jnp.zeros(())
        if isinstance(base, dist.HurdleProbs) and base.support.is_discrete:
            missing = jnp.exp(part.log_prob(jnp.zeros((), int)))
        share = (1 - base.gate) / (1 - missing)
        return jnp.sqrt(share * (_scale_of(part) ** 2 + (1 - share) * part.mean**2))
    return jnp.sqrt(fn.variance)


# As many blocks of one draw take no more memory than a block of a vector of draws.
_BLOCKS = 32


def rows_depend(call: ModelCall, target: str, samples: Mapping[str, Array], part: int) -> bool:
    """Whether the distribution of a target at a row is another among other rows, under the first draw."""
    model, structure, arguments = call
    size = len(jax.tree.leaves(arguments[0][0])[0])
    shapes = {n: s for n, s in structure.shapes.items() if n in samples and n != target}
    grouped = group_by_chain({name: samples[name] for name in shapes}, shapes)
    arrays, static = Arguments.split(*arguments)
    # Draws from the prior of single rows, and dropout masks.
    drawn = structure.takes_keys or any(
        structure.sites[name].plates for name in structure.latent if name not in {target, *shapes}
    )

    def parameters(draw: dict[str, jax.Array], arrays: Sequence[jax.Array]) -> list[jax.Array]:
        args, kwargs = Arguments.join(arrays, static)
        given = substitute(seed(model, jax.random.key(0)), data=draw)
        return _numbers_of(trace(given).get_trace(*args, **kwargs)[target])

    def given(rows: np.ndarray) -> tuple[dict[str, Any], Any]:
        return one_draw(grouped, 0, 0), taken(arrays, rows, size)

    try:
        return not same_in_parts(parameters, given, size, part, _BLOCKS * part, drawn)
    except (TypeError, ValueError):
        # Draws of values of single rows do not fit fewer rows; those who predict blocks refuse them.
        return False


def _numbers_of(site: dict[str, Any]) -> list[jax.Array]:
    """Parameters of the distribution of a site, or its value where it is computed."""
    if site["type"] == "deterministic":
        return [jnp.asarray(site["value"])]
    distribution = site["fn"]
    found = [
        leaf for leaf in jax.tree.leaves(distribution) if isinstance(leaf, (jax.Array, np.ndarray))
    ]
    shape = distribution.shape()
    if shape and len(shape) == family_of(distribution).event_dim:
        # One joint distribution of all rows: this array by pairs of rows makes them dependent.
        found.append(jnp.zeros((shape[0], shape[0])))
    return [jnp.asarray(leaf) for leaf in found]


def dependent_rows_message(size: int, batch_size: int, others: Sequence[Place]) -> str:
    """The error for blocks of rows that depend on one another."""
    named = [f"'{p}'" if isinstance(p, str) else f"number {p + 1}" for p in others]
    names = ", ".join(named)
    table = (
        f" If the argument {names}, which is as long as x, is not by row, give it another length."
    )
    return (
        f"predict: among {batch_size} rows a row has other predictions than among more: the model relates "
        "rows, as one does that standardises its inputs by their own mean, or has lags or a recurrent "
        "network along the rows. Blocks of them would be predicted wrongly. Predict all together, "
        f"`batch_size={size}`, or leave it out.{table if named else ''}"
    )
