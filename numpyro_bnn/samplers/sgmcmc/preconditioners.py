r"""Preconditioners, which give a kernel its inverse mass matrix.

Each is an object with four functions::

    state = preconditioner.init(position)
    state = preconditioner.update(state, gradient, position, adapting)     # once a step
    preconditioner.inverse_mass_matrix(state)      # scalar, or pytree like the position
    preconditioner.divergence(state)               # its divergence, the Gamma term; 0 if frozen

``adapting`` is true during warm-up. A metric that is frozen afterwards leaves the target exactly
invariant, whatever it is, so that is the default everywhere. A metric that goes on changing with
the position (``varies``) needs its divergence in the drift, :math:`\Gamma_i = \sum_j \partial_j
M^{-1}_{ij}`, which only overdamped dynamics can add. One that depends on the values that Gibbs holds fixed
has ``after_gibbs(potential, state)`` as well, which gives its state after Gibbs has changed them.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute, trace

from numpyro_bnn._checks import check_positive, check_share, check_whole
from numpyro_bnn._text import call_of
from numpyro_bnn._types import PyTree
from numpyro_bnn.distributions.unwrap import unwrapped
from numpyro_bnn.potential.flat_position import by_site, flat_like
from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.priors.precision_conditionals import levels_of
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    map_like,
    size,
    spread,
    total,
    where_needed,
)


class Moments(NamedTuple):
    """Welford's running mean and scatter of positions."""

    size: jax.Array
    mean: PyTree
    scatter: PyTree  # sum of squared deviations from the mean

    @classmethod
    def none(cls, position: PyTree) -> "Moments":
        """Moments of no position."""
        zeros = jax.tree.map(lambda x: jnp.zeros_like(jnp.asarray(x)), position)
        return cls(jnp.asarray(0), zeros, zeros)

    @property
    def variance(self) -> PyTree:
        """Variance by parameter; 0 for fewer than two positions."""
        return map_like(lambda s: s / jnp.maximum(self.size - 1, 1), self.scatter)

    def add(self, position: PyTree) -> "Moments":
        """Moments with one more position."""
        count = self.size + 1
        change = jax.tree.map(jnp.subtract, position, self.mean)
        mean = map_like(lambda m, d: m + d / count, self.mean, change)
        scatter = map_like(lambda s, d, x, m: s + d * (x - m), self.scatter, change, position, mean)
        return Moments(count, mean, scatter)

    def variance_with(self, other: "Moments") -> PyTree:
        """Variance by parameter of the positions of both sets together."""
        n, m = self.size, other.size
        both = jnp.maximum(n + m, 1)
        # The quotient is computed first, because n m of a long warm-up is too large for 32 bits.
        weight = n * (m / both)

        def variance(s: Any, t: Any, a: Any, b: Any) -> Any:
            return (s + t + (a - b) ** 2 * weight) / jnp.maximum(both - 1, 1)

        return map_like(variance, self.scatter, other.scatter, self.mean, other.mean)


__all__ = ["diagonal", "from_warmup", "given_precisions", "identity", "rmsprop"]


class Preconditioner:
    """A metric that no step changes, the state its inverse mass matrix; the head of this module says more."""

    # Whether the metric is the identity until it is adapted in warm-up.
    needs_warmup = False

    @property
    def varies(self) -> bool:
        """Whether the metric changes after warm-up too, so that the drift needs its divergence."""
        return False

    def init(self, position: PyTree) -> PyTree:
        """The state before the first step."""
        raise NotImplementedError

    def update(
        self,
        state: PyTree,
        gradient: PyTree,
        position: PyTree,
        adapting: jax.Array,
        hessian_diagonal: PyTree = None,
    ) -> PyTree:
        """The state after one step, from the gradient (of U) at ``position``."""
        return state

    def inverse_mass_matrix(self, state: PyTree) -> PyTree:
        """A scalar, or a pytree like the position."""
        return state

    def divergence(self, state: PyTree) -> PyTree:
        """A scalar 0, or a pytree like the position."""
        return 0.0


@dataclass(frozen=True)
class _Fixed(Preconditioner):
    value: Any

    def __repr__(self) -> str:
        if isinstance(self.value, float) and self.value == 1.0:
            return "identity()"
        return call_of("diagonal", {"inverse_mass_matrix": self.value})

    def init(self, position: PyTree) -> PyTree:
        parameters = by_site(position)
        values = spread(self.value, parameters, "inverse_mass_matrix")
        # Refuses values that do not fit.
        jax.tree.map(lambda m, leaf: jnp.broadcast_to(m, jnp.shape(leaf)), values, parameters)
        # In the state, so that a large metric is an argument of the compiled step and not a constant.
        metric = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)), self.value)
        return flat_like(position, metric)


