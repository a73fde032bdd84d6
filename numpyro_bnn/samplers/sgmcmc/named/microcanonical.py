"""Microcanonical samplers: isokinetic dynamics without or with a Metropolis correction.

Both take gradients, preconditioners, schedules and temperatures like every kernel here;
:mod:`~numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic` has the dynamics, and
:class:`~numpyro_bnn.samplers.sgmcmc.tuning.EnergyErrorTuning` tunes the unadjusted sampler in warm-up.
"""

import math
from typing import Unpack

from numpyro_bnn._checks import check_positive, check_whole
from numpyro_bnn.samplers.sgmcmc import preconditioners
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.checks import check_first
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC, Model, MomentumOptions, Options, StepSize
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.tuning import EnergyErrorTuning

_WHY_WARM = (
    "a momentum of constant size needs one above 0. For exploration at temperature 0 use BAOAB."
)


class MCLMC(SGMCMC):
    r"""Microcanonical Langevin Monte Carlo: unadjusted, one gradient a step.

    With ``step_size="auto"`` and all rows, warm-up looks for the step at which the variance of
    the energy error, by parameter, is `energy_variance`: the larger it is, the larger the bias. The friction
    (rate at which momenta decorrelate) is set from the autocorrelation over the last third of warm-up. Both
    are frozen afterwards.

    With minibatches most of the energy error comes from the minibatch, so the step size follows the curvature
    as for :class:`~numpyro_bnn.samplers.sgmcmc.named.momentum.BAOAB`. Gradient noise turns momenta at random
    and so flattens the distribution (by a term of first order in the step size), as it heats Langevin
    dynamics: predictions of a network of 256 units varied three times too much. No thermostat can correct
    that, because momenta have constant size: prefer BAOAB, or give ``gradient=gradients.svrg(batch_size)``,
    with which they varied as they should to 4 % (``benchmarks/mixing/networks_beside_full_batch.py``).

    :param step_size: time step h, in which momenta have unit variance by parameter, as for BAOAB.
        Elsewhere momenta have unit size: multiply by √D for that step.
    :param energy_variance: target of Var[ΔE]/D for a step, at temperature 1. Variances in a
        logistic regression were 1.02 times the true ones with the default, 1.09 at worst, and with
        0.1, which is common for networks and doubles the step, 1.16 times and 1.9 at worst
        (``benchmarks/mixing/against_blackjax.py``).
    :param preconditioner: default: the variances of warm-up.
    :param friction: per unit time, 1/L with L the decoherence time; found in warm-up where None.
    :raises ValueError: for values out of range.

    Source: Robnik, De Luca, Silverstein and Seljak, *Microcanonical Hamiltonian Monte Carlo*
    (2023), sections 3 and 4; Robnik and Seljak, *Fluctuation without dissipation* (2024).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize = "auto",
        energy_variance: float = 5e-4,
        preconditioner: Preconditioner | None = None,
        friction: float | None = None,
        **options: Unpack[MomentumOptions],
    ) -> None:
        check_positive("MCLMC", energy_variance=energy_variance)
        super().__init__(
            model,
            potential_fn,
            dynamics=Isokinetic(),
            step_size=step_size,
            preconditioner=_learned_unless(preconditioner, step_size),
            friction=friction,
            tuning=EnergyErrorTuning(energy_variance),
            **options,
        )
        check_first("MCLMC", "temperature", self.temperature, _WHY_WARM)


class MAMS(SGMCMC):
    r"""Metropolis-adjusted microcanonical sampling: exact at any step size, with all rows.

    Each draw takes a fresh direction, a trajectory of random length without friction, and a Metropolis
    decision by the total energy. Begin near the typical set
    (:func:`~numpyro_bnn.approximations.optimize.optimize`, as ``fit`` does): where the energy is in the
    millions, rounding errors in single precision reject trajectories at any step size. The step size then
    shrinks without end, and the chain does not move.

    :param step_size: time step h; ``"auto"`` aims at `target_accept_prob`.
    :param trajectory_length: mean duration of a trajectory, in the units of the step size: with
        the variances of warm-up as metric, a quarter of a period of a standard normal is π/2.
    :param max_num_steps: the most steps that a trajectory may have; ``diagnose`` says how many were cut.
    :param batch_size: None: this sampler uses all rows.
    :param gradient: an estimator on all rows, such as ``gradients.full(chunk_size=…)``.
    :param preconditioner: default: the variances of warm-up.
    :raises ValueError: for values out of range, and for minibatches.

    Source: Robnik, Cohn-Gordon and Seljak, *Metropolis adjusted microcanonical Hamiltonian Monte
    Carlo* (2025), algorithm 1.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize = "auto",
        trajectory_length: float = math.pi / 2,
        max_num_steps: int = 255,
        batch_size: None = None,
        gradient: Estimator | None = None,
        preconditioner: Preconditioner | None = None,
        target_accept_prob: float = 0.9,
        **options: Unpack[Options],
    ) -> None:
        check_positive("MAMS", trajectory_length=trajectory_length)
        most = check_whole("MAMS", "max_num_steps", max_num_steps)
        super().__init__(
            model,
            potential_fn,
            dynamics=Isokinetic(friction=False),
            step_size=step_size,
            batch_size=batch_size,
            gradient=gradient,
            preconditioner=_learned_unless(preconditioner, step_size),
            metropolis=Metropolis(most, trajectory_length=trajectory_length, needs_all_rows=True),
            resample_momentum=1,
            target_accept_prob=target_accept_prob,
            **options,
        )
        check_first("MAMS", "temperature", self.temperature, _WHY_WARM)


def _learned_unless(
    preconditioner: Preconditioner | None, step_size: StepSize
) -> Preconditioner | None:
    """The preconditioner; default: variances of warm-up for a tuned step size, else the identity."""
    # A given step size refers to the given metric.
    if preconditioner is not None or step_size != "auto":
        return preconditioner
    return preconditioners.from_warmup()
