"""Finds and checks sites, plates and hierarchical precisions of a model by an abstract trace.

Targets whose values would be broadcast or counted several times are refused, judged by shapes alone. NumPyro
broadcasts whatever can be broadcast. A target (N, 1) against predictions (N,) is an N×N table of log
densities; a single value, or a likelihood that was summed, counts once for every row of the plate around it;
a target that was not passed is sampled. All of these run, and sample another posterior than intended. One
rule finds the first three: the values of an observed site must have the shape of their log densities, so that
each counts once.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.gibbs import GIBBS_SITES_KWARG
from numpyro.primitives import Messenger

from numpyro_bnn._checks import warn
from numpyro_bnn._types import PyTree
from numpyro_bnn.data.arguments import innermost, named_leaves, prepared
from numpyro_bnn.data.host_rows import WithStandIns
from numpyro_bnn.data.units import check_range
from numpyro_bnn.distributions.stable_densities import Gamma
from numpyro_bnn.distributions.unwrap import blanks, unwrapped
from numpyro_bnn.likelihoods.observe import check_classes, check_dtype
from numpyro_bnn.potential.compiled_arguments import KINDS, fixed_in, with_first_values
from numpyro_bnn.potential.data_dependencies import (
    given_sites,
    informative_sites,
    is_factor,
    sources_of,
)
from numpyro_bnn.potential.known_indices import refuse_unknown_indices
from numpyro_bnn.potential.sites import Plate, Site, Structure, altered
from numpyro_bnn.priors.base import is_parameter
from numpyro_bnn.priors.precision_conditionals import Level, levels_of

# How JAX, Flax and NumPy begin to say that an index is a float.
_NO_INDICES = re.compile("(Indexer|indices|Input type) must|arrays used as indices")


def as_jax(tree: PyTree) -> PyTree:
    """NumPy arrays as JAX arrays, which traced row numbers of a minibatch can index."""

    def convert(leaf: Any) -> Any:
        numeric = isinstance(leaf, np.ndarray) and leaf.ndim and leaf.dtype.kind in "biufc"
        return jnp.asarray(leaf) if numeric else leaf

    return jax.tree.map(convert, tree)


@contextmanager
def explain_tracing() -> Iterator[None]:
    """Explain JAX's error for a model that computes Python numbers from its data."""
    try:
        yield
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        error.add_note(
            "numpyro_bnn compiles the model with its data as arguments, so that the model cannot "
            "branch on their values or give them to NumPy. Take functions of `jax.numpy`; compute Python "
            "numbers (for example how many classes there are) outside, and pass them as constants."
        )
        raise


