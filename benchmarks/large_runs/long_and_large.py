"""What happens at the far end: a million draws, ten million rows, ten thousand chains, a process that dies?

Every part runs in processes of its own, is timed, and is compared with an exact answer, or bit for bit
with a run that nobody disturbed.

    python -m benchmarks.large_runs.long_and_large [--quick] [--part draws rows chains killed]
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import arviz as az
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray as xr
from numpyro.infer import HMC

import numpyro_bnn as bnn
from benchmarks._shared.study import ROOT, Results, command, parser

SIZES = {
    "full": {"draws": 1_000_000, "rows": 10_000_000, "chains": 10_000, "killed": 60},
    "quick": {"draws": 10_000, "rows": 200_000, "chains": 500, "killed": 60},
}
FEATURES, BATCH = 4, 1000


def model(x, y=None):
    """A straight line with standard normal weights and noise 1, so that its posterior is known."""
    with numpyro.plate("features", FEATURES):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        xb = numpyro.subsample(x, event_dim=1)
        yb = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(xb @ weights, 1.0), obs=yb)


def made(rows, folder=None):
    """Inputs and targets; in files where there is a folder, written a million rows at a time."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=FEATURES)
    if folder is None:
        x, y = np.empty((rows, FEATURES), np.float32), np.empty(rows, np.float32)
    else:
        shapes = {"x.npy": (rows, FEATURES), "y.npy": (rows,)}
        x, y = (
            np.lib.format.open_memmap(folder / name, "w+", np.float32, shape)
            for name, shape in shapes.items()
        )
    for begin in range(0, rows, 1_000_000):
        part = slice(begin, min(begin + 1_000_000, rows))
        x[part] = rng.normal(size=x[part].shape)
        y[part] = x[part] @ truth + rng.normal(size=len(y[part]))
    return x, y


def exact(x, y):
    """Mean and covariance of the weights, from sums over blocks of rows."""
    precision, moment = np.eye(FEATURES), np.zeros(FEATURES)
    for begin in range(0, len(y), 1_000_000):
        block = np.asarray(x[begin : begin + 1_000_000], np.float64)
        precision += block.T @ block
        moment += block.T @ np.asarray(y[begin : begin + 1_000_000], np.float64)
    covariance = np.linalg.inv(precision)
    return covariance @ moment, covariance


