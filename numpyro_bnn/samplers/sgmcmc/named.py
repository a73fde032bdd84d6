r"""The samplers that users name: each chooses ingredients of :class:`~numpyro_bnn.SGMCMC`.

Langevin methods and the random walk have no momentum. A learning rate lr on the mean loss of N rows
corresponds to ε = 2 lr/N for SGLD, PSGLD and MALA, and to a time step h = √(lr/N) for all others; the step of
SGLD that moves as far is ε = 2h².

Where no ``friction`` is given, SGHMC, BAOAB and SGNHT with ``step_size="auto"`` and all rows find
it in warm-up, from the autocorrelation; elsewhere it is 0.1 / step_size, which bounds how much the
noise of minibatches heats. As blocks of Gibbs, under moves and with fresh momenta these three take two
gradients a step (:meth:`~numpyro_bnn.samplers.sgmcmc.kernel.SGMCMC.as_part`).

Microcanonical samplers, MCLMC and MAMS, have the dynamics of
:mod:`~numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic`.
"""

import math
from typing import Literal, Unpack

from numpyro_bnn._checks import check_positive, check_whole
from numpyro_bnn.samplers.sgmcmc import preconditioners
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis, WindowedMetropolis
from numpyro_bnn.samplers.sgmcmc.checks import check_first, check_friction
from numpyro_bnn.samplers.sgmcmc.dynamics import methods as dynamics
from numpyro_bnn.samplers.sgmcmc.dynamics.isokinetic import Isokinetic
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import PersistentMomentum, Splitting
from numpyro_bnn.samplers.sgmcmc.kernel import (
    SGMCMC,
    LangevinOptions,
    Model,
    MomentumOptions,
    NoisyLangevinOptions,
    NoisyStepOptions,
    Options,
    StepOptions,
    StepSize,
)
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.tuning import CurvatureTuning, EnergyErrorTuning


class SGLD(SGMCMC):
    """Stochastic-gradient Langevin dynamics: θ ← θ - (ε/2) ∇U + √(εT) ξ.

    One gradient a step. Step size (to first order) and minibatch noise cause a bias; use decreasing steps
    (:func:`~numpyro_bnn.samplers.sgmcmc.schedules.polynomial`) or ``accept="full"`` for exactness,
    :class:`BAOAB` for less bias at the same cost.

    :param step_size: ε, with drift ε/2; a number, which is never adapted, a schedule, or ``"auto"``.
    :param accept: None; ``"full"``: Metropolis with the energy on all rows, exact;
        ``"minibatch"``: with the energy of the minibatch, which is biased and only meant for teaching.

    Source: Welling and Teh, *Bayesian learning via stochastic gradient Langevin dynamics*
    (2011), eq. (4).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        accept: Literal["full", "minibatch"] | None = None,
        target_accept_prob: float = 0.574,
        **options: Unpack[NoisyStepOptions],
    ) -> None:
        of_all_rows = getattr(options.get("gradient"), "batch_size", options.get("batch_size"))
        rules = {
            None: None,
            "full": Metropolis(caches_gradient=of_all_rows is None),
            "minibatch": Metropolis(exact=False),
        }
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            metropolis=rules[accept],
            target_accept_prob=target_accept_prob,
            **options,
        )


class PSGLD(SGMCMC):
    """SGLD with a diagonal metric from a running mean of squared gradients (RMSprop).

    :param step_size: ε, with drift (ε/2) M⁻¹∇U; a number, which is never adapted, a schedule, or
        ``"auto"``.
    :param preconditioner: default ``rmsprop()``, frozen after warm-up; with
        ``rmsprop(gamma_term=True)`` it keeps changing and the divergence of the metric is added.

    Source: Li et al., *Preconditioned stochastic gradient Langevin dynamics* (2016), algorithm 1.
    """

    def __init__(
        self, model: Model = None, potential_fn: Model = None, **options: Unpack[NoisyStepOptions]
    ) -> None:
        options["preconditioner"] = options.get("preconditioner") or preconditioners.rmsprop()
        super().__init__(model, potential_fn, dynamics=dynamics.Langevin(), **options)


class MALA(SGMCMC):
    """Metropolis-adjusted Langevin algorithm: exact at any step size, full gradients.

    :param step_size: ε, with drift ε/2; a number, which is never adapted, a schedule, or ``"auto"``.
    :param batch_size: None: this sampler uses all rows.
    :param gradient: an estimator on all rows, such as ``gradients.full(chunk_size=…)``.

    Source: Roberts and Tweedie, *Exponential convergence of Langevin distributions and their
    discrete approximations* (1996), section 1.4.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        target_accept_prob: float = 0.574,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            metropolis=Metropolis(caches_gradient=True),
            target_accept_prob=target_accept_prob,
            **options,
        )


