"""What does integrating the output layer out cost?

Seconds of an energy and its gradient for a relu network with one hidden layer, as it is and with its output
layer integrated out, interleaved, in single precision; and how far that is from double precision, in nats.

    python -m benchmarks.mixing.integrated_output [--quick | --toy]
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.sampled_runs import columns
from benchmarks._shared.study import begin, every_cell
from benchmarks._shared.words import span


class Size(NamedTuple):
    """Rows and hidden units; repeats."""

    rows: tuple[int, ...]
    hidden: tuple[int, ...]
    repeats: int


SIZES = {
    "full": Size((100, 1000, 10_000, 50_000), (8, 32, 128, 256), 7),
    "quick": Size((100, 1000), (8, 32), 3),
    "toy": Size((50,), (4,), 1),
}


def plain_model(hidden: int):
    prior = bnn.priors.Hierarchical(1.0, 1.0)

    def model(x: Any, y: Any = None) -> None:
        net = bnn.random_module("net", bnn.MLP((hidden,), 1, jax.nn.relu), prior, x[:1])
        noise = bnn.likelihoods.Precision.width(0.1, common=0.5)
        bnn.likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=noise)

    return model


def programs(model: Any, x: np.ndarray, y: np.ndarray):
    """A compiled energy with its gradient, and values to call it with."""
    potential = bnn.potential_of(model, x, y)
    z = potential.unconstrain(jax.jit(potential.prior_draw)(jax.random.key(0)))
    return jax.jit(jax.value_and_grad(potential)), z


def cost(rows: int, hidden: int, repeats: int):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8)).astype(np.float32)
    y = (np.sin(x[:, 0]) + 0.1 * rng.normal(size=rows)).astype(np.float32)
    model = plain_model(hidden)
    both = [programs(model, x, y), programs(bnn.integrate_output(model), x, y)]
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for kept, (program, z) in zip(seconds, both):
            begin = time.perf_counter()
            jax.block_until_ready(program(z))
            kept.append(time.perf_counter() - begin)
    plain, integrated = (float(np.median(kept[1:])) for kept in seconds)
    program, z = both[1]
    single = float(program(z)[0])
    with jax.enable_x64(True):
        exact = bnn.potential_of(bnn.integrate_output(model), x.astype(float), y.astype(float))
        double = float(jax.jit(exact)({name: jnp.asarray(v, float) for name, v in z.items()}))
    yield {
        "plain_ms": 1000 * plain,
        "integrated_ms": 1000 * integrated,
        "ratio": integrated / plain,
        "energy": double,
        "error_nats": abs(single - double),
    }


TABLE = {
    "rows": "rows",
    "hidden": "hidden units",
    "plain_ms": "as it is, ms",
    "integrated_ms": "integrated, ms",
    "ratio": "ratio",
    "energy": "energy, nats",
    "error_nats": "error of single precision, nats",
}


def findings(rows):
    yield (
        f"A gradient costs {span([r['ratio'] for r in rows], 1)} times that of the model as it is; "
        f"single precision is at most {max(r['error_nats'] for r in rows):.2g} nats off."
    )


def main(argv=None) -> None:
    study, _, size = begin(__file__, __doc__, ("rows", "hidden"), SIZES, argv)
    study.run(
        every_cell(rows=size.rows, hidden=size.hidden),
        lambda rows, hidden: cost(rows, hidden, size.repeats),
    )
    study.publish(columns(study.rows, TABLE), findings(study.rows))


if __name__ == "__main__":
    main()
