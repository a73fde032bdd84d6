"""Indices that a table of the model does not have: groups never seen, embeddings, codes of missing values."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn.potential.known_indices import refuse_unknown_indices
from numpyro_bnn.potential.structure import structure_of

GROUPS = np.array([0, 1, 2, 3, 4, 0, 1, 2], np.int32)
Y = np.linspace(-1, 1, 8).astype(np.float32)


def observe(f, y):
    with numpyro.plate("data", len(f)):
        numpyro.sample("y", dist.Normal(f, 1.0), obs=y)


def intercepts(x, y=None):
    with numpyro.plate("groups", 5):
        b = numpyro.sample("b", dist.Normal())
    observe(b[x], y)


def of_a_table(x, y=None):
    b = numpyro.sample("b", dist.Normal().expand([5]).to_event(1))
    observe(b[x[:, 1].astype(int)] + x[:, 0], y)


def embedded(x, y=None):
    net = bnn.random_module("net", nn.Embed(5, 1), bnn.priors.Normal(1.0), x[:1])
    observe(net(x)[:, 0], y)


def hours(x, y=None):
    b = numpyro.sample("b", dist.Normal().expand([25]).to_event(1))
    observe(b[x + 12], y)


def exposure(x, y=None):
    b = numpyro.sample("b", dist.Normal().expand([5]).to_event(1))
    observe(b[x["group"]] * jnp.log1p(x["count"]), y)


def table(groups):
    return np.stack([np.full(len(groups), 0.5), groups], 1).astype(np.float32)


MODELS = {
    "intercepts": (intercepts, lambda g: g, "x"),
    "a column": (of_a_table, table, "column 1 of x"),
    "an embedding": (embedded, lambda g: g, "x"),
}


def check(model, *args):
    refuse_unknown_indices("", model, structure_of(model, args, {}), args, {})


DRAWS = {"b": np.zeros((1, 2, 5)), "net/embedding": np.zeros((1, 2, 5, 1))}


@pytest.mark.parametrize("index", [5, -1, 2**20])
@pytest.mark.parametrize("name", MODELS)
def test_an_unknown_index_is_refused(name, index):
    model, given, label = MODELS[name]
    bad = GROUPS.copy()
    bad[3] = index
    draws = {n: v for n, v in DRAWS.items() if (n == "b") == (name != "an embedding")}
    message = rf"{label} has the value {index} in row 3, .* table of 5 entries, 0 to 4"
    with pytest.raises(ValueError, match=message):
        bnn.predict(model, draws, given(bad))
    run = bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match=message):
        run.run(jax.random.key(0), given(bad), Y)
    with pytest.raises(ValueError, match=message):
        bnn.diagnose(bnn.Draws(draws, model), given(bad))


@pytest.mark.parametrize("name", MODELS)
def test_known_indices_are_taken(name):
    model, given, _ = MODELS[name]
    check(model, given(GROUPS), Y)


def test_numbers_that_are_no_indices_are_taken_however_large():
    check(exposure, {"group": GROUPS, "count": GROUPS + 2**20}, Y)
    check(exposure, {"group": GROUPS, "count": table(GROUPS)[:, 1] * -7}, Y)


def decades(x, y=None):
    b = numpyro.sample("b", dist.Normal().expand([5]).to_event(1))
    observe(b[jnp.floor(x / 10).astype(int)], y)


def from_one(x, y=None):
    b = numpyro.sample("b", dist.Normal().expand([5]).to_event(1))
    observe(b[x[:, 1].astype(int) - 1] + x[:, 0], y)


@pytest.mark.parametrize(
    ("model", "good", "bad", "index"),
    [
        (decades, [0.5, 49.9], [0.5, 63.2], 6),
        (decades, [0.0, 49.0], [-12.0, 3.0], -12),
        (from_one, table([1, 5]), table([5, 0]), -1),
        (from_one, table([1, 5]), table([6, 2]), 5),
    ],
)
def test_an_index_that_is_computed_is_inside_its_table(model, good, bad, index):
    """JAX 0.7 to 0.12 takes the last entry for each of these."""
    check(model, np.float32(good), Y[:2])
    with pytest.raises(ValueError, match=rf"(is|value) {index}\b.* 5 entries"):
        check(model, np.float32(bad), Y[:2])


def test_an_offset_makes_negative_numbers_indices_from_zero():
    check(hours, GROUPS - 12, Y)
    with pytest.raises(ValueError, match=r"value -13 in row 0.* 25 entries"):
        check(hours, GROUPS - 13, Y)
