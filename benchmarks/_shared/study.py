"""A study: cells computed once each and kept at once, a table and a figure of all of them."""

import argparse
import csv
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from stored import RESULTS
from tqdm import tqdm

Row = dict[str, Any]
# Where the full size, `--quick` and `--toy` differ, a script looks its settings up by these names.
SIZES = ("full", "quick", "toy")


def parser(doc: str) -> argparse.ArgumentParser:
    """The options that all studies share; a script adds its own."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = made.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="at most three minutes"
    )
    size.add_argument(
        "--toy", dest="size", action="store_const", const="toy", help="seconds: does it run at all?"
    )
    made.set_defaults(size="full")
    made.add_argument("--data", type=Path, help="the folder of data sets (default: ../shared/data)")
    made.add_argument(
        "--output", type=Path, help="where results go (default: results, or results/SIZE)"
    )
    return made


def machine() -> str:
    """What computed a row, in a few words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = jax.devices()[0].device_kind
    return f"{cores} cores, {device}, JAX {jax.__version__}, Python {platform.python_version()}"


class Study:
    """Rows of ``NAME.csv``, one for each cell: the columns ``keys`` say which.

    A row is appended as soon as it is known and not computed again, so that a study that was
    interrupted goes on. Short forms keep theirs in a folder of their own.

    :param name: of the files.
    :param keys: the columns that name a cell.
    :param given: what :func:`parser` gave: ``size`` and ``output``.
    """

    def __init__(self, name: str, keys: Sequence[str], given: argparse.Namespace) -> None:
        self.name, self.keys = name, tuple(keys)
        self.folder = given.output or (RESULTS if given.size == "full" else RESULTS / given.size)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[Row] = []
        if self._csv.is_file():
            with self._csv.open(newline="") as file:
                self.rows = [_numbers(row) for row in csv.DictReader(file)]
            print(f"{self._csv.name}: {len(self.rows)} rows are there, and kept")
        print(machine())

    @property
    def _csv(self) -> Path:
        return self.folder / f"{self.name}.csv"

    def run(
        self, cells: Iterable[Mapping[str, Any]], compute: Callable[..., Iterable[Row]]
    ) -> None:
        """Call ``compute(**cell)`` for every cell without rows yet, and keep the rows it yields.

        :param cells: dictionaries of some of ``keys``; ``compute`` may add the others.
        :param compute: yields rows of all keys and of numbers; seconds since the last row and the
            machine are added. They are stored together, when the cell is complete.
        """
        todo = [cell for cell in cells if not self._complete(cell)]
        for cell in tqdm(todo, desc=self.name, unit="cell", dynamic_ncols=True):
            begin = time.perf_counter()
            found: list[Row] = []
            for row in compute(**cell):
                now = time.perf_counter()
                found.append(dict(cell) | row | {"seconds": now - begin, "machine": machine()})
                begin = now
                tqdm.write(
                    "  ".join(f"{k} {_short(v)}" for k, v in found[-1].items() if k != "machine")
                )
            self._add(found)

    def _complete(self, cell: Mapping[str, Any]) -> bool:
        return any(all(row[k] == v for k, v in cell.items()) for row in self.rows)

    def _add(self, found: Sequence[Row]) -> None:
        if missing := [k for row in found for k in self.keys if k not in row]:
            raise KeyError(f"{self.name}: rows lack {missing}, of the keys {self.keys}.")
        if self.rows and (other := set(found[0]) ^ set(self.rows[0])):
            raise KeyError(
                f"{self._csv} has other columns than this script ({sorted(other)}); move it away."
            )
        new = not self.rows
        with self._csv.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0] if self.rows else found[0]))
            if new:
                writer.writeheader()
            writer.writerows(found)
        self.rows.extend(found)

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print rows as a table and store it as ``NAME.md``."""
        columns = list(rows[0])
        lines = [columns, ["---"] * len(columns), *([_short(r[c]) for c in columns] for r in rows)]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        print(text)
        (self.folder / f"{self.name}.md").write_text(f"{text}\n\n{self._made_on()}\n")

    def figure(self, figure: Any) -> None:
        """Store a Matplotlib figure as ``NAME.png``."""
        figure.savefig(self.folder / f"{self.name}.png", dpi=150, bbox_inches="tight")

    def publish(
        self, rows: Sequence[Mapping[str, Any]], findings: Iterable[str], figure: Any
    ) -> None:
        """Print and store the table, print what was found, and store the figure."""
        self.table(rows)
        for text in findings:
            print(text)
        self.figure(figure)

    def _made_on(self) -> str:
        machines = dict.fromkeys(str(row["machine"]) for row in self.rows)
        seconds = sum(row["seconds"] for row in self.rows)
        return f"{seconds / 60:.0f} minutes on {'; '.join(machines)}."


def _numbers(row: Mapping[str, str]) -> Row:
    return {key: _number(value) for key, value in row.items()}


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    # A curve that is kept in a cell.
    return text if len(text) <= 80 else f"{text[:40]} …"
