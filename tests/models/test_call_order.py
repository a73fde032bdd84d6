"""The order in which layers are called, for every way to write a network; priors that go by it."""

import warnings

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import pytest
from flax import linen as nn
from flax import nnx
from numpyro.handlers import seed, substitute, trace

import numpyro_bnn as bnn
from numpyro_bnn.models.networks import NNX, Linen, call_order
from numpyro_bnn.priors import independent

X = jnp.ones((2, 3))
P = bnn.priors


class Nested(nn.Module):
    """Flax numbers the outer layer first."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.LayerNorm()(nn.Dense(4)(x)[:, None] + nn.Embed(5, 4)(jnp.arange(3)[None]))
        return nn.Dense(1)(nn.MultiHeadDotProductAttention(2)(h, h).mean(1))


class Looped(nn.Module):
    """A recurrent layer, a layer called twice, and one that is not called."""

    def setup(self):
        self.last = nn.Dense(3)
        self.unused = nn.Dense(2)
        self.cell = nn.RNN(nn.SimpleCell(3))

    def __call__(self, x):
        h = self.cell(jnp.stack([x, x], 1))[:, -1]
        if self.is_initializing():
            self.unused(x)
        return self.last(nn.relu(self.last(h)))


class Branches(nn.Module):
    """Two layers that the data enter."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="out")(nn.Dense(2, name="a")(x) * nn.Dense(2, name="b")(x))


class Backwards(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.a_last = nnx.Linear(4, 1, rngs=rngs)
        self.b_first = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        return self.a_last(jnp.tanh(self.b_first(x)))


ORDERS = {
    "nested": (Nested(), ("Dense_1", "Dense_0"), {"Dense_1"}),
    "one layer": (nn.Dense(2), ("",), {""}),
    "a list": (nets.SetupMLP(), ("layers_0", "layers_1"), {"layers_0"}),
    "shared": (nets.Shared(), ("Dense_0",), {"Dense_0"}),
    "branches": (Branches(), ("a", "b", "out"), {"a", "b"}),
    "nnx": (Backwards(), ("b_first", "a_last"), {"b_first"}),
    "attention": (
        Attention(),
        (
            *("Dense_0", "Embed_0", "LayerNorm_0"),
            *(
                f"MultiHeadDotProductAttention_0.{part}"
                for part in ("query", "key", "value", "out")
            ),
            "Dense_1",
        ),
        {"Dense_0"},
    ),
}


def order_of(module, x=X):
    is_linen = isinstance(module, nn.Module)
    network = Linen(module, None, (), (x,), {}) if is_linen else NNX(module, None, ())
    return call_order(network.apply, network.leaves, (x,), {})


@pytest.mark.parametrize("name", ORDERS)
def test_layers_are_in_the_order_of_their_calls(name):
    module, layers, from_data = ORDERS[name]
    found = order_of(module)
    assert found.layers == layers
    assert found.from_data == from_data
    assert found.not_called == ()


def test_convolutions_and_norms():
    found = order_of(nets.Conv(), jnp.ones((2, 6, 4, 1)))
    assert found.layers == ("Conv_0", "GroupNorm_0", "LayerNorm_0", "Dense_0")


def test_loops_and_layers_that_are_not_called():
    found = order_of(Looped())
    assert found.layers[0].split(".")[0] == "cell"
    assert found.layers[-1] == "last"
    assert found.not_called == ("unused",)


def sites(prior, module=None, *inputs):
    def model():
        bnn.random_module("net", module or Nested(), prior, *(inputs or (X,)))

    def one(site):
        """Ones everywhere: what is drawn compiles a program for each shape."""
        return np.ones(site["fn"].shape(), np.float32) if site["type"] == "sample" else None

    found = trace(substitute(seed(model, 0), substitute_fn=one)).get_trace()
    return {name: site for name, site in found.items() if site["type"] == "sample"}


def test_patterns_by_call_order():
    rules = {"layer[0].kernel": P.Normal(2.0), "layer[-1].*": P.Normal(3.0), "*": P.Normal(1.0)}
    scales = {
        name: float(site["fn"].base_dist.base_dist.scale)
        for name, site in sites(P.ByPath(rules)).items()
    }
    assert scales == {
        "net/Dense_1.kernel": 2.0,
        "net/Dense_0.kernel": 3.0,
        "net/Dense_0.bias": 3.0,
        "net/Dense_1.bias": 1.0,
    }


def test_patterns_inside_patterns_know_the_order():
    inner = P.ByPath({"layer[0].kernel": P.Normal(2.0), "*": P.Normal(1.0)})
    found = sites(P.ByPath({"*.kernel": inner, "*": P.Normal(4.0)}))
    assert float(found["net/Dense_1.kernel"]["fn"].base_dist.base_dist.scale) == 2.0


def test_finding_the_order_uses_up_no_random_key():
    class Noisy(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.Dropout(0.5, deterministic=False)(nn.Dense(4)(x)))

    def drawn(pattern):
        def model():
            prior = P.ByPath({pattern: P.Normal(1.0), "*": P.Normal(1.0)})
            bnn.random_module("net", Noisy(), prior, X, apply_rng="dropout")
            numpyro.sample("after", numpyro.distributions.Normal(0.0, 1.0))

        return jax.jit(lambda: trace(seed(model, 0)).get_trace()["after"]["value"])()

    assert drawn("layer[0].kernel") == drawn("Dense_0.kernel")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (
            "layer[7].kernel",
            r"not there; the network calls 2: layer\[0\] is 'Dense_1', layer\[1\] is 'Dense_0'",
        ),
        ("layer[0].weight", "matches no parameter; correct or drop it"),
    ],
)
def test_patterns_that_ask_for_nothing_are_refused(pattern, text):
    with pytest.raises(ValueError, match=text):
        sites(P.ByPath({pattern: P.Normal(), "*": P.Normal()}), None, X)


