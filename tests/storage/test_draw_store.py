"""Draws on disk: as in memory, whole at any time, read in bounded memory, indexed as NumPy does."""

import errno
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn.run.chain_states import Plan
from numpyro_bnn.storage import draw_store as drawstore
from numpyro_bnn.storage import stored_array
from numpyro_bnn.storage.draw_store import DrawStore, Variable
from numpyro_bnn.storage.stored_array import DrawFiles, StoredArray

zarr = pytest.importorskip("zarr")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2)).astype(np.float32)
    return x, x @ np.array([1.0, -0.5], np.float32) + 0.3


def model(x, y=None):
    nets.linear_regression(x, y, scale=0.8, noise=0.5)


def sampler(folder=None, **options):
    # What adapts compiles for longer than the steps.
    fixed = {"adapt_step_size": False, "adapt_mass_matrix": False}
    kernel = HMC(model, step_size=0.1, trajectory_length=0.3, **fixed)
    given = {"num_warmup": 2, "num_samples": 13, "num_chains": 2, "progress_bar": False} | options
    if folder is not None:
        given = {"draws": folder, "checkpoint_every": 4} | given
    return bnn.MCMC(kernel, **given)


def run(mcmc, data):
    """From starts that are given: looking for them compiles for longer than the steps."""
    mcmc.run(jax.random.key(3), *data, init_params=nets.starts(2, model, *data))


@pytest.fixture(scope="module")
def in_memory(data):
    mcmc = sampler()
    run(mcmc, data)
    return mcmc


@pytest.fixture(scope="module")
def streamed(data, tmp_path_factory):
    mcmc = sampler(tmp_path_factory.mktemp("streamed") / "run.zarr")
    run(mcmc, data)
    return mcmc


def test_draws_on_disk_are_those_in_memory(in_memory, streamed):
    lazy = streamed.get_samples(group_by_chain=True)
    assert isinstance(lazy["net/Dense_0.kernel"], stored_array.StoredArray)
    for site, draws in in_memory.get_samples(group_by_chain=True).items():
        np.testing.assert_array_equal(lazy[site], draws)
        np.testing.assert_array_equal(streamed.get_samples()[site], in_memory.get_samples()[site])
    stats = streamed.get_extra_fields(group_by_chain=True)
    for field, values in in_memory.get_extra_fields(group_by_chain=True).items():
        np.testing.assert_array_equal(stats[field], values)


def test_one_program_serves_every_chunk(streamed):
    (programs,) = streamed._programs.values()
    assert len(programs.start._executables) == 1
    assert len(programs.advance._executables) == 1


@pytest.mark.parametrize(
    "index",
    [
        0,
        (slice(None), 5),
        (1, slice(2, 9)),
        (slice(None), slice(None), 1),
        (slice(None), slice(3, 12, 2), slice(1, 2), 0),
        (..., 0),
        (slice(None), [1, 5]),
        (0, -1, 1),
    ],
)
def test_parts_are_read_as_from_an_array(index, in_memory, streamed):
    site = "net/Dense_0.kernel"
    whole = np.asarray(in_memory.get_samples(True)[site])
    np.testing.assert_array_equal(streamed.get_samples(True)[site][index], whole[index])
    if index != (1, slice(2, 9)):
        left = streamed.get_samples(True)[site].take_chains([1])
        np.testing.assert_array_equal(left[index], whole[[1]][index])


def test_everything_downstream_reads_from_disk(in_memory, streamed, data, monkeypatch):
    monkeypatch.setattr(
        "numpyro_bnn.posterior.predictions._BLOCK", 2 * 3 * 3
    )  # three draws at a time
    monkeypatch.setattr(stored_array, "_IN_MEMORY", 40)  # weights by way of a file
    x, y = data
    one, other = (bnn.predict(None, mcmc, x, batch_size=6) for mcmc in (in_memory, streamed))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.log_prob(y), other.log_prob(y), rtol=1e-5, atol=1e-5)
    key = jax.random.key(1)
    np.testing.assert_allclose(one.sample(key), other.sample(key), rtol=1e-5, atol=1e-5)
    reports = [bnn.diagnose(mcmc, x) for mcmc in (in_memory, streamed)]
    assert reports[0].weights.max_rhat == reports[1].weights.max_rhat
    trees = [bnn.to_inference_data(mcmc) for mcmc in (in_memory, streamed)]
    for name, variable in trees[0]["posterior"].data_vars.items():
        np.testing.assert_array_equal(trees[1]["posterior"][name].values, variable.values)
        assert trees[1]["posterior"][name].dims == variable.dims


