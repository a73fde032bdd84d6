"""The named samplers: each a choice of ingredients for one kernel.

Common arguments (see :class:`~numpyro_bnn.samplers.sgmcmc.kernel.SGMCMC`): ``model`` or
``potential_fn``, ``step_size``, ``batch_size``, ``temperature``, ``gradient``,
``preconditioner``, ``plate``. Where no ``friction`` is given, SGHMC, BAOAB and SGNHT with
``step_size="auto"`` and all rows find it in warm-up, from the autocorrelation; elsewhere it is
0.1 / step_size, which bounds how much the noise of minibatches heats. A learning rate lr on the
mean loss of N rows corresponds to ε = 2 lr/N for SGLD, PSGLD and MALA, and to h = √(lr/N) for the
momentum methods, so ε = 2h².
"""

from collections.abc import Callable
from typing import Any, Literal

from numpyro_bnn._checks import check_whole
from numpyro_bnn.samplers.sgmcmc import preconditioners
from numpyro_bnn.samplers.sgmcmc.accept import Metropolis
from numpyro_bnn.samplers.sgmcmc.checks import check_friction
from numpyro_bnn.samplers.sgmcmc.dynamics import methods as dynamics
from numpyro_bnn.samplers.sgmcmc.dynamics.splitting import Splitting
from numpyro_bnn.samplers.sgmcmc.gradients import minibatch
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.named.underdamped import Underdamped

Model = Callable | None


class SGLD(SGMCMC):
    """Stochastic-gradient Langevin dynamics: θ ← θ - (ε/2) ∇U + √(εT) ξ.

    One gradient a step. Biased by the step (to first order) and by the minibatch noise; use
    decreasing steps (:func:`~numpyro_bnn.samplers.sgmcmc.schedules.polynomial`) or ``accept="full"`` for
    exactness, :class:`BAOAB` for less bias at the same cost.

    :param step_size: ε, with drift ε/2.
    :param accept: None; ``"full"``: Metropolis with the energy on all rows, exact;
        ``"minibatch"``: with that of the minibatch, biased, kept for teaching.
    :param gradient_noise: known variance of the gradient, taken off the noise.

    Source: Welling and Teh, *Bayesian learning via stochastic gradient Langevin dynamics*
    (2011), eq. (4).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any,
        accept: Literal["full", "minibatch"] | None = None,
        **ingredients: Any,
    ) -> None:
        gradient = ingredients.get("gradient")
        all_rows = ingredients.get("batch_size") is None and (
            gradient is None or getattr(gradient, "batch_size", None) is None
        )
        rules = {
            None: None,
            "full": Metropolis(caches_gradient=all_rows),
            "minibatch": Metropolis(exact=False),
        }
        if accept not in rules:
            raise ValueError(f'SGLD: accept must be None, "full" or "minibatch", got {accept!r}.')
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            step_size=step_size,
            metropolis=rules[accept],
            **{"target_accept_prob": 0.574, **ingredients},
        )


class PSGLD(SGMCMC):
    """SGLD with a diagonal metric from a running mean of squared gradients (RMSprop).

    :param step_size: ε, with drift (ε/2) M⁻¹∇U.
    :param preconditioner: default ``rmsprop()``, frozen after warm-up; with
        ``rmsprop(gamma_term=True)`` it keeps changing and the divergence of the metric is added.

    Source: Li et al., *Preconditioned stochastic gradient Langevin dynamics* (2016), algorithm 1.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any,
        preconditioner: Any = None,
        **ingredients: Any,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            step_size=step_size,
            preconditioner=preconditioner or preconditioners.rmsprop(),
            **ingredients,
        )


class SGHMC(Underdamped):
    """Stochastic-gradient Hamiltonian Monte Carlo with friction, momentum first.

    :param step_size: time step h.
    :param friction: γ per unit time, positive; 1 - γh is the momentum coefficient of SGD.
    :param gradient_noise: estimate of the gradient's variance, taken off the noise.
    :param resample_momentum: draws between fresh momenta.

    Source: Chen, Fox and Guestrin, *Stochastic gradient Hamiltonian Monte Carlo* (2014), eq. (15).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any,
        friction: float | None = None,
        **ingredients: Any,
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
            **ingredients,
        )


class BAOAB(Underdamped):
    """Underdamped Langevin dynamics in the BAOAB splitting: the recommended default.

    The position's law is exact on Gaussian targets at any stable step with full gradients, and
    the bias is of second order otherwise. One gradient a step.

    :param step_size: time step h, stable below 2/√λ for the largest curvature λ of M⁻¹∇²U.
    :param friction: γ per unit time. Minibatch noise of variance V heats by about hV/(2γM).

    Source: Leimkuhler and Matthews, *Rational construction of stochastic numerical methods for
    molecular sampling* (2013), with the half kicks of neighbouring steps joined.
    """

    def __init__(
        self, model: Model = None, potential_fn: Model = None, *, step_size: Any, **ingredients: Any
    ) -> None:
        super().__init__(
            model, potential_fn, dynamics=Splitting("BAOA"), step_size=step_size, **ingredients
        )


class SGNHT(Underdamped):
    """Stochastic-gradient Nosé-Hoover thermostat: absorbs minibatch noise of unknown size.

    :param step_size: time step h.
    :param friction: γ per unit time, positive: where the thermostat begins, and the noise added.
    :param per_parameter: one thermostat a parameter in place of one for all.

    Source: Ding et al., *Bayesian sampling using stochastic gradient thermostats* (2014), in the
    splitting of Leimkuhler and Shang (2016).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any,
        friction: float | None = None,
        per_parameter: bool = False,
        **ingredients: Any,
    ) -> None:
        method = Splitting("BADODA", per_parameter=per_parameter)
        check_friction("SGNHT", friction, method, positive=True)
        super().__init__(
            model,
            potential_fn,
            dynamics=method,
            step_size=step_size,
            friction=friction,
            **ingredients,
        )


