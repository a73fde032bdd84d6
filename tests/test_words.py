"""Words that a reader of the package and its pages should not meet, because plainer ones exist."""

import re
from pathlib import Path

import pytest

from benchmarks._shared.pages import LONGEST_SENTENCE, SENTENCES, length

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [
    *sorted((ROOT / "numpyro_bnn").rglob("*.py")),
    ROOT / "numpyro_bnn" / "ARCHITECTURE.md",
    ROOT / "README.md",
    *sorted((ROOT / "notebooks" / "pages").rglob("*.md")),
]
# What is banned, also inside of names with underscores, and what to write.
INSTEAD = {
    r"(?<![a-z])laws?(?![a-z])": "distribution",
    "foretold": "estimated",
    "(is|are) told(?! apart)": "say who reads it, or leave it out",
    "in any way there is": "may raise; treat as unknown",
    "its own affair": "say what to do",
}


# Pages for users, and those of the studies.
PAGES = [path for path in TEXTS if path.suffix == ".md"]
PAGES += [ROOT / "benchmarks" / "README.md", *sorted((ROOT / "benchmarks").glob("*/*.md"))]
LONGEST_CELL = 40


def banned_in(text):
    """Each banned word in a text, with the number of its line."""
    for word, instead in INSTEAD.items():
        for found in re.finditer(word.replace(" ", r"\s+"), text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, found.group(), instead


def test_plain_words_are_used():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word!r}, rather: {instead}"
        for path in TEXTS
        for line, word, instead in banned_in(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["a law of each row", "Laws", "own_law = 1", "site.law", "it is foretold", "what it is\n told"],
)
def test_a_banned_word_is_seen(text):
    assert list(banned_in(text))


@pytest.mark.parametrize("text", ["a lawful flaw", "clawed", "rows are told apart", "a told story"])
def test_other_words_are_not(text):
    assert not list(banned_in(text))


def cells_and_sentences(page):
    """Cells of tables, and sentences of these and of all paragraphs and list items, without code."""
    code = r"^(```|~~~).*?^\1[^\n]*|^:::.*?\n\n|<!--.*?-->"
    page = re.sub(code, "", f"{page}\n\n", flags=re.M | re.S)
    page = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", page)
    # A row of a table, an item of a list and a heading end what stands before them.
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#>|]|\d+\.)\s?)", page)
    cells = [cell for part in parts if part.lstrip()[:1] == "|" for cell in part.split("|")]
    prose = [part for part in parts if part.lstrip()[:1] != "|"]
    return cells, [one for part in (*prose, *cells) for one in SENTENCES.split(part.strip())]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_cells_and_sentences_of_pages_are_short(path):
    text = path.read_text(encoding="utf-8")
    # In an item of a list such a line ends the list.
    assert not re.search("^ +<!--", text, re.M)
    cells, sentences = cells_and_sentences(text)
    assert not [one for one in cells if length(one) > LONGEST_CELL]
    assert not [one for one in sentences if length(one) > LONGEST_SENTENCE]


@pytest.mark.parametrize(
    "page", ["| a | {} |", "- {}", "So “{}” is it.", "a\n{}", "```\n{}\n```\n"]
)
def test_long_cells_and_sentences_are_seen(page):
    cells, sentences = cells_and_sentences(
        page.format("word\n" * 41 if page[0] == "a" else "word " * 41)
    )
    assert (max(map(length, sentences)) > LONGEST_SENTENCE) == (page[0] != "`")
    assert (max(map(length, cells), default=0) > LONGEST_CELL) == (page[0] == "|")