def test_draws_load_in_another_process(streamed, data):
    x, _ = data
    draws = bnn.load(streamed._disk.draws, model)
    np.testing.assert_array_equal(bnn.predict(None, draws, x).mean, bnn.predict(None, streamed, x))
    assert draws.stats["num_steps"].shape == (2, 13)


def test_xarray_opens_a_run_that_is_still_going(in_memory, data, tmp_path):
    xr = pytest.importorskip("xarray")
    store, seen = tmp_path / "run.zarr", []
    append = DrawStore.append

    def look(self, variables, leaves):
        time.sleep(0.1)  # on a slow disk, the next chunk is there before this one is written
        append(self, variables, leaves)
        seen.append(dict(xr.open_zarr(store, group="posterior").sizes))
        stats = xr.open_zarr(store, group="sample_stats", consolidated=False)
        assert stats.sizes["draw"] == seen[-1]["draw"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DrawStore, "append", look)
        mcmc = sampler(store)
        run(mcmc, data)
    for site, draws in in_memory.get_samples(True).items():
        np.testing.assert_array_equal(mcmc.get_samples(True)[site], draws)
    assert [sizes["draw"] for sizes in seen] == [4, 8, 12, 13]
    assert seen[0]["chain"] == 2
    assert {"net.Dense_0.unit_in", "net.Dense_0.unit_out"} < seen[0].keys()


def test_a_chunk_is_written_whole_whatever_its_files_hold(tmp_path, monkeypatch):
    """Also a short one, and one of zeros: a process may have been killed while it wrote them."""
    monkeypatch.setattr(
        stored_array, "_FILE_BYTES", 100
    )  # several files a chunk, the last one short
    variables = [Variable("posterior", "w", "w", (7, 2), np.dtype(np.float32))]
    store = DrawStore(tmp_path / "d")
    store.create(variables, 2, 10, 4, "float16")
    draws = np.random.default_rng(0).integers(-9, 9, (2, 10, 7, 2)).astype(np.float32)
    draws[:, 4:8] = 0
    files = DrawFiles(store.path / "posterior" / "w")
    for chunk in range(3):
        part = draws[:, 4 * chunk : 4 * chunk + 4]
        files.write(chunk, part + 1)
        assert len(files._paths(chunk)) > 2
        for path in files._paths(chunk):
            path.write_bytes(path.read_bytes()[:5])
        assert not files.are_whole(chunk, with_checksums=True)
        store.append(variables, [part])
        assert files.are_whole(chunk, with_checksums=True)
    np.testing.assert_array_equal(np.asarray(store.arrays()["posterior", "w"]), draws)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("float64", 53)])
def test_draws_of_sites_are_rounded_on_request(dtype, bits, tmp_path):
    values = np.random.default_rng(0).normal(size=(2, 5, 3))
    variables = [
        Variable("posterior", "w", "w", (3,), values.dtype),
        Variable("sample_stats", "s", "s", (3,), values.dtype),
    ]
    store = DrawStore(tmp_path / "d")
    store.create(variables, 2, 5, 5, dtype)
    store.append(variables, [values, values])
    stored = np.asarray(store.arrays()["posterior", "w"])
    np.testing.assert_allclose(stored, values, rtol=2.0**-bits)
    np.testing.assert_array_equal(stored, values.astype(getattr(jnp, dtype)))
    np.testing.assert_array_equal(store.arrays()["sample_stats", "s"], values)


def test_readers_see_what_is_committed_while_metadata_change(tmp_path, monkeypatch):
    variables = [Variable("posterior", "w", "w", (), np.dtype(np.float32))]
    store = DrawStore(tmp_path / "d")
    store.create(variables, 1, 4, 2, None)
    seen, replaced = [], drawstore._replace

    def replace(path, content):
        # What would a reader find at this moment?
        seen.append(DrawStore(tmp_path / "d").arrays()["posterior", "w"].shape)
        replaced(path, content)

    monkeypatch.setattr(drawstore, "_replace", replace)
    store.append(variables, [np.ones((1, 2), np.float32)])
    assert set(seen) == {(1, 0)}
    seen.clear()
    store.open_for_writing(2)
    assert set(seen) == {(1, 2)}


def test_float16_refuses_what_it_cannot_hold(tmp_path):
    store = DrawStore(tmp_path / "d")
    variables = [Variable("posterior", "w", "w", (), np.dtype(np.float32))]
    store.create(variables, 1, 4, 2, "float16")
    with pytest.raises(ValueError, match=r"cannot hold 1e\+05 of 'w'.*'float32'"):
        store.append(variables, [np.array([[1.0, 1e5]], np.float32)])


