"""Fan-in and source units of layers that are stacked, or that have several output axes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import pytest
from flax import linen as nn
from flax import nnx

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.priors.paths import fan_in, source_axis

X = np.ones((5, 4), np.float32)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return jnp.tanh(nn.Dense(4)(x)) * self.param("gain", nn.initializers.ones, (4,)), None


class Scanned(nn.Module):
    axis: int = 0

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            Block, variable_axes={"params": self.axis}, split_rngs={"params": True}, length=3
        )
        return nn.remat(nn.Dense)(2, name="out")(layers(name="deep")(x, None)[0])


def several(module):
    """Six copies of a module side by side, with parameters of their own."""
    return nn.vmap(
        module, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=6
    )


class Side(nn.Module):
    @nn.compact
    def __call__(self, x):
        return several(nn.Dense)(2, name="side")(x)


class Both(nn.Module):
    """A stack of stacks of layers."""

    @nn.compact
    def __call__(self, x):
        return several(Scanned)(name="side")(x)


class NamedBlock(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
        return jnp.tanh(nn.Dense(4, kernel_init=init)(x)), None


class NamedAxes(nn.Module):
    """A stack of layers whose axes have names, as large models have them."""

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            NamedBlock,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return layers(name="deep")(x, None)[0]


class Shared(nn.Module):
    @nn.compact
    def __call__(self, x):
        lifted = nn.vmap(nn.Dense, variable_axes={"params": None}, split_rngs={"params": False})
        return lifted(2, name="side")(x)


class General(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.DenseGeneral((2, 3), name="split")(x)
        return nn.DenseGeneral(5, axis=(-2, -1), name="join")(x)


class Einsum(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Einsum((2, 4, 3), "bi,hij->bhj", use_bias=False, name="heads")(x)


class Image(nn.Module):
    transposed: bool = False

    @nn.compact
    def __call__(self, x):
        x = x[:, None, :, None] * jnp.ones((1, 4, 1, 2))
        if self.transposed:
            return nn.ConvTranspose(5, (3, 3), transpose_kernel=True, name="conv")(x)
        return several(nn.Conv)(5, (3, 3), name="conv")(x)


class NNXBlock(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(4, 4, rngs=rngs)
        self.gain = nnx.Param(jnp.ones(4))
        self.mix = nnx.Param(jnp.ones((4, 2)))

    def __call__(self, x):
        return jnp.tanh(self.layer(x)) * self.gain[...] + (x @ self.mix[...]).sum(-1, keepdims=True)


class NNXScanned(nnx.Module):
    def __init__(self, rngs):
        make = nnx.split_rngs(splits=3)(nnx.vmap(NNXBlock, in_axes=(0,), out_axes=0))
        self.deep = make(rngs)
        self.out = nnx.Linear(4, 2, rngs=rngs)
        self.own = nnx.Param(jnp.ones((4, 2)))

    def __call__(self, x):
        forward = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        x = forward(x, self.deep)
        return self.out(x) + x @ self.own[...]


class NNXGeneral(nnx.Module):
    def __init__(self, rngs):
        self.split = nnx.LinearGeneral(4, (2, 3), rngs=rngs)
        self.join = nnx.LinearGeneral((2, 3), 5, axis=(-2, -1), rngs=rngs)
        self.heads = nnx.Einsum("bi,hij->bhj", (2, 5, 3), rngs=rngs)

    def __call__(self, x):
        return self.heads(self.join(self.split(x)))


# Fan-in and source axis of each kernel, counted by hand.
KNOWN = {
    "scan": (
        Scanned,
        {"deep.Dense_0.kernel": (4, 1), "deep.gain": (1, None), "out.kernel": (4, 0)},
    ),
    "scan along the middle": (
        lambda: Scanned(1),
        {"deep.Dense_0.kernel": (4, 0), "deep.gain": (1, None), "out.kernel": (4, 0)},
    ),
    "side by side": (Side, {"side.kernel": (4, 1)}),
    "a stack of stacks": (
        Both,
        {
            "side.deep.Dense_0.kernel": (4, 2),
            "side.deep.gain": (1, None),
            "side.out.kernel": (4, 1),
        },
    ),
    "named axes": (NamedAxes, {"deep.Dense_0.kernel": (4, 1)}),
    "shared": (Shared, {"side.kernel": (4, 0)}),
    "several outputs": (General, {"split.kernel": (4, 0), "join.kernel": (6, 1)}),
    "einsum": (Einsum, {"heads.kernel": (4, 1)}),
    "convolutions side by side": (Image, {"conv.kernel": (18, 3)}),
    "transposed kernel": (lambda: Image(True), {"conv.kernel": (18, 3)}),
    "nnx scan": (
        lambda: NNXScanned(nnx.Rngs(0)),
        {
            "deep.layer.kernel": (4, 1),
            "deep.gain": (1, None),
            "deep.mix": (4, 1),
            "out.kernel": (4, 0),
            "own": (4, 0),
        },
    ),
    "nnx several outputs": (
        lambda: NNXGeneral(nnx.Rngs(0)),
        {"split.kernel": (4, 0), "join.kernel": (6, 1), "heads.kernel": (5, 1)},
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_an_output_sums_over_the_inputs_of_its_own_layer(name):
    make, known = KNOWN[name]
    module = make()
    shapes = nets.shapes_of(module, *[X[:1]] * isinstance(module, nn.Module))
    found = {path: (fan_in(path, shapes[path]), source_axis(path, shapes[path])) for path in known}
    assert found == known
    assert all(
        (fan_in(path, s), source_axis(path, s)) == (1, None)
        for path, s in shapes.items()
        if path.endswith("bias")
    )


def test_equinox_layers_that_are_stacked():
    keys = jax.random.split(jax.random.key(0), 3)

    class Net(eqx.Module):
        deep: eqx.Module
        cell: eqx.Module
        conv: eqx.Module

        def __init__(self):
            self.deep = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 2, key=key))(keys)
            self.cell = eqx.filter_vmap(lambda key: eqx.nn.GRUCell(4, 2, key=key))(keys)
            self.conv = eqx.filter_vmap(lambda key: eqx.nn.Conv1d(4, 2, 3, key=key))(keys)

        def __call__(self, x):
            return x.sum() * sum(leaf.sum() for leaf in jax.tree.leaves(self.deep))

    shapes = nets.shapes_of(Net())
    known = {
        "deep.weight": (4, 2),
        "cell.weight_ih": (4, 2),
        "cell.weight_hh": (2, 2),
        "conv.weight": (12, 2),
    }
    assert {k: (fan_in(k, shapes[k]), source_axis(k, shapes[k])) for k in known} == known


def test_units_of_stacked_layers_have_precisions_over_the_right_axis():
    prior = priors.Hierarchical.width(1.0, group=1.0, unit=2.0)

    def model(x):
        bnn.random_module("net", Scanned(1), prior, x[:1])

    centered = bnn.parameterize(model, "centered")
    sites = jax.eval_shape(
        lambda key: {
            name: site["value"]
            for name, site in numpyro.handlers.trace(numpyro.handlers.seed(centered, key))
            .get_trace(X)
            .items()
            if site["type"] == "sample"
        },
        jax.random.key(0),
    )
    # The kernel is (input, layer, output): four inputs, not three layers.
    assert sites["net/deep.Dense_0.kernel"].shape == (4, 3, 4)
    assert sites["net/deep.Dense_0.kernel.unit_precision"].shape == (4,)
