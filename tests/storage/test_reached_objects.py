"""Objects that a model reaches: which values count, which the model changes itself."""

import itertools
import logging
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn.samplers.gibbs.interleaved import Interleaved
from numpyro_bnn.samplers.gibbs.moves import RidgeScaling
from numpyro_bnn.storage.changed_by_model import ChangesByModel
from numpyro_bnn.storage.run_identity import describe, describe_all, difference, differing


@pytest.mark.parametrize(
    "thing",
    [threading.Lock(), logging.getLogger("x"), (i for i in range(3)), sys.stdout, memoryview(b"x")],
    ids=lambda thing: type(thing).__name__,
)
def test_what_has_no_value_is_named(thing):
    def model(x):
        return thing, STORE

    found = describe_all({"kernel.model": model})
    (path,) = found.unknown
    assert path == "kernel.model.thing"
    assert f"is a {type(thing).__qualname__}, which has no value to compare" in found.unknown[path]


STORE = {}


COUNTER = itertools.count()


CALLS = 0


SETTINGS = {"width": 3, "calls": 0}


class Counting:
    def __init__(self):
        self.calls, self.width = 0, 3

    def __call__(self, x):
        self.calls += 1
        return x


def caching(x):
    STORE.setdefault(("shape", x.shape), SETTINGS)
    return SETTINGS["width"]


def counting(x):
    global CALLS
    CALLS += 1
    SETTINGS["calls"] += 1
    return next(COUNTER)


def closed():
    calls, noise = 0, np.random.default_rng(0)

    def model(x):
        nonlocal calls
        calls += 1
        return noise.normal()

    return model


def keeping(x):
    keeping.last = x
    return x


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: caching, {"m.STORE"}),
        (lambda: counting, {"m.CALLS", "m.SETTINGS.calls", "m.COUNTER.made from.0"}),
        (closed, {"m.calls", "m.noise"}),
        (Counting, {"m.calls"}),
        (lambda: keeping, set()),
    ],
)
def test_what_the_model_changes_is_left_out_and_nothing_else(make, names, monkeypatch):
    monkeypatch.setitem(globals(), "STORE", {})
    model = make()

    def told(calls, left_out=()):
        watched = ChangesByModel({"m": model})
        for _ in range(calls):
            jax.eval_shape(model, jnp.zeros(3))
        return watched.after(left_out)

    once = told(1)
    assert {name.partition(".made")[0].partition(".state")[0] for name in once.unknown} == {
        name.partition(".made")[0] for name in names
    }
    again = told(3, list(once.unknown))
    assert not differing(once.facts, again.facts)
    if make not in (closed, Counting) and "SETTINGS" in model.__code__.co_names:
        monkeypatch.setitem(SETTINGS, "width", 4)
        assert "m.SETTINGS.width" in differing(once.facts, told(1, list(once.unknown)).facts)


def scaled(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, SETTINGS["width"]))
    SETTINGS["calls"] += 1
    logging.getLogger("user").debug("called")
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


KERNELS = {
    "NUTS": NUTS,
    "SGLD": lambda model: bnn.SGLD(model, step_size=0.1),
    "ParallelTempering": lambda model: bnn.ParallelTempering(model, num_rungs=2),
    "Gibbs": bnn.neal,
    "moves": lambda model: Interleaved(NUTS(model), [RidgeScaling()]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_shows_its_model(name, monkeypatch):
    before = describe("kernel", KERNELS[name](scaled))
    monkeypatch.setitem(SETTINGS, "width", 4)
    words = difference(before, describe("kernel", KERNELS[name](scaled)))
    assert "SETTINGS.width: there 3, here 4" in words
