"""Finds the site to predict, and the draws of latent sites that a prediction is made from.

A model is called as ``model(x)`` with new inputs, and its latent sites take the values of a draw. A
deterministic site is always computed again, because it may depend on the inputs.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Predictive

from numpyro_bnn._checks import check_whole
from numpyro_bnn._types import Array, PyTree
from numpyro_bnn.compilation.program_identity import Program
from numpyro_bnn.data.arguments import innermost, prepared
from numpyro_bnn.data.fingerprints import fingerprint, is_same
from numpyro_bnn.likelihoods.noisy_inputs import Measured
from numpyro_bnn.posterior.draws import group_by_chain
from numpyro_bnn.potential.compiled_arguments import Arguments
from numpyro_bnn.potential.data_dependencies import sites_taken
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
    return [name for name, site in structure.sites.items() if site.distribution is Measured]


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
        and sites[n].distribution is not Measured
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
        missing = _missing(structure, samples, target)

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
        drawn = measured_sites(structure)
        missing = [name for name in missing if not sites[name].plates and name not in drawn]
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
    grouped = group_by_chain({name: samples[name] for name in shapes}, shapes)
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
) -> None:
    """Refuse to use latent values of single training rows at other rows, though their number is the same."""
    if fitted is None or target not in structure.sites:
        return
    plates = set(structure.sites[target].plates)
    local = [
        n for n in structure.latent if n in samples and plates & set(structure.sites[n].plates)
    ]
    if not local:
        return
    if not is_of_rows(x, fitted):
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
    :param x: inputs.
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
        return Predictive(model, num_samples=num_samples)(key, x)

    drawn = Program(draw)(key, arguments.arrays)
    shift = getattr(innermost(model), "shift", None)
    if shift is None:
        return drawn
    # The target of a ready model is its last site, whatever `handlers.scope` calls it.
    target = list(structure.sites)[-1]
    return drawn | {target: np.asarray(drawn[target], np.float64) + shift}
