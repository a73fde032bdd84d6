"""Facts of a run: equal in every process for the same run, different where draws would be."""

import functools
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn
from numpyro.infer import HMC, NUTS

import numpyro_bnn as bnn
from numpyro_bnn import gradients, priors, schedules
from numpyro_bnn.storage.run_identity import describe, difference, digest

SCALE = 1.0


class Net(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.width)(x)))


class Other(nn.Module):
    width: int = 3

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.relu(nn.Dense(self.width)(x)))


def make(module=Net, width=3, scale=0.5, power=1):
    def model(x, y=None):
        net = bnn.random_module("net", module(width), priors.Normal(scale * SCALE), x[:1])
        bnn.likelihoods.gaussian(lambda x: net(x)[:, 0] ** power, y, x=x, noise=1.0)

    return model


MAKES = {
    "model": lambda: NUTS(make()),
    "width": lambda: NUTS(make(width=4)),
    "scale": lambda: NUTS(make(scale=0.6)),
    "activation": lambda: NUTS(make(module=Other)),
    "partial": lambda: NUTS(functools.partial(make(), y=None)),
    "ready": lambda: NUTS(bnn.regression(bnn.MLP([4], 1), priors.Normal(1.0))),
    "ready wider": lambda: NUTS(bnn.regression(bnn.MLP([5], 1), priors.Normal(1.0))),
    "prior": lambda: NUTS(bnn.regression(bnn.MLP([4], 1), priors.Normal(1.1))),
    "method": lambda: HMC(make()),
    "depth": lambda: NUTS(make(), max_tree_depth=3),
    "SGLD": lambda: bnn.SGLD(make(), step_size=0.1, batch_size=4),
    "step": lambda: bnn.SGLD(make(), step_size=0.2, batch_size=4),
    "batch": lambda: bnn.SGLD(make(), step_size=0.1, batch_size=5),
    "order": lambda: bnn.SGLD(make(), step_size=0.1, gradient=gradients.minibatch(4, "blocks")),
    "schedule": lambda: bnn.SGLD(make(), step_size=schedules.polynomial(0.1, 1.0, 0.6)),
    "decay": lambda: bnn.SGLD(make(), step_size=schedules.polynomial(0.1, 1.0, 0.7)),
    "optax": lambda: bnn.SGLD(make(), step_size=optax.linear_schedule(0.1, 0.0, 9)),
    "optax longer": lambda: bnn.SGLD(make(), step_size=optax.linear_schedule(0.1, 0.0, 10)),
    "cold": lambda: bnn.SGLD(make(), step_size=0.1, batch_size=4, temperature=0.5),
    "Gibbs inside": lambda: bnn.BAOAB(make(), step_size=0.1, friction=2.0),
    "friction": lambda: bnn.BAOAB(make(), step_size=0.1, friction=3.0),
}


def test_the_same_maker_gives_the_same_facts_and_no_two_makers_do():
    facts = {name: describe("kernel", made()) for name, made in MAKES.items()}
    for name, made in MAKES.items():
        assert not difference(facts[name], describe("kernel", made()))
        for other in facts:
            assert other == name or difference(facts[name], facts[other]), (name, other)


def test_what_a_kernel_learned_is_no_fact():
    kernel = NUTS(bnn.regression(bnn.MLP([4], 1), priors.Normal(1.0)))
    before = describe("kernel", kernel)
    x = np.ones((5, 2))
    kernel.model.learn(x, np.arange(5.0))
    jax.eval_shape(
        lambda key: kernel.init(key, 3, None, (x, np.arange(5.0)), {}), jax.random.key(0)
    )
    assert not difference(before, describe("kernel", kernel))


def test_constants_of_the_file_are_facts(monkeypatch):
    before = describe("kernel", MAKES["model"]())
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    words = difference(before, describe("kernel", MAKES["model"]()))
    assert words == "kernel.model.SCALE: there 1.0, here 2.0"


def test_other_processes_agree():
    program = (
        "import test_run_identity as t; from numpyro_bnn.storage.run_identity import describe;"
        "print(sorted((n, k, v) for n, m in t.MAKES.items() for k, v in describe('', m()).items()))"
    )
    said = set()
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=__file__.rpartition("/")[0],
        )
        said.add(ran.stdout)
    assert len(said) == 1
    assert " at 0x" not in said.pop()


def test_arrays_are_told_apart_by_every_value_and_type(monkeypatch):
    monkeypatch.setattr("numpyro_bnn.storage.run_identity._BLOCK", 16)  # a block is one row
    values = np.arange(12.0).reshape(6, 2)
    assert digest(values) == digest(values.copy(order="F"))
    changed = values.copy()
    changed[5, 1] = np.nextafter(11.0, 12.0)
    found = [values, changed, values.astype(np.float32), values.reshape(2, 6), values[:0]]
    assert len({digest(v) for v in found}) == len(found)
    with pytest.raises(TypeError, match=r"array of Python objects, shape \(2,\)"):
        digest(np.array([{}, []], dtype=object))


def test_a_difference_names_what_it_can():
    before = {str(i): "a" for i in range(12)}
    assert difference(before, before) == ""
    words = difference(before, {})
    assert words.startswith("0: there a, here absent; 1:")
    assert words.endswith("and 4 more")