def identity() -> Preconditioner:
    """Unit mass, the default: the step size has the meaning that the kernel's docstring gives."""
    return _Fixed(1.0)


def diagonal(inverse_mass_matrix: PyTree) -> Preconditioner:
    """A fixed inverse mass matrix.

    :param inverse_mass_matrix: positive; a scalar, or a pytree like the position, whose leaves
        broadcast against its leaves. With variances of the target all directions have the same scale.
    :raises ValueError: if an entry is not a positive finite number, or, at ``init``, if it does
        not fit the position.
    """
    for leaf in jax.tree.leaves(inverse_mass_matrix):
        check_positive("diagonal", inverse_mass_matrix=leaf)
    return _Fixed(inverse_mass_matrix)


class RMSpropState(NamedTuple):
    """State of :func:`rmsprop`."""

    num_updates: jax.Array
    """Updates so far."""
    second_moment: PyTree
    """Decaying mean of the squared gradient of the mean loss, not corrected for its start at 0."""
    divergence: PyTree
    """The Gamma term at the last update, or 0."""


@dataclass(frozen=True)
class _RMSprop(Preconditioner):
    decay: float
    eps: float
    gamma_term: bool
    data_size: float | None

    needs_warmup = True

    def __repr__(self) -> str:
        return call_of("rmsprop", vars(self))

    @property
    def varies(self) -> bool:
        return self.gamma_term

    def init(self, position: PyTree) -> RMSpropState:
        zeros = jax.tree.map(lambda x: jnp.zeros_like(jnp.asarray(x)), position)
        divergence = zeros if self.gamma_term else jnp.zeros((), jnp.result_type(float))
        return RMSpropState(jnp.asarray(0), zeros, divergence)

    def update(
        self,
        state: RMSpropState,
        gradient: PyTree,
        position: PyTree,
        adapting: jax.Array,
        hessian_diagonal: PyTree = None,
    ) -> RMSpropState:
        if not self.gamma_term:
            # Not a selection, so that steps after warm-up do not compute the statistics.
            return where_needed(adapting, lambda: self._average(state, gradient), state)
        state = self._average(state, gradient)
        weight = (1 - self.decay) / self._seen(state.num_updates)

        def slope(v: Any, g: Any, curvature: Any) -> Any:
            root = jnp.sqrt(v / self._seen(state.num_updates))
            # The metric has a kink where the gradient is exactly 0: the derivative there is set to 0.
            safe = jnp.where(root > 0, root, 1.0)
            return -weight * self._scale**2 * g * curvature / (safe * (self.eps + root) ** 2)

        divergence = map_like(slope, state.second_moment, gradient, hessian_diagonal)
        return state._replace(divergence=divergence)

    @property
    def _scale(self) -> float:
        return 1.0 if self.data_size is None else 1.0 / self.data_size

    def _average(self, state: RMSpropState, gradient: PyTree) -> RMSpropState:
        square = jax.tree.map(lambda g: (self._scale * g) ** 2, gradient)
        decay = self.decay
        moment = map_like(lambda v, s: decay * v + (1 - decay) * s, state.second_moment, square)
        return RMSpropState(state.num_updates + 1, moment, state.divergence)

    def _seen(self, count: jax.Array) -> jax.Array:
        # The sum of the weights of the decaying mean: Adam's correction for a mean that starts at 0.
        return 1 - self.decay ** jnp.maximum(count, 1)

    def inverse_mass_matrix(self, state: RMSpropState) -> PyTree:
        def metric(v: Any) -> Any:
            root = jnp.sqrt(v / self._seen(state.num_updates))
            return jnp.where(state.num_updates > 0, 1 / (self.eps + root), 1.0)

        return map_like(metric, state.second_moment)

    def divergence(self, state: RMSpropState) -> PyTree:
        return state.divergence


