"""What does a step cost with 4 to 4096 chains on one device, beside its gradient and other software?

Every contender moves all chains together. HMC takes ten leapfrogs a draw and is counted by leapfrogs, as is
BlackJAX's SGHMC.

    python -m benchmarks.speed.steps_by_chains [--quick]
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from jax import lax
from numpyro.infer import HMC
from numpyro.infer.util import potential_energy
from sklearn.datasets import load_digits

import numpyro_bnn as bnn
from benchmarks._shared.study import Row, Study, every_cell, parser, without

LEAPFROGS, REPEATS = 10, 5
STEP, FRICTION = 1e-3, 10.0
# Steps of a repeat: so many that what a call of `MCMC.run` costs beyond its steps is small.
STEPS = {4: 10_000, 64: 3000, 512: 1000, 4096: 300}
TASKS = ("digits", "mnist shape")
CHAINS = {"full": (4, 64, 512, 4096), "quick": (4, 64), "toy": (2,)}


class Net(nn.Module):
    hidden: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.tanh(nn.Dense(self.hidden)(x)))


def network(hidden: int) -> Callable:
    """A NumPyro model of a softmax network with one hidden layer and unit Gaussian priors."""

    def model(x, y=None):
        net = bnn.random_module("net", Net(hidden), bnn.priors.Normal(1.0), x[:1])
        with numpyro.plate("data", x.shape[0]):
            xb = numpyro.subsample(x, event_dim=1)
            yb = None if y is None else numpyro.subsample(y, event_dim=0)
            numpyro.sample("y", dist.Categorical(logits=net(xb)), obs=yb)

    return model


def problem(name: str) -> tuple[Callable, np.ndarray, np.ndarray, int | None]:
    """Model, inputs, labels and rows of a minibatch."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        return network(16), (x[:1347] / 16).astype(np.float32), y[:1347].astype(np.int32), None
    rng = np.random.default_rng(0)
    x = rng.random((60_000, 784), dtype=np.float32)
    return network(100), x, rng.integers(0, 10, 60_000).astype(np.int32), 100


def through_mcmc(kernel: Any, owner: Any, z: Any, x: Any, y: Any, draws: int) -> Callable:
    """A run that keeps its last draw."""
    mcmc = owner(
        kernel,
        num_warmup=0,
        num_samples=draws,
        thinning=draws,
        num_chains=len(next(iter(z.values()))),
        chain_method="vectorized",
        progress_bar=False,
    )

    def run():
        mcmc.run(jax.random.key(1), x, y, init_params=z)
        return mcmc.last_state.z

    return run


def scanned(step: Callable, state: Any, steps: int, *arrays: Any) -> Callable:
    """A compiled scan of ``step(state, keys, *arrays)`` over chains, data as arguments."""
    chains = len(jax.tree.leaves(state)[0])

    @jax.jit
    def go(state, key, *arrays):
        def one(state, key):
            return step(state, jax.random.split(key, chains), *arrays), None

        return lax.scan(one, state, jax.random.split(key, steps))[0]

    return lambda: go(state, jax.random.key(1), *arrays)


def minibatch(key: jax.Array, x: Any, y: Any, size: int | None) -> tuple[Any, Any, float]:
    """Rows of a step, drawn with replacement, and what their likelihood counts."""
    if size is None:
        return x, y, 1.0
    rows = jax.random.randint(key, (size,), 0, x.shape[0])
    return x[rows], y[rows], x.shape[0] / size


def bare_gradient(model: Callable, z: Any, x: Any, y: Any, size: int | None, steps: int):
    """No noise and no momentum: what no sampler can be faster than."""

    def energy(z, key, x, y):
        xb, yb, scale = minibatch(key, x, y, size)
        return potential_energy(numpyro.handlers.scale(model, scale), (xb, yb), {}, z)

    def step(z, keys, x, y):
        gradient = jax.vmap(jax.grad(energy), (0, 0, None, None))(z, keys, x, y)
        return jax.tree.map(lambda v, g: v - 1e-9 * g, z, gradient)

    return scanned(step, z, steps, x, y)


def log_density(z: Any, x: Any, y: Any, scale: float) -> jax.Array:
    """The same posterior by hand, for software that knows no models."""
    prior = sum(dist.Normal(0.0, 1.0).log_prob(v).sum() for v in z.values())
    h = jnp.tanh(x @ z["net/Dense_1.kernel"] + z["net/Dense_1.bias"])
    logits = h @ z["net/Dense_0.kernel"] + z["net/Dense_0.bias"]
    return prior + scale * dist.Categorical(logits=logits).log_prob(y).sum()


