"""Programs of runs: equal in every process for the same run, different where draws would be."""

import ast
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from numpyro.infer import HMC

import numpyro_bnn as bnn
from numpyro_bnn import priors, schedules
from numpyro_bnn.samplers.gibbs.moves import Interleaved, RidgeScaling
from numpyro_bnn.storage.checkpoints import Start


class Net(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.width)(x)))


def make():
    def model(x, y=None):
        net = bnn.random_module("net", Net(), priors.Normal(0.5), x[:1])
        bnn.likelihoods.gaussian(lambda x: net(x)[:, 0], y, x=x, noise=1.0)

    return model


def baoab(model, friction=1.0):
    """Its program is traced in a third of the time of that of NUTS."""
    return bnn.BAOAB(model, step_size=0.1, friction=friction)


MAKES = {
    "model": lambda: baoab(make()),
    "partial": lambda: baoab(functools.partial(make())),
    "ready": lambda: baoab(bnn.regression(bnn.MLP([4], 1), priors.Normal(1.0))),
    "SGLD": lambda: bnn.SGLD(make(), step_size=0.1, batch_size=4),
    "schedule": lambda: bnn.SGLD(make(), step_size=schedules.polynomial(0.1, 1.0, 0.6)),
    "friction": lambda: baoab(make(), friction=3.0),
}


X, Y = np.linspace(-1.0, 1.0, 16).reshape(8, 2), np.arange(8.0)


def text_of(kernel):
    """The text that a run of a kernel lowers to."""
    mcmc = bnn.MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False)
    fit = mcmc._see((X, Y), {})
    # Looking for starts is traced for longer than the steps.
    start = Start(jax.random.key(0), nets.weights(kernel.model, X, Y), ())
    return mcmc._chain_states(start, mcmc._plan(), fit).text()


kept = functools.cache(lambda name: text_of(MAKES[name]()))


def test_another_kernel_is_another_program_and_a_wrapper_is_none():
    assert kept("partial") == kept("model") != kept("SGLD")


@pytest.mark.parametrize("name", ["model", "ready", "SGLD", "friction"])
def test_the_same_maker_gives_the_same_program(name):
    """Also after other work in this process, and of a kernel that has run before."""
    kernel = MAKES[name]()
    assert text_of(kernel) == kept(name)
    bnn.predict(bnn.regression(bnn.MLP([4], 1), priors.Normal(1.0), X, Y), PRIOR, X)
    assert text_of(kernel) == kept(name)


PRIOR = {
    "net/Dense_0.kernel": np.ones((1, 2, 4)),
    "net/Dense_0.bias": np.zeros((1, 4)),
    "net/Dense_1.kernel": np.ones((1, 4, 1)),
    "net/Dense_1.bias": np.zeros((1, 1)),
    "y.scale": np.ones(1),
}


def of_prior(prior):
    return baoab(bnn.regression(bnn.MLP([3], 1), prior))


HIERARCHY = bnn.regression(bnn.MLP([3], 1), priors.Hierarchical())


@pytest.mark.parametrize(
    "make",
    [
        lambda k: of_prior(priors.Hierarchical(concentration=k)),
        lambda k: of_prior(priors.Hierarchical(rate=k)),
        lambda k: of_prior(priors.FanIn(k)),
        lambda k: bnn.SGLD(make(), step_size=0.1, accept=[None, "full", "minibatch"][int(k)]),
        lambda k: bnn.MAMS(make(), step_size=0.1, trajectory_length=k),
        lambda k: bnn.MCLMC(make(), energy_variance=1e-4 * k),
        lambda k: bnn.WindowedHMC(make(), step_size=0.1, num_steps=8, window=int(k)),
        lambda k: bnn.neal(HIERARCHY, HMC, step_size=k),
        lambda k: Interleaved(baoab(HIERARCHY), [RidgeScaling(k)]),
        lambda k: baoab(bnn.parameterize(HIERARCHY, ["centered", "noncentered"][int(k) - 1])),
        lambda k: bnn.ParallelTempering(make(), num_rungs=1 + int(k)),
    ],
)
def test_no_argument_of_a_constructor_is_lost(make):
    assert text_of(make(1.0)) != text_of(make(2.0))


class Kept(nnx.Module):
    """A layer whose weights are sampled, with a random stream, whose count moves when it is used."""

    def __init__(self, scale, factor):
        self.layer = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        self.scale = nnx.Param(jnp.array(scale))
        self.factor = factor

    def __call__(self, x):
        return self.factor * self.scale[...] * self.layer(x)


def test_settings_of_an_nnx_module_count_and_weights_that_a_prior_replaces_do_not():
    texts = [
        text_of(baoab(bnn.regression(Kept(*given), priors.Normal(1.0))))
        for given in ((1.0, 2.0), (3.0, 2.0), (1.0, 4.0))
    ]
    assert texts[0] == texts[1] != texts[2]


QUICK = ("model", "SGLD", "friction", "schedule")


def hashes_here():
    return {name: hash_of(text_of(MAKES[name]())) for name in QUICK}


def hash_of(text):
    return hashlib.blake2b(text.encode()).hexdigest()


def test_other_processes_agree():
    """A child whose sets have other orders, and that has done nothing else before."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    place = "import sys; sys.path.append('../support')"
    program = f"{place}; import test_programs_of_kernels as t; print(t.hashes_here())"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parent,
    )
    assert ast.literal_eval(ran.stdout) == {name: hash_of(kept(name)) for name in QUICK}
    assert not any(" at 0x" in kept(name) for name in MAKES)
