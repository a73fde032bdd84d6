"""Draws on disk that are gone or replaced after a run are refused by every reader."""

import shutil

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.storage.stored_array import read_by_scalar

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")
X, Y = np.zeros((4, 1), np.float32), np.full(4, 5.0, np.float32)

model = row_model(
    lambda x, w: dist.Normal(w.sum() + 0 * x[:, 0], 1.0),
    w=dist.Normal(5, 1).expand([2]).to_event(1),
)


def run(folder, key=0):
    mcmc = bnn.MCMC(
        bnn.RandomWalk(model, step_size=1e-3),
        num_warmup=2,
        num_samples=110,
        num_chains=2,
        progress_bar=False,
        draws=folder,
        checkpoint_every=50,
    )
    mcmc.run(jax.random.key(key), X, Y, init_params={"w": np.full((2, 2), 5.0)})
    return mcmc


def moved(folder, others):
    folder.rename(folder.with_name("elsewhere"))


def one_chunk_removed(folder, others):
    # The first 50 draws are whole, and the others are not.
    shutil.rmtree(folder / "posterior" / "w" / "c" / "0" / "1")


def all_chunks_removed(folder, others):
    shutil.rmtree(folder / "posterior" / "w" / "c")


def site_removed(folder, others):
    shutil.rmtree(folder / "posterior" / "w")


def replaced(folder, others):
    shutil.rmtree(folder)
    shutil.copytree(others, folder)


GONE = {
    "removed": (lambda folder, others: shutil.rmtree(folder), "are gone"),
    "moved": (moved, "are gone"),
    "metadata removed": (lambda folder, others: (folder / "zarr.json").unlink(), "are gone"),
    "one chunk": (one_chunk_removed, "are damaged.*chunk 1 .*The first 50 draws of each chain"),
    "all chunks": (all_chunks_removed, "are damaged.*chunk .*The first 0 draws"),
    "a site": (site_removed, "is damaged.*Restore the folder of the array from a copy"),
    "replaced by another run": (replaced, "holds the draws of another run now"),
}
READERS = {
    "get_samples": lambda mcmc, loaded: mcmc.get_samples()["w"],
    "by chain": lambda mcmc, loaded: np.asarray(mcmc.get_samples(True)["w"]),
    "a part": lambda mcmc, loaded: mcmc.get_samples(True)["w"][:, 60:70],
    "loaded before": lambda mcmc, loaded: np.asarray(loaded["w"]),
    "one draw loaded before": lambda mcmc, loaded: loaded["w"][0, 60],
    "some chains": lambda mcmc, loaded: np.asarray(loaded["w"].take_chains([1])),
    "by scalar": lambda mcmc, loaded: read_by_scalar(loaded["w"]),
    "predict": lambda mcmc, loaded: bnn.predict(model, mcmc, X),
    "predict with loaded draws": lambda mcmc, loaded: bnn.predict(model, loaded, X),
    "diagnose": lambda mcmc, loaded: bnn.diagnose(mcmc, X),
    "save": lambda mcmc, loaded: bnn.save(mcmc, mcmc._disk.draws.with_name("saved.npz")),
    "ArviZ": lambda mcmc, loaded: bnn.to_inference_data(mcmc),
}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """The folder of another run of the same model and length."""
    folder = tmp_path_factory.mktemp("other") / "draws.zarr"
    run(folder, key=1)
    return folder


@pytest.mark.parametrize("gone", GONE)
def test_every_reader_refuses_draws_that_are_gone(gone, others, tmp_path):
    folder = tmp_path / "draws.zarr"
    mcmc = run(folder)
    loaded = bnn.load(folder, model)
    remove, match = GONE[gone]
    remove(folder, others)
    for read in READERS.values():
        with pytest.raises(ValueError, match=match) as got:
            read(mcmc, loaded)
        assert str(folder) in str(got.value)


def test_the_draws_before_a_removed_chunk_can_be_read(others, tmp_path):
    folder = tmp_path / "draws.zarr"
    mcmc = run(folder)
    before = np.asarray(mcmc.get_samples(True)["w"])
    one_chunk_removed(folder, others)
    found = mcmc.get_samples(True)["w"][:, :50]
    np.testing.assert_array_equal(found, before[:, :50])
    assert (found != 0).all()


def test_draws_of_a_run_that_goes_on_are_those_of_one_run(tmp_path):
    """Files are replaced when a run is resumed, by the same draws: what was loaded before stays readable."""
    settings = {"num_warmup": 2, "num_chains": 2, "progress_bar": False, "checkpoint_every": 50}
    where = {"draws": tmp_path / "draws.zarr", "checkpoint": tmp_path / "checkpoint"}
    kernel = bnn.RandomWalk(model, step_size=1e-3)
    mcmc = bnn.MCMC(kernel, num_samples=110, **settings, **where)
    mcmc.run(jax.random.key(0), X, Y, init_params={"w": np.full((2, 2), 5.0)})
    loaded = bnn.load(where["draws"], model)["w"]
    before = np.asarray(loaded)
    again = bnn.MCMC(kernel, num_samples=110, **settings, **where)
    again.resume(X, Y)
    np.testing.assert_array_equal(loaded, before)
