"""Finds the latent sites in which one parameter of the target is affine: weights of the output layer.

The mean of a Gaussian target, or the logit of a class, is affine in the weights of the last layer, whatever
the network. NumPyro's provenance says what depends on them, and JAX can transpose only what is affine. An
:class:`Asked` says which distributions and priors the caller can use.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.extend import core
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer import init_to_sample
from numpyro.ops.provenance import track_deps_jaxpr

from numpyro_bnn.distributions.unwrap import blanks, unwrapped
from numpyro_bnn.priors.hierarchical import enclosing_handlers

Values = dict[str, Any]


class Asked(NamedTuple):
    """What a caller needs of a target and of the weights, and how its errors say so."""

    owner: str
    # Distributions that the target may have, and their name.
    families: tuple[type[dist.Distribution], ...]
    family_words: str
    # The parameter that is to be affine in the weights, and its name.
    part: str
    part_words: str
    # Distributions that the weights may have, and their name.
    priors: tuple[type[dist.Distribution], ...]
    prior_words: str
    for_other_distributions: str  # What to do with another target
    why_unscaled: str  # Why its density may not be scaled
    of_other_priors: str  # Which priors do not fit, or what becomes of their weights


class SiteParts(NamedTuple):
    """Sites of a model and the program that computes their parameters, from an abstract trace."""

    asked: Asked
    shapes: dict[str, tuple[int, ...]]  # Shapes of the latent sites
    # Latent sites outside of plates with one of those priors, whose value no outer handler gives.
    candidates: list[str]
    observed: dict[str, dist.Distribution]  # Distribution of each observed site
    scaled: list[str]  # Observed sites whose log density a handler multiplies
    # From the latent values, in order of their names, to the parts of log densities: the parameters of all
    # distributions, the values of observed sites, and scales.
    program: core.ClosedJaxpr
    # Site and parameter (or `"value"`, `"scale"`) that each output of the program belongs to.
    owners: list[tuple[str, str]]
    sources: list[frozenset[str]]  # Latent sites that each output depends on


def quiet_trace(
    model: Callable, values: Mapping[str, Any], others: Callable | None = None
) -> dict[str, Any]:
    """A trace that outer handlers do not see; `others` gives values of sites not in `values`."""
    # Substitute values first: tracing random draws of all sites takes longer than the rest.
    known = substitute(seed(model, jax.random.key(0)), data=dict(values))
    # What outer handlers would record is hidden; others (coordinates, keys, networks) pass.
    recorded = ("sample", "deterministic", "param", "plate", "mutable")
    with block(hide_fn=lambda message: message["type"] in recorded):
        return dict(trace(substitute(known, substitute_fn=others or _drawn)).get_trace())


def _drawn(message: dict[str, Any]) -> Any:
    """A draw of a site that has no value yet."""
    has_value = message["type"] != "sample" or message["value"] is not None
    return None if has_value else init_to_sample(message)


def parts_of(model: Callable, asked: Asked) -> SiteParts:
    """The sites of a model without arguments, and the program of their parameters."""
    kept: dict[str, Any] = {}

    def shapes(number: jax.Array) -> jax.Array:
        for name, site in quiet_trace(model, {}, blanks(number)).items():
            if site["type"] == "sample":
                kept[name] = {"shape": jnp.shape(site["value"]), **site, "value": None}
        return number

    jax.eval_shape(shapes, 0.0)
    observed = [name for name, site in kept.items() if site["is_observed"]]
    latent = {
        name: site["shape"]
        for name, site in kept.items()
        if name not in observed and not site["fn"].support.is_discrete
    }
    owners: list[tuple[str, str]] = []

    def distributions(values: Values) -> list[Any]:
        owners.clear()
        parts: list[Any] = []
        for name, site in quiet_trace(model, values).items():
            if site["type"] != "sample":
                continue
            base = unwrapped(site["fn"])
            if name in observed and isinstance(base, asked.families):
                own = [(part, getattr(base, part)) for part in base.arg_constraints]
            else:
                own = [("distribution", leaf) for leaf in jax.tree.leaves(site["fn"])]
            if name in observed:
                # `obs=` may be computed from weights too: a soft constraint, a residual.
                own += [("value", leaf) for leaf in jax.tree.leaves(site["value"])]
            own += [("scale", leaf) for leaf in jax.tree.leaves(site["scale"])]
            owners.extend((name, part) for part, _ in own)
            parts.extend(leaf for _, leaf in own)
        return parts

    kinds = {
        name: jax.ShapeDtypeStruct(shape, jnp.zeros(()).dtype) for name, shape in latent.items()
    }
    program = jax.make_jaxpr(distributions)(kinds)
    sources = track_deps_jaxpr(program.jaxpr, [frozenset([name]) for name in sorted(kinds)])
    candidates = [
        name
        for name in latent
        if isinstance(unwrapped(kept[name]["fn"]), asked.priors)
        and not kept[name]["cond_indep_stack"]
        and kept[name]["scale"] is None
        and not enclosing_handlers(name).is_given
    ]
    # Measurements of inputs are no targets.
    targets = [name for name in observed if "measured" not in kept[name]["infer"]]
    families = {name: unwrapped(kept[name]["fn"]) for name in targets}
    scaled = [name for name in observed if kept[name]["scale"] is not None]
    return SiteParts(asked, latent, candidates, families, scaled, program, list(owners), sources)


def target_of(parts: SiteParts) -> str:
    """The one observed, unscaled site with a distribution of the families asked for."""
    asked = parts.asked
    targets = [
        name
        for name, distribution in parts.observed.items()
        if isinstance(distribution, asked.families)
    ]
    if len(targets) > 1:
        # Weights whose values are given are observed too, with a mean that depends on no latent site.
        moving = [owner for owner, latent in zip(parts.owners, parts.sources) if latent]
        targets = [name for name in targets if (name, asked.part) in moving]
    if len(targets) != 1:
        distributions = {name: type(one).__name__ for name, one in parts.observed.items()}
        raise ValueError(
            f"{asked.owner}: expected one observed site with {asked.family_words}, and the "
            f"model observes {distributions}. {asked.for_other_distributions}"
        )
    if targets[0] in parts.scaled:
        raise ValueError(
            f"{asked.owner}: the log density of '{targets[0]}' is scaled (a minibatch, or weights "
            f"of rows), and {asked.why_unscaled}. Use all rows with equal weights: no "
            "`subsample_size=`, `batch_size=` or `handlers.scale`."
        )
    return targets[0]


def chosen(parts: SiteParts, target: str, sites: tuple[str, ...] | None) -> list[str]:
    """Latent sites that the target is affine in: those named, or all."""
    asked = parts.asked
    alone = {name: trouble(parts, target, [name]) for name in parts.candidates}
    if sites is None:
        weights = [name for name, reason in alone.items() if reason == ""]
        if not weights:
            listed = ", ".join(f"'{name}' since {reason}" for name, reason in alone.items())
            reasons = f" (not {listed})" if listed else ""
            raise ValueError(
                f"{asked.owner}: no latent site has a {asked.prior_words} prior and a "
                f"{asked.part_words} of '{target}' that is affine in it, and enters no other density. The "
                f"{asked.prior_words} ones are {parts.candidates}{reasons}; {asked.of_other_priors}."
            )
    else:
        weights = [n for n in alone if n in sites or n.removesuffix(".base") in sites]
        wrong = [n for n in sites if n not in weights and f"{n}.base" not in weights]
        if wrong:
            raise ValueError(
                f"{asked.owner}: sites names {wrong}. Those that could be used, with a {asked.prior_words} "
                "prior, outside of plates, unscaled and without a value from a handler, are "
                f"{parts.candidates}."
            )
    if reason := trouble(parts, target, weights):
        raise ValueError(
            f"{asked.owner}: the model is not linear in {weights} at once: {reason}. Name those "
            "of one layer with `sites=[…]`."
        )
    return weights


def trouble(parts: SiteParts, target: str, weights: list[str]) -> str:
    """The reason why weights cannot be used; empty where they can."""
    own = (target, parts.asked.part)
    said = f"the {parts.asked.part_words} of '{target}'"
    depend = [o for o, latent in zip(parts.owners, parts.sources) if not latent.isdisjoint(weights)]
    marked = [name in weights for name in sorted(parts.shapes)]
    if own in depend and not is_affine(parts.program, parts.owners.index(own), marked):
        return f"{said} is not"
    for site, part in depend:
        if (site, part) != own:
            return f"the {part} of '{site}' depends on them"
    return "" if depend else f"{said} does not depend on them"


def is_affine(program: core.ClosedJaxpr, output: int, marked: list[bool]) -> bool:
    """Whether JAX can transpose an output of a program as a function of the inputs that are marked."""
    inputs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]

    def transposed(values: list[jax.Array]) -> Any:
        def of_marked(own: list[jax.Array]) -> jax.Array:
            given = iter(own)
            filled = [next(given) if m else value for m, value in zip(marked, values)]
            return core.jaxpr_as_fun(program)(*filled)[output]

        own = [value for m, value in zip(marked, values) if m]
        aval = program.out_avals[output]
        return jax.linear_transpose(of_marked, own)(jnp.zeros(aval.shape, aval.dtype))

    try:
        jax.eval_shape(transposed, inputs)
    except (NotImplementedError, AssertionError):
        # As JAX says that an operation has no transpose, or one in only one of its factors.
        return False
    return True


def prior_part(distribution: dist.Distribution, part: str) -> jax.Array:
    """A parameter of a prior as floats, of the shape of its site."""
    # Weights are floats, while `dist.Normal(0, 1)` keeps whole numbers.
    return jnp.broadcast_to(1.0 * getattr(unwrapped(distribution), part), distribution.shape())
