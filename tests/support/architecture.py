"""The package as its source has it: rooms, files and the imports between them, and their picture.

``python tests/support/architecture.py`` draws ``numpyro_bnn/architecture.svg`` anew.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2] / "numpyro_bnn"
PICTURE = ROOT / "architecture.svg"
# Rooms that are large enough to be seen in parts.
NESTED = ("samplers", "diagnostics")

ROW_HEIGHT, BOX_HEIGHT, BOX_WIDTH, GAP = 92, 46, 148, 18


def name_of(path: Path) -> str:
    """``samplers.sgmcmc.kernel`` for its file, ``samplers`` for the file of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
# The package's own entrance, which imports from every room by design.
DOORS = {"__init__", "__main__", "moves"}


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed source of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, at_once: bool = False) -> list[str]:
    """Dotted names that a file imports: wherever in it, or `at_once` when it is loaded itself."""
    found: list[str] = []
    nodes: list[ast.AST] = [tree_of(path)]
    for node in nodes:
        of_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if at_once and (of_types or isinstance(node, ast.FunctionDef)):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def own_imports(name: str, at_once: bool = False) -> Iterator[str]:
    """The files of this package that a file imports."""
    for imported in imports(FILES[name], at_once):
        head, _, inner = imported.partition(".")
        while head == "numpyro_bnn" and inner:
            if inner in FILES:
                yield inner
                break
            inner = inner.rpartition(".")[0]


def room_of(name: str) -> str:
    """The room of a file: its folder, or the folder inside it where a room has rooms."""
    parts = name.split(".")
    folder = parts if name in FILES and FILES[name].name == "__init__.py" else parts[:-1]
    return ".".join(folder[: 2 if parts[0] in NESTED else 1]) or name


def edges() -> dict[str, set[str]]:
    """Rooms that each room imports from."""
    found: dict[str, set[str]] = {
        room_of(name): set() for name in FILES if name not in DOORS and "." in name
    }
    for name in FILES:
        if name in DOORS:
            continue
        for other in own_imports(name):
            if room_of(other) != room_of(name):
                found.setdefault(room_of(name), set()).add(room_of(other))
    return found


def floors(graph: dict[str, set[str]]) -> list[list[str]]:
    """Rooms by the longest way down to a room that imports nothing."""
    level: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        level[room] = 1 + max((level[below] for below in graph.get(room, ())), default=-1)
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for room in sorted(level):
        rows[level[room]].append(room)
    return rows


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no other way explains: those to see the order by."""
    below: dict[str, set[str]] = {}
    for room in TopologicalSorter(graph).static_order():
        direct = graph.get(room, set())
        below[room] = direct.union(*(below[other] for other in direct))
    return {
        room: {o for o in direct if not any(o in below[p] for p in direct)}
        for room, direct in graph.items()
    }


def picture() -> str:
    """The rooms as an SVG, the ground floor below; arrows point to what a room builds on."""
    graph = edges()
    rows = floors(graph)
    width = max(len(row) for row in rows) * (BOX_WIDTH + GAP) + GAP
    height = len(rows) * ROW_HEIGHT + GAP
    center: dict[str, tuple[float, float]] = {}
    boxes = []
    for floor, row in enumerate(rows):
        y = height - (floor + 1) * ROW_HEIGHT + GAP / 2
        for i, room in enumerate(row):
            x = (i + 0.5 + (width / (BOX_WIDTH + GAP) - len(row)) / 2) * (BOX_WIDTH + GAP)
            center[room] = (x, y + BOX_HEIGHT / 2)
            number = sum(room_of(n) == room for n in FILES)
            boxes.append(
                f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
                'rx="7" fill="#f4f1ea" stroke="#444"/>'
                f'<text x="{x:.0f}" y="{y + 20:.0f}" class="name">{escape(room)}</text>'
                f'<text x="{x:.0f}" y="{y + 36:.0f}" class="size">{number} file{"s"[: number > 1]}</text>'
            )
    arrows = []
    for room, others in sorted(reduced(graph).items()):
        for other in sorted(others):
            (x0, y0), (x1, y1) = center[room], center[other]
            arrows.append(
                f'<path d="M{x0:.0f} {y0 + BOX_HEIGHT / 2:.0f} L{x1:.0f} {y1 - BOX_HEIGHT / 2 - 5:.0f}" '
                'stroke="#0072B2" fill="none" marker-end="url(#tip)"/>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#0072B2"/></marker></defs>\n'
        "<style>.name{font-size:14px;font-weight:600;text-anchor:middle}"
        ".size{font-size:11px;fill:#555;text-anchor:middle}</style>\n"
        '<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join([*arrows, *boxes])
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
