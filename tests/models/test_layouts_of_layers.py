"""Fan-in and source units go by the class of a layer and by where its axes are stored, not by names.

Of layers that are stacked, stand side by side or have several output axes they are counted by hand.
"""

import functools
from typing import ClassVar

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


def known_of(shapes, path):
    return fan_in(path, shapes[path]), source_axis(path, shapes[path])


class Named(nn.Module):
    """A network of one layer with a name of its own."""

    layer: functools.partial

    @nn.compact
    def __call__(self, x):
        return self.layer()(x)


def named(layer, *args, **options):
    return Named(functools.partial(layer, *args, **options))


ROWS = np.ones((2, 4), np.float32)
SEQUENCE = np.ones((1, 10, 6), np.float32)
IMAGE = np.ones((1, 5, 4, 6), np.float32)


@pytest.mark.parametrize("name", ["query", "key", "value", "other"])
def test_the_name_of_a_layer_whose_class_is_known_does_not_matter(name):
    conv = named(nn.Conv, 16, (1,), name=name)
    assert known_of(nets.shapes_of(conv, SEQUENCE), f"{name}.kernel") == (6, 1)
    transposed = named(nn.ConvTranspose, 16, (3,), name=name)
    assert known_of(nets.shapes_of(transposed, SEQUENCE), f"{name}.kernel") == (18, 1)
    joined = named(nn.DenseGeneral, 3, axis=(-2, -1), name=name)
    assert known_of(nets.shapes_of(joined, SEQUENCE), f"{name}.kernel") == (60, 1)
    split = named(nn.DenseGeneral, (3, 2), name=name)
    assert known_of(nets.shapes_of(split, SEQUENCE), f"{name}.kernel") == (6, 0)


def test_the_name_of_an_nnx_layer_does_not_matter():
    class Net(nnx.Module):
        def __init__(self, rngs):
            # To draw values compiles for longer, and shapes are all that counts.
            given = {"kernel_init": nnx.initializers.zeros_init(), "rngs": rngs}
            self.value = nnx.Conv(6, 16, (1,), **given)
            self.key = nnx.LinearGeneral((10, 6), 3, axis=(-2, -1), **given)
            self.query = nnx.LinearGeneral(6, (3, 2), **given)
            self.each = nnx.LinearGeneral(6, 3, batch_axis={0: 10}, **given)
            self.heads = nnx.Einsum("bi,hij->bhj", (2, 5, 3), **given)

    shapes = nets.shapes_of(Net(nnx.Rngs(0)))
    known = {"value": (6, 1), "key": (60, 1), "query": (6, 0), "each": (6, 1), "heads": (5, 1)}
    assert {path: known_of(shapes, f"{path}.kernel") for path in known} == known


def test_starts_of_chains_have_the_fan_in_of_the_layer():
    net = named(nn.Conv, 16, (1,), name="query")

    def model(x):
        bnn.random_module("net", net, priors.Normal(1.0), x)

    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as sites:
        model(SEQUENCE)
    assert sites["net/query.kernel"]["infer"]["fan_in"] == 6


def test_own_layers_go_by_name_where_no_class_is_known():
    class Own(nn.Module):
        @nn.compact
        def __call__(self, x):
            kernel = self.param("kernel", nn.initializers.ones, (6, 3, 2))
            return jnp.einsum("...i,ihd->...hd", x, kernel)

    shapes = nets.shapes_of(named(Own, name="query"), SEQUENCE)
    assert known_of(shapes, "query.kernel") == (6, 0)


def test_an_output_of_an_unshared_convolution_sums_its_own_taps_only():
    assert known_of(nets.shapes_of(nn.ConvLocal(4, (3,)), SEQUENCE), "kernel") == (18, 1)
    assert known_of(nets.shapes_of(nn.ConvLocal(4, (3, 2)), IMAGE), "kernel") == (36, 2)


def transposed(module, change=lambda a: a.T, back=lambda a: a.T):
    return nn.map_variables(
        module,
        "params",
        trans_in_fn=lambda v: jax.tree.map(change, v),
        trans_out_fn=lambda v: jax.tree.map(back, v),
        mutable=True,
        init=True,
    )


def test_a_kernel_that_is_stored_transposed():
    dense = transposed(nn.Dense)(8, use_bias=False)
    assert known_of(nets.shapes_of(dense, ROWS), "kernel") == (4, 1)


def in_a_dict(variables):
    return {"params": {name: value.T for name, value in variables["params"].items()}}


