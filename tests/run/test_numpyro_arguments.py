"""What NumPyro's own tests of its `MCMC` do (0.22), with ours in its place."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, BarkerMH, HMCGibbs

import numpyro_bnn as bnn


def model():
    numpyro.sample("x", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))


@pytest.mark.parametrize("dense_mass", [False, [("x",)]])
def test_blocks_of_an_inverse_mass_matrix_are_those_that_were_given(dense_mass):
    """HMC adds the blocks that are not named to the dictionary, as arrays of the trace that it is in."""
    blocks = {("x",): jnp.arange(1.0, 4.0)}
    steps = {"step_size": 0.1, "num_steps": 2, "trajectory_length": None, "adapt_step_size": False}
    kernel = HMC(
        model, dense_mass=dense_mass, inverse_mass_matrix=blocks, adapt_mass_matrix=False, **steps
    )
    mcmc = bnn.MCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False)
    for seed in range(2):
        mcmc.run(jax.random.key(seed))
        found = mcmc.last_state.adapt_state.inverse_mass_matrix
        right = jnp.diag(blocks["x",]) if dense_mass else blocks["x",]
        np.testing.assert_array_equal(found["x",], right)
        np.testing.assert_array_equal(found["z",], jnp.ones(2))
    assert set(blocks) == {("x",)}


def test_so_are_those_of_a_kernel_inside_of_gibbs():
    blocks = {("x",): jnp.arange(1.0, 4.0)}
    more = lambda: (model(), numpyro.sample("w", dist.Normal()))  # noqa: E731
    inner = HMC(more, inverse_mass_matrix=blocks, num_steps=2, trajectory_length=None)
    redraw = lambda rng_key, gibbs_sites, hmc_sites: {"w": jax.random.normal(rng_key)}  # noqa: E731
    gibbs = HMCGibbs(inner, redraw, gibbs_sites=["w"])
    mcmc = bnn.MCMC(gibbs, num_warmup=1, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0))
    assert set(mcmc.last_state.hmc_state.adapt_state.inverse_mass_matrix) == {("x",), ("z",)}
    assert set(blocks) == {("x",)}


def test_a_run_that_keeps_no_site_has_no_samples():
    mcmc = bnn.MCMC(BarkerMH(model), num_warmup=2, num_samples=3, progress_bar=False)
    mcmc.run(jax.random.key(0), extra_fields=("~z.x", "~z.z"))
    assert mcmc.get_samples() == {}
