"""A second sampler on the same model, to compare with the first."""

from typing import Any

import jax
import numpy as np
from numpyro.infer import HMC, NUTS
from numpyro.infer.mcmc import MCMCKernel

from numpyro_bnn._types import PyTree
from numpyro_bnn.approximations.optimize import optimize
from numpyro_bnn.diagnostics.diagnose import diagnose
from numpyro_bnn.diagnostics.report import Report
from numpyro_bnn.posterior.draws import Run
from numpyro_bnn.posterior.fitted import arguments_of, inputs_of, run_of
from numpyro_bnn.samplers.temperature_of_kernels import temperatures_of
from numpyro_bnn.workflow.mcmc import MCMC


def second_opinion(
    mcmc: Run,
    x: PyTree | None = None,
    *,
    kernel: MCMCKernel | None = None,
    key: jax.Array | None = None,
    num_warmup: int | None = None,
    num_samples: int | None = None,
    progress_bar: bool = True,
) -> Report:
    """Sample the same model again in another way, and report where the two runs differ.

    R-hat cannot see what every chain of a run misses. The second run starts from other
    optimised weights and, where none is given, uses NUTS with a higher `target_accept_prob`
    (0.95; 0.99 after a run that had as much): smaller steps, which enter narrow regions. Means and
    quantiles of precisions and predictions are compared in joint Monte Carlo errors.

    :param mcmc: an ``MCMC`` after `run`, what :func:`numpyro_bnn.fit` returned, or an estimator that was
        fitted in this process: its run knows model and data, which draws by themselves do not.
    :param x: inputs at which predictions are compared; default: the first argument of the run.
    :param kernel: another sampler of the same model.
    :param key: random key of the second run; default ``jax.random.key(1)``.
    :param num_warmup: default: that of the first run, at most 500.
    :param num_samples: default: that of the first run, at most 500.
    :param progress_bar: show one progress bar a chain.
    :return: the report on the first run, with the comparison in its `second`.
    :raises ValueError: for a run without draws, without a model to sample again, or at another temperature
        than `kernel`.
    """
    run = run_of(mcmc)
    if not isinstance(run, MCMC) or run.last_state is None:
        raise ValueError(
            f"second_opinion: expected a numpyro_bnn.MCMC after `run`, or what keeps one, got "
            f"{type(mcmc).__name__}{' before it' if isinstance(run, MCMC) else ''}. To compare finished "
            "runs use diagnose(run, x, second=other)."
        )
    model = getattr(kernel or run.sampler, "model", None)
    if model is None:
        raise ValueError(
            f"second_opinion: {type(run.sampler).__name__} carries no model to sample again. Give "
            "a kernel over the model: kernel=NUTS(model)."
        )
    kernel = NUTS(model, target_accept_prob=_higher(run.sampler)) if kernel is None else kernel
    _refuse_another_temperature(run, kernel)
    args, kwargs = arguments_of(run)
    x = inputs_of(run) if x is None else x
    if x is None:
        raise ValueError("second_opinion: the inputs of the run are not known. Give inputs as x.")
    key_start, key_run = jax.random.split(jax.random.key(1) if key is None else key)
    other = MCMC(
        kernel,
        num_warmup=min(run.num_warmup, 500) if num_warmup is None else num_warmup,
        num_samples=min(run.num_samples, 500) if num_samples is None else num_samples,
        num_chains=run.num_chains,
        chain_method=run.chain_method,
        progress_bar=progress_bar,
    )
    starts = optimize(
        model, key_start, *args, num_chains=run.num_chains, progress_bar=progress_bar, **kwargs
    )
    other.run(key_run, *args, init_params=starts, **kwargs)
    return diagnose(run, x, second=other)


def _refuse_another_temperature(run: MCMC, kernel: MCMCKernel) -> None:
    """Refuse a second run at another temperature: the two cannot be compared."""
    recorded = run.get_extra_fields().get("temperature")
    # The draws do not show how a schedule began.
    first = temperatures_of(run.sampler) if recorded is None else set(np.unique(recorded).tolist())
    second = temperatures_of(kernel)
    its = ", ".join(f"{t:.3g}" for t in sorted(second))
    strange = [t for t in first if not np.isclose(t, list(second), rtol=1e-4).any()]
    if strange:
        raise ValueError(
            f"second_opinion: the run is at temperature {min(strange):.3g}, and the second one, by "
            f"{type(kernel).__name__}, at {its}. Runs at different temperatures cannot be compared. "
            "Give a kernel at the temperature of the run, such as "
            f"kernel=BAOAB(model, step_size=…, temperature={min(strange):.3g}), or run at temperature 1."
        )


def _higher(sampler: Any) -> float:
    """A target acceptance probability above that of the first run's sampler."""
    aimed = sampler._target_accept_prob if isinstance(sampler, HMC) else 0.0
    return 0.95 if aimed < 0.95 else 0.99
