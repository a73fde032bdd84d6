"""Draws in 16 bits leave through files of ArviZ: netCDF has no such numbers."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from numpyro.infer import HMC

import numpyro_bnn as bnn


def test_draws_in_16_bits_are_written_as_float32(tmp_path):
    def model():
        numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))

    settings = {"num_warmup": 2, "num_samples": 12, "progress_bar": False}
    run = bnn.MCMC(
        bnn.BAOAB(model, step_size=0.1), draws=tmp_path / "d", draws_dtype="float16", **settings
    )
    run.run(jax.random.key(0))
    draws = run.get_samples(group_by_chain=True)["w"]
    idata = bnn.to_inference_data(run, log_likelihood=False)
    assert idata["posterior"]["w"].dtype == np.float32
    idata.to_netcdf(tmp_path / "draws.nc")
    with xarray.open_dataset(tmp_path / "draws.nc", group="posterior") as read:
        np.testing.assert_array_equal(read["w"], np.asarray(draws, np.float32))


@pytest.mark.parametrize(
    ("dtype", "mean", "sd", "is_coarse"),
    [
        ("float16", 1.004, 0.002, True),  # numbers 0.00098 apart above 1, 0.00049 below
        ("float16", 1000.0, 0.013, True),  # all draws become 1000
        ("float32", 1000.0, 0.013, False),
        ("float16", 1.004, 0.02, False),
    ],
)
def test_a_type_that_is_too_coarse_for_the_draws_is_warned_of(
    tmp_path, recwarn, dtype, mean, sd, is_coarse
):
    def model():
        numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("w", dist.Normal(mean, sd))
        numpyro.deterministic("constant", np.full(3, 7.0))

    settings = {"num_warmup": 0, "num_samples": 40, "num_chains": 2, "progress_bar": False}
    kernel = HMC(
        model,
        step_size=0.3,
        num_steps=5,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        inverse_mass_matrix=np.array([1.0, 1.0, sd**2], np.float32),
    )
    run = bnn.MCMC(kernel, draws=tmp_path / "d", draws_dtype=dtype, **settings)
    start = {"a": np.zeros((2, 2)), "w": np.full(2, mean)}
    run.run(jax.random.key(0), init_params=start)
    said = [str(w.message) for w in recwarn if "too coarse" in str(w.message)]
    assert len(said) == is_coarse
    assert all(f"'{dtype}'" in text and "'w'" in text for text in said)
