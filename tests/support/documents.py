"""README and the pages of the site: one list of documents, and the blocks of code in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = ROOT / "notebooks" / "pages"
DOCUMENTS = [README, *sorted(PAGES.rglob("*.md"))]


class Block(NamedTuple):
    """A block of code of a document.

    - **language** - what stands behind the fence: `python` and `bash` are run by a test; `py` is code of
      another library, and everything else is no code
    - **text** - the code
    - **name** - document, and the number of the block in it, for the names of tests
    """

    language: str
    text: str
    name: str


def blocks_of(path: Path) -> list[Block]:
    """All fenced blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    where = path.relative_to(PAGES) if path.is_relative_to(PAGES) else path.relative_to(ROOT)
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [Block(*block, f"{where.as_posix()} {i}") for i, block in enumerate(found, 1)]


def links_of(path: Path) -> list[str]:
    """Targets of all links and pictures of a document outside of code, each with its anchor."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def table_on(page):
    """Cells of the table of a page, by the first cell of a row and the head of a column."""
    lines = re.findall(r"^\| (.*) \|$", page.read_text(encoding="utf-8"), re.M)
    head, _, *rows = ([part.strip() for part in line.split(" | ")] for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:])) for row in rows}
