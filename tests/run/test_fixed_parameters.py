"""Networks of NumPyro's own helpers, partly Bayesian: their other parameters are initialised once."""

import inspect
import warnings
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from flax import nnx
from numpyro.contrib.module import flax_module, random_flax_module, random_nnx_module
from numpyro.infer import HMC, MCMC, NUTS
from quiet import quiet

import numpyro_bnn as bnn

KEY = jax.random.key(3)
X = np.linspace(-1, 1, 8)[:, None].astype(np.float32)
Y = (2 * X[:, 0] + 3).astype(np.float32)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(3)(x)))


class NNX(nnx.Module):
    def __init__(self):
        self.inner = nnx.Linear(1, 3, rngs=nnx.Rngs(5))
        self.outer = nnx.Linear(3, 1, rngs=nnx.Rngs(6))

    def __call__(self, x):
        return self.outer(nnx.tanh(self.inner(x)))


def observe(f, y):
    with numpyro.plate("data", len(f)):
        numpyro.sample("y", dist.Normal(f, 0.5), obs=y)


def partly(x, y=None):
    net = random_flax_module("net", Net(), {"Dense_1.kernel": dist.Normal()}, input_shape=(1, 1))
    observe(net(x)[:, 0], y)


def partly_nnx(x, y=None):
    net = random_nnx_module("net", NNX(), {"outer.kernel": dist.Normal()})
    observe(net(x)[:, 0], y)


def features(x, y=None):
    net = flax_module("net", Net(), input_shape=(1, 1))
    observe(numpyro.sample("b", dist.Normal()) * net(x)[:, 0], y)


def initialised(x, y=None):
    shift = numpyro.param("shift", lambda key: jax.random.normal(key))
    observe(numpyro.sample("b", dist.Normal()) * x[:, 0] + shift, y)


def of_the_data(x, y=None):
    mean = numpyro.param("mean", x.mean() + (0.0 if y is None else y.mean()))
    observe(numpyro.sample("b", dist.Normal()) * x[:, 0] + mean, y)


# NumPyro's helpers for NNX need a release of Flax whose `merge` has `copy=`.
HAS_NNX = "copy" in inspect.signature(nnx.merge).parameters
MODELS = (partly, *[partly_nnx] * HAS_NNX, features, initialised, of_the_data)
KERNELS = {"NUTS": NUTS, "RandomWalk": lambda model: bnn.RandomWalk(model, step_size=0.1)}


@pytest.mark.parametrize(
    ("kernel", "model"), [*product(["NUTS"], MODELS), ("RandomWalk", of_the_data)]
)
def test_everything_after_a_run_has_the_parameters_of_the_run(kernel, model, tmp_path):
    options = {"num_warmup": 60, "num_samples": 30, "num_chains": 1, "progress_bar": False}
    run = bnn.MCMC(KERNELS[kernel](model), **options)
    run.run(KEY, X, Y, extra_fields=("potential_energy",))
    found = bnn.predict(None, run, X)
    priors = sum(
        dist.Normal().log_prob(v).reshape(1, 30, -1).sum(-1)
        for n, v in run.get_samples(True).items()
    )
    likelihood = found.log_likelihood(Y).sum(-1)
    energy = -run.get_extra_fields(True)["potential_energy"]
    assert np.allclose(energy, priors + likelihood, rtol=1e-3)
    assert np.array_equal(bnn.predict(model, run, X).mean, found.mean)
    assert np.allclose(bnn.predict(None, run, X[:3]).mean, found.mean[:, :, :3], rtol=1e-5)
    file = bnn.save(run, tmp_path / "run.npz")
    with pytest.raises(ValueError, match="has fixed parameters of its model"):
        bnn.load(file, None)
    stored = bnn.load(file, model)
    assert np.allclose(bnn.predict(None, stored, X[:3]).mean, found.mean[:, :, :3], rtol=1e-5)
    summed = bnn.to_inference_data(run).log_likelihood["y"].sum("row")
    assert np.allclose(summed, likelihood, rtol=1e-4)


@pytest.mark.parametrize("model", [partly, of_the_data], ids=lambda model: model.__name__)
def test_approximations_and_starts_have_one_set_of_parameters(model):
    call = model, KEY, X, Y
    modes = bnn.map_estimate(*call, num_steps=300, progress_bar=False)
    density = bnn.predict(None, modes, X).log_likelihood(Y).sum(-1)
    priors = sum(dist.Normal().log_prob(v).reshape(1, 1, -1).sum(-1) for v in modes.values())
    assert np.allclose(-modes.stats["potential_energy"], density + priors, rtol=1e-3)


def test_a_run_of_fixed_parameters_is_checked_and_told_of_no_dropout():
    run = quiet(bnn.BAOAB(partly, step_size=0.05), 100, 100, 2)
    few = {"num_chains": 2, "num_steps": 100, "progress_bar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.run(KEY, X, Y, init_params=bnn.optimize(partly, KEY, X, Y, **few))
        assert bnn.check_fit(run).loo.by_row.shape == (8,)
        assert bnn.diagnose(run, X, Y).verdict != "invalid"


def constant(x, y=None):
    shift = numpyro.param("shift", 3.0)
    observe(numpyro.sample("b", dist.Normal()) * x[:, 0] + shift, y)


@pytest.mark.parametrize("model", [features, initialised, constant])
def test_a_run_of_numpyro_keeps_no_parameters_but_those_that_begin_at_one_number(model, tmp_path):
    kernel = HMC(model, num_steps=1, trajectory_length=None)
    run = MCMC(kernel, num_warmup=1, num_samples=3, progress_bar=False)
    run.run(KEY, X, Y)
    if model is not constant:
        for call in (bnn.predict, lambda _, *given: bnn.export(*given, tmp_path / "some.jax")):
            with pytest.raises(ValueError, match="keeps none"):
                call(model, run, X)
        return
    found = bnn.predict(model, run, X).mean[0]
    assert np.allclose(found, run.get_samples()["b"][:, None] * X[:, 0] + 3, rtol=1e-5)


def test_a_run_is_resumed_with_its_parameters(tmp_path):
    def made():
        options = {"num_warmup": 5, "num_samples": 10, "progress_bar": False}
        return bnn.MCMC(bnn.BAOAB(partly, step_size=0.05), checkpoint=tmp_path / "run", **options)

    run = made()
    run.run(KEY, X, Y)
    for again in (run, made()):
        again.resume(X, Y)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, again.get_samples(), run.get_samples()))
        assert np.array_equal(bnn.predict(None, again, X).mean, bnn.predict(None, run, X).mean)
