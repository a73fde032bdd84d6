"""Densities, distribution functions and draws of targets, also where NumPyro's are rounded or missing."""

from functools import partial
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.typing import ArrayLike
from numpyro.distributions import truncated
from scipy import stats
from scipy.special import expit

from numpyro_bnn.distributions.unwrap import family_of


def _cut(m: Any, s: Any, low: Any = -np.inf, high: Any = np.inf) -> Any:
    """A truncated normal distribution."""
    return stats.truncnorm((low - m) / s, (high - m) / s, m, s)


_NORMAL = ("base_dist.loc", "base_dist.scale")
# Distributions whose functions SciPy computes on the host in double precision: their parameters, and the same
# distribution there. Single precision cancels what is left of their log Gamma functions: of Poisson counts
# around 10⁶ the log density would be off by 0.6 nats.
_SCIPY: dict[type[dist.Distribution], tuple[tuple[str, ...], Any]] = {
    dist.Poisson: (("rate",), lambda m: stats.poisson(np.minimum(m, 1e300))),
    dist.GammaPoisson: (
        ("concentration", "rate"),
        lambda k, r: stats.nbinom(k, 1 / (1 + 1 / np.maximum(r, 1e-300))),
    ),
    dist.BinomialProbs: (("total_count", "probs"), stats.binom),
    dist.BinomialLogits: (("total_count", "logits"), lambda n, z: stats.binom(n, expit(z))),
    dist.BetaBinomial: (("total_count", "concentration1", "concentration0"), stats.betabinom),
    dist.StudentT: (("df", "loc", "scale"), stats.t),
    dist.Gamma: (("concentration", "rate"), lambda k, r: stats.gamma(k, scale=1 / r)),
    dist.Beta: (("concentration1", "concentration0"), stats.beta),
    dist.InverseGamma: (("concentration", "rate"), lambda k, r: stats.invgamma(k, scale=r)),
    truncated.LeftTruncatedDistribution: ((*_NORMAL, "low"), _cut),
    truncated.RightTruncatedDistribution: ((*_NORMAL, "high"), lambda m, s, b: _cut(m, s, high=b)),
    truncated.TwoSidedTruncatedDistribution: ((*_NORMAL, "low", "high"), _cut),
}

_TRUNCATED = tuple(kind for kind in _SCIPY if "base_dist.loc" in _SCIPY[kind][0])
# Above this rate Poisson quantiles come from an expansion, accurate to a hundredth of a count.
_MANY = 1e4


class _ByScipy(dist.Distribution):
    """A distribution whose log density and distribution function come from SciPy."""

    pytree_data_fields = ("base_dist",)

    def __init__(self, base_dist: dist.Distribution) -> None:
        self.base_dist = base_dist
        super().__init__(base_dist.batch_shape, base_dist.event_shape)

    def __getattr__(self, name: str) -> Any:
        if name == "base_dist":
            raise AttributeError(name)
        return getattr(self.base_dist, name)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    @property
    def mean(self) -> Any:
        return self.base_dist.mean

    def log_prob(self, value: ArrayLike) -> jax.Array:
        return self._found("logpmf" if self.support.is_discrete else "logpdf", value)

    def cdf(self, value: ArrayLike) -> jax.Array:
        if isinstance(self.base_dist, dist.BetaBinomial):  # SciPy's sums take one number at a time
            raise NotImplementedError
        return self._found("cdf", value)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> Any:
        distribution = self.base_dist
        if isinstance(distribution, dist.GammaPoisson):
            key, other = jax.random.split(key)
            rate = distribution._gamma.sample(other, sample_shape)
            return _poisson(key, rate, jnp.shape(rate))
        if isinstance(distribution, dist.Poisson):
            return _poisson(key, distribution.rate, sample_shape + distribution.batch_shape)
        if isinstance(distribution, _TRUNCATED):
            return self._found("isf", jax.random.uniform(key, sample_shape + self.batch_shape))
        return distribution.sample(key, sample_shape)

    def _found(self, what: str, value: ArrayLike) -> jax.Array:
        family = next(kind for kind in _SCIPY if isinstance(self.base_dist, kind))
        given = [value, *(attrgetter(name)(self.base_dist) for name in _SCIPY[family][0])]
        given = list(jnp.broadcast_arrays(*map(jnp.asarray, given)))
        made = jax.ShapeDtypeStruct(given[0].shape, jnp.result_type(float))
        host = partial(_on_host, family, what, made.dtype)
        return jax.pure_callback(host, made, *given, vmap_method="broadcast_all")


