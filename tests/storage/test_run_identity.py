"""Facts of a run: equal in every process for the same run, different where draws would be."""

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

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


# Sets, dicts with objects as keys, and objects that have each other.
GRAPH = """
import enum
class Kind(enum.Enum):
    A = 1
    B = 2
class Node:
    def __init__(self):
        self.near = set()
a, b = Node(), Node()
a.near.add(b)
b.near.add(a)
TABLE = {Kind.A: {"x", "y", "z"}, Node: [a, b], (1, "1"): a, 1: 1, "1": 2, a: b}
def model(x):
    return TABLE, {Kind.A, Kind.B}, Kind
"""


def said_here():
    """Facts of all kernels of this file, and of a model that reaches a graph of objects."""
    import user_graph

    found = [(n, k, v) for n, m in MAKES.items() for k, v in describe("", m()).items()]
    return [sorted(found), sorted(describe("m", user_graph.model).items())]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What two processes say whose sets have other orders: a child, and this one."""
    folder = tmp_path_factory.mktemp("graph")
    (folder / "user_graph.py").write_text(GRAPH)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    ran = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            "import test_run_identity as t; print(t.said_here())",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(path)},
        cwd=Path(__file__).parent,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return ast.literal_eval(ran.stdout), said_here()


def test_other_processes_agree(said):
    (there, _), (here, _) = said
    assert there == here
    assert " at 0x" not in str(here)


def test_every_process_says_the_same_of_a_graph_of_objects(said):
    (_, there), (_, here) = said
    assert there == here
    text = str(here)
    assert " at 0x" not in text
    assert "m.TABLE.1" in text
    assert "m.TABLE.str 1" in text


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
