"""Is a step faster on one vector than site by site? By size of the network, compiling and running.

Small positions are one vector inside a kernel (``numpyro_bnn.potential.flat_position``), large ones keep
their sites apart. Here both forms of the same run take turns in one process, whatever the size:
microseconds of a step, medians over repeats, and CPU seconds of the first run, which are mostly
compilation. MCLMC takes all of 1000 rows, SGHMC minibatches of 100; one chain, one core.

    python -m benchmarks.speed.one_vector [--quick | --toy]
"""

import statistics
import time
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import matplotlib.pyplot as plt
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import publish
from benchmarks._shared.study import Study, every_cell, parser
from benchmarks._shared.words import span
from numpyro_bnn.compilation.program_identity import separate_programs
from numpyro_bnn.plots.style import color_at, label_axes
from numpyro_bnn.potential import flat_position

ROWS, THINNING, WARMUP = 1000, 50, 100
KERNELS = {
    "MCLMC": lambda model: bnn.MCLMC(model),
    "SGHMC, 100 rows": lambda model: bnn.SGHMC(
        model, step_size=1e-4, friction=10.0, batch_size=100
    ),
}


class Network(NamedTuple):
    """Inputs, hidden layers, and whether precisions of its groups are learned."""

    inputs: int
    hidden: tuple[int, ...]
    learned: bool


NETWORKS = {
    "6-16-16-1, precisions": Network(6, (16, 16), True),
    "6-16-16-16-16-1, precisions": Network(6, (16, 16, 16, 16), True),
    "10-100-1": Network(10, (100,), False),
    "100-100-1": Network(100, (100,), False),
    "200-100-1": Network(200, (100,), False),
    "784-100-1": Network(784, (100,), False),
}


class Size(NamedTuple):
    """Networks; steps of a timed run; repeats."""

    networks: tuple[str, ...]
    steps: int
    repeats: int


SIZES = {
    "full": Size(tuple(NETWORKS), 1000, 7),
    "quick": Size(tuple(NETWORKS)[:3], 500, 3),
    "toy": Size(tuple(NETWORKS)[:1], 50, 1),
}


def problem(network: Network) -> tuple[Any, np.ndarray, np.ndarray]:
    """A model and made-up data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, network.inputs)).astype(np.float32)
    y = (np.sin(x[:, 0]) + 0.1 * rng.normal(size=ROWS)).astype(np.float32)
    prior = bnn.priors.Hierarchical(1.0, 1.0) if network.learned else bnn.priors.FanIn()
    return bnn.regression(bnn.MLP(network.hidden, 1), prior, x, y), x, y


class Contender:
    """A run in one of the two forms: CPU seconds of its first call, seconds of later ones.

    :param most: numbers up to which a position is one vector.
    """

    def __init__(self, kernel: Any, data: tuple, steps: int, most: float) -> None:
        self.data, self.steps, self.most = data, steps, most
        self.mcmc = bnn.MCMC(
            kernel, num_warmup=WARMUP, num_samples=steps, thinning=THINNING, progress_bar=False
        )
        begin = time.process_time()
        with separate_programs():
            self.run(jax.random.key(0))
        self.first = time.process_time() - begin
        self.mcmc.post_warmup_state = self.mcmc.last_state
        self.seconds: list[float] = []

    def run(self, key: jax.Array) -> None:
        """One run, in this form."""
        with patch.object(flat_position, "_MOST", self.most):
            self.mcmc.run(key, *self.data)
        jax.block_until_ready(self.mcmc.last_state)

    def again(self) -> None:
        """A run that goes on from the last one, timed."""
        begin = time.perf_counter()
        self.run(self.mcmc.last_state.rng_key)
        self.seconds.append(time.perf_counter() - begin)

    @property
    def step(self) -> float:
        """Microseconds of a step, the median over runs."""
        return 1e6 * statistics.median(self.seconds) / self.steps


def compare(network: str, kernel: str, size: Size):
    model, *data = problem(NETWORKS[network])
    both = [
        Contender(KERNELS[kernel](model), tuple(data), size.steps, most)
        for most in (float("inf"), 0)
    ]
    for _ in range(size.repeats):
        for contender in both:
            contender.again()
    one, apart = both
    ratios = [a / b for a, b in zip(one.seconds, apart.seconds)]
    z = one.mcmc.last_state.z
    yield {
        "sites": len(z),
        "numbers": sum(np.size(value) for value in z.values()),
        "one_us": one.step,
        "apart_us": apart.step,
        "ratio": statistics.median(ratios),
        "least_ratio": min(ratios),
        "largest_ratio": max(ratios),
        "one_first": one.first,
        "apart_first": apart.first,
    }


TABLE = {
    "network": "network",
    "kernel": "kernel",
    "sites": "sites",
    "numbers": "numbers",
    "one_us": "one vector, µs a step",
    "apart_us": "sites apart",
    "ratio": "ratio, median",
    "one_first": "first run of one vector, CPU seconds",
    "apart_first": "of sites apart",
}


def draw(rows):
    figure, ax = plt.subplots(figsize=(5, 3.4), layout="constrained")
    for i, kernel in enumerate(KERNELS):
        here = sorted((r for r in rows if r["kernel"] == kernel), key=lambda r: r["numbers"])
        ax.plot(
            [r["numbers"] for r in here],
            [r["ratio"] for r in here],
            "o-",
            color=color_at(ax, i),
            label=kernel,
        )
    ax.axhline(1, color="0.5", linewidth=1)
    ax.set_xscale("log")
    label_axes(ax, "numbers in a position", "time of a step, one vector / sites apart")
    ax.legend(frameon=False)
    return figure


def findings(rows):
    """Times of a step on one vector over those site by site, up to the size at which the package ends it."""
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        own = [row for row in rows if row["kernel"] == kernel]
        small = [r["ratio"] for r in own if r["numbers"] <= 2**14]
        first = [r["one_first"] / r["apart_first"] for r in own if r["numbers"] <= 2**14]
        yield (
            f"{kernel}, up to 16,384 numbers: a step takes {span(small)} times as long on one vector, the "
            f"first run {span(first)} times the CPU seconds."
        )


def main(argv=None) -> None:
    asked = parser(__doc__).parse_args(argv)
    size = SIZES[asked.size]
    study = Study(__file__, ["network", "kernel"], asked)
    study.run(
        every_cell(network=size.networks, kernel=KERNELS),
        lambda network, kernel: compare(network, kernel, size),
    )
    rows = study.rows
    publish(study, rows, TABLE, findings(rows), lambda: draw(rows))


if __name__ == "__main__":
    main()
