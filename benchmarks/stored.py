"""Where benchmarks keep what they measured."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write ``results/NAME.csv``, one line a row; its columns are those of the first."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_figures(name: str, figures: Sequence[tuple[str, Any]]) -> None:
    """Write ``results/NAME.csv``, one line for each figure and what it is."""
    write_rows(name, [{"what": what, "value": value} for what, value in figures])