def test_the_order_needs_an_example():
    prior = P.ByPath({"layer[0].kernel": P.Normal(), "*": P.Normal()})
    with pytest.raises(ValueError, match=r"needs an example input. Give it after the prior"):
        trace(seed(lambda: bnn.random_module("net", Backwards(), prior), 0)).get_trace()
    with pytest.raises(ValueError, match="which a path alone does not tell"):
        prior("Dense_0.kernel", (3, 8))


UNITS = P.Hierarchical.width(0.2, group=0.5, unit=1.0)


@pytest.mark.parametrize(
    ("pattern", "module", "warned"),
    [
        ("Dense_0.kernel", Nested(), True),
        ("Dense_1.kernel", Nested(), False),
        ("*.kernel", Nested(), False),
        ("layer[1].kernel", Nested(), False),
        ("Dense_0.bias", Nested(), False),
        ("out.kernel", Branches(), True),
        ("b.kernel", Branches(), False),
        ("a_last.kernel", Backwards(), True),
    ],
)
def test_precisions_by_unit_beyond_the_data_are_warned_of_once(
    pattern, module, warned, monkeypatch
):
    monkeypatch.setattr(independent, "_WARNED", set())
    prior = P.ByPath({pattern: UNITS, "*": P.Normal()})
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            jax.eval_shape(lambda: {n: s["value"] for n, s in sites(prior, module).items()})
    assert len(heard) == warned
    if warned:
        text = str(heard[0].message)
        assert repr(pattern) in text
        assert "is layer[" in text
        assert "the data enter" in text


def test_the_order_does_not_depend_on_the_values():
    """Nothing is computed: shapes are enough, whatever the size of the network."""
    assert order_of(nn.Dense(100_000), jnp.ones((1, 100_000))).layers == ("",)


def test_precisions_by_unit_of_all_layers_are_no_mistake(monkeypatch):
    monkeypatch.setattr(independent, "_WARNED", set())
    sites(P.ByPath({"Dense_0.kernel": UNITS, "Dense_1.kernel": UNITS, "*": P.Normal()}))
