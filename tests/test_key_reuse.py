"""No random key is used twice: by JAX's own checker, and where that looks away by the draws.

The checker follows keys through the traced program of a sampler, so that nothing is compiled. It
does not compare the numbers that are folded into a key, nor two elements of one array of keys.
"""

import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from numpyro.infer import HMC, NUTS, CustomGibbs, Gibbs

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.moves import Interleaved, PrecisionRedraw, RidgeScaling, UnitRescaling

sys.path.insert(0, str(Path(__file__).parent / "sgmcmc"))
import catalogue
import test_contract

checker = pytest.importorskip("jax.experimental.key_reuse._core")


def network(x, y=None):
    net = bnn.random_module("net", bnn.MLP([3], 1), priors.Hierarchical(), x[:1])
    noise = bnn.likelihoods.Precision()
    bnn.likelihoods.gaussian(lambda x: net(x)[:, 0], y, x=x, noise=noise)


def rows():
    x = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)
    return x, x[:, 0]


centered = bnn.parameterize(network, "centered")


def moves():
    rescaling = UnitRescaling("net/Dense_0.kernel", "net/Dense_1.kernel", ["net/Dense_0.bias"])
    return [RidgeScaling(), PrecisionRedraw(), rescaling]


def mixed():
    inner = (catalogue.make("BAOAB svrg", test_contract.hierarchical), ["weights", "scale"])
    return Gibbs([(CustomGibbs(test_contract.draw_precision), ["precision"]), inner])


# Kernel, and the arguments of its model.
COMPOSED = {
    "HMC": (lambda: HMC(network), rows),
    "NUTS": (lambda: NUTS(network), rows),
    "NUTS of all likelihoods in chunks": (lambda: NUTS(bnn.chunked.Chunked(network, 2)), rows),
    "Neal's Gibbs": (lambda: bnn.neal(network), rows),
    "Neal's Gibbs, NUTS": (lambda: bnn.neal(network, NUTS), rows),
    "Gibbs of minibatches": (mixed, catalogue.data),
    "moves": (lambda: Interleaved(HMC(centered), moves()), rows),
    "moves after Gibbs": (lambda: Interleaved(bnn.neal(network), moves()), rows),
    "tempering by HMC": (lambda: bnn.ParallelTempering(network, num_rungs=3), rows),
    "tempering by NUTS": (lambda: bnn.ParallelTempering(network, NUTS, num_rungs=3), rows),
    "tempering by MAMS": (lambda: bnn.ParallelTempering(network, bnn.MAMS, num_rungs=3), rows),
}
KERNELS = COMPOSED | {
    name: (lambda name=name: catalogue.make(name), catalogue.data) for name in catalogue.SAMPLERS
}


@pytest.fixture(autouse=True)
def conditions_on_one_operand(monkeypatch):
    """NumPyro gives both branches of a condition the same state, which looks like a key used twice."""

    def cond(flag, true_operand, true_fun, false_operand, false_fun):
        return jax.lax.cond(flag, lambda: true_fun(true_operand), lambda: false_fun(false_operand))

    for module in ("gibbs", "hmc", "hmc_util"):
        monkeypatch.setattr(importlib.import_module(f"numpyro.infer.{module}"), "cond", cond)


def check(kernel, arguments, init=None):
    """Trace two steps, the first one of warm-up."""
    if init is None:
        # NumPyro itself looks for starts with keys that it has used.
        init = not isinstance(kernel, (HMC, Gibbs, Interleaved))

    def begin(key):
        return kernel.init(key, 1, None, arguments, {})

    def run(state):
        state = begin(state) if init else state
        for _ in range(2):
            state = kernel.sample(state, arguments, {})
        return state

    key = jax.random.key(0)
    checker.check_key_reuse(run, key if init else jax.eval_shape(begin, key))


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_uses_a_key_twice(name):
    make, arguments = KERNELS[name]
    check(make(), arguments())
