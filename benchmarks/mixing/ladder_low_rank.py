"""Metrics of low rank by rung, learned in a first run, for the ladders of `ladder_variants`.

Trajectories of a rung run in coordinates u in which its widest and its stiffest directions have unit scale:
z = s(u + V((√λ - 1) Vᵀu)), V a few orthonormal axes. λ is the geometric mean of the covariance of draws and
the inverse covariance of gradients along these axes, and s² the same of each parameter, which makes draws and
gradients alike in u.

Source: A. Seyboldt, E. Carlson and B. Carpenter, *Preconditioning Hamiltonian Monte Carlo by minimizing
Fisher divergence* (2026); the metric there, from draws and gradients, is that of one posterior.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import numpyro_bnn as bnn
from numpyro_bnn.potential.potential import Values
from numpyro_bnn.samplers.tempering.rung_kernels import Moved, RungKernel

# Axes of each kind, of draws and of gradients.
RANK = 8
# Weight, in draws, of no correlation at all.
_WEIGHT = 10.0


class Axes(NamedTuple):
    """A metric, of one rung or with a leading axis of rungs.

    - **scale** - scale of each parameter (parameter,)
    - **axes** - orthonormal, in units of the scale (parameter, axis)
    - **stretch** - standard deviation along each axis, in the same units (axis,)
    """

    scale: Any
    axes: Any
    stretch: Any

    def to_position(self, u: jax.Array) -> jax.Array:
        """Parameters at coordinates."""
        return self.scale * (u + self.axes @ ((self.stretch - 1) * (self.axes.T @ u)))

    def to_coordinates(self, position: jax.Array) -> jax.Array:
        """Coordinates of parameters."""
        u = position / self.scale
        return u + self.axes @ ((1 / self.stretch - 1) * (self.axes.T @ u))


def learned_axes(draws: np.ndarray, gradients: np.ndarray, rank: int = RANK) -> Axes:
    """The metric of one rung, from draws and the gradients of its energy there, both (draw, parameter)."""
    scale = np.sqrt(draws.std(0, ddof=1) / gradients.std(0, ddof=1))
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    x, g = ((v - v.mean(0)) / len(v) ** 0.5 for v in (draws / scale, gradients * scale))
    wide, stiff = (np.linalg.svd(v, full_matrices=False)[2][:rank] for v in (x, g))
    basis = np.linalg.qr(np.concatenate([wide, stiff]).T)[0]
    share = len(draws) / (len(draws) + _WEIGHT)
    of_draws, of_gradients = (
        share * (v @ basis).T @ (v @ basis) + (1 - share) * np.eye(basis.shape[1]) for v in (x, g)
    )
    variances, turned = np.linalg.eigh(_geometric_mean(of_draws, np.linalg.inv(of_gradients)))
    return Axes(scale, basis @ turned, np.sqrt(variances))


def _geometric_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The symmetric S with S a⁻¹ S = b, for positive definite a and b."""
    root = _power(a, 0.5)
    back = _power(a, -0.5)
    return root @ _power(back @ b @ back, 0.5) @ root


def _power(a: np.ndarray, exponent: float) -> np.ndarray:
    values, vectors = np.linalg.eigh((a + a.T) / 2)
    return (vectors * np.maximum(values, 1e-12) ** exponent) @ vectors.T


class LowRankKernel(RungKernel):
    """Trajectories of each rung but the first in coordinates of its own, see :class:`Axes`.

    The diagonal metric that the ladder adapts is not used.
    """

    axes: Axes

    def move_all(
        self,
        potential_of: Callable[[jax.Array], Callable[[jax.Array], jax.Array]],
        powers: jax.Array,
        positions: jax.Array,
        keys: jax.Array,
        step_size: jax.Array,
        inverse_mass_matrix: jax.Array,
    ) -> Moved:
        """One trajectory on every rung, which leaves its density as it is."""

        def one(
            power: jax.Array, axes: Axes, position: jax.Array, key: jax.Array, step: jax.Array
        ) -> Moved:
            inner, start = potential_of(power), axes.to_coordinates(position)
            moved = self.move(
                lambda u: inner(axes.to_position(u)), start, key, step, jnp.ones_like(start)
            )
            # A rejected trajectory leaves the position as it is, without the rounding of two transformations.
            stays = (moved.position == start).all()
            end = jnp.where(stays, position, axes.to_position(moved.position))
            return moved._replace(position=end)

        axes = jax.tree.map(lambda leaf: jnp.asarray(leaf, positions.dtype), self.axes)
        return jax.vmap(one)(powers, axes, positions, keys, step_size)


def with_axes(kernel: RungKernel, axes: Axes) -> LowRankKernel:
    """HMC of a fixed number of steps in the coordinates of each rung."""
    made = LowRankKernel(*kernel)
    made.axes = axes
    return made


def axes_of_a_run(mcmc: bnn.MCMC, energy: Callable[[jax.Array, Values], jax.Array]) -> Axes:
    """Metrics of all rungs but the first, from the draws of a run that collected `rungs`.

    :param energy: of a likelihood power and unconstrained values, in nats.
    """
    fields = mcmc.get_extra_fields(group_by_chain=True)
    rungs, powers = fields["rungs"], np.asarray(fields["likelihood_powers"])[:, -1].mean(0)
    one = jax.tree.map(lambda leaf: leaf[0, 0, 0], rungs)
    unravel = ravel_pytree(one)[1]
    flat = jax.vmap(jax.vmap(jax.vmap(lambda z: ravel_pytree(z)[0])))(rungs)

    @jax.jit
    def gradients(power: jax.Array, positions: jax.Array) -> jax.Array:
        return jax.lax.map(jax.grad(lambda position: energy(power, unravel(position))), positions)

    found = []
    for k in range(1, len(powers)):
        draws = flat[:, :, k].reshape(-1, flat.shape[-1])
        slopes = np.asarray(gradients(jnp.asarray(powers[k], flat.dtype), draws), np.float64)
        kept = np.isfinite(slopes).all(-1)
        found.append(learned_axes(np.asarray(draws, np.float64)[kept], slopes[kept]))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)
