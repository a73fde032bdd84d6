"""Sites and plates of a model, described by their shapes; plates that subsample (``subsample_size=``).

NumPyro draws the rows of such a plate anew in each call of the model where there is a random key,
and uses the same rows for a whole run where there is none. Here a model is always a function of
all rows, and a caller that wants a minibatch substitutes its row numbers.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import MaskedDistribution
from numpyro.primitives import Messenger

from numpyro_bnn.priors.precision_conditionals import Level


def altered(site: Mapping[str, Any]) -> str | None:
    """How handlers change the log density of a sample site: ``"masked"``, ``"scaled"``, or None."""
    if site["scale"] is not None:
        return "scaled"
    distribution = site["fn"]
    while distribution is not None:
        if isinstance(distribution, MaskedDistribution):
            return "masked"
        distribution = getattr(distribution, "base_dist", None)
    return None


def counted(site: Mapping[str, Any]) -> jax.Array:
    """Which entries of the value of a site enter its log density: those that are known and no mask hides."""
    shape = jnp.shape(site["value"])
    entries = jnp.broadcast_to(site["infer"].get("known", True), shape)
    distribution = site["fn"]
    while distribution is not None:
        if isinstance(distribution, MaskedDistribution):
            # Inside of `to_event` a mask has more batch axes than outside.
            mask = jnp.reshape(
                distribution._mask,
                (*jnp.shape(distribution._mask), *(1,) * len(distribution.event_shape)),
            )
            entries &= jnp.broadcast_to(mask, shape)
        distribution = getattr(distribution, "base_dist", None)
    return entries


class Plate(NamedTuple):
    """A plate of a model."""

    size: int  # Number of rows, N
    subsample_size: int  # Number of rows that the model itself takes; N unless it subsamples


class Site(NamedTuple):
    """A sample site of a model, without its values."""

    shape: tuple[int, ...]  # Shape of the value
    distribution_shape: tuple[int, ...]  # Batch and event shape of its distribution
    event_dim: int  # Number of event axes
    observed: bool  # Whether it is part of the likelihood
    discrete: bool  # Whether its support is discrete
    # Enclosing plates: name to axis, counted from the right of the batch shape.
    plates: dict[str, int]
    factor: bool  # Whether it comes from `numpyro.factor`
    # Shape of the weights of its log density (`handlers.scale`); () without weights.
    scale: tuple[int, ...] = ()
    # Shape of its unconstrained value; None for a site without one.
    unconstrained: tuple[int, ...] | None = None
    # Terms that an output sums through these weights, where that does not follow from the name.
    fan_in: int | None = None
    distribution: type = object  # Class of its distribution, without what wraps it
    directions: bool = False  # Whether values are angles, of which π and -π are the same
    measured: bool = False  # Whether it is an input with a known error, or its measurement
    # Of a Gamma distribution, its shape parameter; None where that depends on other sites.
    concentration: float | None = None


def of_every_row(names: Collection[str]) -> set[str]:
    """Names of NumPyro for values of every row under `obs_mask=`, beside sites of those that are missing."""
    return {f"{name}_unobserved" for name in names}


class Structure(NamedTuple):
    """Sites, plates and hierarchical precisions of a model for given arguments."""

    sites: dict[str, Site]  # Sample sites, in order
    plates: dict[str, Plate]
    # Hierarchical precisions of weights, the lowest first; without those next to a log density that a
    # handler scales or masks.
    levels: dict[str, Level]
    deterministic: dict[str, tuple[int, ...]]  # Shapes of deterministic sites
    # Names of the deterministic sites that are parameters under this package's priors.
    parameters: frozenset[str] = frozenset()
    takes_keys: bool = False  # Whether the model asks for random keys itself, as dropout does
    looks_up: bool = False  # Whether it takes entries of a table by indices
    # Observed sites that are no data, such as a weight that `condition` holds at a value: constants outside
    # of plates of data. Minibatches count them once, and predictions are not compared with them. So are
    # measurements of inputs.
    given: frozenset[str] = frozenset()
    # Given sites whose log density depends on a latent site, such as what was measured with an error, or
    # the first value of a series: they count as evidence.
    informative: frozenset[str] = frozenset()
    # Latent sites that a handler inside of the model sets, as `substitute` does.
    preset: frozenset[str] = frozenset()
    # Parameters without a prior (`numpyro.param`) that have no values yet.
    unfixed: frozenset[str] = frozenset()
    # What the names of the sites of networks begin with, such as "net/".
    networks: frozenset[str] = frozenset()

    def parameters_in(self, names: Collection[str]) -> list[str]:
        """Those that are no weights; none without a network, as weights may be written out by hand."""
        whole = of_every_row(names)
        of_network = tuple(self.networks)
        return [n for n in names if of_network and n not in whole and not n.startswith(of_network)]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the sites that draws may have: sample sites, and parameters that are deterministic."""
        computed = {name: self.deterministic[name] for name in self.parameters}
        return {name: site.shape for name, site in self.sites.items()} | computed

    @property
    def latent(self) -> list[str]:
        """Names of the sites that are sampled."""
        return [name for name, site in self.sites.items() if not site.observed]

    @property
    def observed(self) -> list[str]:
        """Names of the sites with observed values."""
        return [name for name, site in self.sites.items() if site.observed]

    @property
    def data(self) -> list[str]:
        """Names of the sites whose observed values are data, factors among them."""
        return [name for name in self.observed if name not in self.given]

    @property
    def evidence(self) -> list[str]:
        """Names of the observed sites with information on latent ones: data and informative given values."""
        return [n for n in self.observed if n not in self.given or n in self.informative]

    @property
    def targets(self) -> list[str]:
        """Names of the sites whose observed values are data, without factors."""
        return [name for name in self.data if not self.sites[name].factor]

    @property
    def groups(self) -> dict[str, Level]:
        """Precisions that are Gamma distributed given the weights and the level above."""
        return {name: level for name, level in self.levels.items() if level.conjugate}

    @property
    def row_counts(self) -> set[int]:
        """Sizes of the plates around data."""
        return {self.plates[p].size for name in self.data for p in self.sites[name].plates}


class all_rows(Messenger):
    """Handler under which no plate subsamples by itself."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace a plate that takes a subsample by one that takes all its rows."""
        if msg["type"] != "plate":
            return
        size, subsample_size = msg["args"]
        if subsample_size is not None and subsample_size < size:
            msg["args"] = (size, None)
            msg["value"] = jnp.arange(size)


def without_subsampling(model: Callable, structure: Structure) -> Callable:
    """The model on all rows; the model itself where no plate subsamples."""
    subsamples = any(p.subsample_size < p.size for p in structure.plates.values())
    return all_rows(model) if subsamples else model


def own_batch_size(owner: str, structure: Structure, plate: str | None = None) -> int | None:
    """Rows that the model takes of the plate around its observed sites; None for all."""
    plates_of_observed = {p for name in structure.data for p in structure.sites[name].plates}
    found = {
        name: structure.plates[name].subsample_size
        for name in sorted(plates_of_observed if plate is None else plates_of_observed & {plate})
        if structure.plates[name].subsample_size < structure.plates[name].size
    }
    if len(found) > 1:
        raise ValueError(
            f"{owner}: several plates of the model subsample, {found}, and a minibatch is of one. "
            "Remove `subsample_size=` from the others."
        )
    return next(iter(found.values()), None)
