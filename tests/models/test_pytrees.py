"""Equinox modules and other pytrees with a call, against the same networks in Flax and against themselves."""

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import nets
import numpy as np
import pytest
from flax import linen as nn
from numpyro import handlers
from numpyro.infer.util import log_density
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn.potential import starts
from numpyro_bnn.potential.structure import structure_of
from numpyro_bnn.priors.paths import fan_in, source_axis

KEY = jax.random.key(0)
NORMAL = bnn.priors.Normal(0.5)
X = nets.inputs("rows", 6)
Y = jnp.asarray(np.linspace(-1.0, 1.0, 6), jnp.float32)


def filled(make):
    """A module with made-up arrays: one that draws its own compiles a program for each."""
    rng = np.random.default_rng(4)

    def array(leaf):
        shaped = isinstance(leaf, jax.ShapeDtypeStruct)
        return jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype) if shaped else leaf

    return jax.tree.map(array, eqx.filter_eval_shape(make))


def drawn(make, **values):
    """A network and its sites, of values that are given: those that are drawn compile a program each."""
    with handlers.seed(rng_seed=0), handlers.substitute(data=values), handlers.trace() as sites:
        return make(), sites


class FlaxLinear(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, name="linear")(x)


class EquinoxLinear(eqx.Module):
    linear: eqx.nn.Linear

    def __init__(self):
        self.linear = eqx.nn.Linear(3, 2, key=KEY)

    def __call__(self, row):
        return self.linear(row)


HIERARCHY = bnn.priors.Hierarchical
PRIORS = {
    "Normal": NORMAL,
    "FanIn": bnn.priors.FanIn(2.0),
    "StudentT": bnn.priors.StudentT(4.0, 0.3),
    "Laplace": bnn.priors.Laplace(0.4),
    "Horseshoe": bnn.priors.Horseshoe(0.2),
    "Hierarchical": HIERARCHY(2.0, 0.5),
    "by layer": HIERARCHY(2.0, 0.5, groups="layer"),
    "by unit": HIERARCHY.width(0.3, group=2.0, unit=3.0, scale_by_fan_in=True),
    "by unit, centred": HIERARCHY.width(0.3, group=2.0, unit=3.0, parameterization="centered"),
    "by unit, collapsed": HIERARCHY.width(0.3, group=2.0, unit=3.0, parameterization="collapsed"),
    "by weight": HIERARCHY.width(0.3, group=2.0, weight=3.0, scale_by_fan_in=True),
    "ByPath": bnn.priors.ByPath({"*.bias": NORMAL, "layer[0].*": bnn.priors.FanIn()}),
    "a function": lambda path, shape: bnn.priors.FanIn(0.7)(path, shape),
}


def translated(values):
    """Sites of the Flax network as those of the Equinox one: kernels transposed."""
    named = {site.replace("kernel", "weight"): value for site, value in values.items()}
    return {site: v.T if jnp.ndim(v) == 2 else v for site, v in named.items()}


@pytest.mark.parametrize("name", PRIORS)
def test_a_linear_model_has_the_density_of_the_same_one_in_flax(name):
    prior = PRIORS[name]

    flax = network_model(FlaxLinear(), prior, noise=0.5)

    def equinox(x, y):
        net = bnn.random_module("net", EquinoxLinear(), prior, x[0])
        bnn.likelihoods.gaussian(jax.vmap(net), y, x=x, noise=0.5)

    y = np.stack([Y, np.square(Y)], 1)
    shapes = {n: s for n, s in structure_of(flax, (X, y), {}).sites.items() if not s.observed}
    rng = np.random.default_rng(2)
    values = {n: rng.gamma(2.0, 0.5, s.shape).astype(np.float32) for n, s in shapes.items()}

    @jax.jit
    def both(*values):
        return [
            log_density(model, (X, y), {}, given)[0]
            for model, given in zip((flax, equinox), values)
        ]

    theirs, ours = both(values, translated(values))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    site = structure_of(equinox, (X, y), {}).sites.get("net/linear.weight.unit_precision.base")
    assert site is None or site.shape == (3,)


