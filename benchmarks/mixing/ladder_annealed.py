"""Starts of the rungs of a ladder by annealed sequential Monte Carlo.

Particles go from the prior to the posterior by the powers of the first ladder, with three more between two
rungs. At each power they are weighted, resampled where the effective sample size is below half, moved by a
quarter of a trajectory of the rungs, and their precisions are drawn anew given the weights. Each rung begins
at a particle of its own power.

Source: S. Syed, A. Bouchard-Côté, K. Chern and A. Doucet, *Optimised annealed sequential Monte Carlo
samplers* (2024), without the rounds that optimise their schedule. Systematic resampling: J. Carpenter,
P. Clifford and P. Fearnhead, *Improved particle filter for nonlinear problems* (1999).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from numpyro_bnn.potential.potential import Potential, Values
from numpyro_bnn.samplers.gibbs.precision_gibbs import precision_redraw
from numpyro_bnn.samplers.tempering.ladder import first_ladder
from numpyro_bnn.samplers.tempering.rung_kernels import RungKernel, finite_or_before, prior_draw

PARTICLES = 64
# Powers of the annealed run for each rung but the first; the step size that it begins with.
_STAGES = 4
_FIRST_STEP = 0.1


def steps_a_stage(mover: RungKernel) -> int:
    """Steps of a trajectory at each power: a quarter of those of the rungs, which are HMC's."""
    assert mover.num_steps is not None
    return max(1, mover.num_steps // _STAGES)


def gradients(mover: RungKernel, num_rungs: int) -> int:
    """Gradients of the particles of a replica; an energy counts as one, and a weight needs two.

    :param mover: HMC of the rungs.
    :param num_rungs: from prior to posterior.
    """
    return PARTICLES * _STAGES * (num_rungs - 1) * (steps_a_stage(mover) + 2)


def annealed(potential: Potential, mover: RungKernel, key: jax.Array, num_rungs: int) -> Values:
    """States of all rungs of the first ladder by annealed sequential Monte Carlo: leaves (rung, …).

    :param potential: potential energy of the model.
    :param mover: HMC of the rungs.
    :param key: random key.
    :param num_rungs: from prior to posterior.
    """
    powers = first_ladder(_STAGES * (num_rungs - 1) + 1)
    mover = mover._replace(num_steps=steps_a_stage(mover))
    key_prior, key_stages = jax.random.split(key)
    drawn = lax.map(partial(prior_draw, potential), jax.random.split(key_prior, PARTICLES))
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], drawn))[1]
    first = jax.vmap(lambda z: ravel_pytree(z)[0])(drawn)
    redraw = precision_redraw(potential)

    def one_redrawn(key: jax.Array, position: jax.Array) -> jax.Array:
        if redraw is None:
            return position
        z = unravel(position)
        return ravel_pytree(finite_or_before(redraw(key, z), z))[0]

    def stage(carry: tuple, given: tuple) -> tuple[tuple, jax.Array]:
        positions, log_weights, step_size = carry
        low, high, key = given
        key_resample, key_move, key_redraw, key_one = jax.random.split(key, 4)

        def rise(position: jax.Array) -> jax.Array:
            likelihood = potential.tempered(unravel(position))[1]
            return likelihood(high) - likelihood(low)

        # A large number in place of infinity: particles may all be without likelihood at first.
        log_weights -= jnp.nan_to_num(jax.vmap(rise)(positions), nan=1e30, posinf=1e30)
        shares = jax.nn.softmax(log_weights)
        few = 1 / jnp.sum(shares**2) < PARTICLES / 2
        places = (jnp.arange(PARTICLES) + jax.random.uniform(key_resample)) / PARTICLES
        # Rounding may leave the sum of the shares below the last place.
        parents = jnp.minimum(jnp.searchsorted(jnp.cumsum(shares), places), PARTICLES - 1)
        positions = jnp.where(few, positions[parents], positions)
        log_weights = jnp.where(few, 0.0, log_weights - log_weights.max())

        def tempered(position: jax.Array) -> jax.Array:
            prior, likelihood = potential.tempered(unravel(position))
            return prior + likelihood(high)

        unit = jnp.ones(positions.shape[1:], positions.dtype)
        moved = jax.vmap(lambda z, key: mover.move(tempered, z, key, step_size, unit))(
            positions, jax.random.split(key_move, PARTICLES)
        )
        positions = jax.vmap(one_redrawn)(jax.random.split(key_redraw, PARTICLES), moved.position)
        accept = jnp.nan_to_num(moved.accept_prob).mean()
        step_size *= jnp.exp(accept - mover.target_accept_prob)
        chosen = positions[jax.random.categorical(key_one, log_weights)]
        return (positions, log_weights, step_size), chosen

    keys = jax.random.split(key_stages, powers.size - 1)
    begin = (first, jnp.zeros(PARTICLES), jnp.asarray(_FIRST_STEP))
    _, found = lax.scan(stage, begin, (powers[:-1], powers[1:], keys))
    rungs = jnp.concatenate([first[:1], found[_STAGES - 1 :: _STAGES]])
    return jax.vmap(unravel)(rungs)
