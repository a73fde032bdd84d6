"""A likelihood of times until an event, some of them censored, with a hazard that is constant in pieces.

With hazard h_k in the piece from b_{k-1} to b_k (b_0 = 0, the last piece is endless),

    log p(t, event) = [event] log h_k(t) - Σ_k h_k · (time spent in piece k before t).

Source: J. D. Kalbfleisch and R. L. Prentice, *The Statistical Analysis of Failure Time Data*
(2nd ed., 2002), §3.2 (independent censoring) and §2.2.
"""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.util import not_jax_tracer

from numpyro_bnn._calls import options_of
from numpyro_bnn._types import Outputs, Values
from numpyro_bnn.likelihoods.observe import RowOptions, check_array, observe

# Below it, 1 - (1 - e^(-x)) / x and the variance of an exponential time cut off at 1, (1 - 2 x e^(-x) -
# e^(-2x)) / x², come from power series, divided by x, the highest power first.
_SMALL = 0.5
_LOST = [(-1) ** n / math.factorial(n) for n in range(16, 1, -1)]
_OWN = [(-1) ** n * (2 * n - 2**n) / math.factorial(n) for n in range(20, 2, -1)]


class PiecewiseHazard(dist.Distribution):
    """Pairs (time, event) under a hazard that is constant in pieces.

    :param log_hazard: (…, pieces), the logarithm of events per unit of time in each piece.
    :param breaks: (pieces - 1,) increasing positive times where pieces end; empty for one piece.
    """

    arg_constraints = {"log_hazard": constraints.real_vector}  # noqa: RUF012
    support = constraints.real_vector
    # A censored time is a bound; no distance to a prediction can be taken from it.
    may_be_censored = True
    pytree_data_fields = ("log_hazard", "breaks")

    def __init__(
        self,
        log_hazard: jax.Array,
        breaks: Values | tuple[float, ...] = (),
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.log_hazard = jnp.asarray(log_hazard)
        self.breaks = jnp.asarray(breaks, self.log_hazard.dtype)
        super().__init__(
            batch_shape=self.log_hazard.shape[:-1], event_shape=(2,), validate_args=validate_args
        )

    @property
    def _begins(self) -> jax.Array:
        return jnp.concatenate([jnp.zeros(1, self.breaks.dtype), self.breaks])

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log density of an event, or log probability of surviving a censored time, in nats."""
        time, event = value[..., 0, None], value[..., 1]
        # A time on a break belongs to the piece that ends there.
        piece = jnp.sum(time > self.breaks, -1, keepdims=True)
        shape = (*jnp.broadcast_shapes(piece.shape[:-1], self.batch_shape), 1)
        at = jnp.take_along_axis(
            jnp.broadcast_to(self.log_hazard, (*shape[:-1], self.log_hazard.shape[-1])),
            jnp.broadcast_to(piece, shape),
            -1,
        )[..., 0]
        return jnp.where(event > 0, at, 0.0) - self._cumulative(time)

    def _cumulative(self, time: jax.Array) -> jax.Array:
        """The cumulative hazard up to a time, (…, 1)."""
        lengths = jnp.append(jnp.diff(self._begins), jnp.inf)
        spent = jnp.clip(time - self._begins, 0.0, lengths)
        return jnp.sum(jnp.exp(self.log_hazard) * spent, -1)

    def cdf(self, value: jax.Array) -> jax.Array:
        """Distribution functions of the time, and of the event flag (1 for predicted times)."""
        reached = -jnp.expm1(-self._cumulative(value[..., 0, None]))
        event = jnp.broadcast_to(value[..., 1] >= 1, reached.shape)
        return jnp.stack([reached, event.astype(reached.dtype)], -1)

    def _moments(self) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of the time, by pieces from the last: no large numbers are subtracted."""
        hazard, lengths = jnp.exp(self.log_hazard), jnp.diff(self._begins)
        mean, variance = 1 / hazard[..., -1], jnp.square(1 / hazard[..., -1])
        for k in reversed(range(len(lengths))):
            # Of the time A inside of the piece, with x = h L: E A = L inside, L - E A = L lost.
            length, x = lengths[k], hazard[..., k] * lengths[k]
            lives, near = jnp.exp(-x), jnp.minimum(x, _SMALL)
            inside = -jnp.expm1(-x) / x
            lost = jnp.where(x < _SMALL, jnp.polyval(jnp.asarray(_LOST), near) * near, 1 - inside)
            own = jnp.where(
                x < _SMALL,
                jnp.polyval(jnp.asarray(_OWN), near) * near,
                (1 - 2 * x * lives - lives**2) / x**2,
            )
            # The variance of A + S T, of which T is the time after the piece and S whether it was reached.
            apart = lives * mean * (x * inside * mean + 2 * length * lost)
            variance = own * length**2 + lives * variance + apart
            mean = length * inside + lives * mean
        return mean, variance

    @property
    def mean(self) -> jax.Array:
        """Mean time, and 1: times that are predicted are not censored."""
        mean, _ = self._moments()
        return jnp.stack([mean, jnp.ones_like(mean)], -1)

    @property
    def variance(self) -> jax.Array:
        """Variance of the time, and 0."""
        _, variance = self._moments()
        return jnp.stack([variance, jnp.zeros_like(variance)], -1)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Times at which the cumulative hazard reaches a standard exponential; all are events."""
        target = jax.random.exponential(key, (*sample_shape, *self.batch_shape, 1))
        hazard = jnp.exp(self.log_hazard)
        gained = jnp.cumsum(hazard[..., :-1] * jnp.diff(self._begins), -1)
        before = jnp.concatenate([jnp.zeros((*self.batch_shape, 1), gained.dtype), gained], -1)
        piece = jnp.sum(target > gained, -1, keepdims=True)

        def of_piece(values: jax.Array) -> jax.Array:
            shape = (*target.shape[:-1], hazard.shape[-1])
            return jnp.take_along_axis(jnp.broadcast_to(values, shape), piece, -1)

        time = of_piece(self._begins) + (target - of_piece(before)) / of_piece(hazard)
        return jnp.concatenate([time, jnp.ones_like(time)], -1)


@options_of(observe)
def survival(
    f: Outputs,
    y: Values | None = None,
    *,
    breaks: Sequence[float] = (),
    **options: Unpack[RowOptions],
) -> jax.Array:
    """Times until an event with log hazard f, constant in pieces; censored times are only lower bounds.

    :param f: log hazards (N,), or (N, pieces) with `breaks`; or the network, with `x`.
    :param y: (N, 2): times, and 1 where the event was seen or 0 where the time is censored; None
        to predict (uncensored times).
    :param breaks: increasing positive times at which one piece ends and the next begins.
    :return: the target.
    :raises ValueError: for shapes that do not agree, times that are not positive, flags other than
        0 and 1, or breaks that do not increase.
    """
    ends = np.asarray(breaks, float)
    if ends.ndim != 1 or (ends <= 0).any() or (np.diff(ends) <= 0).any():
        raise ValueError(
            f"survival: breaks must be increasing positive times, got breaks={breaks!r}."
        )
    check_array("survival", "y", y)
    _check_times(y)

    def likelihood(f: jax.Array, y: Any) -> dist.Distribution:
        expected = (jnp.shape(f)[0], ends.size + 1) if ends.size else jnp.shape(f)[:1]
        if jnp.shape(f) != expected:
            raise ValueError(
                f"survival: f has shape {jnp.shape(f)}, expected {expected}: one log hazard a row "
                f"for each of {ends.size + 1} pieces. Give the last layer that many units"
                f"{'' if ends.size else ', and drop its axis: `f.squeeze(-1)`'}."
            )
        return PiecewiseHazard(f if ends.size else f[..., None], ends)

    return observe("survival", f, y, likelihood, 1 if ends.size else 0, **options)


def _check_times(y: Any) -> None:
    if y is None:
        return
    if jnp.ndim(y) != 2 or jnp.shape(y)[1] != 2:
        raise ValueError(
            f"survival: y has shape {jnp.shape(y)}, expected (N, 2): times, and 1 for an event or 0 "
            "for a censored time. Join them with `np.column_stack([time, event])`."
        )
    if not not_jax_tracer(y):
        return
    time, event = np.asarray(y).T
    if not (time > 0).all() or not np.isin(event, (0, 1)).all():
        raise ValueError(
            f"survival: times must be positive and flags 0 or 1, got times from {time.min()} and "
            f"flags {np.unique(event)[:4]}."
        )
