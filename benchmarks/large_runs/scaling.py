"""Leapfrogs a second against devices and processes: `distributed` on as many cores as it has devices.

python -m benchmarks.large_runs.scaling [--quick | --toy]
"""

import os
import socket
import statistics
import subprocess

from benchmarks._shared.study import ROOT, Study, command, every_cell, parser
from benchmarks.large_runs import distributed

# Name, processes, devices of each, groups of devices (the rest of them share rows).
PLACEMENTS = [
    ("one device", 1, 1, 1),
    ("rows on 2 devices", 1, 2, 1),
    ("rows on 2 processes", 2, 1, 1),
    ("chains on 2 devices", 1, 2, 2),
    ("chains on 2 processes", 2, 1, 2),
]
# Rows and draws of a run, turns of every placement.
SETTINGS = {"full": (100_001, 20, 3), "quick": (10_001, 5, 1), "toy": (1_001, 2, 1)}


def leapfrogs(processes, devices, groups, rows, draws):
    """Leapfrogs a second of two chains."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started = []
    for process in range(processes):
        cores = str(process) if processes > 1 else f"0-{devices - 1}"
        arguments = ["--rows", rows, "--draws", draws, "--groups", groups]
        if processes > 1:
            arguments += ["--coordinator", f"localhost:{port}", "--processes", processes]
            arguments += ["--process", process]
        flags = f"--xla_force_host_platform_device_count={devices}"
        started.append(
            subprocess.Popen(
                ["taskset", "-c", cores, *command(distributed.__file__, *arguments)],
                cwd=ROOT,
                env=os.environ | {"XLA_FLAGS": flags},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"distributed failed with {processes} processes × {devices} devices")
    return float(printed[0].split()[-1])


def over_one_device(found):
    """Median speed of each placement, its ratio to one device, and that for each device."""
    speeds = {}
    for row in found:
        speeds.setdefault(row["placement"], []).append(row["leapfrogs a second"])
    alone = statistics.median(speeds[PLACEMENTS[0][0]])
    for name, processes, devices, _ in PLACEMENTS:
        median = statistics.median(speeds[name])
        yield {
            "placement": name,
            "turns": len(speeds[name]),
            "slowest": min(speeds[name]),
            "leapfrogs a second (median)": median,
            "fastest": max(speeds[name]),
            "speed-up": median / alone,
            "efficiency": median / alone / (processes * devices),
        }


def main(argv=None):
    given = parser(__doc__).parse_args(argv)
    rows, draws, turns = SETTINGS[given.size]
    by_name = {name: place for name, *place in PLACEMENTS}
    study = Study(__file__, ("placement", "turn"), given)
    study.run(
        every_cell(turn=range(turns), placement=by_name),
        lambda placement, turn: [
            {"rows": rows, "leapfrogs a second": leapfrogs(*by_name[placement], rows, draws)}
        ],
    )
    study.publish(list(over_one_device(study.rows)))


if __name__ == "__main__":
    main()