class Layers(eqx.Module):
    conv: eqx.nn.Conv2d
    transposed: eqx.nn.ConvTranspose1d
    gru: eqx.nn.GRUCell
    table: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    each: dict
    matrix: Any

    def __init__(self):
        self.conv = eqx.nn.Conv2d(4, 6, (3, 2), groups=2, key=KEY)
        self.transposed = eqx.nn.ConvTranspose1d(2, 5, 3, key=KEY)
        self.gru = eqx.nn.GRUCell(2, 3, key=KEY)
        self.table = eqx.nn.Embedding(5, 4, key=KEY)
        self.attention = eqx.nn.MultiheadAttention(2, 4, output_size=6, key=KEY)
        self.norm = eqx.nn.LayerNorm((2, 3))
        self.each = {"first": eqx.nn.Linear(7, 2, key=KEY)}
        self.matrix = jnp.ones((2, 3))

    def __call__(self, row):
        return row


def test_fan_in_and_source_axis_of_each_layer_of_equinox():
    expected = {
        "conv.weight": (2 * 3 * 2, 1),
        "conv.bias": (1, None),
        "transposed.weight": (2 * 3, 1),
        "gru.weight_ih": (2, 1),
        "gru.weight_hh": (3, 1),
        "table.weight": (1, None),
        "attention.query_proj.weight": (4, 1),
        "attention.output_proj.weight": (4, 1),
        "norm.weight": (1, None),
        "each.first.weight": (7, 1),
        "each.first.bias": (1, None),
    }
    layers = filled(Layers)
    shapes = nets.shapes_of(layers)
    found = {p: (fan_in(p, shapes[p]), source_axis(p, shapes[p])) for p in expected}
    assert found == expected
    with pytest.raises(
        ValueError, match=r"prior of 'matrix' goes by fan-in .* and Layers does not"
    ):
        fan_in("matrix", shapes["matrix"])
    with pytest.raises(ValueError, match=r"shape \(2, 3\) an output sums. Say it in the class"):
        nets.shapes_of(layers, prior=bnn.priors.FanIn())


@jax.tree_util.register_dataclass
@dataclass
class Features:
    """A plain class: tanh features, columns by number, and a setting that is no array."""

    weight: Any
    columns: Any
    shift: Any
    input_axes: ClassVar = {"weight": 0}

    def __call__(self, row):
        return jnp.tanh(row[self.columns] @ self.weight) + self.shift["by"]


def features():
    weight = jnp.asarray(np.arange(6.0).reshape(2, 3) / 3, jnp.float32)
    shift = jnp.asarray(np.float32(0.5))
    return Features(weight, jnp.asarray(np.array([2, 0])), {"by": shift, "unused": "text"})


