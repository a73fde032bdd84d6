"""How fast is a step? SGLD and SGHMC through `MCMC.run` against the alternatives.

Contenders take turns in one process (PyTorch, where `--torch-python` has it, in a child process). By hand is
`lax.scan` over the gradient of NumPyro's own potential, rows drawn with replacement.

    python -m benchmarks.speed.sgmcmc_steps [--quick] [--torch-python PYTHON]
"""

import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from flax import linen as nn
from jax import lax
from numpyro.handlers import seed, substitute
from numpyro.infer.util import potential_energy

import numpyro_bnn as bnn
from benchmarks._shared.study import Results, machine, parser

N, INPUTS, HIDDEN, CLASSES = 60_000, 784, 100, 10
EPSILON, H, FRICTION = 1e-6, 1e-3, 10.0
TRAJECTORY = 10  # steps in one call of BlackJAX's SGHMC


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.relu(nn.Dense(HIDDEN)(x)))


def model(x, y=None, subsample_size=None):
    net = bnn.random_module("net", Net(), bnn.priors.Normal(1.0), x[:1])
    with numpyro.plate("data", x.shape[0], subsample_size=subsample_size):
        xb = numpyro.subsample(x, event_dim=1)
        yb = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Categorical(logits=net(xb)), obs=yb)


def data():
    rng = np.random.default_rng(0)
    return rng.random((N, INPUTS), dtype=np.float32), rng.integers(0, CLASSES, N)


def normals(key, tree):
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [jax.random.normal(k, v.shape) for k, v in zip(keys, leaves)]
    )


def ours(kernel: Callable, x, y, z, steps: int) -> Callable:
    mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=steps, thinning=steps, progress_bar=False)

    def run():
        mcmc.run(jax.random.key(1), x, y, init_params=z)
        return mcmc.last_state.z

    return run


def scanned(step: Callable, state, steps: int, *arrays) -> Callable:
    """A jitted scan of ``step(state, key, *arrays)``, data as arguments."""

    @jax.jit
    def go(state, key, *arrays):
        keys = jax.random.split(key, steps)
        return lax.scan(lambda s, k: (step(s, k, *arrays), None), state, keys)[0]

    return lambda: go(state, jax.random.key(1), *arrays)


def langevin(z, gradient, key):
    noise = normals(key, z)
    return jax.tree.map(lambda v, g, n: v - EPSILON / 2 * g + EPSILON**0.5 * n, z, gradient, noise)


def hamiltonian(state, gradient, key):
    z, p = state
    noise = normals(key, z)
    scale = (2 * FRICTION * H) ** 0.5
    p = jax.tree.map(lambda p, g, n: (1 - FRICTION * H) * p - H * g + scale * n, p, gradient, noise)
    return jax.tree.map(lambda v, p: v + H * p, z, p), p


def by_hand(method: str, x, y, z, batch_size: int, steps: int) -> Callable:
    def energy(z, rows, x, y):
        return potential_energy(substitute(model, data={"data": rows}), (x, y), {}, z)

    def step(state, key, x, y):
        key_rows, key_noise = jax.random.split(key)
        rows = jax.random.randint(key_rows, (batch_size,), 0, N)
        at = state if method == "SGLD" else state[0]
        gradient = jax.grad(energy)(at, rows, x, y)
        return (langevin if method == "SGLD" else hamiltonian)(state, gradient, key_noise)

    return scanned(step, z if method == "SGLD" else (z, zeros(z)), steps, x, y)


def zeros(z):
    return jax.tree.map(jnp.zeros_like, z)


def plate(method: str, x, y, z, batch_size: int, steps: int) -> Callable:
    """NumPyro's own subsampling: the plate draws its rows under the seed handler."""

    def energy(z, key, x, y):
        return potential_energy(seed(model, key), (x, y, batch_size), {}, z)

    def step(state, key, x, y):
        key_rows, key_noise = jax.random.split(key)
        at = state if method == "SGLD" else state[0]
        gradient = jax.grad(energy)(at, key_rows, x, y)
        return (langevin if method == "SGLD" else hamiltonian)(state, gradient, key_noise)

    return scanned(step, z if method == "SGLD" else (z, zeros(z)), steps, x, y)