class RandomWalk(SGMCMC):
    """Random-walk Metropolis, for teaching: no gradient, one energy on all rows a step.

    :param step_size: standard deviation of the proposal, by coordinate; a number, which is never adapted,
        a schedule, or ``"auto"``.
    :param batch_size: None: this sampler uses all rows.
    :param gradient: None: this sampler uses no gradient.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        target_accept_prob: float = 0.234,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.RandomWalkProposal(),
            metropolis=Metropolis(),
            target_accept_prob=target_accept_prob,
            **options,
        )


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
        **options: Unpack[NoisyLangevinOptions],
    ) -> None:
        method, friction = dynamics.SemiImplicit(), options.get("friction")
        check_friction("SGHMC", friction, method, positive=True)
        step_size = options.get("step_size")
        if friction and isinstance(step_size, (int, float)) and friction * step_size >= 2:
            raise ValueError(
                f"SGHMC: friction * step_size must be below 2, got {friction} * {step_size}; momenta would "
                "grow. Use a smaller friction, at most 1 / step_size."
            )
        tuning = CurvatureTuning(finds_friction=True)
        super().__init__(model, potential_fn, dynamics=method, tuning=tuning, **options)


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
        **options: Unpack[NoisyLangevinOptions],
    ) -> None:
        tuning = CurvatureTuning(finds_friction=True)
        super().__init__(model, potential_fn, dynamics=Splitting("BAOA"), tuning=tuning, **options)


class SGNHT(SGMCMC):
    """Stochastic-gradient Nosé-Hoover thermostat: absorbs minibatch noise of unknown size.

    :param step_size: time step h; a number, which is never adapted, a schedule, or ``"auto"``.
    :param friction: γ per unit time, positive: the initial value of the thermostat, and the strength of the
        added noise. See the module for None.

    Source: Ding et al., *Bayesian sampling using stochastic gradient thermostats* (2014), in the
    splitting of Leimkuhler and Shang (2016).
    """

    def __init__(
        self, model: Model = None, potential_fn: Model = None, **options: Unpack[LangevinOptions]
    ) -> None:
        method, tuning = Splitting("BADODA"), CurvatureTuning(finds_friction=True)
        check_friction("SGNHT", options.get("friction"), method, positive=True)
        super().__init__(model, potential_fn, dynamics=method, tuning=tuning, **options)


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
        num_steps: int = 1,
        target_accept_prob: float = 0.8,
        **options: Unpack[LangevinOptions],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("OBABO", metropolis=True),
            metropolis=Metropolis(check_whole("GGMC", "num_steps", num_steps)),
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
        num_steps: int = 10,
        target_accept_prob: float = 0.65,
        **options: Unpack[LangevinOptions],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Amagold(),
            metropolis=Metropolis(check_whole("AMAGOLD", "num_steps", num_steps)),
            target_accept_prob=target_accept_prob,
            **options,
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
        target_accept_prob: float = 0.8,
        **options: Unpack[Options],
    ) -> None:
        num_steps = check_whole("WindowedHMC", "num_steps", num_steps)
        window = check_whole("WindowedHMC", "window", window)
        if 2 * window > num_steps + 1:
            raise ValueError(
                f"WindowedHMC: two windows of {window} states do not fit the {num_steps + 1} states of "
                f"a trajectory of {num_steps} steps. Give window={(num_steps + 1) // 2} or less."
            )
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("BAB", metropolis=True),
            step_size=step_size,
            friction=0.0,
            metropolis=WindowedMetropolis(num_steps, window=window),
            resample_momentum=PersistentMomentum(persistence),
            target_accept_prob=target_accept_prob,
            **options,
        )


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
    as for :class:`BAOAB`. Gradient noise turns momenta at random
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
        **options: Unpack[MomentumOptions],
    ) -> None:
        check_positive("MCLMC", energy_variance=energy_variance)
        options["preconditioner"] = _learned_unless(options.get("preconditioner"), step_size)
        super().__init__(
            model,
            potential_fn,
            dynamics=Isokinetic(),
            step_size=step_size,
            tuning=EnergyErrorTuning(energy_variance),
            **options,
        )
        check_first("MCLMC", "temperature", self.temperature, _WHY_WARM)


class MAMS(SGMCMC):
    r"""Metropolis-adjusted microcanonical sampling: exact at any step size, with all rows.

    Each draw takes a fresh direction, a trajectory of random length without friction, and a Metropolis
    decision by the total energy. Begin near the typical set
    (:func:`~numpyro_bnn.approximations.modes.optimize`, as ``fit`` does): where the energy is in the
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
        target_accept_prob: float = 0.9,
        **options: Unpack[Options],
    ) -> None:
        options["preconditioner"] = _learned_unless(options.get("preconditioner"), step_size)
        check_positive("MAMS", trajectory_length=trajectory_length)
        most = check_whole("MAMS", "max_num_steps", max_num_steps)
        super().__init__(
            model,
            potential_fn,
            dynamics=Isokinetic(friction=False),
            step_size=step_size,
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
