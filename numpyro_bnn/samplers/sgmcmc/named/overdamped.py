"""Samplers without momentum: Langevin dynamics and the random walk.

Each is a choice of ingredients for one kernel. A learning rate lr on the mean loss of N rows
corresponds to ε = 2 lr/N for SGLD, PSGLD and MALA.
"""

from typing import Literal, Unpack

from numpyro_bnn.samplers.sgmcmc import preconditioners
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.checks import GradientNoise
from numpyro_bnn.samplers.sgmcmc.dynamics import methods as dynamics
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC, MetricOptions, Model, Options, StepSize
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner


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
        step_size: StepSize,
        batch_size: int | None = None,
        accept: Literal["full", "minibatch"] | None = None,
        gradient: Estimator | None = None,
        gradient_noise: GradientNoise = 0.0,
        target_accept_prob: float = 0.574,
        **options: Unpack[MetricOptions],
    ) -> None:
        all_rows = batch_size is None and getattr(gradient, "batch_size", None) is None
        rules = {
            None: None,
            "full": Metropolis(caches_gradient=all_rows),
            "minibatch": Metropolis(exact=False),
        }
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            metropolis=rules[accept],
            step_size=step_size,
            batch_size=batch_size,
            gradient=gradient,
            gradient_noise=gradient_noise,
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
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize,
        batch_size: int | None = None,
        gradient: Estimator | None = None,
        preconditioner: Preconditioner | None = None,
        gradient_noise: GradientNoise = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            step_size=step_size,
            batch_size=batch_size,
            gradient=gradient,
            preconditioner=preconditioner or preconditioners.rmsprop(),
            gradient_noise=gradient_noise,
            **options,
        )


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
        step_size: StepSize,
        batch_size: None = None,
        gradient: Estimator | None = None,
        target_accept_prob: float = 0.574,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            metropolis=Metropolis(caches_gradient=True),
            step_size=step_size,
            batch_size=batch_size,
            gradient=gradient,
            target_accept_prob=target_accept_prob,
            **options,
        )


class RandomWalk(SGMCMC):
    """Random-walk Metropolis, for teaching: no gradient, one energy on all rows a step.

    :param step_size: standard deviation of the proposal, by coordinate; a number, which is never adapted,
        a schedule, or ``"auto"``.
    :param batch_size: None: this sampler uses all rows.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: StepSize,
        batch_size: None = None,
        target_accept_prob: float = 0.234,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.RandomWalkProposal(),
            metropolis=Metropolis(),
            step_size=step_size,
            batch_size=batch_size,
            target_accept_prob=target_accept_prob,
            **options,
        )
