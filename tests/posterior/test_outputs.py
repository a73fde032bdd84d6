"""Draws and predictions that leave in files and come back, by the table of a page.

Seen with netCDF4 1.7.5, h5netcdf 1.8, zarr 3.0 and 3.4, xarray 2026.9, ArviZ 0.23 and 1.3.
"""

import numpy as np
import outputs
import pytest
from documents import table_on

import numpyro_bnn as bnn

pytest.importorskip("netCDF4")
pytest.importorskip("h5netcdf")
pytest.importorskip("zarr")


@pytest.mark.parametrize("number", range(len(outputs.DRAWS)))
def test_a_third_of_the_cells(number, tmp_path):
    kind, ways = [*outputs.DRAWS][number], [*outputs.WAYS]
    for way in ways[number % 3 :: 3]:
        assert outputs.cell(kind, way, tmp_path) == table_on(outputs.PAGE)[kind][way]


@pytest.mark.parametrize("kind", outputs.PREDICTIONS)
def test_predictions_come_back_by_h5netcdf(kind, tmp_path):
    """netCDF composes letters, trees of xarray take no slash, NumPy has no letter for bfloat16."""
    assert outputs.cell(kind, "netCDF4, read by h5netcdf", tmp_path) == "equal"


@pytest.mark.parametrize("kind", outputs.PREDICTIONS)
def test_predictions_are_those_of_an_exported_program(kind, tmp_path):
    assert outputs.by_export(kind, tmp_path) == "equal"


def test_all_cells_in_another_process(tmp_path):
    outputs.write_all(tmp_path)
    found, page = outputs.read_elsewhere(tmp_path), table_on(outputs.PAGE)
    assert {k: {w: page[k][w] for w in row} for k, row in found.items()} == found
    assert set(found) == set(page)


def test_sites_whose_names_netcdf_makes_one_are_refused():
    """The ohm sign and the Greek letter, which are two names to Python."""
    draws = bnn.Draws({"\u03a9": np.zeros((1, 3)), "\u2126": np.zeros((1, 3))})
    with pytest.raises(ValueError, match="two quantities of the group posterior"):
        bnn.to_inference_data(draws, log_likelihood=False)
