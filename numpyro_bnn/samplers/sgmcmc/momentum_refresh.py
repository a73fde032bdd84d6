"""Momentum refreshment between draws: a fresh momentum every so many draws, or a partial refresh."""

import math
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Settings,
    damp,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics


class MomentumRefresh(Protocol):
    """A rule for momentum refreshment, applied before every call of `sample`."""

    def __call__(
        self,
        method: Dynamics,
        state: DynamicsState,
        noise: PyTree,
        settings: Settings,
        i: jax.Array,
    ) -> PyTree:
        """The momentum after refreshment.

        :param method: dynamics that use the momentum.
        :param state: state of the dynamics.
        :param noise: standard normal, like the position.
        :param settings: temperature and metric scale the momentum.
        :param i: calls of `sample` so far.
        """


@dataclass(frozen=True)
class FreshMomentum:
    """Momenta drawn from their stationary distribution.

    :param every: calls of `sample` from one fresh momentum to the next.
    """

    every: int = 1

    def __call__(
        self,
        method: Dynamics,
        state: DynamicsState,
        noise: PyTree,
        settings: Settings,
        i: jax.Array,
    ) -> PyTree:
        fresh = method.init(state.position, noise, settings, state.gradient).momentum
        due = i % self.every == 0
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, state.momentum)


@dataclass(frozen=True)
class PersistentMomentum:
    r"""Momenta of which a share is kept: :math:`p \leftarrow \alpha p + \sqrt{1 - \alpha^2}\, n`.

    :param persistence: :math:`\alpha` in [0, 1); 0 draws momenta afresh.
    :raises ValueError: outside of that range.

    Source: A. M. Horowitz, *A generalized guided Monte Carlo algorithm* (1991).
    """

    persistence: float

    def __post_init__(self) -> None:
        if isinstance(self.persistence, bool) or not 0 <= self.persistence < 1:
            raise ValueError(
                f"PersistentMomentum: persistence must be in [0, 1), got {self.persistence!r}. 0 draws "
                "momenta afresh for every trajectory."
            )

    def __call__(
        self,
        method: Dynamics,
        state: DynamicsState,
        noise: PyTree,
        settings: Settings,
        i: jax.Array,
    ) -> PyTree:
        # The friction for which this share of a momentum remains after a unit of time.
        friction = -math.log(self.persistence) if self.persistence else math.inf
        return damp(state.momentum, noise, 1.0, settings._replace(friction=friction))
