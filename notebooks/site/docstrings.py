"""Docstrings as Markdown: examples become blocks of code, and references of Sphinx become links.

The docstrings of this package are written for `help()`, with the fields and roles of Sphinx. What the
reference pages need of Markdown is made here, when the pages are built.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`(~?)([\w.]+)`")
FIELD = re.compile(r"^:(?:param|return|raises)\b", re.M)
EXAMPLE = re.compile(r"^(?:>>> .*(?:\n(?!\s*\n|:\w).+)*\n?)+", re.M)


class Markdown(griffe.Extension):
    """Rewrites the docstring of every object before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with examples in fences, and roles as links where their target has a page.

    What stands behind a field belongs to it: examples at the end are moved before the first field.
    """
    first = FIELD.search(text)
    if first:
        above, fields = text[: first.start()], text[first.start() :]
        text = above + "".join(f"{match[0]}\n" for match in EXAMPLE.finditer(fields))
        text += EXAMPLE.sub("", fields)
    text = EXAMPLE.sub(_fenced, text)
    parts = re.split(r"(^```.*?^```)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else ROLE.sub(_linked, part) for part in parts)


def _fenced(match: re.Match) -> str:
    example = re.sub(r" *# doctest: \+\w+", "", match[0].rstrip())
    return f"```pycon\n{example}\n```\n"


def _linked(match: re.Match) -> str:
    short, target = match.groups()
    name = target.rpartition(".")[2] if short else target.removeprefix("numpyro_bnn.")
    return f'<autoref identifier="{target}" optional><code>{name}</code></autoref>'
