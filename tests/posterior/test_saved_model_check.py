"""Draws from a file, a folder or ArviZ with a model that is not theirs are refused."""

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