@pytest.mark.parametrize("change", [lambda v: jax.tree.map(jnp.transpose, v), in_a_dict])
def test_a_square_kernel_that_a_function_maps_is_refused_by_unit(change):
    dense = nn.map_variables(nn.Dense, "params", change, change, mutable=True, init=True)
    kernel = nets.shapes_of(dense(4), ROWS)["kernel"]
    assert fan_in("kernel", kernel) == 4  # in whichever way
    with pytest.raises(ValueError, match=r"`nn.map_variables`.*cannot be followed. Store it"):
        source_axis("kernel", kernel)


@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_kernel_that_a_function_maps_under_jit_is_refused(compiled_first):
    dense = transposed(nn.jit(nn.Dense)) if compiled_first else nn.jit(transposed(nn.Dense))
    for _ in "ab":  # the second time its program is there already
        kernel = nets.shapes_of(dense(8), ROWS)["kernel"]
        with pytest.raises(ValueError, match=r"`nn.map_variables`.*cannot be followed. Store it"):
            fan_in("kernel", kernel)


@pytest.mark.parametrize("rank", [2, 7])
def test_companions_of_arrays_of_many_axes_take_no_memory(rank):
    class Own(nn.Module):
        input_axes: ClassVar = {"mix": -1}

        @nn.compact
        def __call__(self, x):
            return x + self.param("mix", nn.initializers.ones, (2,) * rank).sum()

    assert known_of(nets.shapes_of(Stacked(Own), ROWS), "tokens.mix") == (2, rank)
    with jax.ensure_compile_time_eval():
        assert known_of(nets.shapes_of(Stacked(Own), ROWS), "tokens.mix") == (2, rank)


def test_a_kernel_that_is_stored_scaled_has_its_axes():
    dense = transposed(nn.Dense, lambda a: a * 2, lambda a: a / 2)(8, use_bias=False)
    assert known_of(nets.shapes_of(dense, ROWS), "kernel") == (4, 0)


def test_a_kernel_that_cannot_be_followed_is_refused():
    dense = transposed(nn.Dense, lambda a: a.reshape(4, 8), lambda a: a.reshape(-1))
    net = dense(8, use_bias=False)
    assert nets.shapes_of(net, ROWS)["kernel"] == (32,)  # other priors do not ask
    for prior in (priors.FanIn(), priors.Hierarchical.width(1.0, unit=1.0)):
        with (
            numpyro.handlers.seed(rng_seed=0),
            pytest.raises(ValueError, match=r"\(4, 8\).*\(32,\).*cannot be followed. Store it"),
        ):
            bnn.random_module("net", net, prior, ROWS)


def test_an_array_of_two_layers_is_laid_out_as_the_first_has_it():
    class Tied(nn.Module):
        @nn.compact
        def pass_through(self, x, units, change):
            def layer(self):
                return nn.Dense(units, use_bias=False, name="tied")(x)

            return nn.map_variables(layer, "params", change, change, mutable=True)(self)

        @nn.compact
        def __call__(self, x):
            h = self.pass_through(x, 8, lambda v: v)
            return self.pass_through(h, 4, lambda v: jax.tree.map(jnp.transpose, v))

    shapes = nets.shapes_of(Tied(), ROWS)
    assert known_of(shapes, "tied.kernel") == (4, 0)


def test_a_module_that_stacks_its_own_method():
    class Lifted(nn.Module):
        @nn.compact
        def one(self, x):
            return x @ self.param("kernel", nn.initializers.ones, (4, 4))

        def __call__(self, x):
            lift = {"variable_axes": {"params": 1}, "split_rngs": {"params": True}}
            return nn.vmap(Lifted.one, in_axes=None, axis_size=4, **lift)(self, x)

    assert known_of(nets.shapes_of(Lifted(), ROWS), "kernel") == (4, 0)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return jnp.tanh(nn.Dense(4)(x)) * self.param("gain", nn.initializers.ones, (4,)), None


class Square(nn.Module):
    """A kernel alone, which may be stacked along any axis."""

    @nn.compact
    def __call__(self, x, _=None):
        return jnp.tanh(nn.Dense(4, use_bias=False)(x)), None


class Scanned(nn.Module):
    """A stack of layers, and one beyond it; axes that have names have one for the stack too."""

    axis: int = 0
    length: int = 4
    block: type = Block

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            self.block,
            variable_axes={"params": self.axis},
            split_rngs={"params": True},
            length=self.length,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return nn.remat(nn.Dense)(2, name="out")(layers(name="deep")(x, None)[0])


