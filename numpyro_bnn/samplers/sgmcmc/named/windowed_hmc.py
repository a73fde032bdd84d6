"""Hybrid Monte Carlo as Neal runs it: windows, momenta that persist, steps from the precisions."""

import math
from collections.abc import Callable
from typing import Any

import jax

from numpyro_bnn._checks import check_whole
from numpyro_bnn.samplers.sgmcmc.accept import Decision, Metropolis
from numpyro_bnn.samplers.sgmcmc.accept_windows import windowed
from numpyro_bnn.samplers.sgmcmc.checks import check_all_rows
from numpyro_bnn.samplers.sgmcmc.dynamics.elementary import damp
from numpyro_bnn.samplers.sgmcmc.dynamics.splitting import Splitting
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC
from numpyro_bnn.samplers.sgmcmc.noise import normal_like
from numpyro_bnn.samplers.sgmcmc.state import SGMCMCState

Model = Callable | None


class WindowedHMC(SGMCMC):
    r"""Leapfrog trajectories of fixed length, judged by windows of states; exact, on all rows.

    Use it through :func:`numpyro_bnn.neal`, which gives every parameter the step size that follows
    from the current precisions. Common arguments: see :class:`~numpyro_bnn.samplers.sgmcmc.kernel.SGMCMC`.

    :param step_size: time step h; ``"auto"`` adapts it to `target_accept_prob` in warm-up.
    :param num_steps: leapfrog steps L of a trajectory.
    :param window: states W at either end that are judged in place of the end, 2 W ≤ L + 1; 1 is
        plain HMC.
    :param persistence: :math:`\alpha` of :math:`p \leftarrow \alpha p + \sqrt{1 - \alpha^2}\, n`
        before a trajectory, in [0, 1); 0 draws momenta afresh. A rejection reverses the momentum.
    :raises ValueError: for minibatches, and values out of range.

    Source: R. M. Neal, *An improved acceptance procedure for the hybrid Monte Carlo algorithm*
    (1994); A. M. Horowitz, *A generalized guided Monte Carlo algorithm* (1991).
    """

    _takes_minibatches = False

    def __init__(
        self,
        model: Model = None,
        potential_fn: Model = None,
        *,
        step_size: Any = "auto",
        num_steps: int = 100,
        window: int = 10,
        persistence: float = 0.0,
        **ingredients: Any,
    ) -> None:
        num_steps = check_whole("WindowedHMC", "num_steps", num_steps)
        window = check_whole("WindowedHMC", "window", window)
        if 2 * window > num_steps + 1:
            raise ValueError(
                f"WindowedHMC: two windows of {window} states do not fit the {num_steps + 1} states of "
                f"a trajectory of {num_steps} steps. Give window={(num_steps + 1) // 2} or less."
            )
        if isinstance(persistence, bool) or not 0 <= persistence < 1:
            raise ValueError(
                f"WindowedHMC: persistence must be in [0, 1), got {persistence!r}. 0 draws momenta "
                "afresh for every trajectory."
            )
        check_all_rows("WindowedHMC", ingredients.get("batch_size"), ingredients.get("gradient"))
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("BAB", metropolis=True),
            step_size=step_size,
            metropolis=Metropolis(num_steps, window=window),
            friction=0.0,
            **{"target_accept_prob": 0.8, **ingredients},
        )
        self._persistence = persistence

    @property
    def _judge(self) -> Callable[..., Decision]:
        return windowed

    def _refresh_momentum(self, state: SGMCMCState) -> SGMCMCState:
        rng_key, key = jax.random.split(state.rng_key)
        settings = self._settings(state.count, state.adaptation, state.preconditioner)
        old = state.dynamics.momentum
        # The friction that leaves this share of a momentum after a unit of time.
        friction = -math.log(self._persistence) if self._persistence else math.inf
        momentum = damp(old, normal_like(key, old), 1.0, settings._replace(friction=friction))
        return state._replace(dynamics=state.dynamics._replace(momentum=momentum), rng_key=rng_key)
