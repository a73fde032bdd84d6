"""Data that stay on the host, also in scientific files: draws as in memory, from rows read ahead."""

import functools
from itertools import pairwise

import h5py
import jax
import jax.numpy as jnp
import netCDF4
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer import HMC
from numpyro.infer.gibbs import CustomGibbs, Gibbs
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn.data import host_rows
from numpyro_bnn.data.arguments import as_array
from numpyro_bnn.run.sampling import Sampling
from numpyro_bnn.storage.same_run import digest
from numpyro_bnn.workflow.estimator_inputs import validated

N, FEATURES = 53, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, FEATURES)).astype(np.float32)
Y = (X[:, 0] + 0.1 * RNG.normal(size=N)).astype(np.float32)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(jnp.tanh(rows @ w), 0.5), obs=target)


def floats(x, y=None):
    """A model of whole numbers too."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([FEATURES]).to_event(1))
    with numpyro.plate("data", N):
        rows, target = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(rows.astype(float) @ w, 4.0), obs=target.astype(float))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Inputs in a memory map, targets in zarr."""
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "x.npy", X)
    x = np.load(folder / "x.npy", mmap_mode="r")
    return [bnn.OnHost(x), bnn.OnHost(zarr.create_array(folder / "y", data=Y))]


def samples(kernel, x, y, **settings):
    mcmc = bnn.MCMC(kernel, num_warmup=3, num_samples=12, progress_bar=False, **settings)
    # Looking for starts compiles for longer than the steps.
    starts = jnp.full((mcmc.num_chains, FEATURES)[mcmc.num_chains == 1 :], 0.1)
    mcmc.run(jax.random.key(0), x, y, init_params={"w": starts})
    return mcmc.get_samples(group_by_chain=True)["w"]


# Programs that differ in where rows come from are fused differently: equal to rounding.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize(
    ("order", "method"),
    [
        pytest.param("permutation", "parallel", marks=pytest.mark.slow),
        ("blocks", "vectorized"),
        pytest.param("replacement", "sequential", marks=pytest.mark.slow),
        pytest.param("replacement", "vectorized", marks=pytest.mark.slow),
        pytest.param("blocks", "sequential", marks=pytest.mark.slow),
    ],
)
def test_draws_are_those_of_data_in_memory(files, order, method):
    gradient = bnn.gradients.minibatch(1 if order == "blocks" else 10, order)
    kernel = bnn.SGLD(model, step_size=1e-3, gradient=gradient)
    chains = {"num_chains": 2, "chain_method": method}
    found, expected = samples(kernel, *files, **chains), samples(kernel, X, Y, **chains)
    np.testing.assert_allclose(found, expected, **CLOSE)
    # Another order of the rows would show.
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_starts_are_those_of_data_in_memory(files):
    settings = {"num_steps": 2, "batch_size": 10, "progress_bar": False}
    run = functools.partial(bnn.optimize, model, jax.random.key(0), **settings)
    np.testing.assert_allclose(run(*files)["w"], run(X, Y)["w"], **CLOSE)


def test_passes_over_all_rows_are_exact(files, monkeypatch):
    """An anchor, a Metropolis correction and a start look at all rows."""
    monkeypatch.setattr(bnn.OnHost, "rows_a_pass", 10)
    potential, expected = (bnn.potential_of(model, *data) for data in (files, (X, Y)))
    z = expected.unconstrain(expected.prior_draw(jax.random.key(1)))
    energy, gradient = jax.jit(jax.value_and_grad(potential))(z)
    np.testing.assert_allclose(energy, expected(z), rtol=1e-5)
    for name, slope in jax.grad(expected)(z).items():
        np.testing.assert_allclose(gradient[name], slope, rtol=1e-4, atol=1e-4)


def test_predictions_read_their_rows_from_files(files):
    """Also of a run over files, whose first rows `thin` predicts."""
    mcmc = quiet(bnn.SGLD(model, step_size=1e-3, batch_size=10), 0, 12)
    mcmc.run(jax.random.key(0), *files, init_params={"w": jnp.full(FEATURES, 0.1)})
    assert bnn.thin(mcmc, 4).num_draws == 4
    expected, _ = bnn.average(bnn.predict(model, mcmc, X))
    for options in ({}, {"batch_size": 10}):
        found, _ = bnn.average(bnn.predict(model, mcmc, files[0], **options))
        np.testing.assert_allclose(found, expected, **CLOSE)
    parts, _ = bnn.predict(model, mcmc, files[0], batch_size=10, reduce=bnn.average)
    np.testing.assert_allclose(parts, expected, **CLOSE)
    assert bnn.diagnose(mcmc, files[0]).verdict == bnn.diagnose(mcmc, X).verdict


def test_hmc_reads_chunks(files):
    fixed = {"trajectory_length": None, "adapt_step_size": False, "adapt_mass_matrix": False}
    kernel = HMC(model, step_size=0.01, num_steps=3, **fixed)
    found = samples(kernel, *files, chunk_size=10)
    np.testing.assert_allclose(found, samples(kernel, X, Y), rtol=1e-3, atol=1e-4)


