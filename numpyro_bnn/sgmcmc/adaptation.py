"""Step sizes that work at first try: from the curvature at the start, then by acceptance."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from numpyro.infer.hmc_util import dual_averaging

from numpyro_bnn.sgmcmc.dynamics import Dynamics, RandomWalk
from numpyro_bnn.sgmcmc.gradients import Rows
from numpyro_bnn.sgmcmc.movements import spread
from numpyro_bnn.sgmcmc.noise import normal_like

PyTree = Any

# Share of the largest stable leapfrog step, 2/√λ, that a first guess takes.
_STABLE = 0.25
_POWER_STEPS = 20


class Adaptation(NamedTuple):
    """Step size and friction of a chain.

    - **step_size** - in use; what "auto" found
    - **friction** - per unit time
    - **averaging** - state of dual averaging of the log step size
    """

    step_size: jax.Array
    friction: jax.Array
    averaging: Any


def largest_curvature(
    rows: Rows, position: PyTree, inverse_mass: PyTree, rng_key: jax.Array
) -> jax.Array:
    """Largest eigenvalue, in size, of M⁻¹∇²U at a position, by power iteration.

    Costs 20 Hessian-vector products on all rows, once.

    :param inverse_mass: diagonal, a scalar or like the position.
    :param rng_key: for the first vector.
    """
    start = normal_like(rng_key, position)
    root = jax.tree.map(jnp.sqrt, spread(inverse_mass, position, "inverse_mass_matrix"))

    def scaled(vector: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, root, vector)

    def norm(vector: PyTree) -> jax.Array:
        return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(vector)))

    def product(_: int, carry: tuple) -> tuple:
        vector, _ = carry
        unit = jax.tree.map(lambda x: x / norm(vector), vector)
        _, image = jax.jvp(jax.grad(rows.potential), (position,), (scaled(unit),))
        image = scaled(image)
        return image, norm(image)

    _, eigenvalue = lax.fori_loop(0, _POWER_STEPS, product, (start, norm(start)))
    return eigenvalue


def begin_adaptation(
    rows: Rows,
    position: PyTree,
    inverse_mass: PyTree,
    rng_key: jax.Array,
    step_size: Any,
    dynamics: Dynamics,
    friction: float | None,
) -> Adaptation:
    """The step size to begin with, and the friction that goes with it.

    :param step_size: given one, or None for "auto".
    :param friction: given one, or None: 0.1 / step_size, a momentum that keeps nine tenths
        a step.
    """
    real = jnp.result_type(float)
    if step_size is None:
        curvature = largest_curvature(rows, position, inverse_mass, rng_key)
        h = _STABLE * 2 / jnp.sqrt(curvature)
        size = sum(leaf.size for leaf in jax.tree.leaves(position))
        if isinstance(dynamics, RandomWalk):
            step_size = h / jnp.sqrt(size)
        else:
            # SGLD's drift of epsilon/2 moves as far as a momentum method's step of h²/2.
            step_size = h if dynamics.has_momentum else h**2
    step_size = jnp.asarray(step_size, real)
    init, _ = dual_averaging()
    averaging = init(jnp.log(10 * step_size))
    friction = 0.1 / step_size if friction is None else friction
    return Adaptation(step_size, jnp.asarray(friction, real), averaging)


def adapted(
    adaptation: Adaptation, accept_prob: jax.Array, target: float, warming: Any, last: Any
) -> Adaptation:
    """Dual averaging of the log step size during warm-up; its average from the last step on.

    Source: Hoffman and Gelman, *The No-U-Turn Sampler* (2014), section 3.2.
    """
    _, update = dual_averaging()
    averaging = update(target - accept_prob, adaptation.averaging)
    now, average = averaging[0], averaging[1]
    step_size = jnp.exp(jnp.where(last, average, now))
    new = adaptation._replace(step_size=step_size, averaging=averaging)
    return jax.tree.map(lambda a, b: jnp.where(warming, a, b), new, adaptation)
