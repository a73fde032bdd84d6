"""Draws and predictions of every kind through every file and back, for a table of what comes back.

``python tests/support/outputs.py`` makes the table of `outputs.md`: another process reads what it writes.
``… write FOLDER`` and ``… read FOLDER`` are its halves, which environments with other versions may share.
"""

import functools
import json
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray as xr
from documents import PAGES

import numpyro_bnn as bnn

_HALVES = np.random.default_rng(0).integers(-5, 6, (2, 3, 4)) / 2
_WIDE = np.stack([_HALVES, _HALVES + 1], axis=-1)
_MASKS = 9.969209968386869e36  # netCDF's mark of a missing float

# Draws by name of the kind: name of the site, values (chain, draw, …).
DRAWS = {
    "float16": ("w", _HALVES.astype(np.float16)),
    "bfloat16": ("w", _HALVES.astype(ml_dtypes.bfloat16)),
    "float32": ("w", _HALVES.astype(np.float32)),
    "float64": ("w", _HALVES + 1e-12),
    "longdouble": ("w", _HALVES.astype(np.longdouble)),
    "float32, big-endian": ("w", _HALVES.astype(">f4")),
    "float32, NaN and infinite": ("w", np.where(_HALVES > 0, np.inf, np.nan).astype(np.float32)),
    "float32, netCDF's mark of missing": ("w", np.where(_HALVES > 0, _MASKS, 0).astype(np.float32)),
    "bool": ("w", _HALVES > 0),
    "int8": ("w", (2 * _HALVES).astype(np.int8)),
    "int32": ("w", np.where(_HALVES > 0, -(2**31) + 1, 2).astype(np.int32)),
    "int64": ("w", (2 * _HALVES).astype(np.int64) + 2**53 + 1),
    "uint32": ("w", np.where(_HALVES > 0, 2**32 - 1, 2).astype(np.uint32)),
    "complex64": ("w", (_HALVES + 1j).astype(np.complex64)),
    "size 0": ("w", _HALVES[..., :0]),
    "size 0 between others": ("w", np.zeros((2, 3, 2, 0, 3), np.float32)),
    "scalar": ("w", _HALVES[..., 0]),
    "`net/Dense_0.kernel`": ("net/Dense_0.kernel", _WIDE),
    "`a/b/c`": ("a/b/c", _HALVES),
    "`a.b.c`": ("a.b.c", _HALVES),
    "`θ/β.γ`": ("θ/β.γ", _WIDE),
    "`𝜃ℓ∇`": ("𝜃ℓ∇", _HALVES),
    "`x₁²`": ("x₁²", _HALVES),
    "ohm sign, a Greek letter in netCDF": ("\u2126", _HALVES),
    "`ŷ` of two characters": ("net/y\u0302.kernel", _WIDE),
    "`w[0]`": ("w[0]", _HALVES),
    "`a b`": ("a b", _HALVES),
    "`.hidden`, `-w`, `~w`": (".hidden", _HALVES),
}
_X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)


def _normal(mean):
    return dist.Normal(mean, 1.0)


# Predictions by name: the site, its distribution, inputs, targets, and the name of other inputs.
PREDICTIONS = {
    "reals": ("y", _normal, _X, _X[:, 0], "new"),
    "truths": ("y", lambda m: dist.Bernoulli(logits=m), _X, _X[:, 0] > 0, "new"),
    "classes": (
        "y",
        lambda m: dist.Categorical(logits=jnp.stack([m, -m, 0 * m], -1)),
        _X,
        np.arange(5) % 3,
        "new",
    ),
    "counts": ("y", lambda m: dist.Poisson(jnp.exp(m)), _X, np.arange(5), "new"),
    "float16 inputs": ("y", _normal, _X.astype(np.float16), _X[:, 0].astype(np.float16), "new"),
    "bfloat16 targets": ("y", _normal, _X, _X[:, 0].astype(ml_dtypes.bfloat16), "new"),
    "`a/y.θ`": ("a/y.θ", _normal, _X, _X[:, 0], "a/b"),
    "`ŷ` of two characters, predicted": ("y\u0302", _normal, {"in/a": _X}, _X[:, 0], "a\u0302"),
}


def _model(target, distribution):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        rows = x["in/a"] if isinstance(x, dict) else x
        with numpyro.plate("data", rows.shape[0]):
            numpyro.sample(target, distribution(rows @ w), obs=y)

    return model


@functools.cache
def exported(kind):
    """The ArviZ object of a kind, as a tree of xarray."""
    if kind in DRAWS:
        site, values = DRAWS[kind]
        made = bnn.to_inference_data(bnn.Draws({site: values}), log_likelihood=False)
    else:
        target, distribution, x, y, other = PREDICTIONS[kind]
        w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 3, 2)
        draws = bnn.Draws({"w": w}, _model(target, distribution))
        made = bnn.to_inference_data(draws, x, y, predict={other: x}, log_prior=False)
    return made if isinstance(made, xr.DataTree) else made.to_datatree()


def _npz(kind, path):
    bnn.save(bnn.Draws(dict([DRAWS[kind]])), path)


def _pickled(kind, path):
    """Draws or, of predictions, what is to be found in the other files."""
    if kind in DRAWS:
        path.write_bytes(pickle.dumps(bnn.Draws(dict([DRAWS[kind]]))))
        return
    tree = exported(kind)
    groups = {(g, n): v.values for g in tree.children for n, v in tree[g].data_vars.items()}
    path.write_bytes(pickle.dumps(groups))