def test_a_run_goes_on_from_its_checkpoint(files, tmp_path):
    def mcmc(folder):
        kernel = bnn.BAOAB(model, step_size=0.01, batch_size=10)
        return quiet(kernel, 4, 12, checkpoint=tmp_path / folder, checkpoint_every=4)

    whole = mcmc("whole")
    whole.run(jax.random.key(0), *files)
    advance = Sampling.advance

    def interrupted(course, done, bars, ends, draws=None):
        return advance(course, done, bars, lambda count: count >= 4, draws)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampling, "advance", interrupted)
        with pytest.warns(UserWarning, match="Interrupted"):
            mcmc("broken").run(jax.random.key(0), *files)
    again = mcmc("broken")
    again.resume(*files)
    np.testing.assert_array_equal(again.get_samples()["w"], whole.get_samples()["w"])
    with pytest.raises(ValueError, match="data"):
        mcmc("broken").resume(files[0], bnn.OnHost(Y + 1))


class Counted:
    """An array that remembers what was read."""

    def __init__(self, values):
        self.values, self.read = values, []
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, index):
        self.read.append(index)
        return self.values[index]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, N - 1), min_size=1, max_size=20))
def test_rows_in_any_order(rows):
    rows = np.asarray(rows)
    array = Counted(X)
    np.testing.assert_array_equal(bnn.OnHost(array).read(rows), X[rows])
    _, index = array.read
    assert isinstance(index, slice) or (np.diff(index) > 0).all()


@pytest.mark.parametrize("kind", [">f4", ">f8", ">i2", "longdouble"])
def test_files_of_any_byte_order_are_read(kind):
    x, y = (np.round(8 * values) for values in (X, Y))
    sources = [bnn.OnHost(values.astype(kind)) for values in (x, y)]
    assert all(source.dtype.isnative and source.dtype.itemsize <= 4 for source in sources)
    np.testing.assert_array_equal(sources[0].read(np.array([3, 1])), x[[3, 1]])
    kernel = bnn.SGLD(floats, step_size=1e-3, batch_size=8)
    found, expected = (samples(kernel, *data) for data in (sources, (x, y)))
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_rows_are_read_once_and_ahead():
    array = Counted(X)
    source = bnn.OnHost(array)
    batches = [np.arange(i, i + 5) for i in range(0, 25, 5)]
    for now, then in pairwise(batches):
        np.testing.assert_array_equal(source._serve(now, then), X[now])
        source._ahead[then.tobytes()].result()
        assert array.read[-1] == slice(then[0], then[-1] + 1)
    # One row tells the type of all.
    assert len(array.read) == 1 + len(batches)


def test_what_is_read_ahead_is_bounded():
    source = bnn.OnHost(X)
    for i in range(40):
        source._serve(np.asarray([0]), np.asarray([i]))
    assert len(source._ahead) == 16


def test_the_fingerprint_is_that_of_the_values(files):
    assert [digest(f.array) for f in files] == [digest(X), digest(Y)]


@pytest.mark.parametrize("bad", [[1.0, 2.0], np.zeros(()), np.asarray(["a"])])
def test_what_has_no_rows_of_numbers_is_refused(bad):
    with pytest.raises(TypeError, match="expected an array of numbers with rows"):
        bnn.OnHost(bad)


def test_numbers_that_the_device_cannot_hold_are_refused_as_in_memory():
    wide = 3_000_000_000 + np.arange(N)
    late = np.where(np.arange(N) == N - 1, 2**40, np.arange(N))
    near = 1.7e9 + RNG.integers(0, 100, N)
    cases = [
        (wide, "x holds whole numbers from 3000000000 to 3000000052, which do not fit JAX's int32"),
        (late, "x holds whole numbers from 0 to 1099511627776, which do not fit"),
        (near, r"x lies around 17000000\d+ and varies by .*, which float32 rounds away"),
        (np.where(np.arange(N) == 7, 1e39, 1.0), "x has the finite value 1e[+]39 at index .*7"),
    ]
    kernel = bnn.SGLD(one_column, step_size=1e-3, batch_size=5)
    for values, message in cases:
        for data in (values, bnn.OnHost(values), bnn.OnHost(zarr.array(values))):
            mcmc = bnn.MCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False)
            with pytest.raises(ValueError, match=f"one_column: {message}"):
                mcmc.run(jax.random.key(0), data)


def one_column(x):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=0)
        numpyro.sample("y", dist.Normal(w, 1.0), obs=1.0 * rows)


def test_what_a_large_file_holds_is_checked_as_it_is_read(monkeypatch):
    """No pass over all rows: a few are looked at, and every block when a step needs it."""
    monkeypatch.setattr(host_rows, "_CHECKED_BYTES", 0)
    values = np.zeros(5000, np.int64)
    values[3] = 2**40
    source = bnn.OnHost(values)
    source.check_fits("model", "x")
    assert source.read(np.array([2])) == 0
    for rows in (np.array([3]), np.array([7, 3, 1])):
        with pytest.raises(ValueError, match=r"OnHost.*whole numbers from .* to 1099511627776"):
            source.read(rows)
    with pytest.raises(ValueError, match=r"OnHost.*finite value 1e[+]39"):
        bnn.OnHost(np.array([1.0, 1e39])).read(np.arange(2))
    # Sorted times: a block of neighbouring rows varies little, all of them enough.
    times = np.linspace(0.0, 1e6, 5000)
    bnn.OnHost(times).check_fits("model", "x")
    bnn.OnHost(times).read(np.arange(4000, 4010))