def test_function_values_are_recorded_instead_of_weights(in_memory, data, tmp_path):
    x, _ = data

    def function(sites):
        return {"f": x[:3] @ sites["net/Dense_0.kernel"][:, 0] + sites["net/Dense_0.bias"]}

    mcmc = sampler(tmp_path / "run.zarr", record=function)
    run(mcmc, data)
    samples = mcmc.get_samples(group_by_chain=True)
    assert samples.keys() == {"f"}
    whole = in_memory.get_samples(True)
    expected = jnp.einsum("ni,cdi->cdn", x[:3], whole["net/Dense_0.kernel"][..., 0])
    expected += whole["net/Dense_0.bias"]
    np.testing.assert_allclose(samples["f"], expected, atol=1e-5)


def test_a_full_disk_says_what_is_safe_and_the_run_goes_on(data, in_memory, tmp_path, monkeypatch):
    write, calls = DrawFiles.write, []

    def full(self, chunk, values):
        calls.append(chunk)
        if len(calls) > 20:  # in the middle of the third chunk of eight arrays
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, chunk, values)

    folders = {"checkpoint": tmp_path / "c", "draws": tmp_path / "run.zarr"}
    with monkeypatch.context() as patch:
        patch.setattr(DrawFiles, "write", full)
        with pytest.raises(
            OSError, match=r"No space left.*first 8 draws .*step 10 .*resume"
        ) as got:
            run(sampler(checkpoint_every=4, **folders), data)
    assert got.value.errno == errno.ENOSPC
    assert DrawStore(folders["draws"]).about["num_draws"] == 8
    again = sampler(checkpoint_every=4, **folders)
    again.resume(*data)
    for site, draws in in_memory.get_samples(True).items():
        np.testing.assert_array_equal(again.get_samples(True)[site], draws)


def test_a_folder_that_cannot_be_made_is_an_error_before_the_first_step(data, tmp_path):
    (tmp_path / "file").write_text("no folder")
    for option in ("draws", "checkpoint"):
        with pytest.raises(OSError, match=r"cannot be written .*; nothing was sampled"):
            sampler(**{option: tmp_path / "file" / "run"}).run(jax.random.key(0), *data)


def test_other_folders_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds no draws of numpyro_bnn"):
        bnn.load(tmp_path, model)


def test_running_out_of_memory_gives_advice(data):
    mcmc = sampler(num_samples=10**15)
    with pytest.raises(MemoryError, match="Unable to allocate") as error:
        run(mcmc, data)
    assert "MCMC(…, draws='run.zarr')" in " ".join(error.value.__notes__)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 5),
    st.integers(1, 40),
    st.none() | st.integers(1, 12),
)
def test_pieces_cover_a_run_once_and_resumed_ones_its_rest(warmup, draws, thinning, rate, every):
    plan = Plan(warmup, draws, thinning, min(rate, every or rate), every)
    segments = list(plan.segments())
    assert sum(p.total for p in segments) == plan.total
    assert sum(p.draws for p in segments if not p.warmup) == draws
    done, filled = 0, 0
    for at, segment in enumerate(segments):
        assert segment.slot == (0 if segment.warmup else filled)
        filled += 0 if segment.warmup else segment.draws
        assert filled <= max(plan.chunk, 1)
        done += segment.total
        if segment.whole:
            filled = 0
            assert list(plan.segments(done)) == segments[at + 1 :]


@settings(max_examples=15, deadline=None)
@given(
    chains=st.integers(1, 3),
    chunks=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    shape=st.lists(st.integers(1, 3), max_size=2),
    cut=st.integers(0, 4),
)
def test_a_store_gives_back_what_was_appended_and_cut(chains, chunks, shape, cut, tmp_path_factory):
    chunk = 3
    rng = np.random.default_rng(0)
    total = chunk * len(chunks)
    values = rng.normal(size=(chains, total, *shape)).astype(np.float32)
    counts = np.zeros((chains, total), np.int32)  # as empty as a chunk can be
    variables = [
        Variable("posterior", "w", "w", tuple(shape), values.dtype),
        Variable("sample_stats", "n", "n", (), counts.dtype),
    ]
    store = DrawStore(tmp_path_factory.mktemp("store") / "d")
    store.create(variables, chains, total, chunk, None)

    def fill(begin):
        for at in range(begin, total, chunk):
            store.append(variables, [values[:, at : at + chunk], counts[:, at : at + chunk]])

    fill(0)
    kept = min(cut, len(chunks)) * chunk
    store.open_for_writing(kept)
    np.testing.assert_array_equal(store.arrays()["posterior", "w"], values[:, :kept])
    fill(kept)
    np.testing.assert_array_equal(store.arrays()["posterior", "w"], values)
    np.testing.assert_array_equal(store.arrays()["sample_stats", "n"], counts)


