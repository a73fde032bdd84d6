"""What do draws on disk cost, in memory and in time?

- Peak resident memory of a process that samples a network of 10,000 parameters and streams its
  draws, against their number: every number in a process of its own.
- Draws a second with `draws=` against the same run in memory, interleaved; and with checkpoints.

    python -m benchmarks.large_runs.streaming [--quick]
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import numpyro_bnn as bnn
from benchmarks._shared.study import ROOT, Results, Study, command, machine, parser

HIDDEN, FEATURES, EVERY = 160, 60, 1000


def model(x, y=None):
    net = bnn.random_module("net", bnn.MLP([HIDDEN], 1), bnn.priors.FanIn(), x[:1])
    bnn.likelihoods.gaussian(lambda x: net(x)[..., 0], y, x=x, noise=1.0)


def small_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, FEATURES)).astype(np.float32)
    return x, x[:, 0]


def sampler(num_samples, **disk):
    return bnn.MCMC(
        bnn.BAOAB(model, step_size=0.001, batch_size=100),
        num_warmup=0,
        num_samples=num_samples,
        checkpoint_every=EVERY,
        progress_bar=False,
        **disk,
    )


def peak_memory(num_samples, dtype, folder):
    """MiB resident at most, in a fresh process."""
    work = command(__file__, "--work", num_samples, dtype, folder / "run.zarr")
    said = subprocess.run(work, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shutil.rmtree(folder / "run.zarr")
    return float(said)


def work(num_samples, dtype, path):
    sampler(num_samples, draws=path, draws_dtype=dtype).run(jax.random.key(0), *small_data())
    # Of this program alone: what getrusage says is inherited from the process that started it.
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) / 1024)


def memory(folder, given):
    numbers = [1000, 3000] if given.size == "quick" else [10**3, 10**4, 10**5, 10**6]
    rows = []
    for number in numbers:
        # Half precision, so that a million draws take 20 GB of disk.
        rows.append(
            (f"peak memory with {number} draws, MiB", peak_memory(number, "float16", folder))
        )
    peaks = [peak for _, peak in rows]
    return [*rows, ("largest over smallest", max(peaks) / min(peaks))]


def throughput(folder, given):
    """Turns of runs in memory and on disk; each turn is kept, so that pieces of it add up."""
    number, turns = (3000, 3) if given.size == "quick" else (20_000, 5)
    kinds = {
        "in memory": {},
        "streamed": {"draws": folder / "a.zarr"},
        "streamed with checkpoints": {"draws": folder / "b.zarr", "checkpoint": folder / "c"},
    }
    runs = {name: sampler(number, **disk) for name, disk in kinds.items()}

    def timed(name):
        begin = time.perf_counter()
        # A run in memory ends with a copy of its draws that is whole: it looks for what is not finite.
        runs[name].run(jax.random.key(0), *small_data())
        jax.block_until_ready(runs[name].last_state)
        seconds = time.perf_counter() - begin
        for path in kinds[name].values():
            shutil.rmtree(path)
        return seconds

    def speeds(turn):
        if not warm:
            warm.update({name: timed(name) for name in runs})  # compiles
        for name in runs:
            yield {"kind": name, "draws a second": number / timed(name)}

    warm = {}
    study = Study(__file__, ("turn", "kind"), given, part="turns")
    study.run([{"turn": turn} for turn in range(turns)], speeds)
    seen = {name: [r["draws a second"] for r in study.rows if r["kind"] == name] for name in kinds}
    rows = [(f"{name}, draws a second", statistics.median(v)) for name, v in seen.items()]
    for name in list(kinds)[1:]:
        ratio = statistics.median(b / a for a, b in zip(seen["in memory"], seen[name]))
        rows.append((f"{name} over in memory, median over pairs", ratio))
    return rows


PARTS = {"throughput": throughput, "memory": memory}


def main(argv=None):
    made = parser(__doc__, toy=False)
    made.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = made.parse_args(argv)
    if given.work:
        num_samples, dtype, path = given.work
        work(int(num_samples), dtype, path)
        return
    print(machine())
    for part, measured in PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows = measured(Path(folder).resolve(), given)
        for what, value in rows:
            print(f"{what:<60} {value:12.4f}", flush=True)
        Results(__file__, given, part).write_values(rows)


if __name__ == "__main__":
    main()
