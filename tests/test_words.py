"""Words that a reader of the package and its pages should not meet, because plainer ones exist."""

import re
from pathlib import Path

import pytest

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