def rmsprop(
    decay: float = 0.99,
    eps: float = 1e-5,
    gamma_term: bool = False,
    *,
    data_size: float | None = None,
) -> Preconditioner:
    r"""The metric of pSGLD, :math:`M^{-1} = 1 / (\lambda + \sqrt V)`.

    .. math:: V \leftarrow \alpha V + (1 - \alpha)\, \bar g \odot \bar g, \qquad \bar g = \nabla U/N

    Li et al. 2016, algorithm 1, where :math:`\bar g` is the gradient of the mean loss; V is
    divided by :math:`1 - \alpha^t` as in Adam (a departure: without it the first metrics are ten
    times too large at the default decay). Before the first update it is the identity.

    By default the metric is frozen after warm-up, and the target is exactly invariant. With ``gamma_term``
    the metric keeps following the position, and the drift gets

    .. math:: \Gamma_i = -\frac{1 - \alpha}{1 - \alpha^t}
              \frac{\bar g_i\, \partial_i \bar g_i}{\sqrt{V_i} (\lambda + \sqrt{V_i})^2},

    the derivative of the metric with respect to the newest gradient, with its past held fixed. That is exact
    as the step size vanishes for :math:`\alpha = 0` and the full gradient; with
    :math:`\alpha` near 1 the term is small and so is the error of the past held; in between, and
    with minibatches, it is an approximation. Prefer the default.

    :param decay: :math:`\alpha` in [0, 1).
    :param eps: :math:`\lambda`, positive, in units of the gradient of the mean loss.
    :param gamma_term: follow the position after warm-up. ``update`` then takes
        ``hessian_diagonal``, the diagonal of the Hessian of U or an unbiased estimate of it, e.g.
        :math:`z \odot H z` with random signs z, one gradient more a step.
    :param data_size: N; None is 1, and a kernel that knows N fills it in.
    :raises ValueError: if a value is outside its range.
    """
    check_share("rmsprop", "decay", decay, may_be_0=True)
    check_positive("rmsprop", eps=eps, data_size=1.0 if data_size is None else data_size)
    return _RMSprop(decay, eps, gamma_term, data_size)


class WarmupState(NamedTuple):
    """State of :func:`from_warmup`: moments of the positions of two windows."""

    old: Moments
    """The last complete window."""
    new: Moments
    """The window being filled, twice as long as the one before."""


@dataclass(frozen=True)
class _FromWarmup(Preconditioner):
    first_window: int

    needs_warmup = True

    def __repr__(self) -> str:
        return call_of("from_warmup", vars(self))

    def init(self, position: PyTree) -> WarmupState:
        return WarmupState(Moments.none(position), Moments.none(position))

    def update(
        self,
        state: WarmupState,
        gradient: PyTree,
        position: PyTree,
        adapting: jax.Array,
        hessian_diagonal: PyTree = None,
    ) -> WarmupState:
        def fill() -> WarmupState:
            new = state.new.add(position)
            full = new.size >= jnp.maximum(2 * state.old.size, self.first_window)
            old = jax.tree.map(lambda n, o: jnp.where(full, n, o), new, state.old)
            return WarmupState(old, jax.tree.map(lambda n: jnp.where(full, 0, n), new))

        return where_needed(adapting, fill, state)

    def inverse_mass_matrix(self, state: WarmupState) -> PyTree:
        count = state.old.size + state.new.size
        variance = state.old.variance_with(state.new)
        overall = total(lambda v: v, variance) / size(variance)
        # The identity until a window is complete, and if no parameter has moved.
        known = (state.old.size > 0) & (overall > 0)

        def shrunk(v: Any) -> Any:
            return jnp.where(known, (count * v + 5 * overall) / (count + 5), 1.0)

        # The barrier keeps the compiler from computing it again wherever momenta are used.
        return lax.optimization_barrier(map_like(shrunk, variance))


def from_warmup(first_window: int = 32) -> Preconditioner:
    r"""The variance of each parameter over the later part of warm-up, then frozen.

    Welford's moments over windows of doubling length; the estimate is that of the last complete
    window and of the one being filled together (Chan, Golub & LeVeque 1979), so the start is
    forgotten twice over as warm-up doubles. With n positions it is shrunk to
    :math:`(n v_i + 5 \bar v) / (n + 5)`, :math:`\bar v` the mean over parameters, which keeps the
    meaning of the estimate if the parameters are rescaled (Stan's shrinks to 0.001).

    The identity until the first window is complete. The step size of a kernel is then in units of
    a standard deviation, not of the parameter.

    :param first_window: steps, 2 or more.
    :raises ValueError: if ``first_window`` is below 2.
    """
    first_window = check_whole("from_warmup", "first_window", first_window, least=2)
    return _FromWarmup(first_window)


