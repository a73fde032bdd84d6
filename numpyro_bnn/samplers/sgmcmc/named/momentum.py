"""Samplers with momentum, each of which chooses ingredients of one kernel; Neal's hybrid Monte Carlo.

Where no ``friction`` is given, SGHMC, BAOAB and SGNHT with ``step_size="auto"`` and all rows find
it in warm-up, from the autocorrelation; elsewhere it is 0.1 / step_size, which bounds how much the
noise of minibatches heats. A learning rate lr on the mean loss of N rows corresponds to a time step
h = √(lr/N); the step of SGLD that moves as far is ε = 2h². As blocks of Gibbs, under moves and with
fresh momenta these three take two gradients a step
(:meth:`~numpyro_bnn.samplers.sgmcmc.kernel.SGMCMC.as_part`).
"""

from typing import Unpack

from numpyro_bnn._checks import check_whole
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis, WindowedMetropolis
from numpyro_bnn.samplers.sgmcmc.checks import GradientNoise, check_friction
from numpyro_bnn.samplers.sgmcmc.dynamics import methods as dynamics
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import PersistentMomentum
from numpyro_bnn.samplers.sgmcmc.dynamics.splitting import Splitting
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.kernel import (
    SGMCMC,
    MetricOptions,
    Model,
    MomentumMetricOptions,
    StepSize,
)
from numpyro_bnn.samplers.sgmcmc.tuning import CurvatureTuning


class SGHMC(SGMCMC):
    """Stochastic-gradient Hamiltonian Monte Carlo with friction, momentum first.

    :param step_size: time step h; a number, which is never adapted, a schedule, or ``"auto"``.
    :param friction: γ per unit time, positive; 1 - γh is the momentum coefficient of SGD. See the module
        for None.

    Source: Chen, Fox and Guestrin, *Stochastic gradient Hamiltonian Monte Carlo* (2014), eq. (15).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize,
        friction: float | None = None,
        gradient_noise: GradientNoise = 0.0,
        **options: Unpack[MomentumMetricOptions],
    ) -> None:
        method = dynamics.SemiImplicit()
        check_friction("SGHMC", friction, method, positive=True)
        _bounded_loss(friction, step_size)
        super().__init__(
            model,
            potential_fn,
            dynamics=method,
            step_size=step_size,
            friction=friction,
            gradient_noise=gradient_noise,
            tuning=CurvatureTuning(finds_friction=True),
            **options,
        )


class BAOAB(SGMCMC):
    """Underdamped Langevin dynamics in the BAOAB splitting: the recommended default.

    With full gradients the distribution of the position is exact on Gaussian targets at any stable step size;
    on others the bias is of second order. One gradient a step.

    :param step_size: time step h, stable below 2/√λ for the largest curvature λ of M⁻¹∇²U; a number,
        which is never adapted, a schedule, or ``"auto"``.
    :param friction: γ per unit time; see the module for None. Minibatch noise of variance V heats by
        about hV/(2γM).
    :param gradient_noise: V, which is then taken off the noise that is added, so that it does not heat; or
        ``"auto"``: estimated in warm-up, see :class:`~numpyro_bnn.samplers.sgmcmc.kernel.SGMCMC`.

    Source: Leimkuhler and Matthews, *Rational construction of stochastic numerical methods for
    molecular sampling* (2013), with the half kicks of neighbouring steps joined.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize,
        friction: float | None = None,
        gradient_noise: GradientNoise = 0.0,
        **options: Unpack[MomentumMetricOptions],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("BAOA"),
            step_size=step_size,
            friction=friction,
            gradient_noise=gradient_noise,
            tuning=CurvatureTuning(finds_friction=True),
            **options,
        )


class SGNHT(SGMCMC):
    """Stochastic-gradient Nosé-Hoover thermostat: absorbs minibatch noise of unknown size.

    :param step_size: time step h; a number, which is never adapted, a schedule, or ``"auto"``.
    :param friction: γ per unit time, positive: the initial value of the thermostat, and the strength of the
        added noise. See the module for None.

    Source: Ding et al., *Bayesian sampling using stochastic gradient thermostats* (2014), in the
    splitting of Leimkuhler and Shang (2016).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize,
        friction: float | None = None,
        **options: Unpack[MomentumMetricOptions],
    ) -> None:
        method = Splitting("BADODA")
        check_friction("SGNHT", friction, method, positive=True)
        super().__init__(
            model,
            potential_fn,
            dynamics=method,
            step_size=step_size,
            friction=friction,
            tuning=CurvatureTuning(finds_friction=True),
            **options,
        )


class GGMC(SGMCMC):
    """Gradient-guided Monte Carlo: OBABO trajectories, accepted or rejected at intervals.

    Exact at any step size. Its acceptance measures the discretisation error of the unadjusted
    sampler. With a minibatch gradient the energy at both ends is still that of all rows.

    :param step_size: time step h; a number, which is never adapted, a schedule, or ``"auto"``.
    :param num_steps: steps between decisions.
    :param friction: γ per unit time; 0.1 / step_size where None.

    Source: Garriga-Alonso and Fortuin, *Exact Langevin dynamics with stochastic gradients* (2021).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize,
        num_steps: int = 1,
        friction: float | None = None,
        target_accept_prob: float = 0.8,
        **options: Unpack[MomentumMetricOptions],
    ) -> None:
        rule = Metropolis(num_steps=check_whole("GGMC", "num_steps", num_steps))
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("OBABO", metropolis=True),
            metropolis=rule,
            step_size=step_size,
            friction=friction,
            target_accept_prob=target_accept_prob,
            **options,
        )


