"""What a prediction is made of: site, draws of latent sites, and the compiled program of a block of rows.

A model is called as ``model(x)`` with new inputs, and its latent sites take the values of a draw. A
deterministic site is always computed again, because it may depend on the inputs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import Predictive

from numpyro_bnn._calls import result_or_error
from numpyro_bnn._checks import check_whole
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import innermost, prepared
from numpyro_bnn.data.fingerprints import fingerprint, is_same
from numpyro_bnn.data.units import taken
from numpyro_bnn.distributions.distribution_functions import (
    distribution_function,
    in_double_precision,
)
from numpyro_bnn.distributions.unwrap import family_of, of_known, unmasked
from numpyro_bnn.likelihoods.noisy_inputs import given_measurements
from numpyro_bnn.posterior.draws import group_by_chain, one_draw
from numpyro_bnn.posterior.predictive_draws import OF_KNOWN
from numpyro_bnn.potential.compiled_arguments import Arguments, map_in_blocks
from numpyro_bnn.potential.data_dependencies import sites_taken
from numpyro_bnn.potential.rows_in_parts import same_in_parts
from numpyro_bnn.potential.sites import Structure
from numpyro_bnn.potential.structure import as_jax, check_arguments, structure_of

_SIGNATURE = "give it the signature `def model(x, y=None)`"
_KNOWN = "Latent values of single rows are known for the rows of the fit alone: predict at those."
_BY_SITE = (
    "A likelihood that is a `numpyro.factor` has no target to predict: record what you want with "
    "`numpyro.deterministic('f', net(x))`, leave the factor out where y is None, and pass `site='f'`"
)


class ModelCall(NamedTuple):
    """A call of a model without a target: what predictions are made from."""

    model: Callable
    structure: Structure
    arguments: tuple[tuple, dict[str, PyTree]]


def structure_at(model: Callable, *args: PyTree, **kwargs: PyTree) -> Structure:
    """Sites and plates of the model at new inputs, without a target."""
    try:
        return structure_of(model, args, kwargs)
    except (TypeError, AttributeError) as error:
        said = f"predict calls the model as `model(x)`, without a target: {_SIGNATURE}. {_BY_SITE}."
        error.add_note(said)
        raise


def of_all_rows(samples: Mapping[str, Array], elsewhere: Collection[str]) -> Mapping[str, Array]:
    """Draws without what belongs to the rows of the fit alone: missing targets, and inputs measured there."""
    imputed = [name for name in samples if name.endswith("_unobserved")]
    own = {*elsewhere, *imputed, *(name.removesuffix("_unobserved") for name in imputed)}
    return {n: v for n, v in samples.items() if n not in own} if own else samples


def measured_sites(structure: Structure) -> list[str]:
    """Inputs with an error, which are drawn given their measurements where they have no draws."""
    return [name for name in structure.latent if structure.sites[name].measured]


def is_of_rows(x: PyTree, fitted: PyTree | str | None) -> bool:
    """Whether inputs are those of a fit, given as they were or by their fingerprint."""
    own = fitted if isinstance(fitted, str) else fingerprint(fitted)
    return fitted is not None and is_same(fingerprint(x), own)


def site_in(structure: Structure, site: str | None) -> str | None:
    """The name that a site has in a model: ``obs_mask=`` makes two sites of one."""
    masked = f"{site}_observed"
    return masked if masked in structure.sites else site


def targets_without_draws(structure: Structure, samples: Collection[str]) -> list[str]:
    """Sites without draws, of which the target is one; none that belongs to a weight with draws."""
    sites = {
        name: site
        for name, site in structure.sites.items()
        if f"{name.removesuffix('_unobserved')}_observed" not in structure.sites
    }
    # Sites that belong to a weight (its precision, its standardised value) are not needed once the weight
    # itself is given.
    weights = tuple(f"{name}." for name in samples)
    without = [
        n
        for n in sites
        if n not in samples
        and not n.startswith(weights)
        and not sites[n].factor
        and not sites[n].measured
    ]
    # A site that `condition` gives a value keeps it, while the target of `model(x)` has none.
    return [n for n in without if not sites[n].observed] or without


def target_of(call: ModelCall, samples: Collection[str], site: str | None) -> str:
    """The site to predict: the one that was asked for, or the only one without draws."""
    structure = call.structure
    sites, without = structure.sites, targets_without_draws(structure, samples)
    computed = [name for name in structure.deterministic if name not in structure.parameters]
    if site is not None:
        known = [name for name in sites if not sites[name].factor] + computed
        if site not in known:
            raise ValueError(f"predict: no sample site named {site!r}; there are {known}.")
        without = [site]
    if len(without) == 1:
        (target,) = without
        drawn = measured_sites(structure)
        missing = [n for n in _missing(structure, samples, target) if n not in drawn]

        def takes(site: str, other: str) -> bool:
            # Also through sites without draws, which are drawn.
            return bool(_needed(call, samples, site, [other]))

        for name in structure.observed:
            if told := [n for n in missing if takes(target, n) and takes(name, n)]:
                raise ValueError(
                    f"predict: '{target}' is computed from the latent sites {told}, which have no draws at "
                    f"these rows, while '{name}' is observed at them and tells of {told}, as measured "
                    "inputs do. Values from the prior would ignore it. For inputs with a known error use "
                    "`bnn.noisy_inputs`; else predict at the rows of the fit, with the draws of the run."
                )
        missing = [name for name in missing if not sites[name].plates]
        if needed := _needed(call, samples, target, missing):
            raise ValueError(
                f"predict: no draws for the latent sites {needed}, from which '{target}' is computed. Give "
                "draws with these sites. Where the fit observed them, predict with their values: "
                f"`numpyro.handlers.condition(model, {{{needed[0]!r}: …}})` as the model."
            )
        return target
    if not without:
        there = f" The model has {computed} to choose from." if computed else ""
        raise ValueError(
            "predict: the model has no target without draws. Leave `y` absent: the model is called "
            f"as `model(x)`, so {_SIGNATURE}. {_BY_SITE}.{there}"
        )
    raise ValueError(
        f"predict: the sites {without} have no draws, so which is the target? `predict`, `diagnose`, "
        "`stack`, `export` and `check_fit` take its name as `site=`; functions without it, such as "
        "`calibrate` and `thin`, take a model with one target. Give draws for latent sites: they would come "
        "from the prior."
    )


def sites_without_draws(call: ModelCall, samples: Collection[str], target: str) -> list[str]:
    """Latent sites without draws that a target is computed from: predictions draw them from their priors."""
    return _needed(call, samples, target, _missing(call.structure, samples, target))


def _missing(structure: Structure, samples: Collection[str], target: str) -> list[str]:
    """Latent sites without draws but the target."""
    return [name for name in structure.latent if name != target and name not in samples]


def _needed(
    call: ModelCall, samples: Collection[str], target: str, missing: list[str]
) -> list[str]:
    """Those of some sites without draws that the target is computed from."""
    if not missing:
        return []
    sites = call.structure.sites
    discrete = {name for name, site in sites.items() if site.discrete}
    values = {
        name: jnp.zeros(shape, int if name in discrete else float)
        for name, shape in call.structure.shapes.items()
        if name != target and (name in samples or name in missing)
    }
    args, kwargs = as_jax(call.arguments)
    taken = sites_taken(call.model, args, kwargs, target, values)
    return [name for name in missing if name in taken]


def draws_for(
    call: ModelCall,
    samples: Mapping[str, Array],
    target: str,
    batch_size: int,
    extended: Collection[str] = (),
) -> dict[str, Array]:
    """The draws whose values the sites of the model take, with axes (chain, draw)."""
    structure, arguments = call.structure, call.arguments
    shapes = {n: shape for n, shape in structure.shapes.items() if n in samples and n != target}
    # None are left where all belong to inputs that were measured elsewhere.
    grouped = group_by_chain({name: samples[name] for name in shapes}, shapes) if shapes else {}
    size = len(jax.tree.leaves(arguments[0][0])[0])
    whole = structure if size <= batch_size else structure_of(call.model, *arguments)
    for name, value in grouped.items():
        own, expected = tuple(np.shape(value)[2:]), whole.shapes.get(name)
        if name in extended:
            continue
        if own != expected:
            raise ValueError(
                f"predict: draws of '{name}' have values of shape {own}, but for {size} rows the "
                f"model has it with shape {expected}. {_KNOWN} Without draws of it, `site={target!r}`, it is "
                "drawn from its prior, which is right where nothing that is observed at x tells of it."
            )
        if expected != shapes[name]:
            raise ValueError(
                f"predict: '{name}' has a value for every row, and rows are predicted {batch_size} "
                f"at a time. Take all at once: `batch_size={size}`."
            )
    return grouped


def check_same_rows(
    structure: Structure,
    samples: Collection[str],
    target: str,
    x: PyTree,
    fitted: PyTree | str | None,
    count: int,
    at_rows: Callable[[int], Structure],
) -> None:
    """Refuse to use latent values of single training rows at other rows, though their number is the same."""
    if fitted is None or target not in structure.sites or count < 2:
        return
    shapes = structure.shapes
    drawn = [n for n in structure.latent if n in samples and count in shapes[n]]
    if not drawn or is_of_rows(x, fitted):
        return
    # Values of rows are those that change with them, under the plate of the rows or not.
    fewer = result_or_error(lambda: at_rows(count - 1).shapes)
    if local := [n for n in drawn if isinstance(fewer, Exception) or fewer.get(n) != shapes[n]]:
        raise ValueError(
            f"predict: the latent sites {local} have a value for every row of the fit, and x holds "
            f"other rows. {_KNOWN} Without draws of them, `site={target!r}`, they are drawn from their "
            "prior, which is right where nothing that is observed at x tells of them."
        )


def prior_predictive(
    model: Callable, key: jax.Array, x: PyTree, num_samples: int
) -> dict[str, jax.Array]:
    """Draw weights and targets from the prior.

    :param model: the model, called as ``model(x)``.
    :param key: random key.
    :param x: inputs; other arguments by row belong into it, as a dictionary.
    :param num_samples: number of draws.
    :return: values of every site, with a leading axis of `num_samples`.
    :raises ValueError: if `num_samples` is not positive or x has no rows.
    :raises TypeError: if the model needs more than x.
    """
    num_samples = check_whole("prior_predictive", "num_samples", num_samples)
    check_arguments((x,), {})
    (x,), _ = prepared(model, (x,), {})
    structure = structure_at(model, x)
    arguments = Arguments.split(as_jax((x,)), {})

    def draw(key: jax.Array, arrays: list[jax.Array]) -> dict[str, jax.Array]:
        (x,), _ = Arguments.join(arrays, arguments.static)
        return Predictive(given_measurements(model), num_samples=num_samples)(key, x)

    drawn = Program(draw)(key, arguments.arrays)
    shift = getattr(innermost(model), "shift", None)
    if shift is None:
        return drawn
    # The target of a ready model is its last site, whatever `handlers.scope` calls it.
    target = list(structure.sites)[-1]
    return drawn | {target: np.asarray(drawn[target], np.float64) + shift}


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
    grouped = group_by_chain({name: samples[name] for name in shapes}, shapes) if shapes else {}
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
    leaves = jax.tree.leaves(distribution)
    found = [leaf for leaf in leaves if isinstance(leaf, (jax.Array, np.ndarray))]
    shape = distribution.shape()
    if shape and len(shape) == family_of(distribution).event_dim:
        # One joint distribution of all rows: this array by pairs of rows makes them dependent.
        found.append(jnp.zeros((shape[0], shape[0])))
    return [jnp.asarray(leaf) for leaf in found]
