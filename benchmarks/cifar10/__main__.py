"""CIFAR-10 with the network of the HMC study (Izmailov et al. 2021): chains of three samplers.

    python -m benchmarks.cifar10 run sghmc
    python -m benchmarks.cifar10 judge sghmc
    python -m benchmarks.cifar10 speed               # images a second, cost of a step
    python -m benchmarks.cifar10 --toy               # every sampler, tiny, with its scores

`run` can be stopped at any time (Ctrl-C, SIGTERM, a kill) and called again: it goes on. Results are
``benchmarks/cifar10/results/<sampler>.npz``.
"""

import argparse
import csv
from pathlib import Path

import jax

from benchmarks._shared.study import machine
from benchmarks.cifar10.chains import SAMPLERS, Result, Setup, judge, run
from benchmarks.cifar10.data import FOLDER, Data, load
from benchmarks.cifar10.network import ResNet
from benchmarks.cifar10.speed import HEAD, Timing, measure

HERE = Path(__file__).parent


def setup_of(given: argparse.Namespace) -> Setup:
    """What the samplers share, from the command line; tiny with ``--toy``."""
    data, size = load(given.data), "toy" if given.toy else "full"
    results = given.out or (HERE / "results" / "toy" if given.toy else HERE / "results")
    runs = given.runs or HERE / "runs" / size
    if not given.toy:
        return Setup(data, ResNet(), given.batch_size, runs, results, given.epochs)
    few, tiny = Data(data.train.first(256), data.test.first(64)), ResNet((4, 8, 16), 1)
    return Setup(few, tiny, 64, runs, results, 8, progress_bar=False)


def speed(setup: Setup, timing: Timing) -> None:
    """Print and store timings."""
    note = f"{timing.repeats} turns of {timing.steps} steps"
    rows = measure(setup.data, setup.network, timing)
    table = [HEAD, *rows, ("measured on", f"{machine()}, {note}")]
    for row in table:
        print("  ".join(f"{cell!s:>{22 if k == 0 else 16}}" for k, cell in enumerate(row)))
    setup.results.mkdir(parents=True, exist_ok=True)
    with (setup.results / "speed.csv").open("w", newline="") as file:
        csv.writer(file).writerows(table)


def main(argv: list[str] | None = None) -> None:
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = ("run", "judge", "speed")
    parser.add_argument("command", nargs="?", choices=commands, default="run")
    parser.add_argument("methods", nargs="*", metavar="SAMPLER", help=", ".join(SAMPLERS))
    parser.add_argument("--toy", action="store_true", help="tiny: a check that all of it runs")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of sheets")
    parser.add_argument("--runs", type=Path, help="folder of checkpoints")
    parser.add_argument("--out", type=Path, help="folder of results")
    parser.add_argument("--epochs", type=float, default=1000)
    parser.add_argument("--batch-size", type=int, default=80)
    parser.add_argument("--steps", type=int, default=2 if on_cpu else 100, help="of `speed`")
    parser.add_argument("--repeats", type=int, default=3 if on_cpu else 7, help="of `speed`")
    given = parser.parse_args(argv)
    unknown = [name for name in given.methods if name not in SAMPLERS]
    if unknown:
        parser.error(f"unknown sampler(s) {unknown}; there are {', '.join(SAMPLERS)}")
    setup, names = setup_of(given), given.methods or list(SAMPLERS)
    if given.command == "speed":
        sizes = tuple(sorted({20, given.batch_size}))
        speed(setup, Timing(sizes, given.batch_size, tuple(names), given.steps, given.repeats))
    for name in names if given.command == "run" else ():
        print(run(name, setup), flush=True)
    for name in names if given.command == "judge" or (given.toy and given.command == "run") else ():
        result = Result.load(setup.results / f"{name}.npz")
        found = judge(result, setup.data.test.y, setup.data.test.exact)
        print(name, *(f"{what} {value:.4g}" for what, value in found.items()), sep="  ")


if __name__ == "__main__":
    main()
