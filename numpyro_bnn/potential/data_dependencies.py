"""Finds what arrays of a model depend on (arguments, observed values, latent sites) from its jaxpr."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from numpyro_bnn._types import PyTree
from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.distributions.unwrap import family_of
from numpyro_bnn.potential.compiled_arguments import Arguments

# The place of an argument in a call: its number, or its name for a keyword argument.
Place = int | str
# Primitives that call another program, by name.
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "checkpoint",
    "remat2",
)
# A number for each of some observed sites, on which all that is computed from their values depends.
_Marks = Mapping[str, jax.Array | float]


class Sources(NamedTuple):
    """What arrays of a model are computed from."""

    places: frozenset[Place] = frozenset()  # Arguments of the model
    sites: frozenset[str] = frozenset()  # Observed sites
    latent: bool = False  # Whether continuous latent sites are among the sources

    @classmethod
    def joined(cls, several: Iterable["Sources"]) -> "Sources":
        """All sources of several arrays."""
        places, sites, latent = zip(cls(), *several)
        return cls(frozenset().union(*places), frozenset().union(*sites), any(latent))


class SiteSources(NamedTuple):
    """What the sites of a model are computed from, by site."""

    values: Mapping[str, Sources]  # Values of observed sites; of a `numpyro.factor` its log density
    distributions: Mapping[str, Sources]  # Distributions of all sites but factors


def is_factor(distribution: Any) -> bool:
    """Whether a distribution is that of a ``numpyro.factor``."""
    return type(family_of(distribution)).__name__ == "Unit"


def sources_of(
    shaped: Callable[[jax.Array], Callable],
    args: tuple,
    kwargs: dict[str, Any],
    taken: Sequence[str],
) -> SiteSources:
    """Sources of the observed values and of the distributions of a model."""
    # `shaped` is the model as a function of a blank number, which its latent values are;
    # `taken` has observed sites of which it is also found who uses their values.
    args, kwargs = jax.tree.map(_in_memory, (args, kwargs))
    arguments = Arguments.split(args, kwargs)
    leaves = jax.tree_util.tree_flatten_with_path((args, kwargs))[0]
    own = [Sources(latent=True)]
    own += [
        Sources(frozenset({path[1].key if path[0].idx else path[1].idx}))
        for path, leaf in leaves
        if isinstance(leaf, (np.ndarray, jax.Array))
    ]
    own += [Sources(sites=frozenset({name})) for name in sorted(taken)]

    def parts(blank: jax.Array, arrays: list[jax.Array], marks: _Marks) -> list[dict[str, PyTree]]:
        args, kwargs = Arguments.join(arrays, arguments.static)
        found = trace(_Marked(shaped(blank), marks)).get_trace(*args, **kwargs)
        sites = {name: site for name, site in found.items() if site["type"] == "sample"}
        values: dict[str, PyTree] = {}
        distributions: dict[str, PyTree] = {}
        for name, site in sites.items():
            if is_factor(site["fn"]):
                values[name] = site["fn"]
                continue
            distributions[name] = site["fn"]
            if site["is_observed"]:
                values[name] = site["value"]
        return [
            {n: jax.tree.leaves(part) for n, part in one.items()} for one in (values, distributions)
        ]

    marks = dict.fromkeys(taken, 0.0)
    found = _sources_of_results(parts, (0.0, arguments.arrays, marks), own)
    values, distributions = (
        {n: Sources.joined(several) for n, several in one.items()} for one in found
    )
    return SiteSources(values, distributions)


def sites_taken(
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    name: str,
    values: Mapping[str, jax.Array],
) -> frozenset[str]:
    """Sites whose values the distribution of a site, or the value of a deterministic one, uses."""
    # `values` are stand-ins for values of other sites; sites without one are drawn, and may be among them.
    arguments = Arguments.split(args, kwargs)

    def parts(values: Mapping[str, jax.Array], arrays: list[jax.Array]) -> list[Any]:
        args, kwargs = Arguments.join(arrays, arguments.static)
        given = substitute(seed(model, jax.random.key(0)), data=values)
        site = trace(given).get_trace(*args, **kwargs)[name]
        return jax.tree.leaves(site["value"] if site["type"] == "deterministic" else site["fn"])

    # In the order of the leaves of a mapping.
    own = [Sources(sites=frozenset({other})) for other in sorted(values)]
    own += [Sources()] * len(arguments.arrays)
    return Sources.joined(_sources_of_results(parts, (dict(values), arguments.arrays), own)).sites


def _sources_of_results(function: Callable, given: tuple, own: Sequence[Sources]) -> Any:
    """Sources of all results of a function; `own` has the sources of each leaf of its arguments."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
    return jax.tree.unflatten(jax.tree.structure(shapes), _followed(program.jaxpr, own))


def _followed(program: Any, own: Sequence[Sources]) -> list[Sources]:
    """Sources of the results of a traced program; `own` has the sources of each of its arguments."""
    known: dict[Any, Sources] = dict(zip(program.invars, own))

    def of(variable: Any) -> Sources:
        # Literals are not variables, and cannot be looked up.
        return Sources() if hasattr(variable, "val") else known.get(variable, Sources())

    for equation in program.eqns:
        given = [of(variable) for variable in equation.invars]
        inner = called(equation)
        found = [Sources.joined(given)] * len(equation.outvars)
        known.update(zip(equation.outvars, found if inner is None else _followed(inner, given)))
    return [of(variable) for variable in program.outvars]


def called(equation: Any) -> Any:
    """The program that an equation calls once with its own arguments, as ``jax.jit`` does; None of others."""
    if equation.primitive.name not in _CALLS:
        return None
    programs = [getattr(p, "jaxpr", p) for p in equation.params.values() if hasattr(p, "eqns")]
    same = [
        p
        for p in programs
        if (len(p.invars), len(p.outvars)) == (len(equation.invars), len(equation.outvars))
    ]
    return same[0] if same else None


def _in_memory(leaf: Any) -> Any:
    """Host data as an array of their shape and type that takes no memory."""
    if not isinstance(leaf, OnHost):
        return leaf
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)


class _Marked(Messenger):
    """Handler that computes the values of observed sites from their marks too, and changes none."""

    def __init__(self, fn: Callable, marks: _Marks) -> None:
        super().__init__(fn)
        self.marks = marks

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and msg["name"] in self.marks:
            mark = self.marks[msg["name"]]
            msg["value"], _ = jax.lax.optimization_barrier((msg["value"], mark))


def given_sites(found: SiteSources, plates: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Observed sites that are no data: constants that the distributions of others are computed from."""
    # Such are a weight or scale that `condition` holds at a value, a measured constant, the
    # first value of a series. Where no data come as arguments, constants and data cannot be
    # told apart and all are data; so are the sites inside a plate of data.
    data = [name for name in plates if found.values[name].places]
    of_data = {plate for name in data for plate in plates[name]}
    constant = [name for name in plates if name in found.distributions and name not in data]

    def is_taken(name: str) -> bool:
        parts = [*found.distributions.items(), *found.values.items()]
        return any(name in sources.sites for other, sources in parts if other != name)

    return frozenset(
        name
        for name in constant
        if data and not of_data.intersection(plates[name]) and is_taken(name)
    )


def informative_sites(found: SiteSources) -> frozenset[str]:
    """Observed sites whose log density depends on a latent site."""
    return frozenset(
        name
        for name, value in found.values.items()
        if value.latent or (name in found.distributions and found.distributions[name].latent)
    )
