"""Draws in a file: the same predictions in another process, and files that are no draws."""

import io
import json
import pickle
import subprocess
import sys
import zipfile

import jax.numpy as jnp
import nets
import numpy as np
import pytest

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.posterior.draws import Draws


def make_model(*data):
    return bnn.regression(bnn.MLP((4,), 1), priors.Normal(0.5), *data, noise=0.3)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    return rng.normal(5.0, 3.0, (8, 3)), rng.normal(-20.0, 7.0, 8)


@pytest.fixture(scope="module")
def draws(data):
    model = make_model(*data)
    each = [nets.weights(model, *data, seed=s) for s in range(4)]
    values = {k: jnp.stack([d[k] for d in each]).reshape(2, 2, *each[0][k].shape) for k in each[0]}
    return Draws(values, model, {"diverging": np.zeros((2, 2), bool)}, {"kernel": "NUTS"})


@pytest.fixture
def file(draws, tmp_path):
    return bnn.save(draws, tmp_path / "run")


def test_what_is_loaded_is_what_was_saved(draws, file, data):
    assert file.name == "run.npz"
    assert [p.name for p in file.parent.iterdir()] == ["run.npz"]
    loaded = bnn.load(file, make_model())
    assert list(loaded) == list(draws)
    for site in draws:
        np.testing.assert_array_equal(loaded[site], draws[site])
    np.testing.assert_array_equal(loaded.stats["diverging"], draws.stats["diverging"])
    assert loaded.info == {"kernel": "NUTS"}
    expected = bnn.predict(None, draws, data[0])
    np.testing.assert_array_equal(bnn.predict(None, loaded, data[0]).mean, expected.mean)


def test_another_process_predicts_the_same(draws, file, data, tmp_path):
    np.save(tmp_path / "x.npy", data[0])
    program = """
import sys, numpy as np, numpyro_bnn as bnn
model = bnn.regression(bnn.MLP((4,), 1), bnn.priors.Normal(0.5), noise=0.3)
draws = bnn.load(sys.argv[1], model)
np.save(sys.argv[3], bnn.predict(None, draws, np.load(sys.argv[2])).mean)
"""
    paths = [str(file), str(tmp_path / "x.npy"), str(tmp_path / "mean.npy")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True)
    expected = bnn.predict(None, draws, data[0]).mean
    np.testing.assert_allclose(np.load(tmp_path / "mean.npy"), expected, rtol=1e-5)


class Malicious:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self):
        return (print, ("unpickled",))


def pickled(path):
    path.write_bytes(pickle.dumps(Malicious()))


def pickled_inside(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("header", "site:w"):
            content = io.BytesIO()
            np.save(content, np.array(Malicious(), object), allow_pickle=True)
            archive.writestr(f"{name}.npy", content.getvalue())


def truncated(path):
    np.savez(path, header=np.array("{}"), w=np.ones(1000))
    path.write_bytes(path.read_bytes()[:2000])


def flipped(path):
    np.savez(path, header=_header(sites=["w"]), **{"site:w": np.ones((1, 1000))})
    content = bytearray(path.read_bytes())
    at = content.index(np.ones(10).tobytes())
    content[at] ^= 255
    path.write_bytes(bytes(content))


def one_array():
    content = io.BytesIO()
    np.save(content, np.ones(3))
    return content.getvalue()


def _header(**changes):
    own = {"format": "numpyro_bnn draws 1", "sites": [], "stats": [], "info": {}}
    return np.array(json.dumps(own | changes))


BAD_FILES = {
    "a pickle": (pickled, "is no NumPy archive"),
    "pickles in an archive": (pickled_inside, "allow_pickle=False"),
    "cut off": (truncated, "was cut off"),
    "one byte changed": (flipped, "Bad CRC"),
    "empty": (lambda path: path.write_bytes(b""), "is no NumPy archive"),
    "text": (lambda path: path.write_text("weights"), "is no NumPy archive"),
    "one array": (lambda path: path.write_bytes(one_array()), "is no NumPy archive"),
    "another archive": (lambda path: np.savez(path, w=np.ones(3)), "header"),
    "another header": (lambda path: np.savez(path, header=np.array("[1]")), "written by"),
    "a later format": (
        lambda path: np.savez(path, header=_header(format="numpyro_bnn draws 9")),
        "its format is 'numpyro_bnn draws 9'",
    ),
    "a site missing": (lambda path: np.savez(path, header=_header(sites=["w"])), "site:w"),
    "no sites": (lambda path: np.savez(path, header=_header()), "two leading axes"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_holds_no_draws_is_refused(name, tmp_path, capsys):
    make, message = BAD_FILES[name]
    path = tmp_path / "bad.npz"
    make(path)
    with pytest.raises(ValueError, match=message):
        bnn.load(path, make_model())
    assert "unpickled" not in capsys.readouterr().out


def test_draws_of_a_ready_model_want_one_with_the_same_units(file, data):
    for model in (None, lambda x, y=None: None):
        with pytest.raises(ValueError, match=r"was saved from `bnn\.regression` or"):
            bnn.load(file, model)
    with pytest.raises(ValueError, match="keeps the units of other data than the saved draws"):
        bnn.load(file, make_model(data[0] + 1, data[1]))
    assert bnn.load(file, make_model(*data)).num_draws == 2


def test_objects_are_never_written(tmp_path):
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        bnn.save(Draws({"w": np.array([[None]])}), tmp_path / "bad")


def test_draws_in_half_precision_come_back_as_they_were(tmp_path, data, draws):
    short = Draws({k: v.astype(jnp.bfloat16) for k, v in draws.items()}, draws.model)
    back = bnn.load(bnn.save(short, tmp_path / "short"), draws.model)
    for name, value in short.items():
        np.testing.assert_array_equal(back[name], np.asarray(value, np.float32))
    x = data[0][:2]
    expected = bnn.predict(None, short, x).mean
    np.testing.assert_allclose(bnn.predict(None, back, x).mean, expected, rtol=0.02)
