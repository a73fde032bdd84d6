"""Self-contained HTML pages: text, tables and pictures in one file, without network access or scripts."""

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

# Dark figures for dark pages: the same background as the page.
_DARK_PAPER = "#15181d"
_DARK = {"figure.facecolor": _DARK_PAPER, "axes.facecolor": _DARK_PAPER}
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --faint: #59636e; --line: #d5dae0;
  --good: #00694d; --wait: #8a5300; --bad: #b3261e; --bar: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181d; --ink: #e6e9ed; --faint: #a3adb8;
  --line: #3a424c; --good: #4cc9a0; --wait: #f0b34a; --bad: #ff8a80; --bar: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 4rem; max-width: 58rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p, li { max-width: 46rem; }
.faint, figcaption { color: var(--faint); font-size: .9rem; }
.verdict { border-left: .4rem solid var(--faint); padding: .2rem 0 .2rem 1rem; margin: 1rem 0; }
.verdict.good { border-color: var(--good); }
.verdict.wait { border-color: var(--wait); }
.verdict.bad { border-color: var(--bad); }
.verdict strong { font-size: 1.25rem; }
.warning { border: 1px solid var(--wait); border-radius: .3rem; padding: .5rem .8rem; max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .4rem 0; }
th, td { padding: .22rem .7rem .22rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.bar { display: inline-block; height: .7em; background: var(--bar); }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; }
"""


def page(title: str, sections: Iterable[str]) -> str:
    """A whole page: its title as plain text, and the parts of its body in HTML."""
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A heading (plain text) and the HTML below it; nothing if there is no HTML."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{inside}\n</section>" if inside else ""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; `kind` is a class of the style sheet, ``"faint"`` or ``"warning"``."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table that scrolls by itself on narrow screens; cells are plain text or :class:`Markup`."""
    above_table = paragraph(caption, "faint") if caption else ""
    above = "".join(f"<th>{_cell(text)}</th>" for text in head)
    lines = ("".join(f"<td>{_cell(text)}</td>" for text in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    lines_above = f"<thead><tr>{above}</tr></thead>"
    return (
        f'{above_table}<div class="wide"><table>{lines_above}\n<tbody>{body}</tbody></table></div>'
    )


class Markup(str):
    """Text that is HTML already."""


def bar(share: float) -> Markup:
    """A bar for a cell of a table; `share`, its length, is from 0 to 1."""
    width = 7 * min(max(share, 0.0), 1.0)
    return Markup(f'<span class="bar" style="width:{width:.2f}em"></span>')


def strong(text: str) -> Markup:
    """Plain text in bold."""
    return Markup(f"<b>{escape(text)}</b>")


def picture(
    draw: Callable[[Any], Any], alt: str, caption: str, size: tuple[float, float] = (6.4, 3.8)
) -> str:
    """A figure that `draw` draws, once for light pages and once for dark ones; `size` is in inches."""
    import matplotlib.style
    from matplotlib.figure import Figure

    drawn = []
    styles: tuple[list[Any], ...] = (["default"], ["default", "dark_background", _DARK])
    for style in styles:
        with matplotlib.style.context(style):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            file = io.BytesIO()
            figure.savefig(file, format="png", dpi=150)
        drawn.append("data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii"))
    light, dark = drawn
    width, height = (round(96 * side) for side in size)
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" width="{width}" height="{height}" alt="{escape(alt)}"></picture>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _cell(text: Any) -> str:
    return text if isinstance(text, Markup) else escape(str(text))
