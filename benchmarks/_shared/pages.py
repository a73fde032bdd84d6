"""Pages show what studies found, and are filled from the reports that lie beside the stored rows.

A study writes its report, ``THEME/results/NAME.md``: findings, one a line, and a table. What stands on a page
between ``<!-- made: THEME/NAME -->`` and ``<!-- end -->`` is filled from it by

    python -m benchmarks._shared.pages

- within a line: the first finding, which is the answer of the study, or the one of the number after the name;
  with ``2.3`` after the name the third number of the second finding, with its error and its per cent;
- on lines of its own: all findings, and a table of at most `LONGEST_TABLE` rows; a sentence of more than
  `LONGEST_SENTENCE` words is shown as a list;
- with ``table`` or ``findings`` after the name: that part alone, whatever its length;
- with ``converged``: how many runs of the study have not converged;
- of a report ``NAME.txt``: the text as it was printed, with ``head`` up to the first empty line;
- where there is no report: the rows of ``NAME.csv``.
"""

import re
from pathlib import Path

from benchmarks._shared.converged import head
from benchmarks._shared.study import ROOT, markdown_table, read_rows, without

LONGEST_TABLE, LONGEST_SENTENCE = 16, 30
SENTENCES = re.compile(
    r"""(?:(?<=[.!?])|(?<=[.!?]["”)`])|(?<=[.!?]\*\*))\s+(?=["“(*`]*[A-Z0-9`])"""
)
OUTSIDE = r"(?![^(]*\))"  # of parentheses
NUMBER = re.compile(r"(?<![\w.])[−+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?: ± \d+(?:\.\d+)?)?(?: ?%)?")
MARK = re.compile(
    r"(<!-- made: (?P<name>\S+)(?: (?P<part>[\w.]+))? -->)(?P<begin>\n?).*?(?P<end>\n?)(<!-- end -->)",
    re.DOTALL,
)


def pages() -> list[Path]:
    """README, the pages of the site and of all studies."""
    sites = (ROOT / "notebooks" / "pages").rglob("*.md")
    return [ROOT / "README.md", *sorted(sites), *sorted((ROOT / "benchmarks").glob("*/*.md"))]


def length(sentence: str) -> int:
    """How many words a sentence has: a sign alone, such as ±, is none."""
    return sum(any(map(str.isalnum, word)) for word in sentence.split())


def readable(finding: str) -> str:
    """A finding; each of its long sentences is a list of what stands after its colon."""
    sentences = SENTENCES.split(finding)
    if max(map(length, sentences)) <= LONGEST_SENTENCE:
        return finding
    lines: list[str] = []
    for sentence in sentences:
        head, colon, listed = sentence.partition(": ")
        if length(sentence) <= LONGEST_SENTENCE or not colon:
            lines.append(sentence)
            continue
        parts = re.split(rf"; {OUTSIDE}", listed)
        if len(parts) == 1 or max(map(length, parts)) > LONGEST_SENTENCE:
            # Names may have commas themselves: a value ends each part.
            parts = re.split(rf"; {OUTSIDE}|(?<=[\d)%]), {OUTSIDE}", listed)
        lines += [f"{head}:", *(part.strip().removesuffix(".") for part in parts)]
    return "\n    - ".join(lines)


def report(name: str, part: str | None, within_a_line: bool) -> str:
    """What a mark stands for."""
    if part == "converged":
        return head(name)
    theme, stem = name.split("/")
    stored = ROOT / "benchmarks" / theme / "results" / stem
    told = stored.with_suffix(".md")
    if not told.is_file() and (printed := stored.with_suffix(".txt")).is_file():
        text = printed.read_text(encoding="utf-8").strip()
        text = text.partition("\n\n")[0] if part == "head" else text
        return f"```text\n{text}\n```"
    if not told.is_file():
        return markdown_table(without(read_rows(stored.with_suffix(".csv"))))
    lines = told.read_text(encoding="utf-8").splitlines()
    findings = [line for line in lines if line.startswith("- ")]
    table = [line for line in lines if line.startswith("|")]
    if within_a_line:
        which, _, number = (part or "1").partition(".")
        finding = findings[int(which) - 1].removeprefix("- ").removesuffix(".")
        return NUMBER.findall(finding)[int(number) - 1] if number else finding
    shown = [] if part == "table" else list(map(readable, findings))
    rows = {"table": table, "findings": [], None: table if len(table) - 2 <= LONGEST_TABLE else []}
    return "\n\n".join("\n".join(block) for block in (shown, rows[part]) if block)


def filled(page: str) -> str:
    """A page with what its marks stand for."""

    def made(mark: re.Match) -> str:
        apart = bool(mark["begin"])
        text = report(mark["name"], mark["part"], not apart)
        return f"{mark[1]}\n\n{text}\n\n{mark[6]}" if apart else f"{mark[1]}{text}{mark[6]}"

    return MARK.sub(made, page)


def main() -> None:
    for path in pages():
        old = path.read_text(encoding="utf-8")
        if (new := filled(old)) != old:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