def varies_along(module, path, *example):
    """The axes along which source units differ, and the shape of their precisions."""
    prior = priors.Hierarchical.width(1.0, group=1.0, unit=1.0)

    def model():
        bnn.random_module("net", module, prior, *example)

    # To draw precisions compiles for seconds.
    given = {name: np.abs(value) for name, value in nets.weights(model).items()}
    with numpyro.handlers.substitute(data=given), numpyro.handlers.trace() as sites:
        model()
    site = f"net/{path}"
    weights = np.asarray(sites[site]["value"] / sites[f"{site}.base"]["value"])
    spread = tuple(a for a in range(weights.ndim) if np.ptp(weights, axis=a).max() > 1e-3)
    return spread, sites[f"{site}.unit_precision"]["value"].shape


@pytest.mark.parametrize(("axis", "unit_axis"), [(0, 1), (1, 0), (2, 0), (-1, 0), (-2, 0)])
@pytest.mark.parametrize("block", [Square, nn.remat(Square), nn.jit(Square)])
def test_as_many_stacked_layers_as_inputs(axis, unit_axis, block):
    for _ in "ab":  # the second time programs of blocks under `nn.jit` are there already
        shapes = nets.shapes_of(Scanned(axis, 4, block), ROWS)
        assert known_of(shapes, "deep.Dense_0.kernel") == (4, unit_axis)


@pytest.mark.parametrize("length", [3, 4])
def test_units_of_stacked_layers_vary_along_their_own_axis(length):
    """The kernel is (input, layer, output): four inputs, whatever the number of layers."""
    assert varies_along(Scanned(1, length), "deep.Dense_0.kernel", ROWS) == ((0,), (4,))


def test_layers_that_were_called_under_jit_before_are_known_and_keep_their_values():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.jit(nn.Conv)(16, (1,), name="query")(x)

    before = Net().init(jax.random.key(0), SEQUENCE)
    assert known_of(nets.shapes_of(Net(), SEQUENCE), "query.kernel") == (6, 1)
    after = Net().init(jax.random.key(0), SEQUENCE)
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after))


def stacked_linear(inputs, outputs, layers, axis):
    make = nnx.split_rngs(splits=layers)(
        nnx.vmap(lambda r: nnx.Linear(inputs, outputs, rngs=r), in_axes=(0,), out_axes=axis)
    )

    class Net(nnx.Module):
        def __init__(self):
            self.deep = make(nnx.Rngs(0))

    return Net()


def test_nnx_layers_that_could_be_stacked_in_several_ways_are_refused_by_unit():
    shapes = nets.shapes_of(stacked_linear(4, 4, 3, 1))
    assert known_of(shapes, "deep.kernel") == (4, 0)
    shapes = nets.shapes_of(stacked_linear(4, 4, 4, 1))
    assert fan_in("deep.kernel", shapes["deep.kernel"]) == 4  # in whichever way
    with pytest.raises(ValueError, match=r"\(4, 4\).*\(4, 4, 4\).*exactly one way.*Stack another"):
        source_axis("deep.kernel", shapes["deep.kernel"])
    assert known_of(shapes, "deep.bias") == (1, None)


