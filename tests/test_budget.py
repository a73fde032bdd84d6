"""The package has a budget of lines and files. It only falls: lower it when the package is below."""

import ast
from pathlib import Path

from architecture import FILES

from benchmarks._shared.pages import length

LINES, MOST_FILES, EXECUTABLE = 40_868, 170, 26_552
TESTS = Path(__file__).parent
BENCHMARKS = TESTS.parent / "benchmarks"
MOST_BYTES = 6_000_000
# Of Python; tests have a later goal of 40,000.
LINES_OF_TESTS, LINES_OF_BENCHMARKS = 45_979, 15_980
# Of the page of a study without its tables.
WORDS = 600
# The longest file of one idea.
LONGEST = 600


def executable_lines(source: str) -> int:
    """Lines on which a statement begins or continues, without docstrings, comments and blank lines."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            found |= set(range(node.lineno, max(node.lineno, last) + 1))
    code = source.splitlines()
    return sum(
        bool(code[n - 1].strip()) and not code[n - 1].lstrip().startswith("#") for n in found
    )


def test_the_package_stays_within_its_budget():
    sources = [path.read_text(encoding="utf-8") for path in FILES.values()]
    lines = [source.count("\n") for source in sources]
    assert sum(lines) <= LINES
    assert len(sources) <= MOST_FILES
    assert sum(map(executable_lines, sources)) <= EXECUTABLE
    assert max(lines) <= LONGEST


def test_docstrings_and_comments_are_not_executable():
    source = '"""Of a file."""\n\n# A comment.\ndef of(\n    x,\n):\n    """Its own."""\n\n    return x\n'
    assert executable_lines(source) == 4


def test_studies_with_their_tables_and_figures_are_small():
    """Short forms, which anybody may run, are not counted."""
    files = [path for path in BENCHMARKS.rglob("*.*") if path.suffix != ".pyc"]
    stored = [path for path in files if not {"quick", "toy"} & set(path.parts) and path.is_file()]
    assert sum(path.stat().st_size for path in stored) <= MOST_BYTES


def test_tests_and_studies_stay_within_their_budget():
    for folder, most in ((TESTS, LINES_OF_TESTS), (BENCHMARKS, LINES_OF_BENCHMARKS)):
        sources = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
        assert sum(source.count("\n") for source in sources) <= most, folder.name


def test_the_page_of_a_study_is_short():
    for page in BENCHMARKS.glob("*/*.md"):
        mark = "\n## " if page.stem == "README" else "\n# "
        sections = f"\n{page.read_text(encoding='utf-8')}".split(mark)[1:]
        for section in sections:
            prose = [line for line in section.splitlines() if not line.startswith("|")]
            words = length(" ".join(prose))
            assert words <= WORDS, f"{page.parent.name}: {prose[0]}, {words} words"
