"""Containers of rows of the libraries of this field, for a table of which doors take which."""

from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.sparse

_RNG = np.random.default_rng(0)
# Halves, which short floats, packed integers and decimals all hold exactly.
X = _RNG.integers(-5, 6, (12, 2)) / 2
Y = X @ [1.0, -1.0]
# An index that is no row number, and whose labels are row numbers of others.
INDEX = np.arange(len(X))[::-1]


class Container(NamedTuple):
    """Rows as a library holds them.

    - **make** - from float64 rows, (N, 2) or (N,), and a folder for files
    - **rows** - the same rows in float64, or None where some are missing or there are none
    - **needs** - libraries beside those of this package
    """

    make: object
    rows: object = lambda v: v
    needs: tuple[str, ...] = ()


def table(kind):
    """A table of pandas or, of one column, a series."""

    def make(values, folder):
        columns = {} if values.ndim == 1 else {"columns": ["a", "b"]}
        made = (pd.Series if values.ndim == 1 else pd.DataFrame)(values, index=INDEX, **columns)
        return made.astype(kind)

    return make


def pandas_objects(values, folder):
    """Decimals as databases give them."""
    return table("float64")(values, folder).map(Decimal)


def pandas_missing(values, folder):
    made = table("Float64")(values, folder)
    made.iloc[3] = pd.NA
    return made


def polars_of(kind, missing=False):
    def make(values, folder):
        import polars as pl

        def column(numbers):
            cells = numbers.tolist()
            if missing:
                cells[3] = None
            return pl.Series(cells).cast(kind(pl))

        if values.ndim == 1:
            return column(values)
        return pl.DataFrame({"a": column(values[:, 0]), "b": column(values[:, 1])})

    return make


def arrow_of(kind, missing=False):
    def make(values, folder):
        import pyarrow as pa

        def column(numbers):
            cells = numbers.tolist()
            if missing:
                cells[3] = None
            cells = [Decimal(c) for c in cells] if kind.startswith("decimal") else cells
            of = pa.decimal128(10, 1) if kind.startswith("decimal") else getattr(pa, kind)()
            return pa.chunked_array([pa.array(cells[:5], of), pa.array(cells[5:], of)])

        if values.ndim == 1:
            return column(values)
        return pa.table({"a": column(values[:, 0]), "b": column(values[:, 1])})

    return make


def netcdf(packed=False, missing=False):
    def make(values, folder):
        import netCDF4

        path = Path(folder) / f"{values.ndim}{packed}{missing}.nc"
        path.unlink(missing_ok=True)
        opened = netCDF4.Dataset(path, "w")
        dims = ("row", "column")[: values.ndim]
        for name, size in zip(dims, values.shape):
            opened.createDimension(name, size)
        made = opened.createVariable("v", "i2" if packed else "f8", dims, fill_value=-99)
        if packed:
            made.scale_factor = 0.5
        made[:] = values
        if missing:
            made[3] = np.ma.masked
        return made

    return make


def hdf5(packed=False, missing=False):
    def make(values, folder):
        import h5py

        netcdf(packed, missing)(values, folder).group().close()
        return h5py.File(Path(folder) / f"{values.ndim}{packed}{missing}.nc")["v"]

    return make


def xarray_of(packed=False, missing=False, dataset=False):
    def make(values, folder):
        import xarray as xr

        netcdf(packed, missing)(values, folder).group().close()
        path = Path(folder) / f"{values.ndim}{packed}{missing}.nc"
        with xr.open_dataset(path, engine="h5netcdf") as opened:
            read = opened.load()
        return read if dataset else read["v"]

    return make


def zarr_of(values, folder):
    import zarr

    made = zarr.create_array(
        {}, shape=values.shape, chunks=(5, 2)[: values.ndim], dtype="f8", fill_value=0.5
    )
    made[:] = values
    return made


class Protocol:
    """A tensor of another library that offers DLPack and nothing else."""

    def __init__(self, values):
        self._values = values

    def __dlpack__(self, **options):
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._values.__dlpack_device__()


def memmap(values, folder):
    path = Path(folder) / f"{values.ndim}.npy"
    np.save(path, values)
    return np.load(path, mmap_mode="r")


def read_only(values, folder):
    made = values.copy()
    made.flags.writeable = False
    return made


def structured(values, folder):
    fields = [("a", "f8"), ("b", "f8")]
    return np.array(list(map(tuple, np.column_stack([values, values])[:, :2])), fields)


def masked(values, folder):
    made = np.ma.array(values)
    made[3] = np.ma.masked
    return made


def _numpy(kind):
    return lambda values, folder: values.astype(kind)


def truth(values):
    return (values > 0).astype(float)


def whole(values):
    return 2 * values


def counts(values):
    return 2 * values + 20


def nothing(values):
    """Rows of what must be refused."""