def test_samplers_that_want_all_rows_at_once_are_refused(files):
    with pytest.raises(ValueError, match="Give `chunk_size=` to MCMC"):
        samples(HMC(model), *files)
    blocks = [(CustomGibbs(lambda **_: {}), ["a"]), (bnn.SGLD(model, step_size=1e-3), None)]
    with pytest.raises(ValueError, match="looks at all rows at once"):
        samples(Gibbs(blocks), *files)


def test_what_wants_all_of_it_is_refused(files):
    with pytest.raises(TypeError, match="read a minibatch at a time"):
        np.asarray(files[0])


def test_rows_that_are_changed_before_they_are_taken_are_refused(files):
    def shifted(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([FEATURES]).to_event(1))
        x = x + 1
        with numpyro.plate("data", x.shape[0]):
            rows = numpyro.subsample(x, event_dim=1)
            numpyro.sample("y", dist.Normal(rows @ w, 1.0), obs=numpyro.subsample(y, event_dim=0))

    with pytest.raises(ValueError, match="changes it before it takes rows"):
        samples(bnn.SGLD(shifted, step_size=1e-3, batch_size=5), *files)


def test_a_deterministic_site_of_the_rows_is_refused(files):
    def told(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([FEATURES]).to_event(1))
        numpyro.deterministic("mean", jnp.mean(x @ w))
        bnn.likelihoods.gaussian(lambda x: x @ w, y, x=x, noise=1.0)

    with pytest.raises(ValueError, match=r"'mean'.*depends on rows"):
        samples(bnn.SGLD(told, step_size=1e-3, batch_size=5), *files)


# Hundredths, which a packed variable of whole numbers holds exactly.
ROUNDED = np.round(np.random.default_rng(0).normal(size=(40, 2)), 2)
SOME = np.array([7, 3, 21])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "rows.nc"
    with netCDF4.Dataset(path, "w") as made:
        made.createDimension("row", len(ROUNDED))
        made.createDimension("column", ROUNDED.shape[1])
        packed = made.createVariable("packed", "i2", ("row", "column"))
        packed.scale_factor = 0.01
        packed[:] = ROUNDED
        for name, kind, fill in [("masked", "f4", None), ("filled", "i4", -99)]:
            variable = made.createVariable(name, kind, ("row", "column"), fill_value=fill)
            variable[:] = 100 * ROUNDED
            variable[21, 1] = np.ma.masked
    return path


def test_packed_numbers_are_those_that_netcdf4_1_7_and_xarray_give(file):
    with netCDF4.Dataset(file) as opened, xarray.open_dataset(file, engine="h5netcdf") as decoded:
        for array in (opened["packed"], decoded["packed"]):
            source = bnn.OnHost(array)
            assert source.dtype == np.float32
            source.check_fits("model", "x")
            np.testing.assert_allclose(source.read(SOME), ROUNDED[SOME], atol=1e-6)
            np.testing.assert_allclose(
                np.concatenate([block for _, block in source.blocks()]), ROUNDED, atol=1e-6
            )


def test_a_step_reads_packed_rows(file):
    def model(x):
        return jax.numpy.sum(x.take(jax.numpy.asarray(SOME)))

    with netCDF4.Dataset(file) as opened:
        source = bnn.OnHost(opened["packed"])
        assert float(jax.jit(lambda: model(source))()) == pytest.approx(
            ROUNDED[SOME].sum(), abs=1e-5
        )


@pytest.mark.parametrize("name", ["masked", "filled"])
def test_masked_rows_are_refused_before_a_run(file, name):
    with netCDF4.Dataset(file) as opened:
        source = bnn.OnHost(opened[name])
        np.testing.assert_allclose(source.read(SOME[:2]), (100 * ROUNDED)[SOME[:2]], atol=1)
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
            np.testing.assert_allclose(as_array("model", "x", opened["packed"]), ROUNDED, atol=1e-6)
        with h5py.File(file) as raw:
            with pytest.raises(ValueError, match=r"the array is packed .* Open it by netCDF4"):
                read(raw["packed"])
            with pytest.raises(ValueError, match=r"row 21 of the Dataset .* is masked"):
                read(raw["filled"])


def test_a_series_is_read_by_row_number():
    """pandas 3.1 takes an array of whole numbers for labels: row 7 was that of the label 7."""
    series = pd.Series(ROUNDED[:, 0], index=np.arange(len(ROUNDED))[::-1])
    np.testing.assert_array_equal(
        bnn.OnHost(series).read(SOME), ROUNDED[SOME, 0].astype(np.float32)
    )
