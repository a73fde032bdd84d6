"""Convolutions of gradients are rewritten into the order that a CPU is fast in, and are the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from jax import lax
from numpyro.infer import HMC
from quiet import quiet

import numpyro_bnn as bnn
from numpyro_bnn.potential.convolutions import fast_convolutions

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="for CPUs alone")
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


LAST, FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
CASES = {
    "channels last": ((2, 6, 5, 4), (3, 3, 4, 6), LAST, {}),
    "channels first": ((2, 4, 6, 5), (6, 4, 3, 3), FIRST, {}),
    "another order": ((6, 2, 4, 5), (4, 3, 6, 3), ("HNCW", "IHOW", "CWNH"), {}),
    "strides": ((2, 7, 6, 4), (3, 2, 4, 6), LAST, {"window_strides": (2, 3)}),
    "dilated": ((2, 7, 6, 4), (2, 3, 4, 6), LAST, {"rhs_dilation": (2, 1)}),
    "transposed": ((2, 4, 3, 4), (3, 3, 4, 6), LAST, {"lhs_dilation": (2, 2)}),
    "groups": ((2, 6, 5, 4), (3, 3, 2, 6), LAST, {"feature_group_count": 2}),
    "groups of rows": ((4, 6, 5, 4), (3, 3, 4, 6), LAST, {"batch_group_count": 2}),
    "one axis": ((2, 6, 4), (3, 4, 6), ("NWC", "WIO", "NWC"), {}),
    "three axes": ((2, 4, 5, 3, 2), (2, 3, 2, 2, 3), ("NDHWC", "DHWIO", "NDHWC"), {}),
}


def convolution(numbers, options):
    strides = options.get("window_strides", (1,) * (len(numbers[0]) - 2))
    rest = {name: value for name, value in options.items() if name != "window_strides"}
    padding = [(1, 2)] * len(strides)

    def of(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides, padding, dimension_numbers=numbers, **rest
        )

    return of


def orders(jaxpr):
    """The orders of axes of all convolutions of a program, and of the programs inside it."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is lax.conv_general_dilated_p:
            yield tuple(map(tuple, eqn.params["dimension_numbers"]))
        for inner in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            if hasattr(inner, "eqns"):
                yield from orders(getattr(inner, "jaxpr", inner))


def are_fast(jaxpr):
    found = list(orders(jaxpr))
    count = len(found[0][0]) - 2
    last = (0, count + 1, *range(1, count + 1))
    return all(order == (last, (count + 1, count, *range(count)), last) for order in found)


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_in_a_loop_is_the_same_and_in_the_fast_order(name):
    *shapes, numbers, options = CASES[name]
    x, kernel = (normal(*shape) for shape in shapes)
    energy = convolution(numbers, options)

    def steps(x, kernel):
        def step(_, at):
            slopes = jax.grad(lambda at: jnp.sum(jnp.tanh(energy(*at))), argnums=0)(at)
            return jax.tree.map(lambda a, b: a - 0.1 * b, at, slopes)

        return lax.fori_loop(0, 2, step, (x, kernel))

    fast = fast_convolutions(steps)
    assert are_fast(jax.make_jaxpr(fast)(x, kernel).jaxpr)
    for own, plain in zip(fast(x, kernel), steps(x, kernel)):
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-5)


def loss(kernel):
    return jnp.sum(convolution(LAST, {})(IMAGES, kernel) ** 2)


IMAGES = normal(2, 6, 5, 3)
slopes = jax.grad(loss)
# Ways in which a convolution may stand inside other operations, as functions of a kernel.
WAYS = {
    "scan": lambda k: lax.scan(lambda c, _: (c - 0.01 * slopes(c), loss(c)), k, None, length=2),
    "while": lambda k: lax.while_loop(lambda c: loss(c) > 1e3, lambda c: 0.5 * c, k),
    "branches": lambda k: lax.cond(k.sum() > 0, slopes, lambda k: k, k),
    "remat": jax.grad(jax.checkpoint(loss)),
    "own program": jax.jit(slopes),
    "own derivative": lambda k: jax.nn.relu(slopes(k)),
    "curvature": lambda k: jax.jvp(slopes, (k,), (k,)),
    "chains": lambda k: jax.vmap(slopes)(jnp.stack([k, 2 * k])),
    "a linear system": lambda k: jnp.linalg.solve(
        jnp.eye(3) + 0.1 * slopes(k)[0, 0, :, :3], jnp.ones(3)
    ),
    "a solver": lambda k: lax.custom_linear_solve(
        lambda v: v + 0.001 * convolution(LAST, {})(IMAGES, k).sum() * v,
        jnp.ones(3),
        lambda f, b: b,
    ),
    "random": lambda k: jax.random.normal(jax.random.key(0), k.shape) + slopes(k),
}


@pytest.mark.parametrize("name", WAYS)
def test_convolutions_are_found_wherever_they_stand(name):
    kernel, fast = normal(3, 3, 3, 4), fast_convolutions(WAYS[name])
    assert are_fast(jax.make_jaxpr(fast)(kernel).jaxpr)
    for own, plain in zip(jax.tree.leaves(fast(kernel)), jax.tree.leaves(WAYS[name](kernel))):
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-4)


def test_arguments_that_are_no_arrays_and_programs_without_convolutions_pass():
    def function(tree, times):
        return {"out": times * tree["a"], "key": tree["key"]}

    given = {"a": jnp.arange(3.0), "key": jax.random.key(1)}
    found = fast_convolutions(function)(given, 3)
    assert np.array_equal(found["out"], [0.0, 3.0, 6.0])
    assert found["key"] == given["key"]


class Convolutional(nn.Module):
    """One convolution and one dense layer."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Conv(2, (3, 3))(x)).reshape(len(x), -1))[:, 0]


def model(x, y=None):
    mean = bnn.random_module("net", Convolutional(), dist.Normal(0, 1), x[:1])(x)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("chain_method", ["parallel", "vectorized"])
def test_steps_of_a_sampler_are_in_the_fast_order(chain_method):
    x, y = normal(3, 4, 4, 2), normal(3)
    mcmc = quiet(
        HMC(model), 1, 1, 2 if chain_method == "vectorized" else 1, chain_method=chain_method
    )
    mcmc.run(jax.random.key(0), x, y)
    (programs,) = mcmc._programs.values()
    keys = jax.random.key(0) if chain_method == "parallel" else jax.random.split(jax.random.key(0))
    program = jax.make_jaxpr(programs._initial)(keys, None, [x, y, np.int32(1)])
    assert any(True for _ in orders(program.jaxpr))
    assert are_fast(program.jaxpr)
