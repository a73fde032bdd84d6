"""Draws in a file: the same predictions in another process, and files that are no draws."""

import io
import json
import pickle
import subprocess
import sys
import zipfile
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.data.columns import noted_inputs
from numpyro_bnn.posterior.archive import known_predictions, refuse_other_model
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


def flipped(path, where=b"\xf0\x3f\0\0", byte=255):
    np.savez(path, header=_header(sites=["w"]), **{"site:w": np.ones((1, 1000))})
    content = bytearray(path.read_bytes())
    content[content.index(where)] ^= byte
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
    "a byte of a header": (lambda path: flipped(path, b"{'descr': '<f8'", 4), "written by"),
    "a name lost": (lambda path: np.savez(path, header=_header(arrays=["u"])), r"lacks \['u'\]"),
    "empty": (lambda path: path.write_bytes(b""), "is no NumPy archive"),
    "text": (lambda path: path.write_text("weights"), "is no NumPy archive"),
    "one array": (lambda path: path.write_bytes(one_array()), "is no NumPy archive"),
    "another archive": (lambda path: np.savez(path, w=np.ones(3)), "header"),
    "another header": (lambda path: np.savez(path, header=np.array("[1]")), "written by"),
    "later format": (lambda path: np.savez(path, header=_header(format="9")), "its format is '9'"),
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


ROWS = 20
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(ROWS, 3)).astype(np.float32), RNG.normal(size=ROWS).astype(np.float32)


def model(x, y=None, activation=jnp.tanh, distribution=dist.Normal, noise=0.3):
    net = bnn.random_module("net", bnn.MLP((4,), 1, activation), priors.Normal(1.0), x[:1])
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", distribution(net(x)[:, 0], noise), obs=y)


OTHERS = {
    "activation": (partial(model, activation=jax.nn.relu), "the first draw has mean"),
    "constant": (partial(model, noise=0.4), "the first draw has scale 0.4 under it, and 0.3 under"),
    "likelihood": (partial(model, distribution=dist.Laplace), "the first draw has scale 0.42"),
    "kind of target": (
        partial(model, distribution=lambda mean, _: dist.Bernoulli(logits=mean)),
        r"it predicts {'probs': \(8, 2\)} for 'y', where the draws' own predicted {'mean': \(8,\)",
    ),
    "name of target": (lambda x, y=None: None, r"its targets are \[\], and were \['y'\]"),
    "failure": (lambda x, y=None: int("a. b"), r"it fails: invalid .* 10: 'a\. Give the"),
}


@pytest.fixture(scope="module")
def mcmc(tmp_path_factory):
    """A run whose draws are on disk."""
    pytest.importorskip("zarr")
    folder = tmp_path_factory.mktemp("run") / "run.zarr"
    kernel = bnn.RandomWalk(model, step_size=1e-3)
    settings = {"num_warmup": 2, "num_samples": 4, "num_chains": 2, "chain_method": "vectorized"}
    mcmc = bnn.MCMC(kernel, **settings, progress_bar=False, draws=folder)
    mcmc.run(jax.random.key(0), X, Y, init_params=nets.starts(2, model, X, Y))
    return mcmc, folder


@pytest.fixture(scope="module")
def readers(mcmc, tmp_path_factory):
    """Ways back to the draws, functions of a model."""
    run, folder = mcmc
    file = bnn.save(run, tmp_path_factory.mktemp("file") / "run")
    exported = bnn.to_inference_data(run, log_likelihood=False, posterior_predictive=False)
    return {
        "file": partial(bnn.load, file),
        "folder": partial(bnn.load, folder),
        "ArviZ": partial(bnn.from_inference_data, exported),
    }


@pytest.mark.parametrize("way", ["file", "folder", "ArviZ"])
def test_another_model_is_refused(readers, way):
    for other, said in OTHERS.values():
        with pytest.raises(ValueError, match=f"this model is not the one that .*{said}"):
            readers[way](other)


@pytest.mark.parametrize("way", ["file", "folder", "ArviZ"])
def test_the_same_function_in_other_code_is_the_same_model(readers, way):
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            hidden = jnp.tanh(nn.Dense(4)(x))
            return nn.Dense(1)(hidden)

    def again(inputs, targets=None):
        net = bnn.random_module("net", Network(), priors.StudentT(3.0), inputs[:1])
        numpyro.sample("y", dist.Normal(net(inputs).squeeze(-1), 0.3), obs=targets)

    assert readers[way](again).num_draws == 4
    assert readers[way](model).num_draws == 4


def test_a_choice_of_draws_is_not_compared(mcmc):
    exported = bnn.to_inference_data(mcmc[0], log_likelihood=False, posterior_predictive=False)
    later = bnn.from_inference_data({"posterior": exported["posterior"].isel(draw=[2, 3])})
    assert later.num_draws == 2


def test_ready_models_are_told_apart_in_their_own_units(tmp_path):
    """Far from zero, where all activations of unstandardised inputs would be saturated."""
    x, y = 1000 + X, 5000 + 0.1 * Y

    def ready(activation=jnp.tanh, *data):
        return bnn.regression(bnn.MLP((4,), 1, activation), priors.Normal(0.5), *data, noise=0.3)

    own = ready(jnp.tanh, x, y)
    values = {k: jnp.asarray(v)[None, None] for k, v in nets.weights(own, x, y).items()}
    info = {"input_ranges": noted_inputs(x)}
    file = bnn.save(bnn.Draws(values, own, info=info), tmp_path / "run")
    assert bnn.load(file, ready()).num_draws == 1
    with pytest.raises(ValueError, match="the first draw has mean"):
        bnn.load(file, ready(jax.nn.sigmoid))


def test_models_that_cannot_be_called_on_inputs_alone_are_not_compared():
    def needs_more(x, y, scale):
        numpyro.sample("y", dist.Normal(numpyro.sample("w", dist.Normal()) * x, scale), obs=y)

    info = {"input_ranges": noted_inputs(Y)}
    draws = bnn.Draws({"w": np.zeros((1, 2))}, needs_more, info=info)
    assert known_predictions(draws) is None
    assert known_predictions(bnn.Draws({"w": np.zeros((1, 2))}, model)) is None
    refuse_other_model("load", draws, None)


def test_probabilities_of_two_targets_are_compared():
    def two(x, a=None, b=None, turned=1.0):
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("rows", len(x)):
            numpyro.sample("a", dist.Normal(w * x, 1.0), obs=a)
            numpyro.sample("b", dist.Bernoulli(logits=turned * w * x), obs=b)

    info = {"input_ranges": noted_inputs(Y)}
    values = {"w": np.ones((1, 2))}
    known = known_predictions(bnn.Draws(values, two, info=info))
    assert set(known["targets"]) == {"a", "b"}
    refuse_other_model("load", bnn.Draws(values, two, info=info), known)
    with pytest.raises(ValueError, match="for 'b' at made-up inputs the first draw has probs"):
        refuse_other_model("load", bnn.Draws(values, partial(two, turned=-1.0), info=info), known)
