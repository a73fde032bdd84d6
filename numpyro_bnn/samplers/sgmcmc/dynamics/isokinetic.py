r"""Isokinetic dynamics: momenta of constant norm, whose direction the gradient turns.

The stationary distribution of the position and the units of step size and friction are those of the Langevin
methods. A momentum lies on the sphere :math:`p^\top M^{-1} p = D T`; in high dimension momenta with
distribution N(0, T M) lie near that sphere anyway. Since the norm of a momentum is constant, no step moves a
chain far, however steep the potential.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Noises,
    Settings,
    damp,
    drift,
    inverse_mass_like,
    map_like,
    size,
    total,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics


@dataclass(frozen=True)
class Isokinetic(Dynamics):
    r"""``OBABO`` on a sphere of momenta (microcanonical Langevin dynamics).

    With :math:`n = M^{-1/2} p / \sqrt{DT}` and the unit vector e against
    :math:`M^{-1/2} \nabla U`, a kick of time t turns

    .. math:: n \leftarrow \frac{n + (\sinh\delta + e^\top n (\cosh\delta - 1))\, e}
              {\cosh\delta + e^\top n \sinh\delta},
              \qquad \delta = \frac{t \sqrt{DT}\, |M^{-1/2} \nabla U|}{T (D - 1)},

    and multiplies the density on the sphere by the denominator to the power :math:`D - 1`
    (Robnik et al. 2023, *Microcanonical Hamiltonian Monte Carlo*, eq. 14, in the scaling above);
    T times its logarithm is ``work``. Friction is the movement O, followed by a projection to the
    sphere: it leaves directions uniform (Robnik and Seljak 2024, *Fluctuation without
    dissipation*, eq. 9).

    :param friction: whether momenta are partly refreshed at both ends of a step; without it the
        word is ``BAB``.
    """

    friction: bool = True
    # A step begins with the gradient that the last one ended with
    reuses_gradient: ClassVar[bool] = True
    tracks_work: ClassVar[bool] = True

    @property
    def num_noises(self) -> int:
        """Two refreshments of the direction a step, none without friction."""
        return 2 if self.friction else 0

    def init(
        self, position: PyTree, noise: PyTree, settings: Settings, gradient: PyTree = None
    ) -> DynamicsState:
        """The state at which a chain begins, with a momentum of constant size."""
        if size(position) < 2:
            raise ValueError(
                "Isokinetic: the position has one scalar, and a momentum of constant size could "
                "only change its sign. Use BAOAB, or NUTS."
            )
        state = super().init(position, noise, settings, gradient)
        return state._replace(momentum=on_sphere(state.momentum, settings))

    def advance(self, state: DynamicsState, noises: Noises, settings: Settings) -> DynamicsState:
        """Refresh the direction, kick for h/2, and drift for h."""
        state = self._half_kick(self._refreshed(state, noises[:1], settings), settings)
        position = drift(state.position, state.momentum, settings.step_size, settings)
        return state._replace(position=position)

    def complete(
        self, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        """Kick for h/2 by the new gradient, and refresh the direction."""
        state = self._half_kick(state._replace(gradient=gradient), settings)
        return self._refreshed(state, noises[1:], settings)

    def _half_kick(self, state: DynamicsState, settings: Settings) -> DynamicsState:
        half = 0.5 * jnp.asarray(settings.step_size)
        momentum, gain = turn(state.momentum, state.gradient, half, settings)
        return state._replace(momentum=momentum, work=state.work + gain)

    def _refreshed(self, state: DynamicsState, noises: Noises, settings: Settings) -> DynamicsState:
        if not self.friction:
            return state
        (noise,) = noises
        momentum = damp(state.momentum, noise, 0.5 * jnp.asarray(settings.step_size), settings)
        return state._replace(momentum=on_sphere(momentum, settings))


def on_sphere(momentum: PyTree, settings: Settings) -> PyTree:
    r"""The momentum of the same direction with :math:`p^\top M^{-1} p = D T`."""
    square = total(lambda p, w: w * p * p, momentum, inverse_mass_like(settings, momentum))
    scale = jnp.sqrt(size(momentum) * jnp.asarray(settings.temperature) / square)
    return map_like(lambda p: scale * p, momentum)


def turn(
    momentum: PyTree, gradient: PyTree, time: jax.Array, settings: Settings
) -> tuple[PyTree, jax.Array]:
    """The movement B on the sphere: the new momentum, and the kinetic energy gained, in nats at T = 1."""
    temperature = jnp.asarray(settings.temperature)
    inverse_mass = inverse_mass_like(settings, momentum)
    dim = size(momentum)
    speed = jnp.sqrt(dim * temperature)
    steepness = jnp.sqrt(total(lambda g, w: w * g * g, gradient, inverse_mass))
    # Where the potential is flat the momentum keeps its direction.
    safe = jnp.where(steepness > 0, steepness, 1.0)
    along = total(lambda p, g, w: -w * p * g, momentum, gradient, inverse_mass) / (speed * safe)
    along = jnp.clip(along, -1.0, 1.0)
    delta = time * speed * steepness / (temperature * (dim - 1))
    # Numerator and denominator are multiplied by 2 exp(-δ), so that a steep potential causes no overflow.
    decay = jnp.exp(-delta)
    push = (1 - decay) * (1 + decay + along * (1 - decay)) * speed / safe
    turned = map_like(lambda p, g: 2 * decay * p - push * g, momentum, gradient)
    small = jnp.minimum(delta, 1.0)
    near = jnp.log1p(2 * jnp.sinh(small / 2) ** 2 + along * jnp.sinh(small))
    shrunk = 1 + along + (1 - along) * decay**2
    far = delta + jnp.log(jnp.maximum(shrunk, jnp.finfo(shrunk.dtype).tiny) / 2)
    gain = temperature * (dim - 1) * jnp.where(delta < 1, near, far)
    return on_sphere(turned, settings), gain