class AMAGOLD(SGMCMC):
    """Amortised Metropolis-adjusted SGHMC: exact with minibatch gradients.

    One evaluation of the energy on all rows every `num_steps` minibatch gradients corrects
    both the discretisation and the minibatch noise.

    :param step_size: time step h; a number, which is never adapted, a schedule, or ``"auto"``.
    :param num_steps: steps between decisions; about N/B makes the correction cost as much as
        the gradients.
    :param friction: γ per unit time; 0.1 / step_size where None.

    Source: Zhang, Cooper and De Sa, *AMAGOLD: amortized Metropolis adjustment for efficient
    stochastic gradient MCMC* (2020), algorithm 2.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize,
        num_steps: int = 10,
        friction: float | None = None,
        target_accept_prob: float = 0.65,
        **options: Unpack[MomentumMetricOptions],
    ) -> None:
        rule = Metropolis(num_steps=check_whole("AMAGOLD", "num_steps", num_steps))
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Amagold(),
            metropolis=rule,
            step_size=step_size,
            friction=friction,
            target_accept_prob=target_accept_prob,
            **options,
        )


def _bounded_loss(friction: float | None, step_size: StepSize) -> None:
    """Refuse a friction so large that the discretised dynamics is unstable."""
    if friction is None or not isinstance(step_size, (int, float)):
        return
    if friction * step_size >= 2:
        raise ValueError(
            f"SGHMC: friction * step_size must be below 2, got {friction} * {step_size}; momenta would "
            "grow. Use a smaller friction, at most 1 / step_size."
        )


class WindowedHMC(SGMCMC):
    r"""Leapfrog trajectories of fixed length, accepted by windows of states; exact, on all rows.

    Use it through :func:`numpyro_bnn.neal`, which gives every parameter the step size that follows
    from the current precisions.

    :param step_size: time step h; ``"auto"`` adapts it to `target_accept_prob` in warm-up.
    :param num_steps: leapfrog steps L of a trajectory.
    :param window: states W at either end that the Metropolis decision compares, 2 W ≤ L + 1; 1 is plain HMC.
    :param persistence: :math:`\alpha` of :math:`p \leftarrow \alpha p + \sqrt{1 - \alpha^2}\, n`
        before a trajectory, in [0, 1); 0 draws momenta afresh. A rejection reverses the momentum.
    :param batch_size: None: this sampler uses all rows.
    :param gradient: an estimator on all rows, such as ``gradients.full(chunk_size=…)``.
    :raises ValueError: for minibatches, and values out of range.

    Source: R. M. Neal, *An improved acceptance procedure for the hybrid Monte Carlo algorithm*
    (1994); A. M. Horowitz, *A generalized guided Monte Carlo algorithm* (1991).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize = "auto",
        num_steps: int = 100,
        window: int = 10,
        persistence: float = 0.0,
        batch_size: None = None,
        gradient: Estimator | None = None,
        target_accept_prob: float = 0.8,
        **options: Unpack[MetricOptions],
    ) -> None:
        num_steps, window = _checked_windows(num_steps, window)
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("BAB", metropolis=True),
            step_size=step_size,
            batch_size=batch_size,
            gradient=gradient,
            friction=0.0,
            metropolis=WindowedMetropolis(num_steps, window=window),
            resample_momentum=PersistentMomentum(persistence),
            target_accept_prob=target_accept_prob,
            **options,
        )


def _checked_windows(num_steps: int, window: int) -> tuple[int, int]:
    """Number of steps and width of the windows as Python's integers."""
    num_steps = check_whole("WindowedHMC", "num_steps", num_steps)
    window = check_whole("WindowedHMC", "window", window)
    if 2 * window > num_steps + 1:
        raise ValueError(
            f"WindowedHMC: two windows of {window} states do not fit the {num_steps + 1} states of "
            f"a trajectory of {num_steps} steps. Give window={(num_steps + 1) // 2} or less."
        )
    return num_steps, window