RNG = np.random.default_rng(0)
STORE = SimpleNamespace(path=Path("draws"), num_sound=12, about={"run": "a"})
FILES = SimpleNamespace(require=lambda draws: None)
MASK = RNG.random((4, 12)) < 0.5
ALL = slice(None)
# Of draws of scalars and of arrays alike.
INDICES = {
    "None": None,
    "None, 3": (None, 3),
    "None, :, 2": (None, ALL, 2),
    ":, None": (ALL, None),
    ":, True": (ALL, True),
    ":, False": (ALL, False),
    "True": True,
    "1, True": (1, True),
    "mask": MASK,
    "mask of chains": MASK[:, 0],
    "list of truth values": [True, False, True, False],
    ":, mask of draws": (ALL, MASK[0]),
    "chains, draws": ([0, 1], [2, 3]),
    "range of chains": range(2),
    ":, range": (ALL, range(3)),
    ":, tuple": (ALL, (1, 2)),
    ":, ::-1": (ALL, slice(None, None, -1)),
    "::-1, ::2": (slice(None, None, -1), slice(None, None, 2)),
    ":, -3:": (ALL, slice(-3, None)),
    ":, 5:2": (ALL, slice(5, 2)),
    ":, 8:99": (ALL, slice(8, 99)),
    "scalar of JAX": jnp.asarray(3),
    ":, scalar of JAX": (ALL, jnp.asarray(3)),
    "array of JAX": jnp.asarray([0, 2]),
    ":, scalar of NumPy": (ALL, np.int32(3)),
    ":, array without axes": (ALL, np.array(3)),
    "array without axes, 3": (np.array(2), 3),
    "chains, 3": ([0, 2], 3),
    "chains, 1:3": ([0, 2], slice(1, 3)),
    "chains by an array of two axes": np.array([[0, 1], [2, 3]]),
    "no chains": ([], ...),
    "-1, -1": (-1, -1),
    "empty": (),
    "0, ...": (0, ...),
    "4": 4,
    ":, 12": (ALL, 12),
    ":, -13": (ALL, -13),
    "text": "w",
    "a number": 1.5,
}
OF_ARRAYS = {
    ":, :, None": (ALL, ALL, None),
    ":, :, True": (ALL, ALL, True),
    ":, :, 1:3": (ALL, ALL, slice(1, 3)),
    ":, :, ::-1": (ALL, ALL, slice(None, None, -1)),
    ":, 2, 1:3, 0": (ALL, 2, slice(1, 3), 0),
    ":, :, pairs": (ALL, ALL, [0, 1], [0, 1]),
    "chains, :, rows": ([0, 1], ALL, [1, 2]),
    "chains, 1, rows": ([0, 1], 1, [1, 2]),
    "0, :, rows": (0, ALL, [1, 2]),
    "0, 2, :, columns": (0, 2, ALL, [1, 2]),
    "chains, 2, :, columns": ([0, 1], 2, ALL, [1, 2]),
    "chains, 2, :, 1": ([0, 1], 2, ALL, 1),
    "chains, :, 1:2, columns": ([0, 1], ALL, slice(1, 2), [1, 2]),
    "too many": (0, 0, 0, 0, 0),
}


def stored(shape, first=0):
    values = RNG.normal(size=(4, 12, *shape)).astype(np.float32)
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=values.shape, chunks=values.shape, dtype=values.dtype
    )
    array[:] = values
    return StoredArray(array, STORE, FILES, "a", first=first), values[:, first:]


def result(array, index):
    try:
        return np.asarray(array[index])
    except IndexError:
        return "IndexError"


@pytest.mark.parametrize("shape", [(), (4, 5)], ids=["scalar", "array"])
@pytest.mark.parametrize("first", [0, 5])
def test_every_index_gives_what_numpy_gives(shape, first):
    array, values = stored(shape, first)
    wrong = []
    for name, index in (INDICES | (OF_ARRAYS if shape else {})).items():
        expected, found = result(values, index), result(array, index)
        if isinstance(expected, str) or isinstance(found, str):
            same = isinstance(expected, str) and isinstance(found, str)
        else:
            same = np.array_equal(found, expected)
        if not same:
            wrong.append(name)
    assert not wrong


def test_a_part_is_read_alone():
    array, _ = stored((4, 5), first=2)
    asked = []
    inner = array._array

    class Seen:
        def __getitem__(self, index):
            asked.append(index)
            return inner[index]

    array._array = Seen()
    array[1, 3]
    array[:, 2:6:2, 1:3, 0]
    assert asked == [(ALL, slice(5, 6, 1)), (ALL, slice(4, 8, 2), slice(1, 3))]
