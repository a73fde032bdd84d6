"""What arrays of a model depend on, by provenance of NumPyro: arguments, observed values, latent sites."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.handlers import seed, substitute, trace
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from numpyro_bnn.data.host_rows import OnHost
from numpyro_bnn.distributions.unwrap import family_of, unmasked
from numpyro_bnn.potential.compiled_arguments import Arguments

# The place of an argument in a call: its number, or its name for a keyword argument.
Place = int | str
_LATENT = "latent"


class Sources(NamedTuple):
    """What arrays of a model are computed from."""

    places: frozenset[Place] = frozenset()  # Arguments of the model
    sites: frozenset[str] = frozenset()  # Observed sites
    latent: bool = False  # Whether continuous latent sites are among the sources


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
    paths: list[Any] = [path for path, x in leaves if isinstance(x, (np.ndarray, jax.Array))]
    # From names of inputs of the program to what they are in the model.
    places = {f"array {i}": p[1].key if p[0].idx else p[1].idx for i, p in enumerate(paths)}
    sites = {f"site {name}": name for name in taken}

    def parts(**given: Any) -> list[dict[str, list]]:
        args, kwargs = Arguments.join([given[name] for name in places], arguments.static)
        marks = {name: given[mark] for mark, name in sites.items()}
        found = trace(_Marked(shaped(given[_LATENT]), marks)).get_trace(*args, **kwargs)
        samples = {name: site for name, site in found.items() if site["type"] == "sample"}
        factors = {n: site["fn"] for n, site in samples.items() if is_factor(site["fn"])}
        values = {n: site["value"] for n, site in samples.items() if site["is_observed"]}
        # A mask says which values count, and may be computed from a target with gaps.
        distributions = {n: unmasked(s["fn"]) for n, s in samples.items() if n not in factors}
        return [
            {n: jax.tree.leaves(part) for n, part in one.items()}
            for one in (values | factors, distributions)
        ]

    def joined(inputs: Iterable[frozenset[str]]) -> Sources:
        names = frozenset[str]().union(*inputs)
        return Sources(
            frozenset(place for name, place in places.items() if name in names),
            frozenset(site for mark, site in sites.items() if mark in names),
            _LATENT in names,
        )

    given = dict(zip(places, arguments.arrays)) | dict.fromkeys((_LATENT, *sites), 0.0)
    found = eval_provenance(parts, **given)
    return SiteSources(*({n: joined(inputs) for n, inputs in one.items()} for one in found))


def sites_taken(
    model: Callable, args: tuple, kwargs: dict[str, Any], name: str, values: Mapping[str, jax.Array]
) -> frozenset[str]:
    """Sites whose values the distribution of a site, or the value of a deterministic one, uses."""
    # `values` are stand-ins for values of other sites; sites without one are drawn, and may be among them.

    def parts(**stand_ins: jax.Array) -> list[Any]:
        data = {other: stand_ins[f"site {other}"] for other in values}
        given = substitute(seed(model, jax.random.key(0)), data=data)
        site = trace(given).get_trace(*args, **kwargs)[name]
        return jax.tree.leaves(site["value"] if site["type"] == "deterministic" else site["fn"])

    found = eval_provenance(parts, **{f"site {other}": value for other, value in values.items()})
    names = frozenset[str]().union(*found)
    return frozenset(other for other in values if f"site {other}" in names)


def _in_memory(leaf: Any) -> Any:
    """Host data as an array of their shape and type that takes no memory."""
    if not isinstance(leaf, OnHost):
        return leaf
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)


class _Marked(Messenger):
    """Handler that computes the values of observed sites from their marks too, and changes none."""

    def __init__(self, fn: Callable, marks: Mapping[str, jax.Array]) -> None:
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