def blackjax_step(method: str, batch_size: int) -> Callable:
    import blackjax

    def log_prior(z):
        return sum(dist.Normal(0.0, 1.0).log_prob(v).sum() for v in z.values())

    def log_likelihood(z, batch):
        x, y = batch
        h = jax.nn.relu(x @ z["net/Dense_1.kernel"] + z["net/Dense_1.bias"])
        logits = h @ z["net/Dense_0.kernel"] + z["net/Dense_0.bias"]
        return dist.Categorical(logits=logits).log_prob(y)

    def one_row(z, row):
        return log_likelihood(z, jax.tree.map(lambda a: a[None], row))[0]

    estimate = blackjax.sgmcmc.gradients.grad_estimator(log_prior, one_row, N)
    if method == "SGLD":
        sampler = blackjax.sgld(estimate)
        return lambda z, key, batch: sampler.step(key, z, batch, EPSILON)
    # Its SGHMC runs a trajectory on one minibatch, whose last gradient moves nothing: several
    # steps a call, counted one by one.
    sampler = blackjax.sghmc(estimate, num_integration_steps=TRAJECTORY, alpha=FRICTION * H)
    return lambda z, key, batch: sampler.step(key, z, batch, H)


def in_scan(method: str, x, y, z, batch_size: int, steps: int) -> Callable:
    update = blackjax_step(method, batch_size)

    def step(z, key, x, y):
        key_rows, key_step = jax.random.split(key)
        rows = jax.random.randint(key_rows, (batch_size,), 0, N)
        return update(z, key_step, (x[rows], y[rows]))

    return scanned(step, z, steps // (1 if method == "SGLD" else TRAJECTORY), x, y)


def in_python(method: str, x, y, z, batch_size: int, steps: int) -> Callable:
    update = jax.jit(blackjax_step(method, batch_size))
    x, y = np.asarray(x), np.asarray(y)

    def run():
        state, rng = z, np.random.default_rng(1)
        key = jax.random.key(1)
        for _ in range(steps // (1 if method == "SGLD" else TRAJECTORY)):
            key, key_step = jax.random.split(key)
            rows = rng.integers(0, N, batch_size)
            state = update(state, key_step, (x[rows], y[rows]))
        return state

    return run


class Torch:
    """A child process with PyTorch that runs when asked."""

    def __init__(self, python: str, method: str, batch_size: int, steps: int) -> None:
        worker = Path(__file__).with_name("sgmcmc_steps_torch.py")
        self.process = subprocess.Popen(
            [python, "-W", "ignore", str(worker), method, str(batch_size), str(steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self) -> float:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare(method: str, batch_size: int, steps: int, repeats: int, torch_python: str | None):
    x, y = (jnp.asarray(a) for a in data())
    z = bnn.optimize(model, jax.random.key(0), x, y, num_steps=0, progress_bar=False)
    z = {name: value[0] for name, value in z.items()}

    def kernel(order: str):
        gradient = bnn.gradients.minibatch(batch_size, order)
        if method == "SGLD":
            return bnn.SGLD(model, step_size=EPSILON, gradient=gradient)
        return bnn.SGHMC(model, step_size=H, friction=FRICTION, gradient=gradient)

    runs = {
        "ours, blocks": ours(kernel("blocks"), x, y, z, steps),
        "ours, permutation": ours(kernel("permutation"), x, y, z, steps),
        "by hand": by_hand(method, x, y, z, batch_size, steps),
        "BlackJAX in a scan": in_scan(method, x, y, z, batch_size, steps),
        "BlackJAX in a loop": in_python(method, x, y, z, batch_size, steps),
        "NumPyro's plate": plate(method, x, y, z, batch_size, steps),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        jax.block_until_ready(run())  # compiles
    child = Torch(torch_python, method, batch_size, steps) if torch_python else None
    if child:
        child.seconds()
        times["posteriors"] = []
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(time.perf_counter() - begin)
        if child:
            times["posteriors"].append(child.seconds())
    if child:
        child.close()
    first = times["ours, blocks"]
    for name, seconds in times.items():
        micro = statistics.median(seconds) / steps * 1e6
        ratio = statistics.median(a / b for a, b in zip(first, seconds))
        yield method, batch_size, name, round(micro, 1), round(ratio, 3)


def main(argv: list[str] | None = None) -> None:
    made = parser(__doc__, toy=False)
    made.add_argument("--torch-python", help="an interpreter with torch and posteriors")
    options = made.parse_args(argv)
    full = options.size == "full"
    repeats = 7 if full else 3
    print(machine())
    rows = []
    for method in ("SGLD", "SGHMC"):
        for batch_size in (100, 1000):
            steps = (1000 if full else 200) // (1 if batch_size == 100 else 2)
            for row in compare(method, batch_size, steps, repeats, options.torch_python):
                rows.append(row)
                print(*row, sep="  ", flush=True)
    head = ("method", "batch_size", "contender", "microseconds", "ratio_of_ours")
    Results(__file__, options).write_rows([dict(zip(head, row)) for row in rows])


if __name__ == "__main__":
    main()
