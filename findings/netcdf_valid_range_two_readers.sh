#!/usr/bin/env bash
# netCDF4 1.7.5.1.post1 and xarray 2026.9.0: one file, two readers, and the values out of `valid_range` differ.
#
# Guess, written first: xarray reads netCDF files by the netCDF4 library and decodes the conventions, so a variable with
# `valid_range = 0, 10` and the values -5, 1, 2, 3, 50 has the same three good values in both.
#
# Seen: netCDF4 masks -5 and 50, xarray returns them as data; so with `valid_min` and `valid_max`. The mean is 2 by
# one and 10.2 by the other. A mark of missing values (`_FillValue`) is masked by both.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check \
    "netCDF4==1.7.5.1.post1" "xarray==2026.9.0" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
import os
import tempfile

import netCDF4
import numpy as np
import xarray as xr

folder = tempfile.mkdtemp()


def both(**attributes):
    path = os.path.join(folder, "-".join(attributes) + ".nc")
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("row", 5)
        fill = attributes.pop("_FillValue", None)
        variable = file.createVariable("t", "f4", ("row",), fill_value=fill)
        variable.setncatts({name: np.asarray(value, "f4") for name, value in attributes.items()})
        variable[:] = [-5, 1, 2, 3, 50]
    with netCDF4.Dataset(path) as file:
        by_netcdf4 = np.ma.filled(file["t"][:].astype("f8"), np.nan)
    return by_netcdf4, xr.open_dataset(path, engine="netcdf4")["t"].values


print(f"netCDF4 {netCDF4.__version__}, xarray {xr.__version__}, numpy {np.__version__}")
for attributes in ({"valid_range": (0, 10)}, {"valid_min": 0, "valid_max": 10}):
    one, other = both(**attributes)
    print(f"{attributes}: netCDF4 {one}, mean {np.nanmean(one):.1f}; xarray {other}, mean {other.mean():.1f}")
    assert np.isnan(one[[0, 4]]).all(), "netCDF4 no longer masks"
    assert np.array_equal(other, np.array([-5, 1, 2, 3, 50], "f4")), "xarray masks now"
one, other = both(_FillValue=50)
print(f"_FillValue 50: netCDF4 {one}; xarray {other}")
assert np.array_equal(one, other, equal_nan=True) and np.isnan(one[4])
PYTHON
