"""Notebooks as text: the cells of a percent file, and running them as a kernel would."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_MARK = re.compile(r"^# %%(?P<options>.*)$")


class Cell(NamedTuple):
    """A cell of a notebook.

    - **kind** - ``"markdown"`` or ``"code"``
    - **text** - prose without its comment signs, or Python
    - **line** - line of the file that the text begins at
    """

    kind: str
    text: str
    line: int


def cells(path: Path) -> list[Cell]:
    """The cells of a Jupytext percent file.

    :raises ValueError: for anything before the first mark but a header, and for prose that is not
        commented out.
    """
    found: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if mark := _MARK.match(line):
            kind = "markdown" if "[markdown]" in mark["options"] else "code"
            found.append((kind, number + 1, []))
        elif found:
            found[-1][2].append(line)
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{path.name}:{number}: {line!r} stands before the first cell.")
    return [Cell(kind, _text(path, kind, first, lines), first) for kind, first, lines in found]


def _text(path: Path, kind: str, first: int, lines: list[str]) -> str:
    if kind == "code":
        return "\n".join(lines)
    for number, line in enumerate(lines, first):
        if line.strip() and not line.startswith("#"):
            raise ValueError(f"{path.name}:{number}: prose must be commented out, got {line!r}.")
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)


def run(path: Path) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Execute a notebook, and yield after every code cell, with the names it has defined so far."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(path):
        if cell.kind == "code":
            tree = ast.parse("\n" * (cell.line - 1) + cell.text, path.name)
            exec(compile(tree, path.name, "exec"), namespace)
            yield cell, namespace
