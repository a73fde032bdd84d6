"""The levels of a hierarchy of Gamma precisions, their conditional distributions, and weights without them.

A precision t of one level has prior Gamma(k, rate) at the top and Gamma(k, k / parent) below, and
governs weights w ~ Normal(0, 1 / (factor t)) or t-distributed weights, residuals of the data in the same way,
and precisions of the level below. Its conditional distribution then has

    shape = k + n/2 - Σ children k_c,   up = rate + factor Σ w² / 2,   down = Σ children k_c t_c

in the notation of :mod:`numpyro_bnn.distributions.generalized_inverse_gaussian`: Gamma wherever weights
are Gaussian and there are no children. Weights that are t-distributed with `df` degrees of freedom are
Gaussian given a precision for each entry, Gamma(df/2, df / (2 t)), which is drawn as an auxiliary variable
and discarded.

Source: R. M. Neal, *Bayesian Learning for Neural Networks* (1996), appendix A.3 and A.4.
"""

import zlib
from collections.abc import Callable, Container, Mapping
from math import prod
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from scipy.special import gammaincinv

from numpyro_bnn._types import Number
from numpyro_bnn.distributions.generalized_inverse_gaussian import mode_of_log, sample_log
from numpyro_bnn.distributions.stable_densities import Gamma, rising
from numpyro_bnn.priors.base import is_parameter

Values = Mapping[str, jax.Array]
# Suffix of the name of the site with the precisions of an array's source units.
UNITS = ".unit_precision"


