"""How fast is a gradient of the ResNet, and what does a step of a sampler cost beside it?

The bare gradient is written by hand with the network alone: no model, no noise. Steps are those
of the samplers, compiled in a loop with the same number of steps, minibatches and test images.
Every contender is compiled first, which is timed apart, and then takes its turns in one process
with the others; the ratio is that of medians over the turns. TFLOP/s count the gradients alone.

On a CPU seconds are those that the process computed, summed over its cores: other work on the
machine hardly moves them, where it decides what a wall clock says.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import numpyro_bnn as bnn
from benchmarks.cifar10.chains import SAMPLERS, kernel_of
from benchmarks.cifar10.data import Data, standardized
from benchmarks.cifar10.network import PRIOR_VARIANCE, ResNet, posterior_of
from numpyro_bnn.potential.convolutions import fast_convolutions

HEAD = (
    *("contender", "batch_size", "seconds_a_step", "images_a_second", "ratio"),
    *("tflops", "compile_seconds"),
)


class Contender(NamedTuple):
    """What is timed."""

    name: str  # ``"gradient"``, or a sampler
    batch_size: int  # images a step
    steps: int  # in a turn
    program: Callable[[], Any]  # takes them, compiled
    compile_seconds: float  # tracing and compiling it took


class Timing(NamedTuple):
    """Turns to take."""

    batch_sizes: tuple[int, ...]  # of the bare gradient
    compared: int = 80  # batch size of the samplers, one of `batch_sizes`
    samplers: tuple[str, ...] = ("sgld", "baoab")  # of which steps are timed
    steps: int = 100  # of batches of `compared` images in a turn; others see about as many images
    repeats: int = 7  # turns


def energy_by_hand(network: ResNet, data_size: int) -> Callable:
    """``(params, x, y) -> U`` on a minibatch, up to a constant, without a model."""

    def energy(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = network.apply({"params": params}, standardized(x))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        squares = sum(jnp.sum(v**2) for v in jax.tree.leaves(params))
        return data_size * losses.mean() + squares / (2 * PRIOR_VARIANCE)

    return energy


def flops_of_gradient(network: ResNet, batch_size: int) -> float:
    """Floating-point operations of a minibatch gradient, as the compiler counts them."""
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
    gradient = jax.jit(jax.grad(energy_by_hand(network, batch_size)))
    x = jax.ShapeDtypeStruct((batch_size, 32, 32, 3), jnp.uint8)
    y = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    cost: Any = gradient.lower(shapes, x, y).cost_analysis()
    return float(cost["flops"])


def _gradient(data: Data, network: ResNet, batch_size: int, steps: int) -> Contender:
    """Plain descent on neighbouring rows."""
    size = len(data.train.x)
    x, y = jnp.asarray(data.train.x), jnp.asarray(data.train.y)
    params = network.init(jax.random.key(0), standardized(x[:1]))["params"]
    gradient = jax.grad(energy_by_hand(network, size))

    @jax.jit
    @fast_convolutions
    def program(params: Any, steps: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def step(i: jax.Array, params: Any) -> Any:
            begin = (i * batch_size) % (size - batch_size + 1)
            rows = [lax.dynamic_slice_in_dim(a, begin, batch_size) for a in (x, y)]
            return jax.tree.map(lambda v, g: v - 1e-9 * g, params, gradient(params, *rows))

        return lax.fori_loop(0, steps, step, params)

    return Contender("gradient", batch_size, steps, *_compiled(program, params, steps, x, y))


def _sampler(name: str, data: Data, network: ResNet, batch_size: int, steps: int) -> Contender:
    """Steps of a sampler; test images among the arguments."""
    kernel = kernel_of(SAMPLERS[name], posterior_of(network), batch_size)
    arrays = [jnp.asarray(a) for a in (data.train.x, data.train.y, data.test.x)]
    weights = network.init(jax.random.key(0), standardized(data.train.x[:1]))["params"]
    start, key = bnn.from_params(weights), jax.random.key(1)

    @jax.jit
    def begin(*args: jax.Array) -> Any:
        return kernel.init(key, 0, start, args)

    @jax.jit
    @fast_convolutions
    def program(state: Any, steps: jax.Array, *args: jax.Array) -> Any:
        # A kernel keeps what it learns of the data in the trace where it began.
        kernel.init(key, 0, start, args)
        return lax.fori_loop(0, steps, lambda _, s: kernel.sample(s, args, {}), state)

    ready, seconds = _compiled(program, begin(*arrays), steps, *arrays)
    return Contender(name, batch_size, steps, ready, seconds)


def seconds_now() -> float:
    """The clock: of the wall, or of this process on a CPU."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


def _compiled(program: Any, state: Any, steps: int, *arrays: jax.Array) -> tuple[Callable, float]:
    begin = seconds_now()
    ready = program.lower(state, steps, *arrays).compile()
    return lambda: ready(state, steps, *arrays), seconds_now() - begin


def measure(data: Data, network: ResNet, timing: Timing) -> list[tuple]:
    """Rows of :data:`HEAD`: gradients of several batch sizes, and steps of samplers at one of them."""

    contenders = []
    for batch_size in timing.batch_sizes:
        steps = max(1, timing.steps * timing.compared // batch_size)
        contenders.append(_gradient(data, network, batch_size, steps))
    for name in timing.samplers:
        contenders.append(_sampler(name, data, network, timing.compared, timing.steps))
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(timing.repeats + 1):
        for one, seconds in zip(contenders, times):
            begin = seconds_now()
            jax.block_until_ready(one.program())
            seconds.append((seconds_now() - begin) / one.steps)
    # The first turn warms up.
    return rows_of(contenders, [seconds[1:] for seconds in times], network, timing)


def rows_of(
    contenders: list[Contender], times: list[list[float]], network: ResNet, timing: Timing
) -> list[tuple]:
    """Rows of :data:`HEAD` from the seconds a step of every turn; ratios to a gradient of as many images."""
    medians = [statistics.median(seconds) for seconds in times]
    bare = next(
        m
        for one, m in zip(contenders, medians)
        if (one.name, one.batch_size) == ("gradient", timing.compared)
    )
    rows = []
    for one, typical in zip(contenders, medians):
        alike = one.batch_size == timing.compared
        rows.append(
            (
                *(one.name, one.batch_size, f"{typical:.4g}"),
                f"{one.batch_size / typical:.4g}",
                round(typical / bare, 3) if alike else "",
                f"{flops_of_gradient(network, one.batch_size) / typical / 1e12:.3g}",
                f"{one.compile_seconds:.1f}",
            )
        )
    return rows
