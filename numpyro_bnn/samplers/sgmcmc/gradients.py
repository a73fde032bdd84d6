r"""Gradient estimators: estimates of ∇U at a position, on all rows or a minibatch.

Each estimates the gradient of a :class:`~numpyro_bnn.potential.potential.Potential` without bias: its mean
over the minibatches that it may draw is ∇U. With g(θ; I) the gradient of U(θ; I), in which the
likelihood of the B rows I counts N/B times and the prior once:

- :func:`full`: every row, in one piece or in chunks of bounded memory;
- :func:`minibatch`: g(θ; I);
- :func:`control_variate`: g(θ; I) - g(θ̂; I) + ∇U(θ̂) around a fixed anchor θ̂;
- :func:`svrg`: a control variate whose anchor is moved to the position of the chain at fixed intervals.

The gradient of a minibatch is that of all rows plus noise of variance V. Each kick by it adds momentum of
variance :math:`h^2 V`, which heats a chain. Methods that know V take it off the noise that they add
themselves (Ahn, Korattikara and Welling 2012, *Bayesian posterior sampling via stochastic gradient Fisher
scoring*, section 3; Chen, Fox and Guestrin 2014, eq. 13). Two independent minibatches at the same position
give gradients :math:`g, g'`, and :math:`(g - g')^2 / 2` has the mean V, entry by entry, however far the
chain is from a mode.

Noise that many weights share, as those of a wide layer do, is not taken off: its covariance has a few large
eigenvalues, along the directions in which predictions move, and V is only its diagonal. Means over weights,
such as the kinetic temperature, do not show that heat; the kinetic temperature along gradients does
(``benchmarks/mixing/networks_beside_full_batch.py``). Estimators with little noise, such as :func:`svrg`,
leave little to take off.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from numpyro_bnn._checks import check_whole
from numpyro_bnn._text import call_of
from numpyro_bnn._types import Number, PyTree
from numpyro_bnn.potential.flat_position import by_site, flat_like
from numpyro_bnn.potential.rows import Rows, in_chunks
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    map_like,
    size,
    spread,
    total,
    where_needed,
)

Order = Literal["permutation", "replacement", "blocks"]
ORDERS = ("permutation", "replacement", "blocks")


class BatchState(NamedTuple):
    """The state of a sequence of minibatches."""

    rng_key: jax.Array  # Decides the order of every epoch
    # Minibatches taken so far.
    count: jax.Array  # type: ignore[assignment]
    epoch: jax.Array  # Epochs finished
    place: jax.Array  # Rows (or blocks) taken in this epoch


def next_rows(
    state: BatchState, size: int, batch_size: int, order: Order
) -> tuple[jax.Array, BatchState]:
    """Numbers of the rows of the next minibatch, (B,), of `size` in all, and the state after them."""
    key, count, epoch, place = state
    if order == "replacement":
        rows = jax.random.randint(jax.random.fold_in(key, count), (batch_size,), 0, size)
        return rows, state._replace(count=count + 1)
    units, taken = (size // batch_size, 1) if order == "blocks" else (size, batch_size)
    places = place + jnp.arange(taken)
    unit = shuffled(jax.random.fold_in(key, epoch), places % units, units)
    if units % taken:
        # A minibatch may begin in one epoch and end in the next, which has another order.
        then = shuffled(jax.random.fold_in(key, epoch + 1), places % units, units)
        unit = jnp.where(places < units, unit, then)
    end = place + taken
    over = (end >= units).astype(end.dtype)
    after = BatchState(key, count + 1, epoch + over, end - over * units)
    return unit[0] * batch_size + jnp.arange(batch_size) if order == "blocks" else unit, after


def shuffled(key: jax.Array, place: jax.Array, size: int) -> jax.Array:
    """A keyed pseudo-random permutation of 0 … size - 1 (size < 2³⁰), evaluated at some places only."""
    # A four-round Feistel network over the next power of four, applied until its value is below `size`
    # (Black and Rogaway, *Ciphers with arbitrary finite domains*, 2002), then rotated by a uniform offset,
    # so that each place holds every row with equal probability. A permutation of all rows would need memory
    # for N numbers and a sort in every epoch, and under ``jax.vmap`` in every step.
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = jnp.uint32((1 << half) - 1)
    bits = jax.random.bits(key, (5,), jnp.uint32)

    def rounds(value: jax.Array) -> jax.Array:
        left, right = value >> half, value & mask
        for i in range(4):
            mixed = (right + bits[i]) * jnp.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed ^ (mixed >> 13)) & mask)
        return (left << half) | right

    def walk(value: jax.Array) -> jax.Array:
        return jnp.where(value < size, value, rounds(value))

    first = rounds(jnp.asarray(place, jnp.uint32))
    value = lax.while_loop(lambda v: jnp.any(v >= size), walk, first)
    return ((value + bits[4] % jnp.uint32(size)) % jnp.uint32(size)).astype(jnp.int32)


__all__ = ["control_variate", "full", "minibatch", "svrg"]


class Estimate(NamedTuple):
    """The estimates for one step: energy and gradient."""

    value: jax.Array  # Estimate of the potential energy, in nats
    gradient: PyTree  # Estimate of its gradient, like the position
    state: PyTree  # State of the estimator


class Estimator:
    """A gradient estimator; by default on minibatches independent of each other and of the chain."""

    batch_size: int | None  # Rows of one gradient; None for all
    evaluations: ClassVar[int] = 1  # Gradients of `batch_size` rows that an estimate takes
    follows_chain: bool = False  # Whether an estimate depends on earlier positions of the chain

    @property
    def needs_rows(self) -> bool:
        """Whether it selects rows by number, and so needs a data plate."""
        return True

    @property
    def independent(self) -> bool:
        """Whether the rows of each gradient are drawn independently of all others."""
        return True

    def init(self, potential: Rows, position: PyTree, key: jax.Array) -> PyTree:
        """The state before the first step."""
        raise NotImplementedError

    def estimate(self, potential: Rows, position: PyTree, state: PyTree) -> Estimate:
        """Value and gradient at the next position of the chain."""
        raise NotImplementedError

    def again(self, potential: Rows, position: PyTree, state: PyTree) -> Estimate:
        """Value and gradient at a position, with nothing in the state that depends on it."""
        return self.estimate(potential, position, state)

    def refresh(self, potential: Rows, state: PyTree) -> PyTree:
        """The state after the potential has changed (inside Gibbs)."""
        return state


@dataclass(frozen=True)
class _Full(Estimator):
    chunk_size: int | None = None
    batch_size: int | None = None

    def __repr__(self) -> str:
        return call_of("full", {"chunk_size": self.chunk_size})

    @property
    def needs_rows(self) -> bool:
        return self.chunk_size is not None

    def init(self, potential: Rows, position: PyTree, key: jax.Array) -> None:
        return None

    def estimate(self, potential: Rows, position: PyTree, state: None) -> Estimate:
        if self.chunk_size is None:
            return Estimate(*potential.full(position), state)
        return Estimate(*in_chunks(potential, position, self.chunk_size), state)


def full(chunk_size: int | None = None) -> Estimator:
    """The exact gradient over all rows.

    :param chunk_size: rows at a time, for memory that does not grow with N; all at once where
        None. The gradient is equal to floating-point rounding.
    :raises ValueError: if `chunk_size` is not a positive integer.
    """
    if chunk_size is not None:
        chunk_size = check_whole("gradients.full", "chunk_size", chunk_size)
    return _Full(chunk_size)


@dataclass(frozen=True)
class _Minibatch(Estimator):
    batch_size: int
    order: Order = "permutation"

    def __repr__(self) -> str:
        return call_of("minibatch", vars(self))

    @property
    def independent(self) -> bool:
        return self.order == "replacement"

    def init(self, potential: Rows, position: PyTree, key: jax.Array) -> PyTree:
        check_rows(self, potential)
        zero = jnp.zeros((), jnp.int32)
        return BatchState(key, zero, zero, zero)

    def rows(self, potential: Rows, state: BatchState) -> tuple[jax.Array, BatchState]:
        return next_rows(state, potential.size, self.batch_size, self.order)

    def some(
        self, potential: Rows, position: PyTree, rows: jax.Array, after: BatchState
    ) -> tuple[jax.Array, PyTree]:
        ahead = None
        if getattr(potential.potential, "is_on_host", False):
            ahead, _ = self.rows(potential, after)
        return potential.some(position, rows, self.order == "blocks", ahead)

    def estimate(self, potential: Rows, position: PyTree, state: PyTree) -> Estimate:
        rows, state = self.rows(potential, state)
        return Estimate(*self.some(potential, position, rows, state), state)


def check_rows(batches: _Minibatch, potential: Rows) -> None:
    """Refuse more rows than there are, and blocks that do not fill an epoch."""
    size, batch_size = potential.size, batches.batch_size
    if batch_size > size:
        raise ValueError(
            f"batch_size={batch_size} is larger than the {size} rows of the plate "
            f"'{potential.plate}'. Use at most {size}, or no batch_size for full batches."
        )
    if batches.order == "blocks" and size % batch_size:
        fits = max(b for b in range(1, batch_size + 1) if size % b == 0)
        raise ValueError(
            f"gradients.minibatch: blocks of batch_size={batch_size} rows do not fill the {size} "
            f"rows of the plate '{potential.plate}', and some rows would count more than others. Use "
            f"batch_size={fits}, or order='permutation'."
        )


def minibatch(batch_size: int, order: Order = "permutation") -> _Minibatch:
    """The gradient on B rows, its likelihood scaled by N/B.

    :param batch_size: rows a step, B.
    :param order: ``"permutation"`` visits every row once an epoch, in a new order each time;
        ``"replacement"`` draws rows independently; ``"blocks"`` takes B neighbouring rows, in a
        new order of the blocks each epoch, which is fastest; not for sorted rows.
    :raises ValueError: for an unknown order or a size that is not a positive integer; in `init`,
        for more rows than there are.
    """
    batch_size = check_whole("gradients.minibatch", "batch_size", batch_size)
    if order not in ORDERS:
        raise ValueError(f"gradients.minibatch: order must be one of {ORDERS}, got {order!r}.")
    return _Minibatch(batch_size, order)


class AnchorState(NamedTuple):
    """A minibatch sequence and the point around which gradients are corrected."""

    batches: BatchState
    anchor: PyTree  # Position θ̂
    # U and ∇U at the anchor, over all rows.
    value: jax.Array
    gradient: PyTree


@dataclass(frozen=True)
class _ControlVariate(_Minibatch):
    anchor: PyTree = None
    follows_chain: bool = False
    period: int | None = None
    chunk_size: int | None = None
    # Of a period that is not given.
    longest_period: jax.Array | None = None
    evaluations: ClassVar[int] = 2

    def __repr__(self) -> str:
        own = {"period": self.period} if self.follows_chain else {"anchor": self.anchor}
        given = {"batch_size": self.batch_size, "order": self.order, **own}
        given |= {"chunk_size": self.chunk_size}
        return call_of("svrg" if self.follows_chain else "control_variate", given)

    def period_of(self, potential: Rows) -> int | jax.Array:
        """Steps between anchors that follow the chain."""
        if self.period is not None:
            return self.period
        steps = max(1, potential.size // self.batch_size)
        return steps if self.longest_period is None else jnp.minimum(steps, self.longest_period)

    def _at(self, potential: Rows, anchor: PyTree, batches: BatchState) -> AnchorState:
        exact = _Full(self.chunk_size).estimate(potential, anchor, None)
        return AnchorState(batches, anchor, exact.value, exact.gradient)

    def init(self, potential: Rows, position: PyTree, key: jax.Array) -> PyTree:
        anchor = position if self.anchor is None else _anchor_like(position, self.anchor)
        batches = super().init(potential, position, key)
        if self.follows_chain:
            # The first estimate moves the anchor and computes its gradient.
            zero = jnp.zeros((), jnp.result_type(float))
            return AnchorState(batches, anchor, zero, jax.tree.map(jnp.zeros_like, anchor))
        return self._at(potential, anchor, batches)

    def refresh(self, potential: Rows, state: AnchorState) -> AnchorState:
        return self._at(potential, state.anchor, state.batches)

    def estimate(self, potential: Rows, position: PyTree, state: PyTree) -> Estimate:
        if self.follows_chain:
            period = self.period_of(potential)
            # The sequence of minibatches advances outside of the branch, to use its random key only once.
            batches = state.batches
            exact = where_needed(
                batches.count % period == 0,
                lambda: self._at(potential, position, batches)[1:],
                state[1:],
            )
            state = AnchorState(batches, *exact)
        return self.again(potential, position, state)

    def again(self, potential: Rows, position: PyTree, state: PyTree) -> Estimate:
        rows, batches = self.rows(potential, state.batches)
        here = self.some(potential, position, rows, batches)
        there = self.some(potential, state.anchor, rows, batches)
        exact = state.value, state.gradient
        value, gradient = jax.tree.map(lambda a, b, c: a - b + c, here, there, exact)
        return Estimate(value, gradient, state._replace(batches=batches))


def _anchor_like(position: PyTree, anchor: PyTree) -> PyTree:
    """A given anchor, values by site, in the form of the position of one chain."""
    # `optimize` adds an axis of chains for a single one too.
    values = {
        name: jnp.reshape(jnp.asarray(anchor[name]), jnp.shape(value))
        for name, value in by_site(position).items()
    }
    return flat_like(position, values)


def _anchored(
    owner: str, batch_size: int, order: Order, chunk_size: int | None, **own: Any
) -> Estimator:
    batch_size = check_whole(owner, "batch_size", batch_size)
    if chunk_size is not None:
        chunk_size = check_whole(owner, "chunk_size", chunk_size)
    rows = minibatch(batch_size, order)
    return _ControlVariate(rows.batch_size, rows.order, chunk_size=chunk_size, **own)


def control_variate(
    batch_size: int,
    anchor: PyTree = None,
    order: Order = "permutation",
    chunk_size: int | None = None,
) -> Estimator:
    """A minibatch gradient corrected by the one at a fixed anchor, near which it has little noise.

    Costs two minibatch gradients a step and one full gradient at the start. It pays while the
    chain stays near the anchor: start at an optimum (:func:`numpyro_bnn.optimize`). Six standard deviations
    away, steps with the default order biased means by a tenth of one.

    :param batch_size: rows a step.
    :param anchor: unconstrained values by site, with or without an axis of one chain; the start of each
        chain where None.
    :param order: see :func:`minibatch`.
    :param chunk_size: rows at a time for the full gradient.
    :raises KeyError: when run, for an anchor that lacks a site of the model.

    Source: Baker, Fearnhead, Fox and Nemeth, *Control variates for stochastic gradient MCMC*
    (2019), eq. (7).
    """
    return _anchored("gradients.control_variate", batch_size, order, chunk_size, anchor=anchor)


def svrg(
    batch_size: int,
    period: int | None = None,
    order: Order = "permutation",
    chunk_size: int | None = None,
) -> Estimator:
    """A control variate whose anchor moves to the chain's own position every `period` steps.

    Costs two minibatch gradients a step and one full gradient every `period`, three minibatch gradients a
    step at the default. Noise of plain minibatches makes predictions of a network too wide, the more so the
    wider the network. Here only the noise of the way since the anchor is left, which is little unless
    minibatches are very small (``benchmarks/mixing/networks_beside_full_batch.py``). It is refused for
    Metropolis methods, because the proposal would depend on earlier positions of the chain through the
    anchor.

    :param batch_size: rows a step.
    :param period: steps between anchors; None for N/B, once in as many steps as go through all rows. Where
        the variance of gradients is estimated in warm-up it is a quarter of warm-up at most, since noise
        grows with the way from the anchor: a longer one is refused, and None is shorter there.
    :param order: see :func:`minibatch`.
    :param chunk_size: rows at a time for the full gradient.
    :raises ValueError: if `period` is not a positive integer.

    Source: Dubey et al., *Variance reduction in stochastic gradient Langevin dynamics* (2016),
    algorithm 2.
    """
    if period is not None:
        period = check_whole("gradients.svrg", "period", period)
    own = {"follows_chain": True, "period": period}
    return _anchored("gradients.svrg", batch_size, order, chunk_size, **own)


# The running mean spans this share of warm-up, because noise is larger where a chain begins.
_SHARE = 0.25
# The fewest anchors in warm-up, if gradients have any: that share of it then sees anchors of all ages.
ANCHORS = 4
# Mean variance that one kick of an automatic step may add, in units of T M. The correction is exact for
# positions; recorded momenta are colder than T by half of this.
_QUIET = 0.08


class NoiseEstimate(NamedTuple):
    """The estimate of V."""

    variance: PyTree  # Like the position
    pairs: jax.Array  # Pairs of gradients used so far


def anchored_in_warmup(
    estimator: Estimator, gradient_noise: Any, num_warmup: int | jax.Array
) -> Estimator:
    """The estimator, with anchors so close together that warm-up sees several where noise is estimated."""
    # The noise of an anchored gradient grows with the distance from the anchor. If the first new anchor
    # came after warm-up, the noise would be estimated near the first one only, and the chain heat up.
    follows = isinstance(gradient_noise, str) and estimator.follows_chain
    if not follows or getattr(estimator, "period", 0) is not None:
        return estimator
    longest = jnp.maximum(1, num_warmup // ANCHORS)
    return dataclasses.replace(estimator, longest_period=longest)  # type: ignore[type-var]


def begin_noise(position: PyTree) -> NoiseEstimate:
    """No estimate yet: variance 0, which takes nothing off."""
    return NoiseEstimate(jax.tree.map(jnp.zeros_like, position), jnp.zeros((), jnp.int32))


def learned_noise(
    known: NoiseEstimate,
    estimator: Estimator,
    rows: Rows,
    position: PyTree,
    first: Estimate,
    count: jax.Array,
    num_warmup: jax.Array,
) -> NoiseEstimate:
    """Update the estimate by a second minibatch at the position of the first; unchanged after warm-up."""
    horizon = jnp.maximum(1.0, _SHARE * num_warmup)

    def learn() -> NoiseEstimate:
        second = estimator.again(rows, position, first.state).gradient
        weight = 1 / jnp.minimum(known.pairs + 1.0, horizon)
        variance = map_like(
            lambda v, g, k: v + weight * (0.5 * (g - k) ** 2 - v),
            known.variance,
            first.gradient,
            second,
        )
        return NoiseEstimate(variance, known.pairs + 1)

    return where_needed(count < num_warmup, learn, known)


def quiet_step(
    known: NoiseEstimate, inverse_mass_matrix: PyTree, temperature: Number, has_momentum: bool
) -> jax.Array:
    """The step size at which gradient noise is 8 % of the proper noise, on average over parameters."""
    # With momenta h² V = 0.08 T M, the part of the energy of a momentum that a kick adds; without, ¼ ε² V /
    # M² = 0.08 ε T / M, the part of the noise of a step. Infinite without noise and at T = 0.
    variance = known.variance
    inverse_mass = spread(inverse_mass_matrix, variance, "inverse_mass_matrix")
    mean = total(lambda v, w: v * w, variance, inverse_mass) / size(variance)
    compared = (mean > 0) & (jnp.asarray(temperature) > 0)
    ratio = _QUIET * temperature / jnp.where(compared, mean, 1.0)
    return jnp.where(compared, jnp.sqrt(ratio) if has_momentum else 4 * ratio, jnp.inf)
