"""Splitting methods: a step of Langevin dynamics written as a word of exact movements."""

from dataclasses import dataclass

import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import (
    DynamicsState,
    Noises,
    Settings,
    damp,
    damp_less_noise,
    drift,
    kick,
    kick_work,
    regulate,
)
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics


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
