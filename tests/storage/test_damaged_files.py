"""Damaged files of runs: an error that names the file, and advice that is true when it is followed."""

import re
import shutil

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from small_models import row_model
from walker import STARTS, WALKED, sampler

import numpyro_bnn as bnn
from numpyro_bnn.storage import stored_array
from numpyro_bnn.storage.draw_store import DrawStore, Variable
from numpyro_bnn.storage.stored_array import read_by_scalar

pytest.importorskip("orbax.checkpoint")
pytest.importorskip("zarr")


def store_of(folder):
    """Eleven draws in chunks of three, a site in several files a chunk."""
    rng = np.random.default_rng(0)
    shapes = {"a": (), "b": (5, 2), "c": (3,)}
    variables = [Variable("posterior", n, n, s, np.dtype(np.float32)) for n, s in shapes.items()]
    values = [rng.normal(size=(2, 11, *s)).astype(np.float32) for s in shapes.values()]
    store = DrawStore(folder)
    store.create(variables, 2, 11, 3, None)
    for begin in range(0, 11, 3):
        store.append(variables, [value[:, begin : begin + 3] for value in values])
    return store, dict(zip(shapes, values))


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def empty(path):
    path.write_bytes(b"")


def swapped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(bytes(content))


def checksum(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "cut short": cut,
    "empty": empty,
    "one bit": swapped,
    "its checksum": checksum,
    "zeros": zeros,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("chunks", [(1,), (3,), (0,), (1, 3), (3, 2)])
def test_the_advice_after_damage_is_true(damage, chunks, tmp_path, monkeypatch):
    """Chunks are damaged in different sites; the first is changed in place, the last one shows by
    its size where the damage does."""
    monkeypatch.setattr(stored_array, "_FILE_BYTES", 60)
    store, values = store_of(tmp_path / "d")
    for at, chunk in enumerate(chunks):
        files = sorted((tmp_path / "d" / "posterior" / "abc"[at + 1]).glob(f"c/0/{chunk}/**/0"))
        path = [p for p in files if p.is_file()][-1]
        (swapped if at == 0 and len(chunks) > 1 else DAMAGES[damage])(path)
    whole = 3 * min(chunks)
    assert store.num_sound == whole
    with pytest.raises(ValueError, match=r"damaged|missing, cut short or changed") as got:
        {site: np.asarray(v) for site, v in bnn.load(tmp_path / "d", None).items()}
    _follow(str(got.value), tmp_path / "d", whole, values)
    with pytest.raises(
        ValueError, match=rf"from {whole} on are missing, cut .*begin it anew"
    ) as got:
        store.check(11, to_continue=True)
    _follow(str(got.value), tmp_path / "d", whole, values)


def _follow(advice, folder, whole, values):
    """Do what the message says, and look at what comes of it."""
    if whole == 0:
        assert "open_for_writing" not in advice
        assert "`array[" not in advice
        return
    assert f"The first {whole} " in advice
    copy = shutil.copytree(folder, folder.parent / "copy", dirs_exist_ok=True)
    code = re.search(r"`(from numpyro_bnn.*?)`", advice)
    if code is None:
        found = {k: v[:, :whole] for k, v in bnn.load(folder, None).items()}
    else:
        exec(code[1].replace(str(folder), str(copy)))
        found = {k: np.asarray(v) for k, v in bnn.load(copy, None).items()}
    for site, value in values.items():
        assert found[site].shape == value[:, :whole].shape
        np.testing.assert_array_equal(found[site], value[:, :whole])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    sampler(checkpoint=folder).run(jax.random.key(0), init_params=STARTS)
    return folder


def json_files(folder):
    """Every file of a run that holds JSON, whatever it is called."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.read_bytes().lstrip()[:1] == b"{":
            found.append(path.relative_to(folder).as_posix())
    return found


SPOILED = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: b"",
    "binary": lambda text: bytes(range(128, 256)),
    "a list": lambda text: b"[1, 2]",
    "nothing in it": lambda text: b"{}",
    "no file": None,
}
OURS = (
    "damaged|cannot be read|holds no draws of numpyro_bnn|no checkpoint of|is of another run|"
    "holds no run|missing, cut short|holds .* which are left"
)


@pytest.mark.parametrize("one_in", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_spoiled_file_is_named_and_nothing_else_is_lost(spoiled, one_in, stored, tmp_path):
    """Each file of a run in turn: the run goes on to its draws all the same, or is refused.

    In every change each kind of damage comes to one file in four, each file to some of the kinds.
    """
    names = json_files(stored)
    assert {"run.json", "draws.zarr/zarr.json", "draws.zarr/posterior/x/zarr.json"} < set(names)
    refused = 0
    for name in names[list(SPOILED).index(spoiled) % one_in :: one_in]:
        folder = tmp_path / "run"
        shutil.copytree(stored, folder)
        path = folder / name
        if spoiled == "no file":
            path.unlink()
        else:
            path.write_bytes(SPOILED[spoiled](path.read_bytes()))
        for attempt in (_resumed, _loaded):
            found, said = _outcome(attempt, folder)
            if found is not None:
                np.testing.assert_array_equal(found, WALKED)
                continue
            refused += 1
            assert re.search(OURS, said, re.DOTALL), (name, attempt, said)
            assert str(folder) in said, (name, attempt)
        shutil.rmtree(folder)
    assert refused >= (3 if one_in == 1 else 0)


def _outcome(attempt, folder):
    """Draws, or what was said in their place; any other error ends the test."""
    try:
        return attempt(folder), ""
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        return None, str(error)


def _resumed(folder):
    mcmc = sampler(checkpoint=folder)
    mcmc.resume()
    return mcmc.get_samples(True)


def _loaded(folder):
    return np.asarray(bnn.load(folder / "draws.zarr", None)["x"])


@pytest.mark.parametrize(
    ("name", "named", "safe"),
    [
        (
            "run.json",
            "run.json is damaged",
            r"draws so far in .*draws\.zarr are untouched.*`bnn\.load`",
        ),
        ("draws.zarr/zarr.json", r"draws\.zarr/zarr\.json is damaged", "subfolders are untouched"),
        (
            "draws.zarr/posterior/x/zarr.json",
            r"posterior/x/zarr\.json is damaged",
            "The numbers beside it, .* are untouched",
        ),
    ],
)
def test_the_message_says_what_is_safe(name, named, safe, stored, tmp_path):
    folder = shutil.copytree(stored, tmp_path / "run")
    (folder / name).write_text("{")
    with pytest.raises(ValueError, match=rf"(?s){named}.*{safe}"):
        sampler(checkpoint=folder).resume()


def test_going_back_a_step_gives_the_same_draws(stored, tmp_path):
    """What the message about a damaged checkpoint advises."""
    folder = shutil.copytree(stored, tmp_path / "run")
    (folder / "steps" / "11" / "progress" / "metadata").write_text("{")
    said = "(?s)step 11 .* cannot be read.*remove the folder 11 to go back to it"
    with pytest.raises(ValueError, match=said):
        sampler(checkpoint=folder).resume()
    shutil.rmtree(folder / "steps" / "11")
    np.testing.assert_array_equal(_resumed(folder), WALKED)


def test_a_run_does_not_go_on_over_damaged_draws(stored, tmp_path):
    """By size all is well."""
    folder = shutil.copytree(stored, tmp_path / "run")
    (path,) = (folder / "draws.zarr" / "posterior" / "x" / "c" / "0" / "1").parent.glob("1")
    swapped(path)
    with pytest.raises(
        ValueError, match=r"from 3 on are missing, cut short or changed\. The run can"
    ):
        sampler(checkpoint=folder).resume()


X, Y = np.zeros((4, 1), np.float32), np.full(4, 5.0, np.float32)

model = row_model(
    lambda x, w: dist.Normal(w.sum() + 0 * x[:, 0], 1.0),
    w=dist.Normal(5, 1).expand([2]).to_event(1),
)


def of_model(folder, **where):
    settings = {"num_warmup": 2, "num_samples": 110, "num_chains": 2, "progress_bar": False}
    kernel = bnn.RandomWalk(model, step_size=1e-3)
    return bnn.MCMC(kernel, draws=folder, checkpoint_every=50, **settings, **where)


def run(folder, key=0, **where):
    mcmc = of_model(folder, **where)
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
    folder, checkpoint = tmp_path / "draws.zarr", tmp_path / "checkpoint"
    run(folder, checkpoint=checkpoint)
    loaded = bnn.load(folder, model)["w"]
    before = np.asarray(loaded)
    of_model(folder, checkpoint=checkpoint).resume(X, Y)
    np.testing.assert_array_equal(loaded, before)
