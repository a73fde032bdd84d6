"""Rows of scientific files: packed, masked and filled variables, by netCDF4, h5py and xarray."""

import h5py
import jax
import netCDF4
import numpy as np
import pandas as pd
import pytest
import xarray

import numpyro_bnn as bnn
from numpyro_bnn.data.arguments import as_array
from numpyro_bnn.workflow.estimator_inputs import validated

# Hundredths, which a packed variable of whole numbers holds exactly.
X = np.round(np.random.default_rng(0).normal(size=(40, 2)), 2)
SOME = np.array([7, 3, 21])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "rows.nc"
    with netCDF4.Dataset(path, "w") as made:
        made.createDimension("row", len(X))
        made.createDimension("column", X.shape[1])
        packed = made.createVariable("packed", "i2", ("row", "column"))
        packed.scale_factor = 0.01
        packed[:] = X
        for name, kind, fill in [("masked", "f4", None), ("filled", "i4", -99)]:
            variable = made.createVariable(name, kind, ("row", "column"), fill_value=fill)
            variable[:] = 100 * X
            variable[21, 1] = np.ma.masked
    return path


def test_packed_numbers_are_those_that_netcdf4_1_7_and_xarray_give(file):
    with netCDF4.Dataset(file) as opened, xarray.open_dataset(file, engine="h5netcdf") as decoded:
        for array in (opened["packed"], decoded["packed"]):
            source = bnn.OnHost(array)
            assert source.dtype == np.float32
            source.check_fits("model", "x")
            np.testing.assert_allclose(source.read(SOME), X[SOME], atol=1e-6)
            np.testing.assert_allclose(
                np.concatenate([block for _, block in source.blocks()]), X, atol=1e-6
            )


def test_a_step_reads_packed_rows(file):
    def model(x):
        return jax.numpy.sum(x.take(jax.numpy.asarray(SOME)))

    with netCDF4.Dataset(file) as opened:
        source = bnn.OnHost(opened["packed"])
        assert float(jax.jit(lambda: model(source))()) == pytest.approx(X[SOME].sum(), abs=1e-5)


@pytest.mark.parametrize("name", ["masked", "filled"])
def test_masked_rows_are_refused_before_a_run(file, name):
    with netCDF4.Dataset(file) as opened:
        source = bnn.OnHost(opened[name])
        np.testing.assert_allclose(source.read(SOME[:2]), (100 * X)[SOME[:2]], atol=1)
        for read in (lambda: source.read(SOME), lambda: source.check_fits("model", "x")):
            with pytest.raises(ValueError, match=r"OnHost: row 21 of the Variable .* is masked"):
                read()
    with pytest.raises(ValueError, match=r"OnHost: row 2 of the MaskedArray .* is masked"):
        bnn.OnHost(np.ma.masked_equal(np.arange(5.0), 2)).check_fits("model", "x")


def test_raw_numbers_of_a_file_are_refused_where_its_attributes_say_more(file):
    with h5py.File(file) as raw:
        with pytest.raises(
            ValueError, match=r"the array is packed .* Open it by netCDF4 or xarray"
        ):
            bnn.OnHost(raw["packed"])
        with pytest.raises(ValueError, match=r"row 21 of the Dataset .* is masked"):
            bnn.OnHost(raw["filled"]).check_fits("model", "x")


@pytest.mark.parametrize("name", ["masked", "filled"])
def test_rows_in_memory_are_refused_as_those_on_the_host_are(file, name):
    """netCDF4 1.7.5 masks row 21 of the variable, and NumPy 2 drops the mask: 9.97e36, or -99."""
    readers = [
        lambda array: as_array("model", "x", array),
        lambda array: validated(bnn.BNNRegressor(), array, np.arange(40.0), reset=True),
    ]
    for read in readers:
        with netCDF4.Dataset(file) as opened:
            with pytest.raises(ValueError, match=r"row 21 of the Variable .* is masked"):
                read(opened[name])
            np.testing.assert_allclose(as_array("model", "x", opened["packed"]), X, atol=1e-6)
        with h5py.File(file) as raw:
            with pytest.raises(ValueError, match=r"the array is packed .* Open it by netCDF4"):
                read(raw["packed"])
            with pytest.raises(ValueError, match=r"row 21 of the Dataset .* is masked"):
                read(raw["filled"])


def test_a_series_is_read_by_row_number():
    """pandas 3.1 takes an array of whole numbers for labels: row 7 was that of the label 7."""
    series = pd.Series(X[:, 0], index=np.arange(len(X))[::-1])
    np.testing.assert_array_equal(bnn.OnHost(series).read(SOME), X[SOME, 0].astype(np.float32))