@dataclass(frozen=True)
class _GivenPrecisions(Preconditioner):
    """Neal's step sizes for any network, from the precisions that Gibbs holds fixed."""

    # Given its precisions τ, a weight has the prior curvature τ, and the data add about the diagonal of
    # the Fisher information. Neal bounds the latter by a backward pass through known layers (*Bayesian
    # Learning for Neural Networks*, 1996, appendix A.4). Here weights are drawn from their prior with
    # fixed keys, and targets from the likelihood: the expected squared gradient of the log likelihood is
    # the Fisher information. It does not depend on the current weights, so that a trajectory is
    # reversible.
    num_draws: int

    def __repr__(self) -> str:
        return call_of("given_precisions", vars(self))

    def init(self, position: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.ones_like(jnp.asarray(x)), position)

    def after_gibbs(self, potential: Any, state: PyTree) -> PyTree:
        keys = jax.random.split(jax.random.key(0), self.num_draws)
        prior, scores = jax.vmap(lambda key: _curvature(potential, key))(keys)
        curvatures = {
            name: (1 / (prior[name].mean(axis=0) + _mean_square(scores[name]))).astype(old.dtype)
            for name, old in by_site(state).items()
        }
        return flat_like(state, curvatures)


def _mean_square(scores: jax.Array) -> jax.Array:
    """Mean square over draws, without those that a wide prior makes non-finite, e.g. a hazard of exp(100)."""
    # A single NaN in the metric would freeze the chain.
    finite = jnp.isfinite(scores**2)
    return jnp.where(finite, scores**2, 0.0).sum(axis=0) / jnp.maximum(finite.sum(axis=0), 1)


def _curvature(potential: Potential, key: jax.Array) -> tuple[Values, Values]:
    """Prior curvature and score of unconstrained weights drawn from their prior."""
    key_prior, key_targets = jax.random.split(key)
    drawn = potential.prior_draw(key_prior)

    def sites_at(values: Values) -> dict[str, Any]:
        bound = seed(substitute(potential.bound, data=values), jax.random.key(0))
        return trace(bound).get_trace(*potential.args, **potential.kwargs)

    sites = sites_at(drawn)
    own = [name for name in levels_of(sites) if name in drawn]
    if own:
        raise ValueError(
            f"given_precisions: the precisions {own} move with the weights here, so that the metric "
            "could not follow them. Use it inside Gibbs, which `bnn.neal(model)` builds."
        )
    z = {n: biject_to(sites[n]["fn"].support).inv(drawn[n]) for n in drawn}
    observed = potential.structure.observed
    likelihoods = [name for name in observed if not isinstance(sites[name]["fn"], dist.Unit)]
    keys = jax.random.split(key_targets, max(1, len(likelihoods)))
    targets = {
        name: jax.lax.stop_gradient(sites[name]["fn"].sample(key))
        for name, key in zip(likelihoods, keys)
    }

    def log_likelihood(z: Values) -> jax.Array:
        at = sites_at(potential.constrain(z))
        terms = [jnp.sum(at[name]["fn"].log_prob(target)) for name, target in targets.items()]
        return sum(terms, start=jnp.zeros(()))

    prior = {name: _prior_curvature(sites[name]["fn"], z[name]) for name in z}
    return prior, jax.grad(log_likelihood)(z)


def _prior_curvature(distribution: dist.Distribution, z: jax.Array) -> jax.Array:
    """1/scale² where the prior has a scale and is on the whole line; 1 in other coordinates."""
    distribution = unwrapped(distribution)
    scale = getattr(distribution, "scale", None)
    if scale is None or distribution.support is not dist.constraints.real:
        return jnp.ones_like(z)
    return jnp.broadcast_to(1 / scale**2, z.shape)


def given_precisions(num_draws: int = 8) -> _GivenPrecisions:
    """The inverse of prior precision plus Fisher information, given the precisions that Gibbs holds fixed.

    It is computed whenever a block of Gibbs has changed the precisions, with `num_draws` gradients on all
    rows. In between it is constant, so that the target is exactly invariant. Step sizes are in units of a
    standard deviation. The likelihood must be a distribution that can be sampled; factors are left out.

    :param num_draws: prior draws averaged; 1 or more.
    :raises ValueError: if `num_draws` is below 1; when run, for precisions in the same block.
    """
    return _GivenPrecisions(check_whole("given_precisions", "num_draws", num_draws))