@contextmanager
def say_what_it_got(model: Callable, args: tuple, kwargs: dict) -> Iterator[None]:
    """Say what a model was called with where it looks for a part of its arguments that is not there."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if _NO_INDICES.search(str(error)):
            error.add_note("A group or class is a float here: take `.astype(int)` in the model.")
        elif not isinstance(error, ValueError):
            given = [f"{name} {np.shape(leaf)}" for name, leaf in named_leaves(model, args, kwargs)]
            error.add_note(f"numpyro_bnn called the model with arrays {', '.join(given[:8])}.")
        raise


@explain_tracing()
def structure_of(
    model: Callable, args: tuple, kwargs: dict, indices: Mapping[str, jax.Array] | None = None
) -> Structure:
    """Trace a model abstractly: parameters have shapes only, the arguments keep their values."""
    # Checks inside the model that look at concrete data still happen. `indices` are rows to take, by plate.
    found: list[Structure] = []
    preset: set[str] = set()
    args, kwargs = as_jax(prepared(model, args, kwargs))
    # Sites that NumPyro's Gibbs holds fixed for this block are neither latent nor data.
    held = set(kwargs.get(GIBBS_SITES_KWARG, ()))

    def shaped(blank: jax.Array, key: jax.Array) -> Callable:
        bound = substitute(WithStandIns(model), data=dict(indices or {}))
        return seed(substitute(bound, substitute_fn=blanks(blank, preset)), key)

    def visit(key: jax.Array, blank: jax.Array) -> jax.Array:
        keys = _Keys(shaped(blank, key))
        with say_what_it_got(model, args, kwargs):
            sites = trace(keys).get_trace(*args, **kwargs)
        samples = {
            name: site
            for name, site in sites.items()
            if site["type"] == "sample" and name not in held
        }
        computed = {n: site for n, site in sites.items() if site["type"] == "deterministic"}
        fixed = (name for name, site in sites.items() if site["type"] in KINDS)
        found.append(
            Structure(
                {name: _site(site) for name, site in samples.items()},
                _plates(sites),
                _levels(samples, computed),
                {n: jnp.shape(site["value"]) for n, site in computed.items()},
                frozenset(n for n, site in computed.items() if is_parameter(site)),
                keys.taken,
                unfixed=frozenset(fixed) - set(fixed_in(model)),
                networks=frozenset(_networks(sites)),
            )
        )
        return key

    program = jax.make_jaxpr(visit)(jax.random.key(0), 0.0)
    structure = found[0]._replace(preset=frozenset(preset), looks_up="gather" in str(program))
    measured = frozenset(n for n in structure.observed if structure.sites[n].measured)
    structure = structure._replace(given=measured, informative=measured)
    if len(structure.data) < 2:
        return structure
    plates = {name: structure.sites[name].plates for name in structure.data}
    sources = sources_of(partial(shaped, key=jax.random.key(0)), args, kwargs, list(plates))
    given = given_sites(sources, plates)
    informative = given & informative_sites(sources)
    return structure._replace(given=given | measured, informative=informative | measured)


def _networks(sites: Mapping[str, dict]) -> Iterator[str]:
    """What the names of sites of networks begin with: marked ones, and those of NumPyro's modules."""
    for name, site in sites.items():
        if site.get("infer", {}).get("of_network"):
            yield name.rpartition("/")[0] + "/"
        elif site["type"] == "param" and name.endswith("$params"):
            yield name.removesuffix("$params") + "/"


def _levels(samples: Mapping[str, dict], computed: Mapping[str, dict]) -> dict[str, Level]:
    """The hierarchical precisions of weights whose conditional distribution no handler changes."""
    changed = {name for name, site in samples.items() if altered(site) is not None}
    return {
        name: level
        for name, level in levels_of({**samples, **computed}).items()
        if not level.of_noise and changed.isdisjoint((name, *level.beside))
    }


class _Keys(Messenger):
    """Handler that notes whether a model asks for random keys itself (``numpyro.prng_key``)."""

    taken = False

    def process_message(self, msg: dict[str, Any]) -> None:
        self.taken |= msg["type"] == "prng_key"


def _plates(sites: Mapping[str, Any]) -> dict[str, Plate]:
    """Plates of a trace; plates inside a loop (``scan``) are found from the sites in them."""
    frames = [f for site in sites.values() for f in site.get("cond_indep_stack", ())]
    plates = {frame.name: Plate(frame.size, frame.size) for frame in frames}
    for name, site in sites.items():
        if site["type"] == "plate":
            size, subsample_size = site["args"]
            plates[name] = Plate(size, subsample_size or size)
    return plates


def _site(site: dict[str, Any]) -> Site:
    distribution = site["fn"]
    scale = jnp.shape(1.0 if site["scale"] is None else site["scale"])
    if site["is_observed"]:
        if isinstance(site["value"], np.ndarray):
            check_range(f"The observed site '{site['name']}'", "its value", site["value"])
        check_classes(site["name"], distribution, site["value"])
        check_dtype(site["name"], distribution, site["value"])
    # Broadcasting fails if weights of rows have the full number of rows in a minibatch.
    jnp.broadcast_shapes(scale, distribution.batch_shape)
    support = distribution.support
    discrete = bool(support.is_discrete)
    entries = getattr(support, "base_constraint", support)
    latent = not site["is_observed"] and not discrete
    return Site(
        shape=jnp.shape(site["value"]),
        distribution_shape=tuple(distribution.shape()),
        event_dim=distribution.event_dim,
        observed=site["is_observed"],
        discrete=discrete,
        plates={frame.name: frame.dim for frame in site["cond_indep_stack"]},
        factor=is_factor(distribution),
        scale=scale,
        unconstrained=_unconstrained_shape(site) if latent else None,
        fan_in=site["infer"].get("fan_in"),
        distribution=type(unwrapped(distribution)),
        measured="measured" in site["infer"],
        directions=isinstance(entries, type(constraints.circular)),
        concentration=_concentration(unwrapped(distribution)) if latent else None,
    )


