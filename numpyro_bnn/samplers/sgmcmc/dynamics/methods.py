r"""The dynamics of each sampler: one step as pure functions of state, gradient and noise.

Most methods are sequences of the movements A, B, O, D (drift, kick, friction with noise, thermostat) of
:mod:`~numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction`, written as words of these letters. One class
covers them all: :class:`Splitting` is leapfrog, BAOAB, OBABO or the thermostat, depending on its word. Beside
it stand the interface of all methods, :class:`Dynamics`; methods that merge several movements into one, SGLD
(:class:`Langevin`), SGHMC (:class:`SemiImplicit`) and AMAGOLD (:class:`Amagold`); the random walk; and rules
that renew momenta between draws.

Every method costs one gradient a step, computed at the position that ``advance`` returns and passed to
``complete``: callers treat all methods alike, and methods do not depend on the gradient estimator.
On a quadratic potential each step is a linear map of state and noise, so its stationary
covariance solves a Lyapunov equation; the docstrings give the solutions and the tests check them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from numpyro_bnn._checks import check_share
from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Noises,
    Settings,
    damp,
    damp_less_noise,
    drift,
    inverse_mass_like,
    kick,
    kick_work,
    map_like,
    momentum_from,
    regulate,
    spread,
)


@dataclass(frozen=True)
class Dynamics:
    """A method: how position and momentum move in one step.

    ``state = init(position, noise, settings)``, then for each step::

        state = dynamics.advance(state, noises, settings)
        gradient = estimate(state.position)           # the one gradient of the step
        state = dynamics.complete(state, gradient, noises, settings)

    where ``noises`` is a tuple of ``num_noises`` pytrees, standard normal, like the position.
    """

    has_momentum: ClassVar[bool] = True
    uses_gradient: ClassVar[bool] = True

    @property
    def subtracts_noise(self) -> bool:
        """Whether a known variance of the gradient is taken off the noise that a step adds."""
        return False

    @property
    def num_noises(self) -> int:
        """Number of pytrees of standard normals that a step takes."""
        return 1

    @property
    def reuses_gradient(self) -> bool:
        """Whether ``init`` needs the gradient, because a step begins with the gradient of the last one."""
        return False

    @property
    def tracks_work(self) -> bool:
        """Whether ``state.work`` is kept, so that a trajectory can be accepted or rejected."""
        return False

    @property
    def pending_kick(self) -> float:
        r"""Share of the step for which a momentum between two steps has yet to be kicked.

        Where a step has one kick, at its beginning, half of it belongs to the step before: the momentum that
        is independent of the position is :math:`p - \tfrac12 h \nabla U`. Whatever changes the potential or
        the momentum between two steps must come after that half.
        """
        return 0.0

    def init(
        self, position: PyTree, noise: PyTree, settings: Settings, gradient: PyTree = None
    ) -> DynamicsState:
        """The state at which a chain or a trajectory begins.

        :param position: pytree of floating-point arrays.
        :param noise: standard normal, like ``position``; becomes the momentum.
        :param settings: temperature and inverse mass matrix scale the momentum.
        :param gradient: gradient at ``position``, needed if ``reuses_gradient``.
        """
        position = jax.tree.map(jnp.asarray, position)
        return DynamicsState(
            position,
            momentum=momentum_from(noise, settings) if self.has_momentum else None,
            gradient=gradient if self.reuses_gradient else None,
            work=jnp.zeros((), jnp.result_type(float)) if self.tracks_work else None,
        )

    def advance(self, state: DynamicsState, noises: Noises, settings: Settings) -> DynamicsState:
        """Move to the position at which the gradient of this step is to be computed."""
        return state

    def complete(
        self, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        """Finish the step, given (an estimate of) the gradient of U at ``state.position``."""
        raise NotImplementedError


@dataclass(frozen=True)
class Splitting(Dynamics):
    r"""A step written as a word of movements, e.g. ``Splitting("BAOAB")``.

    ``BAOAB`` (Leimkuhler & Matthews 2013): the covariance of the position is exactly
    :math:`T H^{-1}` on a quadratic potential, at any stable step (:math:`h^2 \lambda < 4`) and
    friction. ``BAOA`` joins the two half kicks of neighbouring steps of BAOAB: it has the
    same positions from :math:`p + \tfrac{h}{2} \nabla U`, momenta that are exactly N(0, T M)
    too, and no gradient carried from step to step, which a new minibatch would make stale; the form for
    unadjusted sampling. As a block of Gibbs it ends every step with the half kick that is pending
    (:attr:`pending_kick`). Gradient noise of covariance V heats it as
    :math:`T + \tfrac14 h^2 \coth(\tfrac12 \gamma h) V / M`, about :math:`h V / (2 \gamma M)`. Where V is
    known (``gradient_noise``), O adds less noise and keeps less momentum, so that the heat of the position
    is taken off: :func:`~numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction.damp_less_noise`.

    ``OBABO`` (Bussi & Parrinello 2007): momenta exact, positions :math:`T (H - \tfrac{h^2}{4} H
    M^{-1} H)^{-1}`; with Metropolis at intervals it is GGMC (Garriga-Alonso & Fortuin 2021).
    ``BAB`` is the leapfrog. ``BADODA`` is SGNHT (Ding et al. 2014) in the splitting of
    Leimkuhler & Shang 2016, with the two half kicks made one; unknown gradient noise of covariance V moves
    the mean of the thermostat to :math:`\gamma + h V / (2 T M)` and leaves the target unchanged. States are
    recorded before the kick that heats them, so that their kinetic temperature is
    :math:`T - h^2 V / (2 M)`.

    :param letters: the word: A, B, O, D. It needs A and B, and one new gradient at most.
    :param metropolis: whether to sum up ``work``; only for a palindrome without D.
    :param relaxation_time: :math:`\tau` of the thermostat; None is 1/friction, which has the
        dimension of a time whatever the units of the parameters. Ding et al. have 1.
    :raises ValueError: if the word breaks one of these rules.
    """

    letters: str
    metropolis: bool = False
    relaxation_time: float | None = None

    def __post_init__(self) -> None:
        word = self.letters
        known = not set(word) - set("ABOD") and {"A", "B"} <= set(word)
        at_ends = len(self._kicks) == 2 and all("B" in word.split("A")[i] for i in (0, -1))
        one_gradient = len(self._kicks) == 1 or at_ends
        if not known or not one_gradient or ("D" in word and "O" not in word):
            raise ValueError(
                f"Splitting: letters={word!r}, expected a word of A (drift), B (kick), O (friction) and D "
                "(thermostat) with A, B, and O beside a D, and kicks at one position, or at both ends: "
                "one new gradient a step. Try 'BAOAB' or 'BADODA'."
            )
        if self.metropolis and ("D" in word or word != word[::-1]):
            raise ValueError(
                f"Splitting: letters={word!r} cannot be corrected by Metropolis, expected a "
                "palindrome of A, B and O. Try 'OBABO' or 'BAOAB', or metropolis=False."
            )
        if self.relaxation_time is not None and not self.relaxation_time > 0:
            raise ValueError(
                "Splitting: relaxation_time must be positive, got relaxation_time="
                f"{self.relaxation_time}. None takes 1/friction."
            )

    @property
    def _kicks(self) -> list[str]:
        # The parts between drifts that have a kick: one entry for each position at which there are kicks.
        return [part for part in self.letters.split("A") if "B" in part]

    @property
    def reuses_gradient(self) -> bool:
        """Whether kicks at both ends of a step share one gradient."""
        return len(self._kicks) == 2

    @property
    def tracks_work(self) -> bool:
        """Whether the energy that kicks add is summed up, for a Metropolis correction."""
        return self.metropolis

    @property
    def pending_kick(self) -> float:
        """Half a step where a word with one kick begins with it, minus half a step where it ends with it."""
        if self.reuses_gradient:
            return 0.0
        return 0.5 * (self.letters[0] == "B") - 0.5 * (self.letters[-1] == "B")

    @property
    def subtracts_noise(self) -> bool:
        """Whether O takes off what the noise of the gradient has added: for the word ``BAOA``."""
        return self.letters == "BAOA"

    @property
    def num_noises(self) -> int:
        """One pytree of standard normals for each O of the word."""
        return self.letters.count("O")

    @property
    def _cut(self) -> int:
        # The new gradient is needed at the first kick that cannot use the gradient of the last step.
        start = self.letters.rindex("A") if self.reuses_gradient else 0
        return self.letters.index("B", start)

    def init(
        self, position: PyTree, noise: PyTree, settings: Settings, gradient: PyTree = None
    ) -> DynamicsState:
        """The state at which a chain begins; a thermostat begins at the friction."""
        state = super().init(position, noise, settings, gradient)
        if "D" not in self.letters:
            return state
        return state._replace(thermostat=jnp.asarray(settings.friction, jnp.result_type(float)))

    def advance(self, state: DynamicsState, noises: Noises, settings: Settings) -> DynamicsState:
        """Apply the movements before the first kick by a new gradient."""
        return self._move(self.letters[: self._cut], state, state.gradient, noises, settings)

    def complete(
        self, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        """Apply the movements from that kick on."""
        word = self.letters[self._cut :]
        rest = noises[self.num_noises - word.count("O") :]
        state = self._move(word, state, gradient, rest, settings)
        return state._replace(gradient=gradient) if self.reuses_gradient else state

    def _move(
        self, word: str, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        remaining = iter(noises)
        for letter in word:
            time = jnp.asarray(settings.step_size) / self.letters.count(letter)
            if letter == "A":
                position = drift(state.position, state.momentum, time, settings)
                state = state._replace(position=position)
            elif letter == "B":
                momentum = kick(state.momentum, gradient, time)
                if self.metropolis:
                    gain = kick_work(state.momentum, momentum, gradient, time, settings)
                    state = state._replace(work=state.work + gain)
                state = state._replace(momentum=momentum)
            elif letter == "O":
                noise = next(remaining)
                if self.subtracts_noise:
                    momentum = damp_less_noise(state.momentum, noise, time, settings)
                else:
                    momentum = damp(state.momentum, noise, time, settings, state.thermostat)
                state = state._replace(momentum=momentum)
            else:
                tau = self.relaxation_time
                rate = settings.friction if tau is None else 1 / tau
                thermostat = regulate(state.thermostat, state.momentum, time, settings, rate)
                state = state._replace(thermostat=thermostat)
        return state


@dataclass(frozen=True)
class Langevin(Dynamics):
    r"""Overdamped Langevin dynamics by Euler's method: SGLD, pSGLD, the proposal of MALA.

    .. math:: \theta' = \theta - \tfrac{\epsilon}{2} (M^{-1} \nabla U - T \Gamma)
              + \sqrt{\epsilon T M^{-1} - \tfrac{\epsilon^2}{4} M^{-2} \hat V}\, \xi

    Welling & Teh 2011, eq. 4; with a metric and its divergence :math:`\Gamma_i = \sum_j \partial_j
    M^{-1}_{ij}`, Li et al. 2016, algorithm 1. The variance :math:`\hat V` of the gradient
    (``gradient_noise``, 0 by default) is subtracted as for :class:`SemiImplicit`; the root is clipped at 0.
    On a quadratic potential of Hessian H the stationary covariance is :math:`T (H - \tfrac{\epsilon}{4} H
    M^{-1} H)^{-1}`: an error of first order in epsilon.
    """

    has_momentum: ClassVar[bool] = False
    subtracts_noise: ClassVar[bool] = True

    def complete(
        self, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        """Move the position by gradient and noise; see the formula of the class."""
        epsilon, temperature = jnp.asarray(settings.step_size), jnp.asarray(settings.temperature)

        def move(x: Any, g: Any, xi: Any, w: Any, v: Any, gamma: Any) -> Any:
            variance = jnp.maximum(epsilon * temperature * w - (0.5 * epsilon * w) ** 2 * v, 0.0)
            return x - 0.5 * epsilon * (w * g - temperature * gamma) + jnp.sqrt(variance) * xi

        names = ("inverse_mass_matrix", "gradient_noise", "divergence")
        others = [spread(getattr(settings, name), state.position, name) for name in names]
        return state._replace(position=map_like(move, state.position, gradient, *noises, *others))


@dataclass(frozen=True)
class RandomWalkProposal(Dynamics):
    r"""A symmetric proposal, :math:`\theta' = \theta + s \sqrt{M^{-1}} \xi`, s the step size.

    It depends neither on gradients nor on the temperature: accept by ``log_acceptance(U' - U, temperature)``.
    """

    has_momentum: ClassVar[bool] = False
    uses_gradient: ClassVar[bool] = False

    def complete(
        self, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        """Move the position by noise alone."""

        def move(x: Any, xi: Any, w: Any) -> Any:
            return x + settings.step_size * jnp.sqrt(w) * xi

        inverse_mass = inverse_mass_like(settings, state.position)
        return state._replace(position=map_like(move, state.position, *noises, inverse_mass))


@dataclass(frozen=True)
class SemiImplicit(Dynamics):
    r"""SGHMC: friction and noise by Euler's method, the momentum first.

    .. math:: p' &= (1 - \gamma h) p - h \nabla U + \sqrt{2 \gamma h T M - h^2 \hat V}\, \xi \\
              \theta' &= \theta + h M^{-1} p'

    Chen, Fox & Guestrin 2014, eq. 15 with :math:`C = \gamma M` and
    :math:`\hat B = \tfrac12 h \hat V`, :math:`\hat V` the variance of the gradient of U
    (``gradient_noise``). The temperature multiplies the total noise, and not the part that the minibatch has
    added already. The root is clipped at 0: friction should be at least
    :math:`h \hat V / (2 T M)`. The position uses the new momentum; with the old one (explicit
    Euler) there may be no stationary distribution at all.

    Stationary covariance for a Hessian H: :math:`T (H - \tfrac{h^2}{4 - 2 \gamma h} H M^{-1}
    H)^{-1}`, so that the error is of second order at any friction. (The exact coefficient
    :math:`1 - (1 - \gamma h)^2` in place of :math:`2 \gamma h` would multiply it by
    :math:`1 - \gamma h / 2`, an error of first order even where the potential is flat.) Momenta
    come out too warm, by a factor of :math:`1 / (1 - \gamma h / 2)` to leading order. With
    :math:`\gamma h = 1` this is SGLD at :math:`\epsilon = 2 h^2`, draw for draw. Stable for
    :math:`h^2 \lambda < 4 - 2 \gamma h`, lambda the largest eigenvalue of :math:`M^{-1} H`.
    """

    subtracts_noise: ClassVar[bool] = True
    pending_kick: ClassVar[float] = 0.5  # The step begins with its kick

    def complete(
        self, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        """Update the momentum, then drift with the new momentum."""
        h, temperature = jnp.asarray(settings.step_size), jnp.asarray(settings.temperature)
        loss = settings.friction * h

        def move(p: Any, g: Any, xi: Any, w: Any, v: Any) -> Any:
            variance = jnp.maximum(2 * loss * temperature / w - h**2 * v, 0.0)
            return (1 - loss) * p - h * g + jnp.sqrt(variance) * xi

        inverse_mass = inverse_mass_like(settings, state.position)
        known = spread(settings.gradient_noise, state.position, "gradient_noise")
        momentum = map_like(move, state.momentum, gradient, *noises, inverse_mass, known)
        position = drift(state.position, momentum, h, settings)
        return state._replace(position=position, momentum=momentum)


@dataclass(frozen=True)
class Amagold(Dynamics):
    r"""AMAGOLD: a drift of h/2, a kick with friction that is symmetric in time, a drift of h/2.

    .. math:: p' = \frac{(1 - b) p - h \hat g + \sqrt{4 b T M}\, \xi}{1 + b},
              \qquad b = \tfrac12 \gamma h

    Zhang, Cooper & De Sa 2020, with :math:`b` their :math:`\varepsilon \beta`; their
    :math:`\rho` is minus ``work``. The ratio of the densities of :math:`p \to p'` and of
    :math:`-p' \to -p` is :math:`\exp((K' - K + \tfrac12 h \hat g^\top M^{-1}(p + p'))/T)` for any estimate
    :math:`\hat g`, so a trajectory with minibatch gradients is corrected exactly by one evaluation of U at
    each end. The minibatches of one trajectory must be as likely in the opposite order.

    :param metropolis: whether to sum up ``work``. Without a Metropolis correction the covariance of the
        position on a quadratic potential is :math:`T H^{-1}`, and gradient noise V heats it by
        :math:`h V / (2 \gamma M)`.
    """

    metropolis: bool = True

    @property
    def tracks_work(self) -> bool:
        """Whether the energy that kicks add is summed up, for a Metropolis correction."""
        return self.metropolis

    def advance(self, state: DynamicsState, noises: Noises, settings: Settings) -> DynamicsState:
        """Drift for half a step."""
        half = 0.5 * settings.step_size
        return state._replace(position=drift(state.position, state.momentum, half, settings))

    def complete(
        self, state: DynamicsState, gradient: PyTree, noises: Noises, settings: Settings
    ) -> DynamicsState:
        """Kick with friction and noise, then drift for half a step."""
        h, temperature = jnp.asarray(settings.step_size), jnp.asarray(settings.temperature)
        b = 0.5 * settings.friction * h

        def move(p: Any, g: Any, xi: Any, w: Any) -> Any:
            return ((1 - b) * p - h * g + jnp.sqrt(4 * b * temperature / w) * xi) / (1 + b)

        inverse_mass = inverse_mass_like(settings, state.position)
        momentum = map_like(move, state.momentum, gradient, *noises, inverse_mass)
        work = state.work
        if self.metropolis:
            work = work + kick_work(state.momentum, momentum, gradient, h, settings)
        position = drift(state.position, momentum, 0.5 * h, settings)
        return state._replace(position=position, momentum=momentum, work=work)


# A rule for momentum refreshment, applied before every call of `sample`: the new momentum, from a method, its
# state, standard normal noise, settings, and the calls of `sample` so far.
MomentumRefresh: TypeAlias = Callable[
    [Dynamics, DynamicsState, PyTree, Settings, jax.Array], PyTree
]


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
        check_share("PersistentMomentum", "persistence", self.persistence, may_be_0=True)

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