def peak():
    """MiB resident at most, of this process alone."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def sampler(kernel, **options):
    return bnn.MCMC(kernel, **{"num_warmup": 200, "progress_bar": False} | options)


def draws(size, folder):
    """Draws go to disk; ArviZ reads them from there, ten thousand of each chain at a time."""
    x, y = made(50)
    kernel = HMC(model, step_size=0.1, trajectory_length=0.3, adapt_mass_matrix=False)
    chains, path = 4, folder / "run.zarr"
    begin = time.perf_counter()
    mcmc = sampler(kernel, num_samples=size // chains, num_chains=chains, draws=path)
    mcmc.run(jax.random.key(0), x, y)
    yield "seconds of sampling", time.perf_counter() - begin
    yield "peak memory, MiB", peak()
    begin = time.perf_counter()
    weights = xr.open_zarr(path, group="posterior", chunks=None)["weights"]
    length = min(10_000, weights.sizes["draw"])
    total, effective = np.zeros(FEATURES), np.zeros(FEATURES)
    for start in range(0, weights.sizes["draw"], length):
        piece = weights.isel(draw=slice(start, start + length)).load()
        total += piece.sum(("chain", "draw")).to_numpy()
        effective += az.ess(piece.to_dataset(), method="mean")["weights"].to_numpy()
    mean, covariance = exact(x, y)
    error = np.abs(total / size - mean) / np.sqrt(np.diag(covariance) / effective)
    yield "seconds of reading in pieces", time.perf_counter() - begin
    yield "effective draws, fewest of the weights", effective.min()
    yield "largest error of a mean, Monte Carlo errors", error.max()
    short = sampler(kernel, num_samples=length, num_chains=chains)
    short.run(jax.random.key(0), x, y)
    first = weights.isel(draw=slice(0, length)).to_numpy()
    same = np.array_equal(first, short.get_samples(group_by_chain=True)["weights"])
    yield "first draws are those of a short run in memory, bit for bit", same


def rows(size, folder):
    """Rows stay in files: fitted by minibatches around the mode, predicted block by block."""
    x, y = made(size, folder)
    mean, covariance = exact(x, y)
    del x, y
    x, y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    sd = float(np.sqrt(np.diag(covariance).mean()))
    gradients = bnn.gradients.control_variate(BATCH)
    kernel = bnn.BAOAB(model, step_size=0.3 * sd, friction=1 / sd, gradient=gradients)
    starts = {"weights": np.tile(mean.astype(np.float32), (2, 1))}
    begin = time.perf_counter()
    mcmc = sampler(kernel, num_samples=10_000, num_chains=2)
    mcmc.run(jax.random.key(0), bnn.OnHost(x), bnn.OnHost(y), init_params=starts)
    yield "seconds of sampling", time.perf_counter() - begin
    weights = np.asarray(mcmc.get_samples()["weights"])
    found = weights.astype(np.float64)
    yield "largest error of a mean, posterior sd", (np.abs(found.mean(0) - mean) / sd).max()
    yield "sd over exact sd", (found.std(0) / np.sqrt(np.diag(covariance))).mean()
    yield "peak memory, MiB", peak()
    some_draws, begin = {"weights": weights[::400]}, time.perf_counter()
    average, _ = bnn.predict(
        model, some_draws, bnn.OnHost(x), batch_size=100_000, reduce=bnn.average
    )
    yield "seconds of predicting all rows, 50 draws", time.perf_counter() - begin
    some = np.linspace(0, size - 1, 1000).astype(int)
    alone, _ = bnn.average(bnn.predict(model, some_draws, x[some]))
    yield (
        "largest difference from predictions of these rows alone",
        np.abs(average[some] - alone).max(),
    )
    yield "peak memory after predicting, MiB", peak()


def chains(size, folder):
    """Chains on one device: each has the draws that it has in a run of eight."""
    x, y = made(50)
    kernel = HMC(model, step_size=0.1, trajectory_length=0.3, adapt_mass_matrix=False)
    keys = jax.random.split(jax.random.key(0), size)
    begin = time.perf_counter()
    mcmc = sampler(kernel, num_samples=100, num_chains=size, chain_method="vectorized")
    mcmc.run(keys, x, y)
    yield "seconds of sampling", time.perf_counter() - begin
    yield "peak memory, MiB", peak()
    found = np.asarray(mcmc.get_samples(group_by_chain=True)["weights"], np.float64)
    mean, _ = exact(x, y)
    by_chain = found.mean(1)
    error = np.abs(by_chain.mean(0) - mean) / (by_chain.std(0) / np.sqrt(size))
    yield "largest error of a mean, Monte Carlo errors", error.max()
    few = sampler(kernel, num_samples=100, num_chains=8, chain_method="vectorized")
    few.run(keys[:8], x, y)
    alone = few.get_samples(group_by_chain=True)["weights"]
    yield "largest difference from a run of eight chains", np.abs(found[:8] - alone).max()


def killed(size, folder):
    """Three processes share rows and a folder; one is killed, all are started again."""

    def started(name):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = ("--coordinator", f"127.0.0.1:{port}", "--processes", 3, "--draws", size)
        own = ("--rows", 3000, "--checkpoint", folder / name, "--out", folder / f"{name}.npz")
        program = ROOT / "benchmarks" / "large_runs" / "distributed.py"
        flags = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return [
            subprocess.Popen(
                command(program, *shared, "--process", n, *own), cwd=ROOT, env=flags, **pipes
            )
            for n in range(3)
        ]

    def ended(processes):
        begin = time.perf_counter()
        said = [process.communicate(timeout=600)[1] for process in processes]
        return time.perf_counter() - begin, [p.returncode for p in processes], said

    seconds, codes, said = ended(started("whole"))
    if any(codes):
        raise RuntimeError(f"three processes ended with {codes}: {said[0][-2000:]}")
    yield "seconds undisturbed", seconds
    three, steps = started("killed"), folder / "killed" / "steps"
    while not (steps.is_dir() and any(step.name.isdigit() for step in steps.iterdir())):
        if any(process.poll() is not None for process in three):
            raise RuntimeError("a process ended before its first checkpoint")
        time.sleep(0.05)
    three[2].kill()
    seconds, codes, said = ended(three)
    yield "seconds until the other two ended", seconds
    yield "exit codes", " ".join(map(str, codes))
    seconds, codes, said = ended(started("killed"))
    yield "exit codes of the second start", " ".join(map(str, codes))
    one, other = (np.load(folder / f"{name}.npz") for name in ("whole", "killed"))
    same = all(np.array_equal(one[name], other[name]) for name in one.files)
    yield "draws bit for bit those of the undisturbed run", same


PARTS = {"draws": draws, "rows": rows, "chains": chains, "killed": killed}


def work(part, size, folder):
    for what, value in PARTS[part](int(size), Path(folder)):
        print(f"{what}\t{value}", flush=True)


def main(argv=None):
    options = parser(__doc__, toy=False)
    options.add_argument("--work", nargs=3)
    given = options.parse_args(argv)
    if given.work:
        return work(*given.work)
    for part in PARTS:
        folder, size = Path(tempfile.mkdtemp()), SIZES[given.size][part]
        done = subprocess.run(
            command(__file__, "--work", part, size, folder),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        shutil.rmtree(folder)
        if done.returncode:
            raise SystemExit(f"{part} ended with {done.returncode}.")
        values = [tuple(line.split("\t")) for line in done.stdout.splitlines()]
        Results(__file__, given, part).write_values([(f"number of {part}", size), *values])
    return None


if __name__ == "__main__":
    main()