class MALA(SGMCMC):
    """Metropolis-adjusted Langevin algorithm: exact at any step size, full gradients.

    :param step_size: ε, with drift ε/2.

    Source: Roberts and Tweedie, *Exponential convergence of Langevin distributions and their
    discrete approximations* (1996), section 1.4.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any,
        batch_size: None = None,
        **ingredients: Any,
    ) -> None:
        if batch_size is not None:
            raise ValueError(
                f"MALA: batch_size={batch_size}, but MALA uses all rows. For minibatches with an exact "
                'correction use `SGLD(…, accept="full")` or `AMAGOLD`.'
            )
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Langevin(),
            step_size=step_size,
            metropolis=Metropolis(caches_gradient=True),
            **{"target_accept_prob": 0.574, **ingredients},
        )


class GGMC(SGMCMC):
    """Gradient-guided Monte Carlo: OBABO trajectories, accepted or rejected at intervals.

    Exact at any step size. Its acceptance measures the discretisation error of the unadjusted
    sampler. With a minibatch gradient the energy at both ends is still that of all rows.

    :param step_size: time step h.
    :param num_steps: steps between decisions.
    :param friction: γ per unit time.

    Source: Garriga-Alonso and Fortuin, *Exact Langevin dynamics with stochastic gradients* (2021).
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any,
        num_steps: int = 1,
        batch_size: int | None = None,
        gradient: Any = None,
        **ingredients: Any,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("OBABO", metropolis=True),
            step_size=step_size,
            batch_size=batch_size,
            gradient=_independent("GGMC", batch_size, gradient),
            metropolis=Metropolis(num_steps=check_whole("GGMC", "num_steps", num_steps)),
            **{"target_accept_prob": 0.8, **ingredients},
        )


class AMAGOLD(SGMCMC):
    """Amortised Metropolis-adjusted SGHMC: exact with minibatch gradients.

    One evaluation of the energy on all rows every `num_steps` minibatch gradients corrects
    both the discretisation and the minibatch noise.

    :param step_size: time step h.
    :param num_steps: steps between decisions; about N/B makes the correction cost as much as
        the gradients.
    :param friction: γ per unit time.

    Source: Zhang, Cooper and De Sa, *AMAGOLD: amortized Metropolis adjustment for efficient
    stochastic gradient MCMC* (2020), algorithm 2.
    """

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any,
        num_steps: int = 10,
        batch_size: int | None = None,
        gradient: Any = None,
        **ingredients: Any,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.Amagold(),
            step_size=step_size,
            batch_size=batch_size,
            gradient=_independent("AMAGOLD", batch_size, gradient),
            metropolis=Metropolis(num_steps=check_whole("AMAGOLD", "num_steps", num_steps)),
            **ingredients,
        )


class RandomWalk(SGMCMC):
    """Random-walk Metropolis, for teaching: no gradient, one energy on all rows a step.

    :param step_size: standard deviation of the proposal, by coordinate.
    """

    def __init__(
        self, model: Model = None, potential_fn: Model = None, *, step_size: Any, **ingredients: Any
    ) -> None:
        batch_size = ingredients.get("batch_size")
        if batch_size is not None:
            raise ValueError(
                f"RandomWalk: batch_size={batch_size}, but it uses all rows. Leave batch_size out."
            )
        super().__init__(
            model,
            potential_fn,
            dynamics=dynamics.RandomWalk(),
            step_size=step_size,
            metropolis=Metropolis(),
            **{"target_accept_prob": 0.234, **ingredients},
        )


def _bounded_loss(friction: float | None, step_size: Any) -> None:
    known = friction is not None and isinstance(step_size, (int, float))
    if known and friction * step_size >= 2:
        raise ValueError(
            f"SGHMC: friction * step_size must be below 2, got {friction} * {step_size}; momenta would "
            "grow. Use a smaller friction, at most 1 / step_size."
        )


def _independent(owner: str, batch_size: int | None, gradient: Any) -> Any:
    """Minibatches that are as likely in the opposite order, unless the user chose otherwise."""
    if gradient is None and batch_size is not None:
        return minibatch(check_whole(owner, "batch_size", batch_size), order="replacement")
    return gradient