def _concentration(distribution: Any) -> float | None:
    """The shape parameter of a Gamma distribution, where it is one known number."""
    if type(distribution) not in (dist.Gamma, Gamma):
        return None
    given = distribution.concentration
    return None if isinstance(given, jax.core.Tracer) or np.ndim(given) else float(given)


def _unconstrained_shape(site: dict[str, Any]) -> tuple[int, ...] | None:
    try:
        transform = biject_to(site["fn"].support)
    except NotImplementedError:
        return None
    return tuple(transform.inverse_shape(jnp.shape(site["value"])))


def with_structure(
    model: Callable, args: tuple, kwargs: dict[str, Any]
) -> tuple[Callable, Structure]:
    """A model with values of its fixed parameters, and its structure at prepared arguments."""
    structure = structure_of(model, args, kwargs)
    if not structure.unfixed:
        return model, structure
    model = with_first_values(model, args, kwargs)
    return model, structure_of(model, args, kwargs)


def trace_and_check(
    model: Callable, args: tuple, kwargs: dict
) -> tuple[Callable, tuple, dict, Structure]:
    """The first step of every fit: trace the model with its training data, and check both."""
    check_arguments(args, kwargs)
    ready = innermost(model)
    learned = hasattr(ready, "learn") and ready.learn(*args, **kwargs)
    with ExitStack() as refused:
        if learned:
            refused.callback(ready.forget)
        args, kwargs = prepared(model, args, kwargs)
        model, structure = with_structure(model, args, kwargs)
        check_targets(structure)
        check_observed(structure, ready, args, kwargs)
        refuse_unknown_indices("The data of a fit", model, structure, args, kwargs)
        refused.pop_all()
    if structure.takes_keys:
        warn(
            "The model draws random numbers that are no sites, as dropout does (`apply_rng=`, "
            "`numpyro.prng_key()`). A fit has one density: it keeps one draw of them, such as one mask, for "
            "all its steps, and every prediction draws new ones. Leave dropout out: the posterior over "
            "weights takes its place. Other noise belongs into `numpyro.sample`."
        )
    return model, args, kwargs, structure


Shape = tuple[int, ...]


def check_targets(structure: Structure) -> None:
    """Refuse observed sites with values that would be broadcast, or counted several times."""
    # Latent sites that a handler sets would get other values, and are refused too, as are
    # models without any.
    if not structure.latent:
        raise ValueError(
            "The model has no latent site to sample: every site is observed, fixed or integrated out. Give "
            "one of them a prior, or integrate out fewer."
        )
    if structure.preset:
        raise ValueError(
            f"`handlers.substitute` in the model sets the latent sites {sorted(structure.preset)}, and "
            "samplers and optimisers would put their own values in place of these. To hold a site at a value "
            "use `handlers.condition(model, {…})`."
        )
    for name in structure.observed:
        site = structure.sites[name]
        sizes = [f"'{plate}' of {structure.plates[plate].size}" for plate in site.plates]
        plates = f" in the plate{'s' * (len(sizes) > 1)} {' and '.join(sizes)}" if sizes else ""
        full = _together(site.shape, site.distribution_shape)
        if full is None:
            raise ValueError(
                f"The observed site '{name}' has values of shape {site.shape} and a distribution of "
                f"shape {site.distribution_shape}{plates}, which do not fit each other. Give as many "
                "targets as inputs, and the plate as many rows."
            )
        if not site.factor and not prod(full):
            raise ValueError(
                f"The observed site '{name}' has values of shape {site.shape}: there are none. Check "
                "what selected the rows."
            )
        repeats = prod(site.distribution_shape[:-1]) // max(1, prod(site.shape[:-1]))
        if site.factor and repeats != 1:
            raise ValueError(
                f"The factor '{name}' has shape {site.shape[:-1]}{plates}, which repeats it to "
                f"{site.distribution_shape[:-1]}. A likelihood summed into one factor would count {repeats} "
                "times. Give one value a row, or take the factor out of the plate."
            )
        if prod(site.shape) != prod(full):
            raise ValueError(_stretched(name, site, full, plates))
        # Weights of a log density (``handlers.scale``) that repeat it.
        batch = full[: len(full) - site.event_dim]
        if _together(site.scale, batch) != batch:
            raise ValueError(
                f"The log density of the observed site '{name}' has shape {batch}, but it is scaled by "
                f"weights of shape {site.scale}, so that every row would count with every weight. Give one "
                "weight a row."
            )


