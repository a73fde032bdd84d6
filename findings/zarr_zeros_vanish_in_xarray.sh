#!/usr/bin/env bash
# zarr 3.1.6 and xarray 2026.9.0: counts of 0 that zarr wrote in format 2 are missing values for xarray.
#
# Guess, written first: a zarr array of int32 counts, made without a fill value and written in full, is read by
# `xarray.open_zarr` as the same int32 counts, whichever format of zarr it has.
#
# Seen: zarr records a fill value of 0 where none was given. In format 2 xarray takes it for the mark of missing values:
# the array becomes float64, each 0 becomes NaN, and means leave the zeros out. In format 3 the same lines give the
# counts. `mask_and_scale=False` when reading, or `fill_value=None` when writing, keeps the zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "zarr==3.1.6" "xarray==2026.9.0" "numpy==2.4.6"
"$work/venv/bin/python" - <<'PYTHON'
import tempfile

import numpy as np
import xarray as xr
import zarr

counts = np.array([0, 1, 2, 0, 4], "i4")


def read(zarr_format, fill=(), **options):
    folder = tempfile.mkdtemp()
    group = zarr.open_group(folder, mode="w", zarr_format=zarr_format)
    names = {"dimension_names": ("row",)} if zarr_format == 3 else {}
    array = group.create_array("count", shape=(5,), chunks=(5,), dtype="i4", **names, **dict(fill))
    array[:] = counts
    if zarr_format == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["row"]
    assert np.array_equal(array[:], counts)
    return xr.open_zarr(folder, consolidated=False, **options)["count"]


two, three, plain = read(2), read(3), read(2, mask_and_scale=False)
none = read(2, {"fill_value": None})
print(f"zarr {zarr.__version__}, xarray {xr.__version__}, numpy {np.__version__}")
for name, seen in (("format 2", two), ("format 3", three), ("format 2, unmasked", plain), ("format 2, no fill", none)):
    print(f"{name}: {seen.values} {seen.dtype}, mean {float(seen.mean()):.3f} ({counts.mean():.3f} is right)")
assert np.isnan(two.values[[0, 3]]).all() and two.dtype == "float64", "the zeros are kept now"
for seen in (three, plain, none):
    assert np.array_equal(seen.values, counts), "a way that kept the zeros no longer does"
PYTHON
