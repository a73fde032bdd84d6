"""What do convolutions cost inside the loop of a sampler on a CPU?

Steps of BAOAB, as they are and with programs that are not rewritten (``numpyro_bnn.potential.convolutions``),
take turns with the gradient of a minibatch by hand, in a program of its own and in a loop.

    python -m benchmarks.speed.convolutions [--quick | --toy]
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import lax

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import columns
from benchmarks._shared.study import begin
from numpyro_bnn.compilation import program_identity
from numpyro_bnn.run import programs

ROWS, BATCH, CLASSES = 1000, 100, 10
SINGLE, LOOP, PLAIN, OURS = (
    "gradient, its own program",
    "gradient, in a loop",
    "BAOAB, not rewritten",
    "BAOAB",
)


class Network(nn.Module):
    """Convolutions of 3 × 3, each but the first after halving the image, and a dense layer."""

    filters: tuple[int, ...]  # of each convolution

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i, count in enumerate(self.filters):
            if i:
                x = nn.avg_pool(x, (2, 2), strides=(2, 2))
            x = nn.relu(nn.Conv(count, (3, 3))(x))
        return nn.Dense(CLASSES)(x.mean((1, 2)))


class Problem(NamedTuple):
    """Sides of an image, its channels, and filters of each convolution."""

    side: int
    channels: int
    filters: tuple[int, ...]


PROBLEMS = {
    "28 × 28, 8 and 16 filters": Problem(28, 1, (8, 16)),
    "32 × 32 × 3, 16, 32 and 32 filters": Problem(32, 3, (16, 32, 32)),
}


class Size(NamedTuple):
    """Problems; steps of a turn; turns."""

    problems: tuple[str, ...]
    steps: int
    repeats: int


SIZES = {
    "full": Size(tuple(PROBLEMS), 20, 7),
    "quick": Size(tuple(PROBLEMS)[:1], 10, 3),
    "toy": Size(tuple(PROBLEMS)[:1], 2, 1),
}


class Contender:
    """A program of some steps: CPU seconds of its first call, and of a step in later ones."""

    def __init__(self, call: Callable[[], Any], steps: int) -> None:
        self.call, self.steps = call, steps
        self.first = self.steps * self.timed()
        self.seconds: list[float] = []

    def timed(self) -> float:
        """CPU seconds of a step."""
        begin = time.process_time()
        jax.block_until_ready(self.call())
        return (time.process_time() - begin) / self.steps

    def again(self) -> None:
        """One turn."""
        self.seconds.append(self.timed())


def by_hand(network: Network, x: jax.Array, y: jax.Array) -> tuple[Callable, Any]:
    """The gradient of a minibatch by number, and weights."""
    weights = network.init(jax.random.key(0), x[:1])

    def energy(weights: Any, begin: jax.Array) -> jax.Array:
        rows = (lax.dynamic_slice_in_dim(a, begin, BATCH) for a in (x, y))
        images, labels = rows
        logits = network.apply(weights, images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return ROWS * losses.mean() + 0.5 * sum(jnp.sum(v**2) for v in jax.tree.leaves(weights))

    return jax.grad(energy), weights


def sampler(network: Network, x: jax.Array, y: jax.Array, steps: int) -> Callable[[], Any]:
    """A run that goes on from its last state, each time it is called."""
    model = bnn.classification(network, bnn.priors.Normal(1.0), x, y)
    kernel = bnn.BAOAB(model, step_size=1e-5, batch_size=BATCH)
    mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=steps, thinning=steps, progress_bar=False)

    def run() -> Any:
        with patch.dict(program_identity._programs, clear=True):
            mcmc.run(jax.random.key(0), x, y)
        mcmc.post_warmup_state = mcmc.last_state
        return mcmc.last_state

    return run


def contenders(problem: Problem, steps: int) -> dict[str, Contender]:
    """All four, each called once."""
    rng = np.random.default_rng(0)
    shape = (ROWS, problem.side, problem.side, problem.channels)
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    y = jnp.asarray(rng.integers(CLASSES, size=ROWS))
    network = Network(problem.filters)
    gradient, weights = by_hand(network, x, y)

    @jax.jit
    def loop(weights: Any) -> Any:
        def step(i: int, weights: Any) -> Any:
            slopes = gradient(weights, i * BATCH % ROWS)
            return jax.tree.map(lambda v, g: v - 1e-6 * g, weights, slopes)

        return lax.fori_loop(0, steps, step, weights)

    single = jax.jit(gradient)
    found = {
        SINGLE: Contender(lambda: [single(weights, i * BATCH % ROWS) for i in range(steps)], steps),
        LOOP: Contender(lambda: loop(weights), steps),
    }
    with patch.object(programs, "fast_convolutions", lambda function: function):
        found[PLAIN] = Contender(sampler(network, x, y, steps), steps)
        # The second call of a run, from its own last state, is another program.
        found[PLAIN].timed()
    found[OURS] = Contender(sampler(network, x, y, steps), steps)
    found[OURS].timed()
    return found


def compare(problem: str, size: Size):
    found = contenders(PROBLEMS[problem], size.steps)
    for _ in range(size.repeats):
        for contender in found.values():
            contender.again()
    single = found[SINGLE].seconds
    for name, contender in found.items():
        ratios = [a / b for a, b in zip(contender.seconds, single)]
        yield {
            "contender": name,
            "step": statistics.median(contender.seconds),
            "ratio": statistics.median(ratios),
            "least_ratio": min(ratios),
            "largest_ratio": max(ratios),
            "first": contender.first,
        }


TABLE = {
    "problem": "network",
    "contender": "what is timed",
    "step": "CPU seconds of a step",
    "ratio": "over the gradient's own program",
    "first": "CPU seconds of the first call",
}


def main(argv=None) -> None:
    study, _, size = begin(__file__, __doc__, ("problem"), SIZES, argv)
    study.run(
        [{"problem": problem} for problem in size.problems], lambda problem: compare(problem, size)
    )
    study.publish(columns(study.rows, TABLE))


if __name__ == "__main__":
    main()