def blackjax_step(method: str, z: Any, x: Any, y: Any, size: int | None, steps: int) -> Callable:
    import blackjax

    def density(key, x, y):
        xb, yb, scale = minibatch(key, x, y, size)
        return lambda z: log_density(z, xb, yb, scale)

    if method == "SGHMC":
        sampler = blackjax.sghmc(
            lambda z, key_and_data: jax.grad(density(*key_and_data))(z),
            num_integration_steps=LEAPFROGS,
            alpha=FRICTION * STEP,
        )

        def step(z, keys, x, y):
            def one(z, key):
                key_rows, key = jax.random.split(key)
                return sampler.step(key, z, (key_rows, x, y), STEP)

            return jax.vmap(one)(z, keys)

        # The last gradient of its trajectory moves nothing, so a trajectory of one step has none.
        return scanned(step, z, steps // LEAPFROGS, x, y)

    fixed = density(jax.random.key(0), jnp.asarray(x), jnp.asarray(y))
    number = sum(v[0].size for v in z.values())
    if method == "MCLMC":
        sampler = blackjax.mclmc(fixed, L=10.0, step_size=STEP)
        keys = jax.random.split(jax.random.key(2), len(next(iter(z.values()))))
        state = jax.vmap(sampler.init)(z, keys)
    else:
        sampler = blackjax.hmc(fixed, STEP, jnp.ones(number), LEAPFROGS)
        state = jax.vmap(sampler.init)(z)

    def step(state, keys):
        return jax.vmap(lambda s, k: sampler.step(k, s)[0])(state, keys)

    return scanned(step, state, steps)


def contenders(name: str, chains: int, steps: int) -> Iterator[tuple[str, Callable[[], Callable]]]:
    """Each with a function that sets it up."""
    model, x, y, size = problem(name)
    x, y = jnp.asarray(x), jnp.asarray(y)
    z = bnn.optimize(
        model, jax.random.key(0), x[:100], y[:100], num_chains=1, num_steps=0, progress_bar=False
    )
    z = {n: jnp.repeat(jnp.asarray(v), chains, axis=0) for n, v in z.items()}

    def ours(kernel: Callable, **options: Any) -> Callable:
        options |= {} if size is None else {"batch_size": size}
        return lambda: through_mcmc(
            kernel(model, step_size=STEP, **options), bnn.MCMC, z, x, y, steps
        )

    def hmc(owner: Any) -> Callable:
        length = (LEAPFROGS - 0.5) * STEP
        kernel = HMC(model, step_size=STEP, trajectory_length=length, adapt_step_size=False)
        return lambda: through_mcmc(kernel, owner, z, x, y, max(steps // LEAPFROGS, 1))

    def other(method: str) -> Callable:
        count = max(steps // LEAPFROGS, 1) if method == "HMC" else steps
        return lambda: blackjax_step(method, z, x, y, size, count)

    yield "gradient alone", lambda: bare_gradient(model, z, x, y, size, steps)
    yield "BAOAB", ours(bnn.BAOAB, friction=FRICTION)
    yield "SGHMC", ours(bnn.SGHMC, friction=FRICTION)
    if size is not None:
        yield "BlackJAX SGHMC", other("SGHMC")
        return
    yield "MCLMC", ours(bnn.MCLMC, friction=0.1)
    yield "BlackJAX MCLMC", other("MCLMC")
    yield "HMC, our MCMC", hmc(bnn.MCMC)
    yield "HMC, NumPyro's MCMC", hmc(numpyro.infer.MCMC)
    yield "BlackJAX HMC", other("HMC")


def measured(task: str, chains: int, *, size: str) -> Iterator[Row]:
    """Microseconds of a step of all chains, for every contender."""
    steps = STEPS.get(chains, 300) if size == "full" else 20
    gradient = None
    for name, set_up in contenders(task, chains, steps):
        run = set_up()
        jax.block_until_ready(run())
        seconds = []
        # NumPyro compiles its HMC at every call.
        for _ in range(REPEATS if "NumPyro" not in name else 1):
            begin = time.perf_counter()
            jax.block_until_ready(run())
            seconds.append(time.perf_counter() - begin)
        taken = steps // LEAPFROGS * LEAPFROGS
        micro = statistics.median(seconds) / taken * 1e6
        gradient = gradient or micro
        yield {
            "contender": name,
            "steps": taken,
            "microseconds": round(micro, 2),
            "least": round(min(seconds) / taken * 1e6, 2),
            "most": round(max(seconds) / taken * 1e6, 2),
            "over_gradient": round(micro / gradient, 3),
            "chain_steps_a_second": round(chains / micro * 1e6),
            "precision": "highest",
        }


def main(argv: list[str] | None = None) -> None:
    options = parser(__doc__ or "").parse_args(argv)
    jax.config.update("jax_default_matmul_precision", "highest")
    study = Study(__file__, ("task", "chains", "contender"), options)
    study.run(
        every_cell(chains=CHAINS[options.size], task=TASKS),
        lambda task, chains: measured(task, chains, size=options.size),
    )
    study.publish(without(study.rows, "precision", "steps", "least", "most"))


if __name__ == "__main__":
    main()
