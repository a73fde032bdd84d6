"""Step sizes for ``step_size="auto"``: from the curvature, or from the acceptance probability.

The first step size is a share of the largest stable one at the start. In warm-up Metropolis methods then tune
it to an acceptance probability. All others follow the curvature, which grows as a network begins to fit, and
changes with the metric.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer.hmc_util import dual_averaging

from numpyro_bnn._types import Number, PyTree
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import map_like, size, spread
from numpyro_bnn.samplers.sgmcmc.dynamics.methods import Dynamics, RandomWalkProposal
from numpyro_bnn.samplers.sgmcmc.gradients import NoiseEstimate
from numpyro_bnn.samplers.sgmcmc.noise import normal_like

# The first step size as a share of the largest stable leapfrog step, 2/√λ.
_STABLE = 0.25
_POWER_STEPS = 20
# Weight of the past curvature after one step with a smaller curvature.
_MEMORY = 0.98


class StepTuning(NamedTuple):
    """Step size and friction of a chain."""

    step_size: jax.Array  # The step size in use, with "auto" the tuned one
    friction: jax.Array  # Friction per unit time
    # Statistics that the tuning in warm-up needs: the state of dual averaging of the log step
    # size, or `WarmupStatistics`.
    averaging: PyTree
    # Recent estimate of the largest eigenvalue of M⁻¹∇²U; NaN where it is not used.
    curvature: jax.Array
    direction: PyTree  # Estimate of its eigenvector in units of √M⁻¹; None where it is not used
    # Estimated variance of the gradient; None where it is not estimated.
    noise: NoiseEstimate | None = None


def _norm(vector: PyTree) -> jax.Array:
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(vector)))


def _power_step(
    product: Callable[[PyTree], PyTree], inverse_mass_matrix: PyTree, vector: PyTree
) -> tuple[PyTree, jax.Array]:
    """One power iteration with √M⁻¹ ∇²U √M⁻¹: the unit vector, and its growth factor."""
    root = jax.tree.map(jnp.sqrt, spread(inverse_mass_matrix, vector, "inverse_mass_matrix"))
    scaled = map_like(jnp.multiply, vector, root)
    image = map_like(jnp.multiply, product(scaled), root)
    grown = _norm(image)
    # With a flat potential the product is 0, and the vector is kept.
    safe = jnp.where(grown > 0, grown, 1.0)
    unit = map_like(lambda v, x: jnp.where(grown > 0, x / safe, v), vector, image)
    return unit, grown


def largest_curvature(
    rows: Rows, position: PyTree, inverse_mass_matrix: PyTree, key: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Largest eigenvalue, in size, of M⁻¹∇²U (1 where U is flat) and its vector, by power iteration."""
    # Costs 20 Hessian-vector products on all rows, once.

    def product(vector: PyTree) -> PyTree:
        return jax.jvp(jax.grad(rows.energy), (position,), (vector,))[1]

    start = normal_like(key, position)
    norm = _norm(start)
    carry = (map_like(lambda x: x / norm, start), norm)
    vector, grown = lax.fori_loop(
        0, _POWER_STEPS, lambda _, c: _power_step(product, inverse_mass_matrix, c[0]), carry
    )
    return jnp.where(grown > 0, grown, 1.0), vector


def _stable_step(dynamics: Dynamics, curvature: jax.Array, position: PyTree) -> jax.Array:
    h = _STABLE * 2 / jnp.sqrt(curvature)
    if isinstance(dynamics, RandomWalkProposal):
        return h / jnp.sqrt(size(position))
    # A drift of epsilon/2 (SGLD) moves as far as h²/2 (momentum methods).
    return h if dynamics.has_momentum else h**2


class ChainStart(NamedTuple):
    """The start of a chain, from which the first step size is computed."""

    rows: Rows  # The potential energy
    position: PyTree  # Unconstrained
    inverse_mass_matrix: PyTree  # Diagonal, a scalar or like the position
    key: jax.Array  # For the first vector of a power iteration
    step_size: Number | None  # As given; None for "auto"
    dynamics: Dynamics  # The method


def begin_tuning(
    start: ChainStart, friction: float | None, follow: bool = False, lasting: bool = False
) -> StepTuning:
    """The first step size and friction of a chain; no friction given is 0.1 / step_size."""
    # That keeps nine tenths of a momentum in each step; with `lasting` at least a unit of time.
    step_size = start.step_size
    real = jnp.result_type(float)
    curvature, direction = jnp.full((), jnp.nan, real), None
    if step_size is None:
        curvature, vector = largest_curvature(
            start.rows, start.position, start.inverse_mass_matrix, start.key
        )
        direction = vector if follow else None
        step_size = _stable_step(start.dynamics, curvature, start.position)
    step_size = jnp.asarray(step_size, real)
    init, _ = dual_averaging()
    averaging = init(jnp.log(10 * step_size))
    by_step = 0.1 / step_size
    first = jnp.minimum(by_step, 1.0) if lasting else by_step
    return StepTuning(
        step_size,
        jnp.asarray(first if friction is None else friction, real),
        averaging,
        jnp.asarray(curvature, real),
        direction,
    )


def follow_curvature(
    tuned: StepTuning,
    product: Callable[[PyTree], PyTree],
    inverse_mass_matrix: PyTree,
    dynamics: Dynamics,
    by_step: bool,
) -> StepTuning:
    """Update the step size by a new estimate of the curvature, in the current metric."""
    # A larger curvature takes effect at once, a smaller one over some fifty steps. With
    # `by_step` the friction is kept at 0.1 / step_size.
    direction, grown = _power_step(product, inverse_mass_matrix, tuned.direction)
    fading = _MEMORY * tuned.curvature + (1 - _MEMORY) * grown
    curvature = jnp.maximum(grown, fading).astype(tuned.curvature.dtype)
    step_size = _stable_step(dynamics, curvature, direction).astype(tuned.step_size.dtype)
    new = tuned._replace(
        step_size=step_size,
        friction=0.1 / step_size if by_step else tuned.friction,
        curvature=curvature,
        direction=direction,
    )
    # A curvature that is not finite is not used.
    known = jnp.isfinite(curvature) & (curvature > 0)
    return jax.tree.map(lambda a, b: jnp.where(known, a, b), new, tuned)


def follow_acceptance(
    tuned: StepTuning, accept_prob: jax.Array, target: float, warming: jax.Array, last: jax.Array
) -> StepTuning:
    """Dual averaging of the log step size during warm-up; its average from the last step on."""
    # Source: Hoffman and Gelman, *The No-U-Turn Sampler* (2014), section 3.2.
    _, update = dual_averaging()
    averaging = update(target - accept_prob, tuned.averaging)
    now, average = averaging[0], averaging[1]
    step_size = jnp.exp(jnp.where(last, average, now))
    new = tuned._replace(step_size=step_size, averaging=averaging)
    return jax.tree.map(lambda a, b: jnp.where(warming, a, b), new, tuned)
