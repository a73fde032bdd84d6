"""Tuning of parallel tempering in warm-up: the ladder, and step size and metric of each rung."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer.hmc_util import dual_averaging, welford_covariance

from numpyro_bnn._types import PyTree
from numpyro_bnn.samplers.tempering.ladder import carried_over, equalized

# Weight of the metric of the last round, in positions of the new one.
_METRIC_WEIGHT = 10

_begin_averaging, _average = dual_averaging()
_begin_moments, _add_moments, _ = welford_covariance(diagonal=True)


class RungTuning(NamedTuple):
    """Step sizes and metrics of each rung but the first, and the statistics that tune them."""

    step_size: jax.Array  # Step size in use (rung - 1,)
    averaging: PyTree  # Dual averaging of the log step sizes
    inverse_mass_matrix: jax.Array  # Diagonal metric (rung - 1, parameter)
    moments: PyTree  # Running mean and variance of the positions of this round
    rejections: jax.Array  # Summed rejection probabilities of the pairs of this round (rung - 1,)
    sweeps: jax.Array  # Sweeps in this round


def begin_round(step_size: jax.Array, inverse_mass_matrix: jax.Array) -> RungTuning:
    """The tuning at the start of a round, with empty statistics."""
    rungs, size = inverse_mass_matrix.shape
    return RungTuning(
        step_size=step_size,
        averaging=jax.vmap(_begin_averaging)(jnp.log(step_size)),
        inverse_mass_matrix=inverse_mass_matrix,
        moments=jax.vmap(lambda _: _begin_moments(size))(jnp.arange(rungs)),
        rejections=jnp.zeros(rungs, inverse_mass_matrix.dtype),
        sweeps=jnp.zeros((), jnp.int32),
    )


def after_sweep(
    adaptation: RungTuning,
    target: float,
    last: jax.Array,
    positions: jax.Array,
    accept_probs: jax.Array,
    swap_probs: jax.Array,
) -> RungTuning:
    """The tuning after one more sweep; the last one of warm-up takes the mean of the log step sizes."""
    accept_probs = jnp.where(jnp.isfinite(accept_probs), accept_probs, 0.0)
    averaging = jax.vmap(_average)(target - accept_probs, adaptation.averaging)
    log_step = jnp.where(last, averaging[1], averaging[0])
    return adaptation._replace(
        step_size=jnp.exp(log_step).astype(adaptation.step_size.dtype),
        averaging=averaging,
        moments=jax.vmap(_add_moments)(positions, adaptation.moments),
        rejections=adaptation.rejections + (1 - swap_probs),
        sweeps=adaptation.sweeps + 1,
    )


def next_round(powers: jax.Array, seen: RungTuning) -> tuple[jax.Array, RungTuning]:
    """The ladder of equal rejection, with metrics and step sizes for its rungs."""
    new = equalized(powers, seen.rejections / seen.sweeps).astype(powers.dtype)
    share = seen.sweeps / (seen.sweeps + _METRIC_WEIGHT)
    _, squares, count = seen.moments
    variance = squares / jnp.maximum(count - 1, 1)[:, None]
    metric = share * variance + (1 - share) * seen.inverse_mass_matrix
    metric = jnp.where(jnp.isfinite(metric) & (metric > 0), metric, seen.inverse_mass_matrix)
    # One array for metric and step size, because interpolation is slow to compile.
    columns = jnp.column_stack([metric, seen.averaging[1]])
    columns = carried_over(columns, powers[1:], new[1:])
    metric, log_step = columns[:, :-1], columns[:, -1]
    return new, begin_round(
        jnp.exp(log_step).astype(seen.step_size.dtype),
        metric.astype(seen.inverse_mass_matrix.dtype),
    )


def round_ends(num_warmup: int) -> list[int]:
    """Sweeps of warm-up after which ladder and metric are set anew; each round is twice as long."""
    # The second half of warm-up keeps both and tunes the step sizes: a rung must have visited
    # all its modes for that, since one of them may need much shorter steps than the others.
    ends = [max(1, num_warmup // 2)]
    while ends[0] >= 16:
        ends.insert(0, ends[0] // 2)
    return ends
