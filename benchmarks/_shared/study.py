"""What makes a program a study: its options, the files that it stores, the command that runs it.

A study takes its options from :func:`parser` and keeps what it measures in :class:`Results`. A
:class:`Study`, which :func:`begin` makes with its options, does more: its cells are computed once
each and kept at once, so that one that was interrupted goes on, with a table and a figure of all.

Studies are modules of the package ``benchmarks``, run from the root of the checkout::

    python -m benchmarks.mixing.which_sampler --quick
"""

import argparse
import csv
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]


def parser(doc: str, *, toy: bool = True) -> argparse.ArgumentParser:
    """The options that all studies share, ``size``, ``data`` and ``output``; a study adds its own."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = made.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", dest="size", action="store_const", const="quick", help="a short form of minutes"
    )
    if toy:
        size.add_argument(
            "--toy", dest="size", action="store_const", const="toy", help="a check of seconds"
        )
    made.set_defaults(size="full")
    made.add_argument(
        "--report", action="store_true", help="run nothing: tell anew what the stored rows say"
    )
    made.add_argument("--data", type=Path, help="the folder of data sets (default: ../shared/data)")
    made.add_argument(
        "--output",
        type=Path,
        help="where results go (default: the folder results beside the study, or results/SIZE)",
    )
    return made


def command(source: str, *arguments: Any) -> list[str]:
    """The command that runs the study of a ``__file__`` in a process, with :data:`ROOT` as its folder."""
    module = ".".join(Path(source).resolve().relative_to(ROOT).with_suffix("").parts)
    return [sys.executable, "-m", module, *map(str, arguments)]


def machine() -> str:
    """What computed a row, in a few words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = jax.devices()[0].device_kind
    return f"{cores} cores, {device}, JAX {jax.__version__}, Python {platform.python_version()}"


def every_cell(**values: Iterable[Any]) -> Iterator[Row]:
    """Each combination of values by name, the last name fastest: the cells of a study."""
    return (dict(zip(values, cell)) for cell in itertools.product(*values.values()))


