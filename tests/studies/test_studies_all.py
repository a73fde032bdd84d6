"""Every study: it is found, run and told in one way, and what it stored lies beside it under its name."""

import ast
import csv
import importlib
import math
import re
import subprocess
from pathlib import Path

import pytest
from documents import DOCUMENTS

from benchmarks._shared.study import ROOT, Results, Study, command, parser

FOLDER = ROOT / "benchmarks"
THEMES = sorted(path.parent for path in FOLDER.glob("*/__init__.py"))
# Folders of studies; the others hold what these share.
TOLD = [theme for theme in THEMES if theme.name != "_shared"]
# Programs with a command line of their own: several commands, and one process of several.
PROGRAMS = {"cifar10/__main__.py", "large_runs/distributed.py"}
STORED = sorted(
    path.relative_to(FOLDER)
    for path in FOLDER.glob("*/results/*")
    if path.is_file() and path.suffix != ".npz"
)
# What a study stores of several tables.
PARTS = {"against_hmc": ["", "prior"], "which_sampler": ["", "added"]}


def imports_of(path):
    """Modules that a file takes names from, and the names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, {alias.name for alias in node.names}


def is_study(path):
    return any(
        module == "benchmarks._shared.study" and {"parser", "begin"} & set(names)
        for module, names in imports_of(path)
    )


STUDIES = [path for theme in TOLD for path in sorted(theme.glob("*.py")) if is_study(path)]
NAMED = [f"{path.parent.name}.{path.stem}" for path in STUDIES]


def study(name):
    return importlib.import_module(f"benchmarks.{name}")


def test_the_weekly_run_finds_every_study():
    weekly = (ROOT / ".ci" / "weekly").read_text()
    pattern = re.search(r"\$\(grep -lE '([^']*)' benchmarks/\*/\*\.py\)", weekly)[1]
    found = subprocess.run(
        ["grep", "-lE", pattern, *FOLDER.glob("*/*.py")], capture_output=True, text=True, check=True
    )
    assert sorted(map(Path, found.stdout.split())) == sorted(STUDIES)
    assert 'python -m "$study" --quick --output' in weekly
    assert len(STUDIES) >= 29


@pytest.mark.parametrize("name", NAMED)
def test_a_study_says_how_it_is_run_and_asks_for_no_more(name, capsys):
    """Its docstring has the command of its module; ``--quick`` alone is enough for a short form."""
    if name == "mixing.against_blackjax":
        pytest.importorskip("blackjax")
    module = study(name)
    assert f"python -m benchmarks.{name}" in module.__doc__
    with pytest.raises(SystemExit, match="0"):
        module.main(["--help"])
    said = capsys.readouterr().out
    for option in ("[--quick", "[--data DATA]", "[--output OUTPUT]"):
        assert option in said
    usage = said[: said.index("\n\n")]
    # What stands outside of brackets is required.
    while "[" in usage:
        usage = re.sub(r"\[[^\[\]]*\]", "", usage)
    assert len(usage.split()) == 2, usage


def pages(theme):
    """The page of a theme, and those of single questions beside it."""
    return sorted(theme.glob("*.md"))


@pytest.mark.parametrize("theme", TOLD, ids=lambda theme: theme.name)
def test_the_page_of_a_theme_tells_each_of_its_studies(theme):
    """Its command; and the list of all themes names the page."""
    page = "\n".join(path.read_text() for path in pages(theme))
    for path in sorted(theme.glob("*.py")):
        relative = f"{theme.name}/{path.name}"
        if path not in STUDIES and relative not in PROGRAMS:
            continue
        module = f"benchmarks.{theme.name}.{path.stem}".removesuffix(".__main__")
        assert f"python -m {module}" in page, module
    assert f"]({theme.name}/README.md)" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("path", STORED, ids=str)
def test_a_stored_result_is_named_by_its_study_and_told_by_its_page(path):
    theme = FOLDER / path.parts[0]
    # CIFAR-10 is one program, whose commands store what they found.
    commands = {"cifar10": ["speed"]}
    owners = commands.get(theme.name) or [p.stem for p in STUDIES if p.parent == theme]
    assert any(path.stem == name or path.stem.startswith(f"{name}_") for name in owners), path
    assert any(f"results/{path.name}" in page.read_text() for page in pages(theme)), path


def test_studies_that_readme_and_pages_name_are_there():
    """They are named as THEME/STUDY."""
    themes = "|".join(theme.name for theme in THEMES)
    study = rf"`(?:benchmarks/)?((?:{themes})/\w+)(?:\.py)?`"
    named = [name for page in DOCUMENTS for name in re.findall(study, page.read_text())]
    assert len(named) > 20
    for name in named:
        assert (FOLDER / f"{name}.py").is_file(), name


def test_results_lie_beside_the_study_and_short_forms_apart(tmp_path):
    source = tmp_path / "theme" / "which.py"
    source.parent.mkdir()
    for arguments, folder in (([], "results"), (["--quick"], "results/quick")):
        given = parser("doc").parse_args(arguments)
        assert Results(str(source), given).path("csv") == source.parent / folder / "which.csv"
        part = Results(str(source), given, "memory")
        assert part.path("png") == source.parent / folder / "which_memory.png"
    given = parser("doc").parse_args(["--toy", "--output", str(tmp_path / "elsewhere")])
    results = Results(str(source), given)
    results.write_values([("a", 1), ("b, c", 2.5)])
    with (tmp_path / "elsewhere" / "which.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"what": "a", "value": "1"}, {"what": "b, c", "value": "2.5"}]
    with pytest.raises(SystemExit, match="2"):
        parser("doc", toy=False).parse_args(["--toy"])


def test_a_study_that_was_interrupted_goes_on(tmp_path):
    """Cells with rows are not computed again; rows of other columns are not mixed with them."""
    given = parser("doc").parse_args(["--output", str(tmp_path)])
    computed = []

    def compute(x):
        computed.append(x)
        if x == 3:
            raise KeyboardInterrupt("at 3")
        yield {"y": x**2}

    with pytest.raises(KeyboardInterrupt, match="at 3"):
        Study("which.py", ["x"], given).run([{"x": x} for x in (1, 2, 3, 4)], compute)
    again = Study("which.py", ["x"], given)
    assert [(row["x"], row["y"]) for row in again.rows] == [(1, 1), (2, 4)]
    again.run([{"x": x} for x in (1, 2, 4)], compute)
    assert computed == [1, 2, 3, 4]
    with pytest.raises(KeyError, match=r"which\.csv has other columns than this study \(\['z'\]\)"):
        again.run([{"x": 5}], lambda x: [{"y": 1, "z": 2}])
    other = Study("other.py", ["x", "kind"], given)
    with pytest.raises(KeyError, match=r"other: rows lack \['kind'\]"):
        other.run([{"x": 1}], lambda x: [{"y": 1}])


def test_the_command_of_a_study_is_that_of_its_module():
    source = FOLDER / "large_runs" / "streaming.py"
    asked = command(str(source), "--work", 3, Path("a"))
    assert asked[1:] == ["-m", "benchmarks.large_runs.streaming", "--work", "3", "a"]


# Tables have a test of their own beside those of their arithmetic. Hard posteriors compile ladders for two
# pieces of a run: only the weekly `--quick` runs have them.
ELSEWHERE = {"predictions.tabular", "mixing.hard_posteriors"}
TOYS = [
    name
    for name, path in zip(NAMED, STUDIES)
    if "toy=False" not in path.read_text() and name not in ELSEWHERE
]


# Chains of a few draws may not move at all: their R-hat is infinite, and is said to be.
MAY_STAY = {
    "predictions.shift_by_prior",
    "predictions.out_of_distribution",
    "mixing.mnist_gibbs_verdict",
    "neal.tail",
}
# Averages over runs of one verdict, temperatures of methods without momenta: "nan" where there are none.
OF_SOME_RUNS = {
    "mixing.hidden_heat": {"kinetic"},
    "mixing.networks_beside_full_batch": {"kinetic", "along gradients"},
    "diagnostics.verdict_calibration": {
        "groups",
        "covered",
        "covered, all known",
        "stated",
        "actual",
    },
}


def numbers_of(name, row):
    """The numbers of a row of a study, curves in cells included."""
    for key, value in row.items():
        if key == "machine" or ("R-hat" in key and name in MAY_STAY):
            continue
        if value == "nan" and key in OF_SOME_RUNS.get(name, ()):
            continue
        for part in value.split():
            try:
                yield float(part)
            except ValueError:
                continue


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")
# A toy form has a handful of draws: that its chains hardly move, are too few, or that minibatches heat them,
# is said, and is no fault of the study.
@pytest.mark.filterwarnings(
    "ignore:.*suspect:UserWarning",
    "ignore:.*more draws may change these predictions",
    "ignore:Momenta of this run",
)
@pytest.mark.parametrize("name", TOYS)
def test_a_study_runs_is_finite_and_computes_nothing_twice(name, tmp_path, capsys, shared):
    pytest.importorskip("matplotlib").use("Agg")
    theme, short = name.split(".")
    given = ["--toy", "--output", str(tmp_path), "--data", str(shared / "data")]
    study(name).main(given)
    kept = {}
    for part in PARTS.get(short, [""]):
        stem = f"{short}_{part}" if part else short
        kept[stem] = (tmp_path / f"{stem}.csv").read_text()
        rows = list(csv.DictReader(kept[stem].splitlines()))
        assert rows
        for row in rows:
            assert all(map(math.isfinite, numbers_of(name, row)))
        assert (tmp_path / f"{stem}.md").stat().st_size > 100
        if (ROOT / "benchmarks" / theme / "results" / f"{stem}.png").is_file():
            assert (tmp_path / f"{stem}.png").stat().st_size > 5000
    capsys.readouterr()
    study(name).main(given)
    assert "rows are there, and kept" in capsys.readouterr().out
    assert kept == {stem: (tmp_path / f"{stem}.csv").read_text() for stem in kept}
