"""Neal's hybrid Monte Carlo, with acceptance windows, persistent momenta and step sizes from precisions."""

from numpyro_bnn._checks import check_whole
from numpyro_bnn.samplers.sgmcmc.accept import WindowedMetropolis
from numpyro_bnn.samplers.sgmcmc.checks import check_all_rows
from numpyro_bnn.samplers.sgmcmc.dynamics.splitting import Splitting
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.kernel import SGMCMC, Model, StepSize
from numpyro_bnn.samplers.sgmcmc.momentum_refresh import PersistentMomentum
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner
from numpyro_bnn.samplers.sgmcmc.schedules import Schedule


class WindowedHMC(SGMCMC):
    r"""Leapfrog trajectories of fixed length, accepted by windows of states; exact, on all rows.

    Use it through :func:`numpyro_bnn.neal`, which gives every parameter the step size that follows
    from the current precisions.

    :param model: a NumPyro model.
    :param potential_fn: a potential energy in place of a model, a function of the position.
    :param step_size: time step h; ``"auto"`` adapts it to `target_accept_prob` in warm-up.
    :param num_steps: leapfrog steps L of a trajectory.
    :param window: states W at either end that the Metropolis decision compares, 2 W ≤ L + 1; 1 is plain HMC.
    :param persistence: :math:`\alpha` of :math:`p \leftarrow \alpha p + \sqrt{1 - \alpha^2}\, n`
        before a trajectory, in [0, 1); 0 draws momenta afresh. A rejection reverses the momentum.
    :param batch_size: None: this sampler uses all rows.
    :param temperature: a number (1: the posterior, 0: optimisation) or a schedule.
    :param gradient: an estimator on all rows, such as ``gradients.full(chunk_size=…)``.
    :param preconditioner: see :mod:`~numpyro_bnn.samplers.sgmcmc.preconditioners`; default identity.
    :param target_accept_prob: acceptance that ``step_size="auto"`` aims at in warm-up.
    :param plate: the data plate, where the model has several.
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
        temperature: float | Schedule = 1.0,
        gradient: Estimator | None = None,
        preconditioner: Preconditioner | None = None,
        target_accept_prob: float = 0.8,
        plate: str | None = None,
    ) -> None:
        check_all_rows("WindowedHMC", batch_size, gradient)
        num_steps, window = _checked_windows(num_steps, window)
        super().__init__(
            model,
            potential_fn,
            dynamics=Splitting("BAB", metropolis=True),
            step_size=step_size,
            temperature=temperature,
            gradient=gradient,
            preconditioner=preconditioner,
            friction=0.0,
            metropolis=WindowedMetropolis(num_steps, window=window),
            resample_momentum=PersistentMomentum(persistence),
            target_accept_prob=target_accept_prob,
            plate=plate,
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