class Array(NamedTuple):
    """An array that a precision governs: w ~ Normal(0, 1 / (factor precision))."""

    site: str
    # Axes along which each slice has its own precision (-1 is the last), and how many consecutive entries
    # on each axis share it; () for one precision in all.
    units: tuple[tuple[int, int], ...] = ()
    factor: float = 1.0  # Precision of the array divided by the precision of the level
    df: float | None = None  # Degrees of freedom where it is t-distributed; None where Gaussian

    def spread(self, precision: jax.Array, ndim: int) -> jax.Array:
        """A precision of the level for each entry, shaped to broadcast."""
        if not self.units:
            return precision
        # Axes of the precision are in the order of `units`, those of the array in their own.
        units = [(axis % ndim, repeats) for axis, repeats in self.units]
        order = sorted(range(len(units)), key=units.__getitem__)
        lead = precision.ndim - len(order)
        spread = precision.transpose([*range(lead), *(lead + i for i in order)])
        sizes = {units[i][0]: precision.shape[lead + i] for i in order}
        spread = spread.reshape((*precision.shape[:lead], *(sizes.get(a, 1) for a in range(ndim))))
        for axis, repeats in units:
            if repeats > 1:
                spread = jnp.repeat(spread, repeats, axis=lead + axis)
        return spread

    def total(self, entries: jax.Array, ndim: int | None = None) -> jax.Array:
        """The sum over the entries that share a precision; the last `ndim` axes are those of the array."""
        ndim = entries.ndim if ndim is None else ndim
        lead = entries.ndim - ndim
        units = {axis % ndim: repeats for axis, repeats in self.units}
        axes = list(units)
        others = [a for a in range(lead, entries.ndim) if a - lead not in axes]
        sums = jnp.sum(entries, others)
        for i, axis in enumerate(sorted(axes)):
            if (repeats := units[axis]) > 1:
                before, after = sums.shape[: lead + i], sums.shape[lead + i + 1 :]
                sums = sums.reshape((*before, -1, repeats, *after)).sum(lead + i + 1)
        return sums.transpose([*range(lead), *(lead + sorted(axes).index(axis) for axis in axes)])

    def unit_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the precisions of the units of an array of this shape; () for one precision in all."""
        return tuple(shape[axis] // repeats for axis, repeats in self.units)

    def count(self, weights: jax.Array | jax.ShapeDtypeStruct) -> int:
        """Number of entries that share a precision."""
        return weights.size // prod(self.unit_shape(weights.shape))


class Child(NamedTuple):
    """A site of precisions t_c ~ Gamma(concentration, concentration / precision)."""

    site: str
    concentration: float


class Level(NamedTuple):
    """A precision site with the weights and lower precisions that it governs; kept in its ``infer`` dict."""

    # Name of the site as the model gives it: a `scope` around the model prefixes names, and
    # `levels_of` renames all alike.
    site: str
    concentration: float  # Shape parameter k of its Gamma prior
    base_rate: Number | None  # Rate of the prior at the top level, times `divisor`; None below
    parent: str | None  # Site of the level above; None at the top
    arrays: tuple[Array, ...]  # Weights (or residuals of the observed sites) that it governs
    children: tuple[Child, ...] = ()  # Precisions that it governs
    of_noise: bool = False  # Whether the arrays are residuals
    # Divides the rate only where that is used: a traced rate may come from outside of the trace of a model.
    divisor: float = 1.0

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(array.site for array in self.arrays)

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of the weights, and of the precisions above and below, that its conditional depends on."""
        weights = () if self.of_noise else self.members
        parents = () if self.parent is None else (self.parent,)
        return (*weights, *parents, *(child.site for child in self.children))

    @property
    def conjugate(self) -> bool:
        """Whether the conditional distribution given all other sites is Gamma."""
        return not self.children and all(array.df is None for array in self.arrays)

    @property
    def rate(self) -> Number | None:
        """The rate of the prior at the top level; None below."""
        return None if self.base_rate is None else self.base_rate / self.divisor

    def prior_rate(self, values: Mapping[str, Number]) -> Number | None:
        """The rate of the Gamma prior of this precision, given the level above."""
        return self.rate if self.parent is None else self.concentration / values[self.parent]

    def conditional(self, values: Values) -> Gamma:
        """The conditional of the precision given weights and the level above, where it is Gamma."""
        shape, up, _ = self.distribution(values, {})
        return Gamma(shape, up)

    def shape_given(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """The shape parameter of the conditional where that is Gamma: it depends on no value."""
        arrays = ((array, jax.ShapeDtypeStruct(shapes[array.site], float)) for array in self.arrays)
        return self.concentration + sum(array.count(shaped) / 2 for array, shaped in arrays)

    def distribution(self, values: Values, own: Values) -> tuple[Number, jax.Array, jax.Array]:
        """Parameters (shape, up, down) of the generalised inverse Gaussian conditional of the precision."""
        # `own` has a precision for each entry of every t-distributed array.
        shape = self.concentration
        up, down = jnp.asarray(self.prior_rate(values)), jnp.zeros(())
        for array in self.arrays:
            weights = values[array.site]
            if array.df is None:
                shape += array.count(weights) / 2
                up = up + array.factor * array.total(weights**2) / 2
            else:
                shape -= array.count(weights) * array.df / 2
                down = down + array.df / 2 * array.total(own[array.site])
        for child in self.children:
            precisions = values[child.site]
            shape -= precisions.size * child.concentration
            down = down + child.concentration * jnp.sum(precisions)
        return shape, up, down

    def own_distributions(self, values: Values) -> dict[str, Gamma]:
        """Conditionals of the auxiliary precisions of single entries of t-distributed arrays."""
        distributions = {}
        for array in self.arrays:
            if array.df is not None:
                weights = values[array.site]
                above = array.df / array.spread(values[self.site], weights.ndim)
                rate = (above + array.factor * weights**2) / 2
                distributions[array.site] = Gamma((array.df + 1) / 2, rate)
        return distributions

    def draw(self, key: jax.Array, values: Values) -> jax.Array:
        """An exact draw given all other sites (for t-distributed arrays also given the current value)."""
        key_own, key = jax.random.split(key)
        distributions = self.own_distributions(values)
        own = {
            site: distribution.sample(jax.random.fold_in(key_own, i))
            for i, (site, distribution) in enumerate(distributions.items())
        }
        shape, up, down = self.distribution(values, own)
        if self.conjugate:
            return Gamma(shape, up).sample(key)
        return jnp.exp(sample_log(key, shape, up, down))

    def typical(self, values: Values) -> jax.Array:
        """A central value of its conditional distribution: the mean where that is Gamma."""
        own = {site: own.mean for site, own in self.own_distributions(values).items()}
        return jnp.exp(mode_of_log(*self.distribution(values, own)))

    def renamed(self, rename: Callable[[str], str]) -> "Level":
        """This level with its sites renamed."""
        return self._replace(
            site=rename(self.site),
            parent=None if self.parent is None else rename(self.parent),
            arrays=tuple(array._replace(site=rename(array.site)) for array in self.arrays),
            children=tuple(child._replace(site=rename(child.site)) for child in self.children),
        )


def levels_of(model_trace: Mapping[str, dict], held: Container[str] = ()) -> dict[str, Level]:
    """The hierarchical precisions sampled in a trace, the lowest levels first."""
    # Where one of a group of weights and precisions has a given value (`condition`) or is computed from
    # sites of other names (`reparam`), all precisions of the group are left out, and are sampled as
    # ordinary sites. Sites in `held` are observed only because NumPyro's `Gibbs` holds them.
    levels = {}
    for name, site in model_trace.items():
        if site["type"] == "sample" and isinstance(site["infer"].get("hierarchy"), Level):
            level = site["infer"]["hierarchy"]
            prefix = name.removesuffix(level.site)
            levels[name] = level.renamed(lambda own, prefix=prefix: prefix + own)
    given = {
        name
        for name, site in model_trace.items()
        if (site.get("is_observed") and name not in held)
        or (site["type"] == "deterministic" and not is_parameter(site))
    }
    while lost := [n for n, level in levels.items() if given.intersection((n, *level.beside))]:
        given.update(lost)
        levels = {name: level for name, level in levels.items() if name not in given}
    return dict(sorted(levels.items(), key=lambda item: len(item[1].children)))


def prior_means(
    levels: Mapping[str, Level], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, jax.Array]:
    """The precisions at their prior means, each given the level above at its prior mean."""
    means: dict[str, jax.Array] = {}
    for name, level in reversed(list(levels.items())):
        mean = level.concentration / jnp.asarray(level.prior_rate(means))
        means[name] = jnp.broadcast_to(mean, shapes[name])
    return means


def largest_likely(levels: Mapping[str, Level]) -> dict[str, Number]:
    """The 99.9 % quantile of each precision under its prior, given the level above at its own."""
    found: dict[str, Number] = {}
    for name, level in reversed(list(levels.items())):
        rate = level.prior_rate(found)
        assert rate is not None
        found[name] = float(gammaincinv(level.concentration, 0.999)) / rate
    return found


def typical_values(
    levels: Mapping[str, Level], shapes: Mapping[str, tuple[int, ...]], values: Values
) -> dict[str, jax.Array]:
    """Add a central value of its conditional for every precision that has no value."""
    # Precisions that depend on weights alone are at their conditional mean; where there are
    # several levels, each is set in turn given the others, five times.
    filled = {**prior_means(levels, shapes), **values}
    missing = {name: level for name, level in levels.items() if name not in values}
    for _ in range(1 if all(level.conjugate for level in missing.values()) else 5):
        for name, level in missing.items():
            filled[name] = level.typical(filled)
    return filled


class GammaScaleMixture(dist.Distribution):
    """Normal weights whose common precision, or one for each slice, is Gamma distributed: a multivariate t.

    For n weights w ~ Normal(0, 1 / (factor t)) and t ~ Gamma(a, b),

        p(w) = Γ(a + n/2) / Γ(a) · b^a (factor / 2π)^(n/2) / (b + factor ‖w‖²/2)^(a + n/2).

    :param concentration: shape parameter a of the Gamma distribution, a number.
    :param rate: rate b, of shape () or one for each unit of `array`.
    :param shape: shape of the weights; all of its axes are event axes.
    :param array: the units that have their own precisions, and the factor of the precisions.
    """

    arg_constraints: ClassVar = {
        "concentration": constraints.positive,
        "rate": constraints.positive,
    }
    pytree_data_fields = ("concentration", "rate")
    pytree_aux_fields = ("array",)

    def __init__(
        self,
        concentration: ArrayLike,
        rate: ArrayLike,
        shape: tuple[int, ...],
        array: Array,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration = jnp.asarray(concentration)
        self.array = array
        self.rate = jnp.broadcast_to(rate, array.unit_shape(shape))
        super().__init__(batch_shape=(), event_shape=shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """All real arrays of the shape of the weights."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws of the weights, each with its own precisions."""
        key_precision, key = jax.random.split(key)
        shape = (*sample_shape, *self.event_shape)
        precision = Gamma(self.concentration, self.rate).sample(key_precision, sample_shape)
        if not self.array.units:
            precision = precision.reshape((*sample_shape, *[1] * len(self.event_shape)))
        spread = self.array.spread(precision, len(self.event_shape))
        return jax.random.normal(key, shape) / jnp.sqrt(self.array.factor * spread)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log density of the weights in nats, with their precisions integrated out."""
        count = prod(self.event_shape) // self.rate.size
        square = self.array.total(value**2, len(self.event_shape))
        a, factor = self.concentration, self.array.factor
        each = (
            rising(a, count / 2)
            + count / 2 * (jnp.log(factor) - jnp.log(2 * jnp.pi) - jnp.log(self.rate / a))
            - (a + count / 2) * jnp.log1p(factor * square / (2 * self.rate))
        )
        return each.sum(tuple(range(-self.rate.ndim, 0)))


def drawn_back(site: str, distribution: Gamma, weights: list[jax.Array]) -> jax.Array:
    """A draw of a precision from its conditional given the weights, with a key made from their bits."""
    key = key_of(site, weights)
    return Gamma(*lax.stop_gradient((distribution.concentration, distribution.rate))).sample(key)


def key_of(site: str, values: list[jax.Array]) -> jax.Array:
    """A random key made from the bits of sampled values; other sites get other keys."""
    # Post-processing must depend on the values of a draw alone, and NumPyro gives it one key for all draws.
    key = jax.random.key(zlib.crc32(site.encode()))
    words = [word for array in values for word in _hash(lax.stop_gradient(array))]
    if not words:
        return key
    # A loop, because each call of the generator takes a tenth of a second to compile.
    folded, _ = lax.scan(lambda k, word: (jax.random.fold_in(k, word), None), key, jnp.stack(words))
    return folded


def _hash(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two sums of the bits of an array, of 32 bits each, with odd multipliers as in a hash function."""
    words = lax.bitcast_convert_type(array, jnp.uint32).reshape(-1)
    place = jnp.arange(words.size, dtype=jnp.uint32)
    sums = []
    for odd in (0x9E3779B1, 0x85EBCA77):
        mixed = (place + 1) * jnp.uint32(odd)
        mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x2C1B3C6D)
        sums.append(jnp.sum(words * (mixed | 1), dtype=jnp.uint32))
    return sums[0], sums[1]
