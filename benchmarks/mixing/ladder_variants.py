"""Ladders of the study `ladders` that are not in the package.

Each is a :class:`~numpyro_bnn.ParallelTempering` with one thing changed, and leaves the density of every rung
as it is, so that posterior and evidence are the model's: rungs that move by MAMS, metrics of low rank
(:mod:`~benchmarks.mixing.ladder_low_rank`), and another prior of the first rung
(:func:`~benchmarks.mixing.ladder_reference.with_reference`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks.mixing.hierarchical_posteriors import CHAINS, Posterior
from benchmarks.mixing.ladder_low_rank import axes_of_a_run, with_axes
from benchmarks.mixing.ladder_reference import (
    Moments,
    ReferenceRedraw,
    log_moments,
    with_reference,
)
from numpyro_bnn.potential.potential import Potential, Values


class Variant(bnn.ParallelTempering):
    """A ladder that counts its gradients."""

    def gradients_a_sweep(self, step_size: np.ndarray) -> float:
        """Gradients of a sweep of one replica; an energy of a move counts as one.

        :param step_size: adapted step sizes, (replica, rung - 1).
        """
        kernel = self._rung_kernel
        if kernel.num_steps is not None:
            return float((int(self.num_rungs) - 1) * kernel.num_steps)
        rule = kernel.random_length
        assert rule is not None
        assert rule.trajectory_length is not None
        # The mean of what `Metropolis.draw_num_steps` draws, by the midpoints of a uniform number.
        uniform = (np.arange(1000) + 0.5) / 1000
        drawn = np.ceil(uniform * 2 * rule.trajectory_length / step_size[..., None])
        steps = np.clip(drawn, 1, rule.num_steps).mean(-1)
        times = np.asarray(kernel.trajectories_per_sweep(jnp.asarray(step_size)))
        return float((steps * times).sum(-1).mean())


def energy(potential: Potential, power: jax.Array, z: Values) -> jax.Array:
    """-log p(θ) p(y | θ)^b at unconstrained values, in nats; infinite where it has no value."""
    prior, likelihood = potential.tempered(z)
    found = prior + likelihood(power)
    return jnp.where(jnp.isnan(found), jnp.inf, found)


class Made(NamedTuple):
    """A ladder, and the gradients of a replica before its warm-up."""

    kernel: Variant
    gradients_before: int = 0


REFERENCE, BY_MAMS, LOW_RANK = NAMES = (
    "integrated, learned reference",
    "integrated, MAMS",
    "integrated, metrics of low rank",
)


def made(name: str, given: Posterior, rungs: int, steps: int, warmup: int, begin: Values) -> Made:
    """The ladder of a name, over the model with its output layer integrated out.

    :param name: one of `NAMES`.
    :param given: the model and its data.
    :param rungs: from prior to posterior.
    :param steps: of a trajectory of HMC; the most of one of MAMS.
    :param warmup: sweeps of warm-up; a first run, where there is one, has a quarter of them and a sixth as
        many draws.
    :param begin: its starts.
    """
    model = bnn.integrate_output(given.model)

    def ladder(kind: Callable, model: Callable = model, **options: Any) -> Any:
        hmc = HMC(model, num_steps=steps, trajectory_length=None)
        return kind(model, hmc, num_rungs=rungs, **options)

    if name in (REFERENCE, LOW_RANK):
        sweeps = (warmup // 4, warmup // 6)
        first, before = ladder(Variant), sum(sweeps) * (rungs - 1) * steps
        mcmc = first_run(first, given, *sweeps, begin)
        if name == LOW_RANK:
            kernel = ladder(Variant)
            potential = bnn.potential_of(model, given.split.x, given.split.y)
            axes = axes_of_a_run(mcmc, partial(energy, potential))
            kernel._rung_kernel = with_axes(kernel._rung_kernel, axes)
            # One more at each of the draws of the first run.
            return Made(kernel, before + sweeps[1] * (rungs - 1))
        moments = moments_of_a_run(mcmc, model, given)
        again = [ReferenceRedraw(model, moments)]
        return Made(ladder(Variant, with_reference(model, moments), moves=again), before)
    return Made(Variant(model, bnn.MAMS(model, max_num_steps=steps), num_rungs=rungs))


def first_run(
    kernel: bnn.ParallelTempering, given: Posterior, warmup: int, draws: int, begin: Values
) -> bnn.MCMC:
    """A short run of all replicas, with the states of all rungs."""
    mcmc = bnn.MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=CHAINS,
        progress_bar=False,
    )
    fields = ("rungs", "likelihood_powers")
    x, y = given.split.x, given.split.y
    mcmc.run(jax.random.key(2), x, y, init_params=begin, extra_fields=fields)
    return mcmc


def moments_of_a_run(mcmc: bnn.MCMC, model: Callable, given: Posterior) -> Moments:
    """Moments of the logarithms of all precisions over the draws of a run."""
    latent = bnn.potential_of(model, given.split.x, given.split.y).structure.latent
    names = [name for name in latent if name.endswith("precision")]
    return log_moments(mcmc.get_samples(), names)