def test_own_arrays_of_nnx_modules_that_are_not_stacked_along_the_first_axis_are_refused():
    class Own(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(4, 4, rngs=rngs)
            self.mix = nnx.Param(jnp.ones((4, 2)))

    class Net(nnx.Module):
        def __init__(self, axis):
            make = nnx.vmap(Own, in_axes=(0,), out_axes=axis)
            self.deep = nnx.split_rngs(splits=3)(make)(nnx.Rngs(0))

    assert known_of(nets.shapes_of(Net(0)), "deep.mix") == (4, 1)
    shape = nets.shapes_of(Net(1))["deep.mix"]
    with pytest.raises(ValueError, match=r"deep.mix.*\(4, 3, 2\).*out_axes=0"):
        fan_in("deep.mix", shape)


class Tokens(nn.Module):
    @nn.compact
    def __call__(self, x):
        mixed = self.param("mix", nn.initializers.zeros, (2, 6, 3))
        return x + self.param("pos_embedding", nn.initializers.zeros, (1, 10, 6)) + mixed.sum()


class Declared(Tokens):
    input_axes: ClassVar = {"mix": 1}


class NNXTokens(nnx.Module):
    input_axes: ClassVar = {"mix": (1,), "rest": ()}

    def __init__(self):
        self.mix = nnx.Param(jnp.zeros((2, 6, 3)))
        self.rest = nnx.Param(jnp.zeros((2, 6)))


UNKNOWN = r"'{}' goes by fan-in.*does not say over which axis.*{}.*`input_axes: ClassVar"


def test_own_arrays_say_what_is_summed_or_are_refused():
    shapes = nets.shapes_of(Tokens(), SEQUENCE)
    assert known_of(shapes, "pos_embedding") == (1, None)
    for ask in (fan_in, source_axis):
        with pytest.raises(ValueError, match=UNKNOWN.format("mix", r"\(2, 6, 3\)")):
            ask("mix", shapes["mix"])
    assert known_of(nets.shapes_of(Declared(), SEQUENCE), "mix") == (6, 1)
    shapes = nets.shapes_of(NNXTokens())
    assert known_of(shapes, "mix") == (6, 1)
    assert known_of(shapes, "rest") == (1, None)


def test_stacked_own_arrays_say_so_too():
    shapes = nets.shapes_of(Stacked(Tokens), SEQUENCE)
    assert known_of(shapes, "tokens.pos_embedding") == (1, None)
    with pytest.raises(ValueError, match=UNKNOWN.format("tokens.mix", r"\(6, 2, 6, 3\)")):
        fan_in("tokens.mix", shapes["tokens.mix"])
    assert known_of(nets.shapes_of(Stacked(Declared), SEQUENCE), "tokens.mix") == (6, 2)


def several(module):
    """Six copies of a module side by side, with parameters of their own."""
    return nn.vmap(
        module, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=6
    )


class Stacked(nn.Module):
    kind: type

    @nn.compact
    def __call__(self, x):
        return several(self.kind)(name="tokens")(x)


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


class Shared(nn.Module):
    @nn.compact
    def __call__(self, x):
        lifted = nn.vmap(nn.Dense, variable_axes={"params": None}, split_rngs={"params": False})
        return lifted(2, name="side")(x)


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


HEADS = "MultiHeadDotProductAttention_0"
# Fan-in and source axis of each array, counted by hand; of some modules with an example of its inputs.
KNOWN = {
    "scan": (
        lambda: Scanned(0, 3),
        {"deep.Dense_0.kernel": (4, 1), "deep.gain": (1, None), "out.kernel": (4, 0)},
    ),
    "scan along the middle": (
        lambda: Scanned(1, 3),
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
    "named axes": (lambda: Scanned(0, 3, NamedBlock), {"deep.Dense_0.kernel": (4, 1)}),
    "shared": (Shared, {"side.kernel": (4, 0)}),
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
    "attention": (
        nets.Attention,
        {
            "Embed_0.embedding": (1, None),
            **{f"{HEADS}.{part}.kernel": (4, 0) for part in ("query", "key", "value")},
            f"{HEADS}.out.kernel": (6, 1),
        },
        nets.inputs("tokens"),
    ),
    "nnx attention": (
        lambda: nets.NNXAttention(nnx.Rngs(0)),
        {
            "embed.embedding": (1, None),
            "attention.query.kernel": (4, 0),
            "attention.value.kernel": (4, 0),
            "attention.out.kernel": (6, 1),
        },
    ),
    "LSTM": (
        nets.Recurrent,
        {"LSTMCell_0.ii.kernel": (2, 0), "LSTMCell_0.hi.kernel": (3, 0)},
        nets.inputs("sequence"),
    ),
    "convolution and norms": (
        nets.Conv,
        {"Conv_0.kernel": (6, 2), "GroupNorm_0.scale": (1, None), "Dense_0.kernel": (4, 0)},
        nets.inputs("image"),
    ),
    "nnx convolution and norms": (
        lambda: nets.NNXConv(nnx.Rngs(0)),
        {"conv.kernel": (6, 2), "layer.scale": (1, None)},
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_an_output_sums_over_the_inputs_of_its_own_layer(name):
    make, known, *example = KNOWN[name]
    module = make()
    shapes = nets.shapes_of(module, *(example or [ROWS[:1]] * isinstance(module, nn.Module)))
    assert {path: known_of(shapes, path) for path in known} == known
    assert {known_of(shapes, path) for path in shapes if path.endswith("bias")} <= {(1, None)}


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
    assert {path: known_of(shapes, path) for path in known} == known