def _together(*shapes: Shape) -> Shape | None:
    """The shape to which several shapes broadcast, or None."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _stretched(name: str, site: Site, full: Shape, plates: str) -> str:
    what = (
        f"The observed site '{name}' has values of shape {site.shape} but a distribution of shape "
        f"{site.distribution_shape}{plates}: "
    )
    event = site.distribution_shape[len(site.distribution_shape) - site.event_dim :]
    if prod(site.shape) == 1:
        return what + (
            f"the one value would be compared with all {prod(full)} predictions. Give the target of "
            "every row, or observe a single one outside of the plate and with one prediction."
        )
    if site.shape == event and site.plates:
        return what + (
            f"the whole target is one event, which would count {prod(full) // prod(event)} times. Take the "
            "axis of the plate out of the event, `.to_event(…)`, or the site out of the plate."
        )
    what += "every value would be compared with every prediction. "
    if site.shape == (*site.distribution_shape, 1):
        return what + "Drop the last axis of the target: `y.squeeze(-1)`."
    if site.distribution_shape == (*site.shape, 1):
        return what + "Drop the last axis of the predictions: `f.squeeze(-1)`."
    return what + "Give both the same shape, for example with `f.squeeze(-1)`."


def check_observed(structure: Structure, model: Callable, args: tuple, kwargs: dict) -> None:
    """Refuse a model with arguments but no observed site: the target was forgotten."""
    if structure.data:
        return
    absent, on_purpose = _absent(model, args, kwargs)
    latent = [name for name in structure.latent if structure.sites[name].plates]
    if absent:
        sampled = f" and samples {latent} as latent values, one a row" if latent else ""
        raise ValueError(
            f"Nothing is observed: the model is called with {' and '.join(absent)}{sampled}. Pass "
            "the target too. For the prior on purpose, bind what is absent: "
            "`functools.partial(model, y=None)`, or use `bnn.prior_predictive`."
        )
    given = any(getattr(leaf, "shape", ()) for leaf in jax.tree.leaves((args, kwargs)))
    if given and not on_purpose and not structure.observed:
        warn(
            "Nothing is observed: the model was given data, but none of its sites has `obs=`, so "
            f"that {latent or structure.latent} are drawn from the prior. Give the target to its "
            "site, `numpyro.sample(name, distribution, obs=y)`. For a density that has no data, "
            "bind its arguments: `functools.partial(model, …)`."
        )


def _absent(model: Callable, args: tuple, kwargs: dict) -> tuple[list[str], bool]:
    """Arguments of a model that are None, and whether a ``partial`` binds one to it."""
    try:
        bound = inspect.signature(model).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return [], False
    bound.apply_defaults()
    none = [name for name, value in bound.arguments.items() if value is None]
    meant = model.keywords if isinstance(model, partial) else {}
    return [f"{n}=None" for n in none if n not in meant], any(n in meant for n in none)


def check_arguments(args: tuple, kwargs: Mapping[str, object]) -> None:
    """Refuse data without rows."""
    named = {f"argument {i + 1}": value for i, value in enumerate(args)} | dict(kwargs)
    for name, value in named.items():
        for leaf in jax.tree.leaves(value):
            shape = tuple(getattr(leaf, "shape", ()))
            if shape[:1] == (0,):
                raise ValueError(
                    f"The data are empty: {name} of the model has shape {shape}, expected at least "
                    "one row. Check what selected the rows."
                )
