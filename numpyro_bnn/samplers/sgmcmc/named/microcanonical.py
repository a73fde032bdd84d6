"""Microcanonical samplers: a kernel over isokinetic dynamics, unadjusted or corrected.

Both live on what every kernel here has (gradients, preconditioners, schedules, temperatures);
:mod:`~numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic` is the motion, and
:mod:`~numpyro_bnn.samplers.sgmcmc.energy_error_tuning` what the unadjusted sampler learns in warm-up.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_bnn._checks import check_positive, check_whole
from numpyro_bnn.samplers.sgmcmc import preconditioners
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.branches import chosen
from numpyro_bnn.samplers.sgmcmc.checks import check_all_rows
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic
from numpyro_bnn.samplers.sgmcmc.energy_error_tuning import Decoherence
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.named.underdamped import Underdamped
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState

Model = Callable | None
# Until warm-up knows better: momenta forget over a standard deviation of every parameter. Much faster,
# and a chain would diffuse to where it should be instead of going there.
_FIRST_FRICTION = 1.0


class MCLMC(Underdamped):
    r"""Microcanonical Langevin Monte Carlo: unadjusted, one gradient a step.

    With ``step_size="auto"`` and all rows, warm-up looks for the step at which the variance of
    the energy error, by parameter, is `energy_variance`; that is the bias that a user accepts.
    The rate at which momenta forget is set from the autocorrelation over the last third of
    warm-up. Both are frozen then.

    With minibatches the energy error is mostly that of the minibatch: the step follows the
    curvature as that of :class:`~numpyro_bnn.samplers.sgmcmc.named.langevin_and_momentum.BAOAB` does.
    Gradient noise turns momenta at random and so flattens the law (by a term of first order in the step),
    as it heats Langevin dynamics, and no thermostat can see it, the momenta having one size: prefer BAOAB
    or SGNHT where that matters.

    :param step_size: time step h, in which momenta have unit variance by parameter, as for BAOAB.
        Elsewhere momenta have unit size: multiply by √D for that step.
    :param energy_variance: target of Var[ΔE]/D for a step, at temperature 1. Variances in a
        logistic regression were 1.02 times the true ones with the default, 1.09 at worst, and with
        0.1, which is common for networks and doubles the step, 1.16 times and 1.9 at worst
        (``benchmarks/microcanonical.py``).
    :param friction: per unit time, 1/L with L the decoherence time; found in warm-up where None.
    :param preconditioner: default: the variances of warm-up.
    :raises ValueError: for values out of range.

    Source: Robnik, De Luca, Silverstein and Seljak, *Microcanonical Hamiltonian Monte Carlo*
    (2023), sections 3 and 4; Robnik and Seljak, *Fluctuation without dissipation* (2024).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any = "auto",
        energy_variance: float = 5e-4,
        friction: float | None = None,
        preconditioner: Any = None,
        **ingredients: Any,
    ) -> None:
        check_positive("MCLMC", energy_variance=energy_variance)
        super().__init__(
            model,
            potential_fn,
            dynamics=Isokinetic(),
            step_size=step_size,
            friction=_FIRST_FRICTION if friction is None and step_size == "auto" else friction,
            preconditioner=_learned_unless(preconditioner, step_size),
            **ingredients,
        )
        _check_warm("MCLMC", self._temperature)
        self._tuning = Decoherence(
            energy_variance=None if self._follows_curvature or not self._auto else energy_variance,
            finds_friction=friction is None,
        )

    @property
    def default_fields(self) -> tuple[str, ...]:
        return (*super().default_fields, *(() if self._some_rows else ("energy_error",)))

    @property
    def _follows_curvature(self) -> bool:
        return self._some_rows

    def _learned(self, before: SGMCMCState, after: SGMCMCState) -> SGMCMCState:
        work = after.dynamics.work
        after = after._replace(dynamics=after.dynamics._replace(work=jnp.zeros_like(work)))
        error = after.potential_energy - before.potential_energy + work
        error = error.astype(before.energy_error.dtype)
        if not self._some_rows:
            after = after._replace(energy_error=error)
        if self._tuning.learns:
            # A first guess of the step that is too large for the energy to be a number is taken back.
            lost = (before.i < self._num_warmup) & ~jnp.isfinite(error)
            after = chosen(~lost, after, before._replace(adaptation=after.adaptation))
        return self._tuned(before, after, error / before.temperature)


class MAMS(SGMCMC):
    r"""Metropolis-adjusted microcanonical sampling: exact at any step size, with all rows.

    A fresh direction, a trajectory of random length without friction, and a decision by the
    total energy. Begin near the typical set (:func:`~numpyro_bnn.approximations.optimize.optimize`, as
    ``fit`` does): where the energy is in the millions, rounding in single precision rejects
    trajectories at any step, which then shrinks without end, and the chain stays.

    :param step_size: time step h; ``"auto"`` aims at `target_accept_prob`.
    :param trajectory_length: mean duration of a trajectory, in the units of the step size: with
        the variances of warm-up as metric, a quarter of a period of a standard normal is π/2.
    :param max_num_steps: the most steps that a trajectory may have.
    :param preconditioner: default: the variances of warm-up.
    :raises ValueError: for values out of range, and for minibatches.

    Source: Robnik, Cohn-Gordon and Seljak, *Metropolis adjusted microcanonical Hamiltonian Monte
    Carlo* (2025), algorithm 1.
    """

    _takes_minibatches = False

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any = "auto",
        trajectory_length: float = math.pi / 2,
        max_num_steps: int = 255,
        batch_size: None = None,
        preconditioner: Any = None,
        **ingredients: Any,
    ) -> None:
        check_positive("MAMS", trajectory_length=trajectory_length)
        max_num_steps = check_whole("MAMS", "max_num_steps", max_num_steps)
        check_all_rows("MAMS", batch_size, ingredients.get("gradient"))
        super().__init__(
            model,
            potential_fn,
            dynamics=Isokinetic(friction=False),
            step_size=step_size,
            metropolis=Metropolis(max_num_steps, trajectory_length=trajectory_length),
            resample_momentum=1,
            preconditioner=_learned_unless(preconditioner, step_size),
            **{"target_accept_prob": 0.9, **ingredients},
        )
        _check_warm("MAMS", self._temperature)


def _learned_unless(preconditioner: Any, step_size: Any) -> Any:
    """The variances of warm-up go with a step that warm-up finds; a given step has given units."""
    if preconditioner is not None or step_size != "auto":
        return preconditioner
    return preconditioners.from_warmup()


def _check_warm(owner: str, temperature: Callable) -> None:
    first = temperature(0)
    if not isinstance(first, jax.core.Tracer) and not first > 0:
        raise ValueError(
            f"{owner}: the temperature at count 0 is {first}, and a momentum of constant size needs one "
            "above 0. For exploration at temperature 0 use BAOAB."
        )
