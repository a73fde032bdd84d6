r"""Step sizes and temperatures that change with the number of steps.

A schedule is a callable ``count -> value``, the convention of Optax, so every Optax schedule is
one. The count begins at 0 at the end of warm-up; during warm-up a kernel holds it at 0. Cyclical
SG-MCMC is a schedule that also knows which of its steps explore: :class:`Cyclical`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_bnn._checks import check_positive, check_share, check_whole
from numpyro_bnn._text import call_of, text_of
from numpyro_bnn._types import Number

__all__ = ["constant", "cyclical", "from_learning_rate", "polynomial"]

Schedule = Callable[[Number], Number]


@dataclass(frozen=True)
class _Constant:
    value: float

    def __call__(self, count: Number) -> jax.Array:
        return jnp.asarray(self.value, jnp.result_type(float))

    def __repr__(self) -> str:
        return text_of(self.value)


def constant(value: float) -> Schedule:
    """A schedule that has one value at every step.

    :param value: finite and not negative (a temperature may be 0).
    :raises ValueError: for a negative value, infinity or NaN.
    """
    return as_schedule(float(value), "value", "constant")


def as_schedule(value: float | Schedule, name: str = "step_size", owner: str = "") -> Schedule:
    """A schedule from a number or from a schedule, which is returned as it is; others are refused."""
    label = f"{owner}: {name}" if owner else name
    if not callable(value):
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"{label} must be a number or a schedule (a callable of the step count), got "
                f"{value!r}. Give e.g. {name}=0.01 or a schedule of Optax."
            ) from None
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(
                f"{label} must be finite and not negative, got {name}={number}. Give a number above 0."
            )
        return _Constant(number)
    label += f" is the schedule {getattr(value, '__qualname__', type(value).__qualname__)}"
    # As a compiled sampler calls it; JAX says why a schedule cannot be traced.
    shape = jax.eval_shape(
        lambda count: jnp.asarray(value(count), float), jax.ShapeDtypeStruct((), jnp.int32)
    ).shape
    if shape:
        raise TypeError(
            f"{label}, whose value has the shape {shape}, expected a scalar. Return one number for each "
            "step; scales that differ between parameters belong in the preconditioner."
        )
    first = value(jnp.zeros((), jnp.int32))
    # The value of a schedule made from traced values is unknown, and not checked.
    if not isinstance(first, jax.core.Tracer) and not (math.isfinite(first) and first >= 0):
        raise ValueError(
            f"{label}, whose value at count 0 is {first}, expected a finite number that is not "
            "negative. Correct the schedule."
        )
    return value


@dataclass(frozen=True)
class _Polynomial:
    a: float
    b: float
    gamma: float

    def __call__(self, count: Number) -> jax.Array:
        return self.a * (self.b + jnp.asarray(count, jnp.result_type(float))) ** -self.gamma

    def __repr__(self) -> str:
        return call_of("polynomial", vars(self))


def polynomial(a: float, b: float, gamma: float) -> Schedule:
    r""":math:`a (b + t)^{-\gamma}`, the decreasing step sizes under which SGLD is consistent.

    Welling & Teh 2011, sec. 2: :math:`\sum \epsilon_t = \infty`, so that the chain can reach
    everything, and :math:`\sum \epsilon_t^2 < \infty`, so that its error vanishes. Averages must
    then weight each draw by its step. The best rate is at gamma = 1/3 (Teh, Thiery & Vollmer
    2016), which has no finite sum of squares: it, and any other exponent, is an Optax schedule.

    :param a: positive; the first step is :math:`a b^{-\gamma}`.
    :param b: positive; the number of steps after which the decrease begins to show.
    :param gamma: in (0.5, 1].
    :raises ValueError: if a value is outside its range.

    >>> step_size = polynomial(a=0.1, b=10.0, gamma=1.0)
    >>> round(step_size(0).item(), 6), round(step_size(90).item(), 6)
    (0.01, 0.001)
    """
    check_positive("polynomial", a=a, b=b)
    if not 0.5 < gamma <= 1:
        raise ValueError(
            f"polynomial: gamma must be in (0.5, 1], got gamma={gamma}: beyond 1 steps have a finite sum, "
            "and from 0.5 on down their squares none. Pass a schedule of Optax if that is intended."
        )
    return _Polynomial(a, b, gamma)


@dataclass(frozen=True)
class Cyclical:
    r"""Cosine cycles, each of which explores and then samples: see :func:`cyclical`.

    :meth:`num_steps` gives a kernel the number of steps to the next draw that is kept; with
    ``schedule=schedule.temperature(T)`` exploration runs at temperature 0.
    """

    peak: float
    cycle_length: int
    exploration: float
    transform: Callable[[Number], Number] | None = None

    def __repr__(self) -> str:
        return call_of("cyclical", {k: v for k, v in vars(self).items() if v is not None})

    @property
    def num_exploration(self) -> int:
        """Steps of each cycle whose draws are not kept; the first of them restarts at the peak."""
        return round(self.exploration * self.cycle_length)

    @property
    def num_kept(self) -> int:
        """Draws kept of each cycle."""
        return self.cycle_length - self.num_exploration

    def __call__(self, count: Number) -> jax.Array:
        phase = jnp.mod(jnp.asarray(count), self.cycle_length) / self.cycle_length
        value = 0.5 * self.peak * (1 + jnp.cos(jnp.pi * phase))
        return value if self.transform is None else jnp.asarray(self.transform(value))

    def is_sampling(self, count: Number) -> jax.Array:
        """Whether the draw that step ``count`` makes is one to keep."""
        return jnp.mod(jnp.asarray(count), self.cycle_length) >= self.num_exploration

    def num_steps(self, count: Number) -> jax.Array:
        """Steps to run from ``count`` so that the last one makes a draw to keep; at least 1."""
        place = jnp.mod(jnp.asarray(count), self.cycle_length)
        return jnp.maximum(self.num_exploration - place, 0) + 1

    def temperature(self, temperature: float = 1.0) -> Schedule:
        """Temperatures of 0 during exploration, which then optimises, and ``temperature`` while sampling."""
        return _WhileSampling(self, temperature)


def steps_per_draw(*schedules: Schedule) -> Callable[[Number], jax.Array] | None:
    """Steps from a count to the next draw, by the first cyclical schedule; None for one step a draw."""
    return next((s.num_steps for s in schedules if isinstance(s, Cyclical)), None)


@dataclass(frozen=True)
class _WhileSampling:
    cycle: Cyclical
    temperature: float

    def __call__(self, count: Number) -> jax.Array:
        return jnp.where(self.cycle.is_sampling(count), self.temperature, 0.0)

    def __repr__(self) -> str:
        return f"{self.cycle!r}.temperature({self.temperature!r})"


def cyclical(peak: float, cycle_length: int, exploration: float = 0.8) -> Cyclical:
    r"""Cosine cycles from a peak down to nearly 0; the first part of each cycle explores.

    .. math:: \epsilon_t = \tfrac12 \epsilon_0 \left(1 + \cos(\pi\, (t \bmod L) / L)\right)

    Zhang et al. 2020, eq. 1, with t from 0. Large steps cross to another mode, the small ones
    that follow sample it. Steps with :math:`(t \bmod L)/L` below ``exploration`` make no draws: one
    call of ``sample`` runs through them, so that the number of draws is the one asked for. Restarts find
    modes in arbitrary proportions and not in proportion to their mass: averages over cycles are like those of
    a deep ensemble with the spread inside modes added, and not exact.

    :param peak: value at the start of each cycle.
    :param cycle_length: steps, 2 or more.
    :param exploration: fraction of each cycle, in [0, 1); 0.8 keeps the last fifth.
    :return: a schedule with :meth:`~Cyclical.is_sampling`, :meth:`~Cyclical.num_steps` and
        :meth:`~Cyclical.temperature`.
    :raises ValueError: if a value is outside its range, or no draw of a cycle would be kept.

    >>> schedule = cyclical(peak=0.1, cycle_length=10, exploration=0.8)
    >>> [schedule.num_steps(count).item() for count in (0, 9, 10)]
    [9, 1, 9]
    """
    check_positive("cyclical", peak=peak)
    cycle_length = check_whole("cyclical", "cycle_length", cycle_length, least=2)
    check_share("cyclical", "exploration", exploration, may_be_0=True)
    schedule = Cyclical(peak, cycle_length, exploration)
    if schedule.num_kept == 0:
        raise ValueError(
            f"cyclical: with cycle_length={cycle_length} and exploration={exploration} no draw "
            "is kept, expected at least one a cycle. Lengthen the cycle or explore less."
        )
    return schedule


def _step_size_of(rate: Number, data_size: int, momentum: bool) -> Number:
    return jnp.sqrt(rate / data_size) if momentum else 2 * rate / data_size


@dataclass(frozen=True)
class _Converted:
    rate: Schedule
    convert: partial

    def __call__(self, count: Number) -> Any:
        return self.convert(self.rate(count))

    def __repr__(self) -> str:
        return call_of("from_learning_rate", self.convert.keywords, (self.rate,))


def from_learning_rate(
    learning_rate: float | Schedule, data_size: int, *, momentum: bool
) -> Schedule:
    r"""The step size that corresponds to an optimiser's learning rate on the mean loss.

    Gradient descent :math:`\theta - \ell\, \nabla \bar L` on the mean loss :math:`\bar L = U/N` is
    the drift of SGLD with :math:`\epsilon = 2 \ell / N`. Momentum kernels have
    :math:`h = \sqrt{\ell / N}`, for which :math:`\epsilon = 2 h^2`, and a friction of
    :math:`(1 - \beta)/h` for the optimiser's momentum :math:`\beta`.

    :param learning_rate: number or schedule; a cyclical one keeps its marks of exploration.
    :param data_size: N, rows of all the data.
    :param momentum: True for kernels with a momentum, False for SGLD, PSGLD and MALA.
    :raises ValueError: if ``data_size`` is not positive.
    """
    check_positive("from_learning_rate", data_size=data_size)
    rate = as_schedule(learning_rate, "learning_rate", "from_learning_rate")
    convert = partial(_step_size_of, data_size=data_size, momentum=momentum)
    if isinstance(rate, Cyclical):
        return Cyclical(rate.peak, rate.cycle_length, rate.exploration, convert)
    return _Converted(rate, convert)
