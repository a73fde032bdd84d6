"""README and the pages of the site: every block of code runs by itself, in a folder of its own.

Each block that is marked as `python` is a whole program, and so is each that is marked as `bash`, except
for the two commands of README that install (run in fresh environments by the checks of a change). They run
weekly as they stand; every change runs a few with few draws, and looks up every call in all of them.
"""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import documents
import pytest

import numpyro_bnn
from benchmarks._shared.pages import LONGEST_SENTENCE, SENTENCES, length

BLOCKS = [block for path in documents.DOCUMENTS for block in documents.blocks_of(path)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
# The others are run by test_science.py, which asks for their right answers.
ALONE = [block for block in PYTHON if not block.name.startswith("science/")]
SHELL = [block for block in BLOCKS if block.language == "bash" and "pip install" not in block.text]
# What every change runs, by document and number of the Python block: a model of one's own with NUTS, and
# what takes no time.
QUICK = [
    [block for block in PYTHON if block.name.startswith(f"{document} ")][number]
    for document, number in {"README.md": 1, "versions.md": 0}.items()
]
LONGEST = {"README.md": 150, "CHANGELOG.md": 100}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")
@pytest.mark.filterwarnings("ignore:.*suspect and kept:UserWarning")
@pytest.mark.parametrize("block", QUICK, ids=lambda block: block.name)
def test_a_block_runs_with_few_draws(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = re.sub(r"\b(num_warmup|num_samples)=\d+", r"\1=20", block.text)
    # A prior without precisions compiles in two thirds of the time; the block as it stands runs weekly.
    short = short.replace("priors.Hierarchical()", "priors.Normal()")
    namespace: dict = {}
    exec(compile(short, block.name, "exec"), namespace)
    if "probs" in namespace:
        assert namespace["probs"].shape == (150, 3)


@pytest.mark.slow
@pytest.mark.parametrize("block", [*ALONE, *SHELL], ids=lambda block: block.name)
def test_a_block_runs_as_it_stands(block, tmp_path):
    """In a process of its own: some set what JAX reads when it starts."""
    path = os.pathsep.join([str(documents.ROOT), os.environ.get("PYTHONPATH", "")])
    bin_first = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": path, "PATH": bin_first, "MPLBACKEND": "Agg"}
    for name in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
        environment.pop(name, None)
    run = [sys.executable] if block.language == "python" else ["bash", "-euo", "pipefail"]
    file = tmp_path / "block"
    file.write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [*run, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def calls_of_the_package(block):
    """Calls ``bnn.name(…)`` and ``MCMC(…)`` of a block: the path after `bnn`, and the call."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call):
            first, *rest = ast.unparse(node.func).split(".")
            if first in ("bnn", "MCMC"):
                yield (rest if first == "bnn" else [first]), node


def assert_taken(path, call):
    """There is a function of that name, and its signature takes these arguments."""
    function = numpyro_bnn
    for name in path:
        function = getattr(function, name)
    named = {keyword.arg: None for keyword in call.keywords}
    inspect.signature(function).bind(*call.args, **named)


def test_every_block_calls_what_there_is():
    assert len(PYTHON) >= 15
    found = [pair for block in PYTHON for pair in calls_of_the_package(block.text)]
    assert len(found) > 60
    for path, call in found:
        assert_taken(path, call)


def test_the_readme_and_the_changelog_are_short_and_the_readme_names_every_guide():
    texts = {name: (documents.ROOT / name).read_text(encoding="utf-8") for name in LONGEST}
    assert all(len(text.splitlines()) <= LONGEST[name] for name, text in texts.items())
    for page in documents.PAGES.glob("*.md"):
        assert f"notebooks/pages/{page.name}" in texts["README.md"], page.name


def test_links_lead_to_files():
    pages = [*documents.DOCUMENTS, *(documents.ROOT / "benchmarks").glob("*/*.md")]
    targets = [(path, link) for path in pages for link in documents.links_of(path)]
    assert len(targets) > 50
    for path, link in targets:
        if "://" not in link:
            file = link.partition("#")[0]
            assert not file or (path.parent / file).exists(), f"{path}: {link}"


def members_on(text, module):
    """Names that a page shows of one module of the package."""
    found = re.search(
        rf"^::: numpyro_bnn\.{module}\n(?:    .*\n)*?      members: (\[.*\])$", text, re.M
    )
    return ast.literal_eval(found[1]) if found else []


def test_the_reference_shows_every_public_name_once():
    text = "\n".join(path.read_text(encoding="utf-8") for path in documents.PAGES.glob("api/*.md"))
    shown = re.findall(r"^::: numpyro_bnn\.(\S+)$", text, re.M)
    # A module's own records and functions are listed; a name of the package stands by itself.
    listed = {name for name in numpyro_bnn.__all__ if shown.count(name) == 1}
    assert sorted(numpyro_bnn.__all__) == sorted(listed)
    for module in numpyro_bnn._MODULES:
        names = getattr(numpyro_bnn, module).__all__
        assert sorted(members_on(text, module)) == sorted(names), module


def test_the_settings_of_the_site_name_every_page():
    settings = (documents.PAGES.parent / "mkdocs.yml").read_text(encoding="utf-8")
    told = set(re.findall(r"[\w/]+\.md", settings))
    pages = {path.relative_to(documents.PAGES).as_posix() for path in documents.PAGES.rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in documents.PAGES.parent.glob("[0-9]*.py")}
    studies = (documents.ROOT / "benchmarks").rglob("README.md")
    others = {path.relative_to(documents.ROOT).as_posix() for path in studies}
    assert told - {"numpyro_bnn/ARCHITECTURE.md"} == pages | notebooks | others


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