@jax.tree_util.register_pytree_node_class
class Unnamed:
    """A class registered without names for its parts."""

    input_axes: ClassVar = {"0": (1,)}

    def __init__(self, weight):
        self.weight = weight

    def tree_flatten(self):
        return (self.weight,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    def __call__(self, row):
        return self.weight @ row


def test_a_dataclass_with_a_call_is_a_network():
    module = features()
    shapes = nets.shapes_of(module, prior=bnn.priors.FanIn())
    assert shapes == {"weight": (2, 3), "shift.by": ()}
    assert (fan_in("weight", shapes["weight"]), source_axis("weight", shapes["weight"])) == (2, 0)
    weight, shift = np.array([[0.3, -1.0, 0.2], [0.5, 0.1, -0.4]], np.float32), np.float32(0.7)
    given = {"net/weight": weight, "net/shift.by": shift}
    net, sites = drawn(lambda: bnn.random_module("net", module, NORMAL), **given)
    assert {name for name, site in sites.items() if site["type"] == "sample"} == given.keys()
    expected = np.tanh(np.asarray(X)[:, [2, 0]] @ weight) + shift
    np.testing.assert_allclose(jax.jit(jax.vmap(net))(X), expected, rtol=1e-5)
    np.testing.assert_array_equal(net.params["columns"], [2, 0])
    unnamed = nets.shapes_of(Unnamed(jnp.ones((4, 3))))
    assert (fan_in("0", unnamed["0"]), source_axis("0", unnamed["0"])) == (3, 1)


def mlp(width=4):
    return filled(lambda: eqx.nn.MLP(3, 1, width, 1, jnp.tanh, key=KEY))


def test_draws_become_modules_and_modules_starts():
    module = features()
    start = bnn.from_params(module, num_chains=2)
    assert {n: v.shape for n, v in start.items()} == {"net/weight": (2, 2, 3), "net/shift.by": (2,)}
    tree = bnn.to_params(start, params=module)
    assert isinstance(tree, Features)
    assert tree.columns.shape == (2, 2)
    assert tree.shift["unused"] == "text"
    nested = bnn.to_params(bnn.from_params(mlp()))
    np.testing.assert_array_equal(nested["layers"][0]["weight"], mlp().layers[0].weight)
    assert bnn.from_params(nested).keys() == bnn.from_params(mlp()).keys()
    again = bnn.to_params(bnn.from_params(mlp()), params=mlp())
    found, own = jax.jit(lambda x: (jax.vmap(again)(x), jax.vmap(mlp())(x)))(X)
    np.testing.assert_allclose(found, own, rtol=1e-6)
    # A trained module is a prior's centre, and gives values to what is not random.
    around = bnn.priors.pretrained(mlp(), 0.1)
    partly = bnn.priors.ByPath({"layers.1.*": around, "*": None})
    given = {"net/layers.1.weight": np.ones((1, 4)), "net/layers.1.bias": np.ones(1)}
    net, sites = drawn(lambda: bnn.random_module("net", mlp(), partly), **given)
    assert sites.keys() == {"net/layers.1.weight", "net/layers.1.bias"}
    np.testing.assert_array_equal(net.params["layers"][0]["weight"], mlp().layers[0].weight)
    np.testing.assert_array_equal(
        sites["net/layers.1.weight"]["fn"].base_dist.loc, mlp().layers[1].weight
    )


def model(x, y=None):
    net = bnn.random_module("net", mlp(), bnn.priors.FanIn(), x[0])
    bnn.likelihoods.gaussian(jax.vmap(lambda row: net(row)[0]), y, x=x, noise=0.1)


def test_starts_are_scaled_by_the_fan_in_of_the_layer():
    """From a prior far too wide, each kernel is shrunk to variance 1/in, not 1/out."""

    def wide(x, y=None):
        net = bnn.random_module("net", mlp(400), bnn.priors.Normal(50.0))
        bnn.likelihoods.gaussian(jax.vmap(lambda row: net(row)[0]), y, x=x, noise=0.1)

    z = starts.gentle_draw(bnn.potential_of(wide, X, Y), KEY)
    spread = {n: float(jnp.sqrt(jnp.mean(v**2))) for n, v in z.items() if jnp.ndim(v) > 1}
    np.testing.assert_allclose(spread["net/layers.0.weight"], 3**-0.5, rtol=1e-4)
    np.testing.assert_allclose(spread["net/layers.1.weight"], 400**-0.5, rtol=1e-4)


def test_describe_and_call_order():
    table = bnn.describe(model, X, Y)
    rows = {row.site: (row.layer, row.shape) for row in table.rows}
    assert rows["net/layers.0.weight"] == (0, (4, 3))
    assert rows["net/layers.1.bias"] == (1, (1,))
    assert "Normal(loc=0.0, scale=0.5)" in str(table)  # 1/4, of the 4 inputs of the second layer


def test_a_ready_model_maps_the_module_over_rows():
    flax, equinox = (
        bnn.regression(module, NORMAL, X, Y, noise=0.3) for module in (bnn.MLP((4,), 1), mlp())
    )
    rng = np.random.default_rng(5)
    draws = {
        f"net/Dense_{i}.{part}": rng.normal(size=(2, 3, *shape)).astype(np.float32)
        for i, widths in enumerate(((3, 4), (4, 1)))
        for part, shape in (("kernel", widths), ("bias", widths[1:]))
    }
    moved = {
        site.replace("Dense_", "layers.").replace("kernel", "weight"): (
            np.swapaxes(v, -1, -2) if v.ndim == 4 else v
        )
        for site, v in draws.items()
    }
    expected = bnn.predict(flax, draws, X).mean
    np.testing.assert_allclose(bnn.predict(equinox, moved, X).mean, expected, atol=1e-5)
    # With the nameless function that Equinox has as its final activation.
    again = pickle.loads(pickle.dumps(equinox))
    np.testing.assert_allclose(bnn.predict(again, moved, X).mean, expected, atol=1e-5)


def test_the_output_layer_is_integrated_out_and_found_by_laplace():
    ready = bnn.regression(mlp(), NORMAL, X, Y, noise=0.3, integrate_output=True)
    latent = structure_of(ready, (X, Y), {}).latent
    assert latent == ["net/layers.0.weight", "net/layers.0.bias"]
    plain = bnn.regression(mlp(), NORMAL, noise=0.3)
    mode = bnn.Draws({n: v[None, None] for n, v in bnn.from_params(mlp()).items()}, plain)
    settings = {"mode": mode, "num_samples": 2, "num_steps": 0, "progress_bar": False}
    with pytest.warns(UserWarning, match="laplace: the mode was not reached"):
        draws = bnn.laplace(plain, KEY, X, Y, subset="last_layer", **settings)
    assert draws.info["random"] == ["net/layers.1.weight", "net/layers.1.bias"]
    with pytest.raises(
        ValueError, match=r"which layer is the last cannot be told\. Name its sites"
    ):
        bnn.laplace(model, KEY, X, Y, subset="last_layer", **settings)


def test_an_equal_call_compiles_nothing():
    draws = {n: v[None, None] for n, v in bnn.from_params(mlp()).items()}
    first = bnn.predict(bnn.regression(mlp(), NORMAL, X, Y, noise=0.3), draws, X).mean
    with nets.compilations() as found:
        second = bnn.predict(bnn.regression(mlp(), NORMAL, X, Y, noise=0.3), draws, X).mean
    assert not [text for text in found if "over_draws" in text]
    np.testing.assert_array_equal(first, second)


def test_a_nameless_function_of_ones_own_is_not_pickled():
    ready = bnn.regression(eqx.nn.MLP(3, 1, 4, 1, lambda x: x, key=KEY), NORMAL)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(ready)


class Normalised(eqx.Module):
    norm: eqx.nn.BatchNorm

    def __init__(self):
        self.norm = eqx.nn.BatchNorm(3, "rows", mode="batch")

    def __call__(self, row, state):
        return self.norm(row, state)


class Dropped(eqx.Module):
    layer: eqx.nn.Linear
    drop: eqx.nn.Dropout

    def __init__(self):
        self.layer, self.drop = eqx.nn.Linear(3, 5, key=KEY), eqx.nn.Dropout(0.5)

    def __call__(self, row):
        return self.drop(self.layer(row))


def test_dropout_is_the_identity():
    rng = np.random.default_rng(3)
    weight, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 3), (5,)))
    given = {"net/layer.weight": weight, "net/layer.bias": bias}
    net, _ = drawn(lambda: bnn.random_module("net", filled(Dropped), NORMAL), **given)
    np.testing.assert_allclose(jax.jit(net)(X[0]), weight @ np.asarray(X[0]) + bias, rtol=1e-5)


def test_what_is_refused():
    module = {"a.b": mlp()}

    def sample(module, **options):
        with handlers.seed(rng_seed=0):
            return bnn.random_module("net", module, NORMAL, **options)

    with pytest.raises(
        ValueError, match="Normalised keeps a state from call to call, as BatchNorm"
    ):
        sample(Normalised())
    with pytest.raises(TypeError, match="`apply_rng` are for Flax modules only"):
        sample(mlp(), apply_rng="dropout")
    with pytest.raises(TypeError, match="or another pytree with a call, got <function"):
        sample(lambda x: x)
    with pytest.raises(ValueError, match=r"A part of the module is named 'a\.b'"):
        sample(jax.tree_util.Partial(lambda parts, x: x, module))
    with pytest.raises(ValueError, match="the module Partial has no parameters"):
        sample(jax.tree_util.Partial(lambda x: x, 1))

    class Wrong(Features):
        input_axes: ClassVar = {"weight": 2}

    jax.tree_util.register_dataclass(dataclass(Wrong))
    with pytest.raises(ValueError, match=r"Wrong.input_axes says 2 for 'weight', which has 2 axes"):
        sample(Wrong(jnp.ones((2, 3)), None, {}))
