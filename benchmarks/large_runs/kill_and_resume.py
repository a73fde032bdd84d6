"""Does a run survive? Killed at random moments, again and again, it must end with the very same draws.

After every kill, the draws that the last checkpoint counts must be in the store. A second part makes the disk
full (a limit on the size of files) and cuts a chunk short.

    python -m benchmarks.large_runs.kill_and_resume [--quick]
"""

import argparse
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, NUTS
from numpyro.infer.gibbs import CustomGibbs, Gibbs

import numpyro_bnn as bnn
from benchmarks._shared.study import ROOT, Results, command, machine, parser

ROWS, FEATURES, HIDDEN = 400, 8, 64
KERNELS = ("NUTS", "BAOAB", "Gibbs")
EVERY = 20


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=ROWS).astype(np.float32)


NET = bnn.MLP([HIDDEN], 1)


def model(x, y=None):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    net = bnn.random_module("net", NET, bnn.priors.FanIn(), x[:1])
    bnn.likelihoods.gaussian(lambda x: net(x)[..., 0], y, x=x, noise=1 / jnp.sqrt(precision))


def draw_precision(rng_key, gibbs_sites, hmc_sites):
    """From its conditional given the network: Gamma(2 + N/2, 1 + half the squared residuals)."""
    x, y = data()
    residuals = y - NET.apply({"params": bnn.to_params(hmc_sites)}, x)[..., 0]
    conditional = dist.Gamma(2.0 + ROWS / 2, 1.0 + jnp.sum(residuals**2) / 2)
    return {"precision": conditional.sample(rng_key)}


def kernel_of(name):
    if name == "NUTS":
        return NUTS(model, max_tree_depth=4)
    if name == "BAOAB":
        return bnn.BAOAB(model, step_size=0.002, batch_size=50)
    hmc = HMC(model, step_size=0.01, trajectory_length=0.1)
    return Gibbs([(CustomGibbs(draw_precision), ["precision"]), (hmc, None)])


def sampler(name, folder, num_samples):
    return bnn.MCMC(
        kernel_of(name),
        num_warmup=10 * EVERY,
        num_samples=num_samples,
        num_chains=2,
        checkpoint=folder / "checkpoint",
        checkpoint_every=EVERY,
        draws=folder / "run.zarr",
        progress_bar=False,
    )


def work(name, folder, num_samples):
    """What the process that is killed does: begin, or go on."""
    mcmc = sampler(name, folder, num_samples)
    try:
        mcmc.resume(*data())
    except FileNotFoundError:
        # A store without a checkpoint cannot be: the checkpoint's header comes first.
        mcmc.run(jax.random.key(7), *data())


def start(name, folder, num_samples, limit=None):
    work = command(__file__, "--work", name, folder, num_samples)

    def cap():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        work,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=cap if limit else None,
    )


def draws_in(folder):
    """Every array of the store, by file name."""
    draws = bnn.load(folder / "run.zarr", model)
    return {**draws.values_by_site, **draws.stats}


def last_step(folder):
    """Step of the last checkpoint; None before the first."""
    steps = folder / "checkpoint" / "steps"
    done = [int(p.name) for p in steps.iterdir() if p.name.isdigit()] if steps.is_dir() else []
    return max(done, default=None)


def counted(folder):
    """Draws of each chain that the last checkpoint counts."""
    step = last_step(folder)
    if step is None:
        return 0
    progress = folder / "checkpoint" / "steps" / str(step) / "progress" / "metadata"
    return json.loads(progress.read_text())["draws"]


def moment(process, folder, alone, rng):
    """Seconds to the next kill: now and then while the process starts, mostly while it samples."""
    if rng.random() < 0.2:
        return rng.uniform(0.0, 0.5) * alone
    before = last_step(folder)
    while process.poll() is None and last_step(folder) == before:
        time.sleep(0.01)
    return rng.uniform(0.0, 0.5)


def soak(name, folder, kills, num_samples, rng):
    """Kill a run until it was killed `kills` times and has finished."""
    whole, broken = folder / "whole", folder / "broken"
    begin = time.perf_counter()
    process = start(name, whole, num_samples)
    if process.wait():
        raise RuntimeError(f"{name}: the undisturbed run failed: {process.stderr.read()}")
    alone = time.perf_counter() - begin
    expected = {k: np.asarray(v) for k, v in draws_in(whole).items()}
    killed = lost = 0
    moments = []
    while True:
        process = start(name, broken, num_samples)
        try:
            wait = None if killed >= kills else moment(process, broken, alone, rng)
            _, said = process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            safe = counted(broken)
            if safe:
                lost += sum(
                    not np.array_equal(np.asarray(v[:, :safe]), expected[k][:, :safe])
                    for k, v in draws_in(broken).items()
                )
            moments.append(safe)
            continue
        if process.returncode:
            raise RuntimeError(f"{name}: the run failed after {killed} kills: {said}")
        found = draws_in(broken)
        same = all(np.array_equal(np.asarray(found[k]), v) for k, v in expected.items())
        if killed >= kills or not same:
            return killed, moments, lost, same
        # It finished before it was killed often enough: begin again.
        shutil.rmtree(broken)


def faults(folder, num_samples):
    """A disk that is full, then a chunk that was cut short."""
    broken = folder / "full"
    # Enough for what describes the run, too little for a chunk of weights.
    process = start("NUTS", broken, num_samples, limit=60_000)
    _, said = process.communicate()
    explained = process.returncode != 0 and "safe" in said
    process = start("NUTS", broken, num_samples)
    resumed = process.wait() == 0
    whole = {k: np.asarray(v) for k, v in draws_in(folder / "NUTS" / "whole").items()}
    same = all(np.array_equal(np.asarray(v), whole[k]) for k, v in draws_in(broken).items())
    chunk = next((broken / "run.zarr").glob("posterior/precision/c/0/1"))
    chunk.write_bytes(chunk.read_bytes()[:10])
    try:
        draws_in(broken)
        refused = False
    except ValueError as error:
        refused = f"first {EVERY}" in str(error)
    return [
        ("full disk: error says what is safe", explained),
        ("full disk: resumed to the same bits", resumed and same),
        ("chunk cut short: refused, safe draws named", refused),
    ]


def main(argv=None):
    made = parser(__doc__, toy=False)
    made.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = made.parse_args(argv)
    if given.work:
        name, folder, num_samples = given.work
        work(name, Path(folder), int(num_samples))
        return
    kills, names, num_samples = 25, KERNELS, 3000
    if given.size == "quick":
        kills, names, num_samples = 2, ("NUTS",), 400
    rng = random.Random(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            begin = time.perf_counter()
            killed, moments, lost, same = soak(name, Path(folder) / name, kills, num_samples, rng)
            found = {
                "kills": killed,
                "kills in the middle of sampling": sum(0 < m < num_samples for m in moments),
                "arrays that lost a draw that a checkpoint counted": lost,
                "draws bit for bit those of the undisturbed run": same,
                "seconds": round(time.perf_counter() - begin, 1),
            }
            rows += [(f"{name}: {what}", value) for what, value in found.items()]
        rows += faults(Path(folder), num_samples)
    print(machine())
    for what, value in rows:
        print(f"{what:<70} {value}")
    Results(__file__, given).write_values(rows)
    if not all(value for what, value in rows if isinstance(value, bool)):
        sys.exit("A run did not survive.")


if __name__ == "__main__":
    main()