def _poisson(key: jax.Array, rate: ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """Poisson counts; at large rates from expanded quantiles, because JAX rounds log densities there."""
    few, many = jax.random.split(key)
    z, rate = jax.random.normal(many, shape), jnp.asarray(rate)
    far = jnp.floor(rate + jnp.sqrt(rate) * z + (z**2 - 1) / 6 + 0.5)
    near = jax.random.poisson(few, jnp.minimum(rate, _MANY), shape)
    return jnp.where(rate < _MANY, near, far.astype(near.dtype))


def _on_host(family: type, what: str, kind: Any, value: Any, *parameters: Any) -> np.ndarray:
    """A function of SciPy's distribution at some values, in double precision."""
    y, *given = (np.asarray(v, np.float64) for v in (value, *parameters))
    with np.errstate(all="ignore"):
        return np.asarray(getattr(_SCIPY[family][1](*given), what)(y)).astype(kind)


def in_double_precision(distribution: dist.Distribution) -> dist.Distribution:
    """The same distribution, with SciPy's double precision for the parts that SciPy has."""

    def is_known(part: Any) -> bool:
        if isinstance(part, _TRUNCATED):
            return isinstance(part.base_dist, dist.Normal)
        return isinstance(part, (_ByScipy, *_SCIPY))

    def replaced(part: Any) -> Any:
        return _ByScipy(part) if is_known(part) and not isinstance(part, _ByScipy) else part

    # `tree.map` would lose the attributes of a class that is no pytree, so it is left alone.
    has_known = any(map(is_known, jax.tree.leaves(distribution, is_leaf=is_known)))
    return jax.tree.map(replaced, distribution, is_leaf=is_known) if has_known else distribution


def distribution_function(distribution: dist.Distribution, y: jax.Array) -> jax.Array:
    """F(y) of every entry of a target by itself, also where its entries are one event."""
    base = family_of(in_double_precision(distribution))
    if isinstance(base, (dist.MultivariateNormal, dist.LowRankMultivariateNormal)):
        # The marginal distribution of each output.
        return dist.Normal(base.mean, jnp.sqrt(base.variance)).cdf(y)
    if isinstance(base, dist.Delta):
        return jnp.where(y >= base.v, 1.0, 0.0)
    if isinstance(base, (dist.ZeroInflatedProbs, dist.HurdleProbs)):
        part = distribution_function(base.base_dist, y)
        if isinstance(base, dist.HurdleProbs):
            zero = distribution_function(base.base_dist, jnp.zeros_like(y))
            part = jnp.where(y >= 0, (part - zero) / (1 - zero), 0.0)
        return base.gate * (y >= 0) + (1 - base.gate) * part
    if (parts := _of_components(base, y)) is not None:
        return jnp.sum(base.mixing_distribution.probs * parts, -1)
    # NumPyro's functions may be NaN outside of the support, and wrong between whole numbers.
    low = getattr(base.support, "lower_bound", -jnp.inf)
    high = getattr(base.support, "upper_bound", jnp.inf)
    at = jnp.floor(y) if base.support.is_discrete else y
    inside = jnp.clip(at, low, high)
    try:
        found = base.cdf(inside)
    except NotImplementedError:
        has_first = base.support.is_discrete and hasattr(base.support, "lower_bound")
        if not has_first or base.event_shape:
            raise NotImplementedError(
                f"The distribution of the target, {type(base).__name__}, has no distribution function in "
                "NumPyro, so quantiles, and distances between distribution functions, cannot be computed. "
                "Draw targets by `predictions.sample(key)`, or use a distribution that has one."
            ) from None
        found = _summed(getattr(base, "base_dist", base), low, inside)
    return jnp.where(at < low, 0.0, jnp.where(at >= high, 1.0, found))


def _of_components(distribution: dist.Distribution, y: jax.Array) -> jax.Array | None:
    """Distribution functions of the components of a mixture, on the last axis; None if it is no mixture."""
    # NumPyro's own also evaluates every component at values outside its support.
    if distribution.event_shape:
        return None
    if isinstance(distribution, dist.MixtureSameFamily):
        return distribution_function(distribution.component_distribution, jnp.expand_dims(y, -1))
    if isinstance(distribution, dist.MixtureGeneral):
        functions = [distribution_function(c, y) for c in distribution.component_distributions]
        return jnp.stack(functions, -1)
    return None


def _summed(distribution: dist.Distribution, low: ArrayLike, y: jax.Array) -> jax.Array:
    """The summed probabilities of the whole numbers from `low` to y."""

    def more(i: int, total: jax.Array) -> jax.Array:
        value = jnp.minimum(low + i, y)
        return total + jnp.where(low + i <= y, jnp.exp(distribution.log_prob(value)), 0.0)

    shape = jnp.broadcast_shapes(jnp.shape(y), distribution.batch_shape)
    count = jnp.max(y - low).astype(int) + 1
    return jnp.minimum(lax.fori_loop(0, count, more, jnp.zeros(shape)), 1.0)
