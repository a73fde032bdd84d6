"""Draws in 16 bits leave through files of ArviZ: netCDF has no such numbers."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray

import numpyro_bnn as bnn

pytestmark = pytest.mark.usefixtures("quick_compile")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_draws_in_16_bits_are_written_as_float32(tmp_path, dtype):
    def model():
        numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))

    settings = {"num_warmup": 2, "num_samples": 12, "progress_bar": False}
    run = bnn.MCMC(
        bnn.BAOAB(model, step_size=0.1), draws=tmp_path / "d", draws_dtype=dtype, **settings
    )
    run.run(jax.random.key(0))
    draws = run.get_samples(group_by_chain=True)["w"]
    idata = bnn.to_inference_data(run, log_likelihood=False)
    assert idata["posterior"]["w"].dtype == np.float32
    idata.to_netcdf(tmp_path / "draws.nc")
    with xarray.open_dataset(tmp_path / "draws.nc", group="posterior") as read:
        np.testing.assert_array_equal(read["w"], np.asarray(draws, np.float32))
