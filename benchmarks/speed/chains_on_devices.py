"""Chains on two host devices against `jax.vmap`, and the memory of a long run.

The 784-100-10 network of `sgmcmc_steps`, SGLD with minibatches of 100:

- two and four chains, one or two a device, against all of them in one `jax.vmap`, interleaved, and
  how many cores each keeps busy: `vmap` on one device uses threads too;
- peak resident memory of a child process against the number of steps (the draws kept are one)
  and against the number of rows, beyond the bytes of the rows themselves.

    python -m benchmarks.speed.chains_on_devices [--quick]
"""

import argparse
import pathlib
import platform
import statistics
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

import numpyro_bnn as bnn
from benchmarks._shared.study import ROOT, Results, command, parser
from benchmarks.speed.sgmcmc_steps import CLASSES, EPSILON, INPUTS, N, model

BATCH = 100


def rows(size: int):
    rng = np.random.default_rng(0)
    x = rng.random((size, INPUTS), dtype=np.float32)
    return x, rng.integers(0, CLASSES, size)


def sampler(steps: int, **chains):
    kernel = bnn.SGLD(model, step_size=EPSILON, batch_size=BATCH)
    return bnn.MCMC(
        kernel, num_warmup=0, num_samples=steps, thinning=steps, progress_bar=False, **chains
    )


def chains(num_chains: int, steps: int, repeats: int):
    """Seconds and busy cores on the devices and in one vmap, medians, and the median of ratios."""
    x, y = (jnp.asarray(a) for a in rows(N))
    z = bnn.optimize(
        model, jax.random.key(0), x, y, num_chains=num_chains, num_steps=0, progress_bar=False
    )
    times, busy = {}, {}
    samplers = {
        method: sampler(steps, num_chains=num_chains, chain_method=method)
        for method in ("parallel", "vectorized")
    }
    for repeat in range(repeats + 1):
        for method, mcmc in samplers.items():
            begin, used = time.perf_counter(), time.process_time()
            mcmc.run(jax.random.key(1), x, y, init_params=z)
            jax.block_until_ready(mcmc.last_state.z)
            if repeat:  # the first compiles
                seconds = time.perf_counter() - begin
                times.setdefault(method, []).append(seconds)
                busy.setdefault(method, []).append((time.process_time() - used) / seconds)
    parallel, vectorized = times.values()
    ratio = statistics.median(a / b for a, b in zip(parallel, vectorized))
    medians = [statistics.median(v) for v in (*times.values(), *busy.values())]
    return *medians, ratio


def peak(steps: int, size: int) -> float:
    """Peak resident MiB of one process that runs `steps` over `size` rows."""
    asked = command(__file__, "--child", steps, size)
    said = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return float(said)


def child(steps: int, size: int) -> None:
    x, y = rows(size)
    z = {
        name: value[0]
        for name, value in bnn.optimize(
            model, jax.random.key(0), x[:BATCH], y[:BATCH], num_steps=0, progress_bar=False
        ).items()
    }
    sampler(steps).run(jax.random.key(1), x, y, init_params=z)
    # `ru_maxrss` would be that of the parent, which a child begins as.
    status = pathlib.Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def speed(quick: bool):
    steps, repeats = (200, 3) if quick else (1000, 7)
    for num_chains in (2, 4):
        parallel, vectorized, *cores, ratio = chains(num_chains, steps, repeats)
        yield f"{num_chains} chains on 2 devices, microseconds a step", parallel / steps * 1e6
        yield f"{num_chains} chains in one vmap, microseconds a step", vectorized / steps * 1e6
        yield f"{num_chains} chains on 2 devices, cores busy", cores[0]
        yield f"{num_chains} chains in one vmap, cores busy", cores[1]
        yield f"{num_chains} chains, ratio of the medians of pairs", ratio


def memory(quick: bool):
    for steps in (100, 1000) if quick else (100, 1000, 10_000):
        yield f"peak MiB, {steps} steps, {N} rows", peak(steps, N)
    for size in (N // 4, N // 2, N):
        bytes_of_rows = size * (INPUTS + 2) * 4 / 2**20
        yield (
            f"peak MiB, 100 steps, {size} rows, of which data {bytes_of_rows:.0f}",
            peak(100, size),
        )


PARTS = {"chains": speed, "memory": memory}


def main(argv: list[str] | None = None) -> None:
    made = parser(__doc__, toy=False)
    made.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    made.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    options = made.parse_args(argv)
    if options.child:
        child(*options.child)
        return
    numpyro.set_host_device_count(2)
    print(
        f"JAX {jax.__version__}, Python {platform.python_version()}, {jax.device_count()} devices"
    )
    for part in options.part:
        found = []
        for what, value in PARTS[part](options.size != "full"):
            found.append((what, round(value, 4)))
            print(f"{what:<58}{value:>10.3f}", flush=True)
        # The speed is the study's first table, the memory its second.
        Results(__file__, options, "" if part == "chains" else part).write_values(found)


if __name__ == "__main__":
    main()