# Ways by name: the ending of the file, what writes it, and what reads it in another process.
WAYS = {
    "netCDF4, read by h5netcdf": (
        ".nc",
        lambda kind, path: exported(kind).to_netcdf(path, engine="netcdf4"),
        lambda path: xr.open_datatree(path, engine="h5netcdf"),
    ),
    "h5netcdf, read by netCDF4": (
        ".h5",
        lambda kind, path: exported(kind).to_netcdf(path, engine="h5netcdf"),
        lambda path: xr.open_datatree(path, engine="netcdf4"),
    ),
    "zarr 2": (
        ".zarr2",
        lambda kind, path: exported(kind).to_zarr(path, zarr_format=2),
        lambda path: xr.open_datatree(path, engine="zarr"),
    ),
    "zarr 3": (
        ".zarr3",
        lambda kind, path: exported(kind).to_zarr(path, zarr_format=3),
        lambda path: xr.open_datatree(path, engine="zarr"),
    ),
    "`save`": (".npz", _npz, lambda path: bnn.load(path, None)),
    "pickle": (".pickle", _pickled, lambda path: pickle.loads(path.read_bytes())),
}


def _place(kind, way, folder):
    return Path(folder) / f"{[*DRAWS, *PREDICTIONS].index(kind)}{WAYS[way][0]}"


def _error(error):
    return f"{type(error).__name__} of the library"


def write(kind, way, folder):
    """Write a kind in a way; the error, in words, of a library that does not write it."""
    path = _place(kind, way, folder)
    if kind in PREDICTIONS:
        _pickled(kind, _place(kind, "pickle", folder))
    try:
        with warnings.catch_warnings():
            # zarr warns of consolidated metadata and of types that its format 3 does not name yet.
            warnings.simplefilter("ignore")
            WAYS[way][1](kind, path)
    except Exception as error:
        return _error(error)


def _difference(found, right):
    """In words, whether values and their types are those that were written."""
    found, right = np.asarray(found), np.asarray(right)
    exact = right.dtype.kind in "biuc" or right.dtype.itemsize > 4
    assert found.shape == right.shape
    if found.dtype.names:
        return "pairs of numbers"
    np.testing.assert_array_equal(found.astype(right.dtype if exact else np.float32), right)
    kind = right.dtype.newbyteorder("=")
    return "equal" if found.dtype == kind else f"equal, as {found.dtype}"


def read(kind, way, folder):
    """What a reader finds: "equal", with the type where it is another, or the error of a library."""
    try:
        found = WAYS[way][2](_place(kind, way, folder))
    except Exception as error:
        return _error(error)
    if kind in DRAWS:
        site, right = DRAWS[kind]
        draws = bnn.from_inference_data(found) if isinstance(found, xr.DataTree) else found
        return _difference(draws[site], right)
    right = pickle.loads(_place(kind, "pickle", folder).read_bytes())
    for (group, name), values in right.items():
        assert _difference(found[group].data_vars[name], values) == "equal"
    return "equal"


def cell(kind, way, folder):
    """A kind that goes out in a way and is read again."""
    return write(kind, way, folder) or read(kind, way, folder)


def by_export(kind, folder):
    """Predictions of a kind in a program that JAX alone calls: "equal" to those of the draws."""
    target, distribution, x, _, _ = PREDICTIONS[kind]
    w = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 3, 2)
    draws = bnn.Draws({"w": w}, _model(target, distribution))
    path = bnn.export(draws, x, Path(folder) / "program", platforms=("cpu",))
    found = jax.export.deserialize(bytearray(path.read_bytes())).call(jax.tree.map(jnp.asarray, x))
    right = bnn.average(bnn.predict(None, draws, x))
    right = right if "probs" in found else right.mean
    np.testing.assert_allclose(found.get("mean", found.get("probs")), right, rtol=1e-5, atol=1e-6)
    return "equal"


def ways_of(kind):
    """Ways that a kind has: predictions go out as groups of ArviZ alone."""
    return [way for way in WAYS if kind in DRAWS or way not in ("`save`", "pickle")]


def write_all(folder):
    """Write all kinds in all ways, and the errors of those that are not written."""
    failed = {}
    for kind in [*DRAWS, *PREDICTIONS]:
        failed[kind] = {way: write(kind, way, folder) for way in ways_of(kind)}
    (Path(folder) / "failed.json").write_text(json.dumps(failed), encoding="utf-8")


def read_all(folder):
    """All cells of the table, of files that another process has written."""
    failed = json.loads((Path(folder) / "failed.json").read_text(encoding="utf-8"))
    return {
        kind: {way: error or read(kind, way, folder) for way, error in row.items()}
        for kind, row in failed.items()
    }


PAGE = PAGES / "outputs.md"


def read_elsewhere(folder, python=sys.executable):
    """The cells as another process finds them."""
    found = subprocess.run(
        [python, "-W", "ignore", __file__, "read", str(folder)], capture_output=True, check=True
    )
    return json.loads(found.stdout)


def made_page():
    """The page with its table made anew."""
    with tempfile.TemporaryDirectory() as folder:
        write_all(folder)
        table = read_elsewhere(folder)
    cells = [value for row in table.values() for value in row.values()]
    errors = sum("library" in value for value in cells)
    lines = [" | ".join(["what goes out", *WAYS]), " | ".join(["---"] * (1 + len(WAYS)))]
    for name, row in table.items():
        lines.append(" | ".join([name, *(row.get(way, "–") for way in WAYS)]))
    counts = f"{len(cells) - errors} cells are equal, {errors} are errors of a library."
    text = PAGE.read_text(encoding="utf-8").split("<!-- table -->")[0]
    return f"{text}<!-- table -->\n{counts}\n\n" + "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write_all(folder)
        case ["read", folder]:
            print(json.dumps(read_all(folder)))
        case _:
            PAGE.write_text(made_page(), encoding="utf-8")
