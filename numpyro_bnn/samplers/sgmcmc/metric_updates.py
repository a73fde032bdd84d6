"""Updates the preconditioner of a kernel, and rescales momenta to the new metric."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from numpyro_bnn._types import PyTree
from numpyro_bnn.potential.rows import Rows
from numpyro_bnn.samplers.sgmcmc.branches import where_needed
from numpyro_bnn.samplers.sgmcmc.dynamics.drift_kick_friction import rescaled
from numpyro_bnn.samplers.sgmcmc.gradients import Estimator
from numpyro_bnn.samplers.sgmcmc.noise import normal_like
from numpyro_bnn.samplers.sgmcmc.preconditioners import Preconditioner


def learned_metric(
    metric: Preconditioner,
    state: PyTree,
    num_rows: int,
    momentum: PyTree,
    gradient: PyTree,
    position: PyTree,
    warming: jax.Array,
    curvature: PyTree = None,
) -> tuple[PyTree, PyTree]:
    """Update a preconditioner by a gradient, and rescale the momentum to the new metric."""
    # `num_rows` is 0 where unknown; `curvature`, the diagonal of the Hessian, is for a metric
    # that changes after warm-up too.
    if getattr(metric, "data_size", 0) is None and num_rows:
        metric = dataclasses.replace(metric, data_size=num_rows)  # type: ignore[type-var]
    learned = metric.update(state, gradient, position, warming, curvature)
    if momentum is None or not metric.needs_warmup:
        return learned, momentum
    before, after = metric.inverse_mass_matrix(state), metric.inverse_mass_matrix(learned)
    return learned, where_needed(warming, lambda: rescaled(momentum, before, after), momentum)


def conditioned(metric: Preconditioner, state: PyTree, rows: Rows) -> PyTree:
    """The state of a preconditioner, computed from the values that Gibbs holds fixed."""
    update = getattr(metric, "after_gibbs", None)
    return state if update is None else update(rows.potential, state)


def reconditioned(
    metric: Preconditioner, state: PyTree, rows: Rows, momentum: PyTree
) -> tuple[PyTree, PyTree]:
    """State of a preconditioner, and momentum, after Gibbs has changed the values of other blocks."""
    after = conditioned(metric, state, rows)
    if momentum is None or after is state:
        return after, momentum
    old, new = metric.inverse_mass_matrix(state), metric.inverse_mass_matrix(after)
    return after, rescaled(momentum, old, new)


def hessian_product(
    estimator: Estimator, rows: Rows, at: PyTree, state: PyTree, vector: PyTree
) -> PyTree:
    """The derivative of a gradient estimate in a direction, which no anchor changes."""

    def gradient(z: PyTree) -> PyTree:
        return estimator.again(rows, z, state).gradient

    return jax.jvp(gradient, (at,), (vector,))[1]


def diagonal_by_probe(product: Callable[[PyTree], PyTree], at: PyTree, key: jax.Array) -> PyTree:
    """Unbiased estimate of the diagonal of a Hessian, by one product with random signs."""
    probe = jax.tree.map(lambda x: jnp.where(x < 0, -1.0, 1.0), normal_like(key, at))
    return jax.tree.map(jnp.multiply, probe, product(probe))
