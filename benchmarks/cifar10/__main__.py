"""CIFAR-10 with the network of the HMC study (Izmailov et al. 2021): predictions of many methods.

    python -m benchmarks.cifar10 pack --to packed            # parts that travel to a GPU machine
    python -m benchmarks.cifar10 run sgld baoab --data packed --chains 3 --vectorized
    python -m benchmarks.cifar10 judge
    python -m benchmarks.cifar10 speed [--peak 989]          # images a second, cost of a step
    python -m benchmarks.cifar10 --toy                       # every method, tiny, then the judge

`run` can be stopped at any time (Ctrl-C, SIGTERM, a kill) and called again: it goes on. Results are
``benchmarks/cifar10/results/<method>.npz``.
"""

import argparse
import csv
from pathlib import Path

import jax

from benchmarks.cifar10.approximations import APPROXIMATIONS
from benchmarks.cifar10.data import FOLDER, Data, load, pack
from benchmarks.cifar10.judge import judge
from benchmarks.cifar10.methods import SAMPLERS, MeanField, Swag, Training
from benchmarks.cifar10.network import ResNet
from benchmarks.cifar10.runs import run
from benchmarks.cifar10.setup import Setup
from benchmarks.cifar10.speed import HEAD as SPEED
from benchmarks.cifar10.speed import Timing, circumstances, measure

HERE = Path(__file__).parent
METHODS = (*APPROXIMATIONS, *SAMPLERS)


def toy(setup: Setup) -> Setup:
    """The same at a size for tests: 256 images, 4-8-16 filters, a few steps of each method."""
    return setup._replace(
        data=Data(setup.data.train.first(256), setup.data.test.first(64)),
        network=ResNet((4, 8, 16), 1, setup.network.dtype),
        batch_size=64,
        epochs=min(setup.epochs, 8),
        training=Training(epochs=2, segments=2, members=2),
        swag=Swag(warmup=1, snapshots=3, rank=2, draws=2),
        mean_field=MeanField(epochs=2, draws=2),
        samplers={
            name: method._replace(cycle=None if method.cycle is None else 2)
            for name, method in setup.samplers.items()
        },
    )


def setup_of(given: argparse.Namespace) -> Setup:
    """What the methods share, from the command line."""
    runs, results = HERE / "runs", HERE / "results"
    setup = Setup(
        load(given.data),
        ResNet(tuple(given.filters), given.blocks, given.dtype),
        given.batch_size,
        given.runs or (runs / "toy" if given.toy else runs / "full"),
        given.out or (results / "toy" if given.toy else results),
        given.epochs,
        given.chains,
        "vectorized" if given.vectorized else "parallel",
        Training(epochs=given.training_epochs, members=given.members),
        seed=given.seed,
        safe_epochs=given.checkpoint_epochs,
        progress_bar=not given.toy,
    )
    return toy(setup) if given.toy else setup


def timing_of(given: argparse.Namespace) -> Timing:
    """What `speed` times: on a CPU little, for there a gradient of 80 images takes half a second."""
    cpu = jax.default_backend() == "cpu"
    sizes = given.batch_sizes or ((20, 80) if cpu else (20, 80, 320, 1280))
    return Timing(
        tuple(sorted({*sizes, given.batch_size})),
        given.batch_size,
        tuple(given.methods) or ("sgld", "baoab"),
        tuple(sorted({1, given.chains})),
        given.steps or (2 if cpu else 100),
        given.repeats or (3 if cpu else 7),
        given.peak,
    )


def speed(setup: Setup, timing: Timing) -> Path:
    """Print and store timings."""
    rows = measure(setup.data, setup.network, timing)
    note = f"{setup.network.dtype}, {timing.repeats} turns of {timing.steps} steps"
    table = [SPEED, *rows, ("measured on", f"{circumstances()}, {note}")]
    return store(table, setup, f"speed{setup.label}.csv")


def store(table: list[tuple], setup: Setup, name: str) -> Path:
    """Print a table and write it to the folder of results."""
    for row in table:
        print("  ".join(f"{cell!s:>{22 if k == 0 else 16}}" for k, cell in enumerate(row)))
    setup.results.mkdir(parents=True, exist_ok=True)
    path = setup.results / name
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return path


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = ("pack", "run", "judge", "speed")
    parser.add_argument("command", nargs="?", choices=commands, default="run")
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--toy", action="store_true", help="tiny: a check that all of it runs")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of sheets or parts")
    parser.add_argument("--to", type=Path, default=Path("packed"), help="where `pack` writes")
    parser.add_argument("--runs", type=Path, help="folder of checkpoints")
    parser.add_argument("--out", type=Path, help="folder of results")
    parser.add_argument("--epochs", type=float, default=1000, help="of a chain")
    parser.add_argument("--training-epochs", type=float, default=500, help="of a mode")
    parser.add_argument("--members", type=int, default=10, help="of the deep ensemble")
    parser.add_argument("--chains", type=int, default=1, help="of each sampler")
    parser.add_argument("--vectorized", action="store_true", help="chains together on a device")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--filters", type=int, nargs=3, default=(16, 32, 64), help="of a stage")
    parser.add_argument("--blocks", type=int, default=3, help="of a stage")
    parser.add_argument("--checkpoint-epochs", type=float, default=10, help="that a kill may cost")
    parser.add_argument("--batch-size", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="of gradients in `speed`")
    parser.add_argument("--steps", type=int, help="in a turn of `speed`; few on a CPU")
    parser.add_argument("--repeats", type=int, help="turns of `speed`; few on a CPU")
    return parser


def main(argv: list[str] | None = None) -> None:
    parser = arguments()
    given = parser.parse_args(argv)
    unknown = [name for name in given.methods if name not in METHODS]
    if unknown:
        parser.error(f"unknown method(s) {unknown}; there are {', '.join(METHODS)}")
    if given.command == "pack":
        for path in pack(load(given.data), given.to):
            print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
        return
    setup = setup_of(given)
    if given.command == "speed":
        speed(setup, timing_of(given))
    if given.command == "run":
        for name in given.methods or METHODS:
            print(run(name, setup), flush=True)
    if given.command == "judge" or (given.toy and given.command == "run"):
        verdict = judge(setup.results, setup.data.test.y, setup.data.test.exact)
        print(verdict)
        verdict.save(setup.results)


if __name__ == "__main__":
    main()
