"""Pages show what studies found, and are filled from the reports that lie beside the stored rows.

A study writes its report, ``THEME/results/NAME.md``: findings, one a line, and a table. What stands on a page
between ``<!-- made: THEME/NAME -->`` and ``<!-- end -->`` is filled from it by

    python -m benchmarks._shared.pages

- within a line: the first finding, which is the answer of the study, or the one of the number after the name;
- on lines of its own: all findings, and a table of at most `LONGEST_TABLE` rows;
- with ``table`` or ``findings`` after the name: that part alone, whatever its length;
- with ``converged``: how many runs of the study have not converged;
- of a report ``NAME.txt``: the text as it was printed, with ``head`` up to the first empty line;
- where there is no report: the rows of ``NAME.csv``.
"""

import re
from pathlib import Path

from benchmarks._shared.converged import head
from benchmarks._shared.study import ROOT, markdown_table, read_rows, without

LONGEST_TABLE = 16
MARK = re.compile(
    r"(<!-- made: (?P<name>\S+)(?: (?P<part>\w+))? -->)(?P<begin>\n?).*?(?P<end>\n?)(<!-- end -->)",
    re.DOTALL,
)


def pages() -> list[Path]:
    """README, the pages of the site and of all studies."""
    sites = (ROOT / "notebooks" / "pages").rglob("*.md")
    return [ROOT / "README.md", *sorted(sites), *sorted((ROOT / "benchmarks").glob("*/README.md"))]


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
        return findings[int(part or 1) - 1].removeprefix("- ").removesuffix(".")
    shown = [] if part == "table" else findings
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
