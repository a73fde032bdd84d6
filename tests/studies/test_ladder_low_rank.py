"""Metrics of low rank by rung: what they are learned to be, and that trajectories keep the density."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from ladders import errors_of, hierarchical, hierarchy, hmc, sampler
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks.mixing.ladder_low_rank import (
    Axes,
    LowRankKernel,
    axes_of_a_run,
    learned_axes,
    with_axes,
)
from benchmarks.mixing.ladder_variants import Variant, energy
from numpyro_bnn.samplers.tempering.rung_kernels import RungKernel

SIZE, STARTS = 12, 20_000


def distribution():
    """Covariance of a Gaussian with one direction that is 30 times as wide as most, one a thirtieth."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))[0]
    spread = np.array([30.0, *[1.0] * (SIZE - 2), 1 / 30])
    return (axes * spread**2) @ axes.T


def test_wide_and_stiff_directions_are_learned_from_draws_and_gradients():
    covariance = distribution()
    draws = np.random.default_rng(1).multivariate_normal(np.zeros(SIZE), covariance, 2000)
    gradients = draws @ np.linalg.inv(covariance)
    found = learned_axes(draws, gradients, rank=2)
    # In its own coordinates scales differ by a factor of four at most, and not of 900.
    inverse = np.stack([found.to_coordinates(one) for one in np.eye(SIZE)], 1)
    np.testing.assert_allclose(
        inverse @ np.stack([found.to_position(one) for one in np.eye(SIZE)], 1),
        np.eye(SIZE),
        atol=1e-9,
    )
    scales = np.sqrt(np.linalg.eigvalsh(inverse @ covariance @ inverse.T))
    assert scales.max() / scales.min() < 4


def test_trajectories_keep_the_distribution_and_reach_across_it():
    """From independent exact draws: their second moments, and their correlation with the start."""
    covariance = distribution()
    rng = np.random.default_rng(2)
    draws = rng.multivariate_normal(np.zeros(SIZE), covariance, 2000)
    inverse = np.linalg.inv(covariance)
    axes = learned_axes(draws, draws @ inverse, rank=2)
    start = jnp.asarray(rng.multivariate_normal(np.zeros(SIZE), covariance, STARTS))
    stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], axes)
    plain = RungKernel.of(HMC(hierarchical, num_steps=8, trajectory_length=None), hierarchical)
    kernel = with_axes(plain, Axes(*stacked))
    assert isinstance(kernel, LowRankKernel)

    @jax.jit
    @jax.vmap
    def move(position, key):
        return kernel.move_all(
            lambda _: lambda z: 0.5 * z @ jnp.asarray(inverse, z.dtype) @ z,
            jnp.ones(1),
            position[None],
            key[None],
            jnp.full(1, 0.3),
            jnp.ones((1, SIZE)),
        )

    moved = move(start, jax.random.split(jax.random.key(3), STARTS))
    end = np.asarray(moved.position[:, 0], np.float64)
    eigen, vectors = np.linalg.eigh(covariance)
    before, after = (np.asarray(v, np.float64) @ vectors / np.sqrt(eigen) for v in (start, end))
    assert np.abs(after.mean(0)).max() < 4.5 / STARTS**0.5
    assert np.abs((after**2).mean(0) - 1).max() < 4.5 * (2 / STARTS) ** 0.5
    # Eight steps of .3 in units of every direction: none is left behind.
    assert (before * after).mean(0).max() < 0.5
    stayed = np.asarray(end == np.asarray(start)).all(-1)
    assert 0.0 < stayed.mean() < 0.2


def test_a_ladder_with_metrics_of_a_first_run_has_the_posterior_of_the_model():
    data, _, mean, slope = hierarchy()

    def ladder():
        return Variant(hierarchical, hmc(hierarchical, 4), num_rungs=5)

    first = bnn.MCMC(ladder(), num_warmup=40, num_samples=50, num_chains=2, progress_bar=False)
    first.run(jax.random.key(1), *data, extra_fields=("rungs", "likelihood_powers"))
    kernel = ladder()
    potential = bnn.potential_of(hierarchical, *data)
    axes = axes_of_a_run(first, partial(energy, potential))
    kernel._rung_kernel = with_axes(kernel._rung_kernel, axes)
    assert axes.scale.shape[0] == 4
    mcmc = sampler(kernel)
    mcmc.run(jax.random.key(2), *data)
    draws = mcmc.get_samples(group_by_chain=True)
    assert errors_of(np.log(draws["net/Dense_0.kernel.precision"]), mean) < 4
    assert errors_of(draws["net/Dense_0.kernel"][..., 0, 0], slope) < 4