class Results:
    """The files of a study: ``results/NAME.csv`` beside ``NAME.py``, or ``NAME_PART.csv`` of one with parts.

    Every stored file thus says which study it is of. Short forms keep theirs in folders of their
    own, ``results/quick`` and ``results/toy``. `source` is ``__file__``; `given` is what :func:`parser` gave.
    """

    def __init__(self, source: str, given: argparse.Namespace, part: str = "") -> None:
        own = Path(source).resolve()
        self.name = f"{own.stem}_{part}" if part else own.stem
        stored = own.parent / "results"
        self.folder: Path = given.output or (
            stored if given.size == "full" else stored / given.size
        )
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, ending: str) -> Path:
        """The file with this ending, ``"csv"`` or ``"png"``."""
        return self.folder / f"{self.name}.{ending}"

    def write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``NAME.csv`` anew, one line a row; its columns are those of the first."""
        with self.path("csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(map(_compact, rows))

    def write_values(self, values: Iterable[tuple[str, Any]]) -> None:
        """Write ``NAME.csv`` anew, one line for each value and what it is."""
        self.write_rows([{"what": what, "value": value} for what, value in values])

    def report(
        self, rows: Sequence[Mapping[str, Any]], findings: Iterable[str] = (), note: str = ""
    ) -> None:
        """Print and store ``NAME.md``: sentences that say what was found, a table, and a note."""
        told = "\n".join(f"- {text}" for text in findings)
        text = "\n\n".join(part for part in (told, markdown_table(rows), note) if part)
        print(text)
        self.path("md").write_text(f"{text}\n", encoding="utf-8")

    def figure(self, figure: Any, dpi: int = 150) -> None:
        """Store a Matplotlib figure as ``NAME.png``, in 256 colours: a third of the bytes."""
        made = BytesIO()
        figure.savefig(made, dpi=dpi, bbox_inches="tight", facecolor="white")
        image = Image.open(made).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        image.save(self.path("png"), optimize=True)


class Study(Results):
    """Rows of ``NAME.csv``, one for each cell: the columns ``keys`` say which.

    A row is appended as soon as it is known and not computed again, so that a study that was
    interrupted goes on. Other arguments are those of :class:`Results`.
    """

    def __init__(
        self, source: str, keys: Sequence[str], given: argparse.Namespace, part: str = ""
    ) -> None:
        super().__init__(source, given, part)
        self.keys = tuple(keys)
        self.only_reports = given.report
        self.rows: list[Row] = []
        stored = self.path("csv")
        if stored.is_file():
            self.rows = read_rows(stored)
            print(f"{stored.name}: {len(self.rows)} rows are there, and kept")
        print(machine())

    def run(
        self, cells: Iterable[Mapping[str, Any]], compute: Callable[..., Iterable[Row]]
    ) -> None:
        """Call ``compute(**cell)`` for every cell without rows yet, and keep the rows it yields.

        Cells have some of ``keys``, and `compute` may add the others. Seconds since the last row and the
        machine are added. Rows are stored together, when the cell is complete.
        """
        if self.only_reports:
            return
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
                f"{self.path('csv')} has other columns than this study ({sorted(other)}); move it away."
            )
        new = not self.rows
        with self.path("csv").open("a", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0] if self.rows else found[0]))
            if new:
                writer.writeheader()
            writer.writerows(map(_compact, found))
        self.rows.extend(found)

    def publish(
        self,
        rows: Sequence[Mapping[str, Any]],
        findings: Iterable[str] = (),
        figure: Callable[[], Any] | None = None,
    ) -> None:
        """Print and store findings (the first is the answer, shown alone elsewhere), table and figure."""
        self.report(rows, findings, self._made_on())
        if figure is not None and not self.only_reports:
            self.figure(figure())

    def _made_on(self) -> str:
        machines = dict.fromkeys(str(row["machine"]) for row in self.rows)
        seconds = sum(row["seconds"] for row in self.rows)
        return f"{seconds / 60:.0f} minutes on {'; '.join(machines)}."


def begin(
    source: str,
    doc: str | None,
    keys: Sequence[str],
    sizes: Mapping[str, Any],
    argv: Sequence[str] | None,
) -> tuple[Study, argparse.Namespace, Any]:
    """A study with the options that all share, what was given to them, and settings of the size."""
    given = parser(doc or "").parse_args(argv)
    return Study(source, keys, given), given, sizes[given.size]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table of Markdown, without an end of line."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_short(r[c]) for c in columns] for r in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read_rows(path: Path) -> list[Row]:
    """The rows of a stored table, numbers as numbers."""
    with path.open(newline="") as file:
        return [_numbers(row) for row in csv.DictReader(file)]


def _numbers(row: Mapping[str, str | None]) -> Row:
    # A line that ends early lacks the last columns.
    return {key: _number(value or "") for key, value in row.items()}


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _compact(row: Mapping[str, Any]) -> Row:
    """A row as it is stored: numbers with eight digits."""
    return {k: float(f"{v:.8g}") if isinstance(v, float) else v for k, v in row.items()}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    # A curve that is kept in a cell.
    return text if len(text) <= 80 else f"{text[:40]} …"


def as_text(values: Any) -> str:
    """Numbers of a curve or a surface as the text of one cell, four digits each."""
    return " ".join(f"{v:.4g}" for v in np.ravel(np.asarray(values, np.float64)))


def from_text(text: Any) -> np.ndarray:
    """The numbers that :func:`as_text` wrote."""
    return np.array(str(text).split(), np.float64)


def without(rows: Sequence[Row], *columns: str) -> list[Row]:
    """Rows for a table: without these columns, and without seconds and the machine."""
    hidden = {"seconds", "machine", *columns}
    return [{k: v for k, v in row.items() if k not in hidden} for row in rows]
