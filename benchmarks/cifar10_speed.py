"""How fast is a gradient of the ResNet, and what does a step of a sampler cost beside it?

The bare gradient is written by hand with the network alone: no model, no noise. Steps are those
of the samplers, compiled in a loop with the same number of steps, minibatches and test images.
Every contender takes its turn in one process; the ratio is that of medians over the turns.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from cifar10_data import Data, standardized
from cifar10_methods import SAMPLERS, kernel_of
from cifar10_network import PRIOR_VARIANCE, ResNet, posterior_of
from jax import lax

import numpyro_bnn as bnn

HEAD = ("contender", "batch_size", "seconds_a_step", "images_a_second", "ratio", "tflops", "note")
_COMPARED = ("sgld", "baoab")


def energy_by_hand(network: ResNet, data_size: int) -> Callable:
    """``(params, x, y) -> U`` on a minibatch, up to a constant, without a model."""

    def energy(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = network.apply({"params": params}, standardized(x))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        squares = sum(jnp.sum(v**2) for v in jax.tree.leaves(params))
        return data_size * losses.mean() + squares / (2 * PRIOR_VARIANCE)

    return energy


def gradient_program(network: ResNet, data_size: int, batch_size: int) -> Callable:
    """``(params, steps, x, y) -> params`` by plain descent on neighbouring rows."""
    gradient = jax.grad(energy_by_hand(network, data_size))

    @jax.jit
    def program(params: Any, steps: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def step(i: jax.Array, params: Any) -> Any:
            begin = (i * batch_size) % (data_size - batch_size + 1)
            rows = [lax.dynamic_slice_in_dim(a, begin, batch_size) for a in (x, y)]
            return jax.tree.map(lambda v, g: v - 1e-9 * g, params, gradient(params, *rows))

        return lax.fori_loop(0, steps, step, params)

    return program


def sampler_program(name: str, data: Data, network: ResNet, batch_size: int) -> Callable:
    """``(state, steps, arrays) -> state`` of a sampler, and its state; test images included."""
    kernel = kernel_of(SAMPLERS[name], posterior_of(network), len(data.train.x), batch_size)
    arrays = [jnp.asarray(a) for a in (data.train.x, data.train.y, data.test.x)]
    weights = network.init(jax.random.key(0), standardized(data.train.x[:1]))["params"]
    start = bnn.from_params(weights)
    state = jax.jit(lambda key, z, *args: kernel.init(key, 0, z, args))(
        jax.random.key(1), start, *arrays
    )

    @jax.jit
    def program(state: Any, steps: jax.Array, *args: jax.Array) -> Any:
        # A kernel keeps what it learns of the data in the trace where it began.
        kernel.init(jax.random.key(1), 0, start, args)
        return lax.fori_loop(0, steps, lambda _, s: kernel.sample(s, args, {}), state)

    return lambda steps: program(state, steps, *arrays)


def measure(
    data: Data,
    network: ResNet,
    batch_sizes: tuple[int, ...],
    compared: int,
    steps: int,
    repeats: int,
    peak: float | None = None,
) -> list[tuple]:
    """Time gradients of several batch sizes, and steps of samplers at one of them.

    :param batch_sizes: of the bare gradient.
    :param compared: batch size of the samplers, one of `batch_sizes`.
    :param steps: of batches of `compared` images in a turn; others see as many images.
    :param repeats: turns.
    :param peak: TFLOP/s of the device, for the share that is reached.
    :return: rows of :data:`HEAD`.
    """
    size = len(data.train.x)
    x, y = jnp.asarray(data.train.x), jnp.asarray(data.train.y)
    params = network.init(jax.random.key(0), standardized(x[:1]))["params"]
    runs: dict[tuple[str, int], tuple[Callable, int]] = {}
    flops = {}
    for batch_size in batch_sizes:
        program = gradient_program(network, size, batch_size)
        count = max(1, steps * compared // batch_size)
        runs["gradient", batch_size] = (_bound(program, params, count, x, y), count)
        flops["gradient", batch_size] = _flops(network, size, params, x[:batch_size], y)
    for name in _COMPARED:
        program = sampler_program(name, data, network, compared)
        runs[name, compared] = (_bound(program, steps), steps)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for once in range(repeats + 1):
        for key, (run, count) in runs.items():
            begin = time.perf_counter()
            jax.block_until_ready(run())
            if once:  # the first turn compiles
                times[key].append((time.perf_counter() - begin) / count)
    bare = statistics.median(times["gradient", compared])
    rows = []
    for (name, batch_size), seconds in times.items():
        typical = statistics.median(seconds)
        speed = flops.get((name, batch_size), float("nan")) / typical / 1e12
        ratio = round(typical / bare, 3) if batch_size == compared else ""
        note = f"{speed / peak:.3f} of peak" if peak and name == "gradient" else ""
        rows.append(
            (
                name,
                batch_size,
                f"{typical:.4g}",
                f"{batch_size / typical:.4g}",
                ratio,
                f"{speed:.3g}" if name == "gradient" else "",
                note,
            )
        )
    return rows


def _bound(program: Callable, *args: Any) -> Callable:
    return lambda: program(*args)


def _flops(network: ResNet, size: int, params: Any, x: jax.Array, y: jax.Array) -> float:
    """Floating-point operations of a gradient, as the compiler counts them."""
    gradient = jax.jit(jax.grad(energy_by_hand(network, size)))
    cost: Any = gradient.lower(params, x, y[: len(x)]).cost_analysis()
    return float(cost["flops"])


def circumstances() -> str:
    """Where a timing was taken."""
    device = jax.devices()[0]
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    return (
        f"JAX {jax.__version__}, Python {platform.python_version()}, {device.device_kind}, "
        f"{cores} core(s), load {load:.1f}"
    )