CONTAINERS = {
    "NumPy float16": Container(_numpy("f2")),
    "NumPy float32": Container(_numpy("f4")),
    "NumPy float64": Container(_numpy("f8")),
    "NumPy float64, big-endian": Container(_numpy(">f8")),
    "NumPy longdouble": Container(_numpy(np.longdouble)),
    "NumPy int8": Container(lambda v, _: whole(v).astype("i1"), whole),
    "NumPy int64": Container(lambda v, _: whole(v).astype("i8"), whole),
    "NumPy uint8": Container(lambda v, _: counts(v).astype("u1"), counts),
    "NumPy bool": Container(lambda v, _: v > 0, truth),
    "NumPy bfloat16": Container(_numpy(jnp.bfloat16)),
    "NumPy structured": Container(structured, nothing),
    "NumPy masked, none missing": Container(lambda v, _: np.ma.array(v)),
    "NumPy masked": Container(masked, nothing),
    "NumPy memmap": Container(memmap),
    "NumPy read-only": Container(read_only),
    "NumPy Fortran order": Container(lambda v, _: np.asfortranarray(v)),
    "NumPy, rows reversed twice": Container(lambda v, _: v[::-1].copy()[::-1]),
    "lists": Container(lambda v, _: v.tolist()),
    "pandas float64": Container(table("float64")),
    "pandas float32": Container(table("float32")),
    "pandas Float64": Container(table("Float64")),
    "pandas Float64, NA": Container(pandas_missing, nothing),
    "pandas Int64": Container(lambda v, f: table("Int64")(whole(v), f), whole),
    "pandas boolean": Container(lambda v, f: table("boolean")(v > 0, f), truth),
    "pandas double[pyarrow]": Container(table("double[pyarrow]"), needs=("pyarrow",)),
    "pandas int32[pyarrow]": Container(
        lambda v, f: table("int32[pyarrow]")(whole(v), f), whole, ("pyarrow",)
    ),
    "pandas category": Container(table("category")),
    "pandas Sparse": Container(table(pd.SparseDtype("float64", 0.0))),
    "pandas Decimal": Container(pandas_objects),
    "polars Float64": Container(polars_of(lambda pl: pl.Float64), needs=("polars",)),
    "polars Int16": Container(
        lambda v, f: polars_of(lambda pl: pl.Int16)(whole(v), f), whole, ("polars",)
    ),
    "polars Decimal": Container(polars_of(lambda pl: pl.Decimal(10, 1)), needs=("polars",)),
    "polars Boolean": Container(
        lambda v, f: polars_of(lambda pl: pl.Boolean)(v > 0, f), truth, ("polars",)
    ),
    "polars nulls": Container(polars_of(lambda pl: pl.Float64, True), nothing, ("polars",)),
    "polars Decimal, nulls": Container(
        polars_of(lambda pl: pl.Decimal(10, 1), True), nothing, ("polars",)
    ),
    "polars Boolean, nulls": Container(
        lambda v, f: polars_of(lambda pl: pl.Boolean, True)(v > 0, f), nothing, ("polars",)
    ),
    "Arrow float64": Container(arrow_of("float64"), needs=("pyarrow",)),
    "Arrow int16": Container(
        lambda v, f: arrow_of("int16")(whole(v).astype(int), f), whole, ("pyarrow",)
    ),
    "Arrow bool": Container(lambda v, f: arrow_of("bool_")(v > 0, f), truth, ("pyarrow",)),
    "Arrow decimal128": Container(arrow_of("decimal128"), needs=("pyarrow",)),
    "Arrow nulls": Container(arrow_of("float64", True), nothing, ("pyarrow",)),
    "xarray": Container(xarray_of()),
    "xarray packed": Container(xarray_of(packed=True)),
    "xarray masked": Container(xarray_of(missing=True), nothing),
    "xarray Dataset": Container(xarray_of(dataset=True), nothing),
    "xarray Dataset.to_dataarray()": Container(
        lambda v, f: (
            xarray_of()(v, f).to_dataset("column").to_dataarray("column").T
            if v.ndim == 2
            else xarray_of(dataset=True)(v, f).to_dataarray()[0]
        )
    ),
    "netCDF4": Container(netcdf(), needs=("netCDF4",)),
    "netCDF4 packed": Container(netcdf(packed=True), needs=("netCDF4",)),
    "netCDF4 masked": Container(netcdf(missing=True), nothing, ("netCDF4",)),
    "h5py": Container(hdf5(), needs=("netCDF4",)),
    "h5py, packed by netCDF4": Container(hdf5(packed=True), nothing, ("netCDF4",)),
    "h5py, masked by netCDF4": Container(hdf5(missing=True), nothing, ("netCDF4",)),
    "zarr": Container(zarr_of, needs=("zarr",)),
    "SciPy csr_array": Container(
        lambda v, _: scipy.sparse.csr_array(np.atleast_2d(v.T).T), nothing
    ),
    "JAX float32": Container(lambda v, _: jnp.asarray(v, jnp.float32)),
    "JAX bfloat16": Container(lambda v, _: jnp.asarray(v, jnp.bfloat16)),
    "JAX int32": Container(lambda v, _: jnp.asarray(whole(v), jnp.int32), whole),
    "JAX on a second device": Container(
        lambda v, _: jax.device_put(jnp.asarray(v, jnp.float32), jax.devices()[-1])
    ),
    "array_api_strict": Container(
        lambda v, _: import_module("array_api_strict").asarray(v), needs=("array_api_strict",)
    ),
    "DLPack alone": Container(lambda v, _: Protocol(v)),
}
