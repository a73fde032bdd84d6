"""Self-contained HTML pages, without network access or scripts: what they hold, and how it is written.

A page is a list of parts: texts, :class:`Note`, :class:`Grid`, :class:`Picture`, and :class:`Section`, which
holds parts. The template ``_page.html`` says what each looks like.
"""

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Dark figures for dark pages: the same background as the page.
_DARK_PAPER = "#15181d"
_DARK = {"figure.facecolor": _DARK_PAPER, "axes.facecolor": _DARK_PAPER}


class Note(NamedTuple):
    """A paragraph of a class of the style sheet, with a bold beginning where one is given."""

    text: str
    kind: str = "faint"
    bold: str = ""


class Grid(NamedTuple):
    """A table; a cell that is a number from 0 to 1 is shown as a bar."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    caption: str = ""
    bold: Sequence[str] = ()  # first cells of the rows that stand out


class Picture(NamedTuple):
    """A figure for light pages and for dark ones, see :func:`picture`."""

    alt: str
    caption: str
    light: str  # its data, as an address
    dark: str
    width: int  # pixels
    height: int


class Section(NamedTuple):
    """A heading with the parts below it; left out without parts, shown on demand where folded."""

    heading: str
    parts: Sequence[Any]
    folded: bool = False


@cache
def _macros() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.tests["grid"] = lambda part: isinstance(part, Grid)
    environment.tests["note"] = lambda part: isinstance(part, Note)
    environment.tests["picture"] = lambda part: isinstance(part, Picture)
    return environment.get_template("_page.html").module


def html_of(*parts: Any) -> str:
    """Parts of a page as HTML."""
    return str(_macros().body(parts))


def page(title: str, parts: Iterable[Any], path: str | Path | None = None) -> str:
    """A whole page, also written to a file where a path is given."""
    text = str(_macros().page(title, list(parts)))
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def picture(
    draw: Callable[[Any], Any], alt: str, caption: str, size: tuple[float, float] = (6.4, 3.8)
) -> Picture:
    """A figure that `draw` draws, once for light pages and once for dark ones; `size` is in inches."""
    import matplotlib.style
    from matplotlib.figure import Figure

    addresses = []
    styles: tuple[list[Any], ...] = (["default"], ["default", "dark_background", _DARK])
    for style in styles:
        with matplotlib.style.context(style):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=150)
        encoded = base64.b64encode(file.getvalue()).decode("ascii")
        addresses.append(f"data:image/png;base64,{encoded}")
    light, dark = addresses
    width, height = (round(96 * side) for side in size)
    return Picture(alt, caption, light, dark, width, height)
