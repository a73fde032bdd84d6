"""What does the library cost? NUTS per leapfrog against a hand-written model, and a second run.

The same 64-16-10 network on scikit-learn's digits, written with `random_module` and by hand in
plain NumPyro, sampled with trajectories of a fixed number of leapfrog steps, interleaved; and
the time that a second `MCMC.run` takes beyond its sampling.

    python -m benchmarks.speed.overhead [--quick]
"""

import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from numpyro.infer import HMC
from sklearn.datasets import load_digits

import numpyro_bnn as bnn
from benchmarks._shared.study import Results, parser

LEAPFROGS = 20


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(16)(x))
        return nn.Dense(10)(x)


def ours(x, y=None):
    net = bnn.random_module("net", MLP(), bnn.priors.Normal(1.0), x[:1])
    with numpyro.plate("data", x.shape[0]):
        rows = numpyro.subsample(x, event_dim=1)
        target = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Categorical(logits=net(rows)), obs=target)


def by_hand(x, y=None):
    def normal(name, *shape):
        return numpyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))

    h = jnp.tanh(x @ normal("k1", 64, 16) + normal("b1", 16))
    logits = h @ normal("k2", 16, 10) + normal("b2", 10)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def sampler(model, num_samples):
    kernel = HMC(
        model,
        step_size=1e-4,
        num_steps=LEAPFROGS,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    return bnn.MCMC(kernel, num_warmup=0, num_samples=num_samples, progress_bar=False)


def seconds(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main(argv=None):
    options = parser(__doc__, toy=False).parse_args(argv)
    num_samples, repeats = (200, 11) if options.size == "full" else (50, 3)
    x, y = load_digits(return_X_y=True)
    x, y = jnp.asarray(x / 16, jnp.float32), jnp.asarray(y)

    def timed(mcmc):
        def run():
            mcmc.run(jax.random.key(0), x, y)
            jax.block_until_ready(mcmc.last_state)

        return run

    runs = {"random_module": timed(sampler(ours, num_samples))}
    runs["by hand"] = timed(sampler(by_hand, num_samples))
    short = timed(sampler(ours, 1))
    times = {name: [] for name in [*runs, "run of one draw"]}
    for run in (*runs.values(), short):
        run()  # compiles
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run) / (num_samples * LEAPFROGS) * 1e6)
        times["run of one draw"].append(seconds(short))
    ratio = statistics.median(a / b for a, b in zip(times["random_module"], times["by hand"]))
    one_draw = LEAPFROGS * statistics.median(times["random_module"]) * 1e-6
    rows = [
        ("random_module, microseconds a leapfrog", statistics.median(times["random_module"])),
        ("by hand, microseconds a leapfrog", statistics.median(times["by hand"])),
        ("ratio, median over pairs", ratio),
        (
            "overhead of a second run, seconds",
            statistics.median(times["run of one draw"]) - one_draw,
        ),
    ]
    print(f"JAX {jax.__version__}, Python {platform.python_version()}, {repeats} repeats")
    for label, value in rows:
        print(f"{label:<45} {value:10.4f}")
    Results(__file__, options).write_values(rows)


if __name__ == "__main__":
    main()
