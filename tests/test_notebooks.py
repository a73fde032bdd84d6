"""Notebooks: every one is prose and code that says nothing of names that are not there, and runs."""

import ast
import os
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import percent
import pytest

import numpyro_bnn

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
ALL = sorted(FOLDER.glob("*.py"))
TOLD = [path for path in ALL if path.name[0].isdigit()]
# Words of prose in the least of them: a story, not a script with headings.
FEWEST_WORDS = 300


def code_of(path):
    """The code of all cells as one tree, with the line numbers of the file."""
    body = []
    for cell in percent.cells(path):
        if cell.kind == "code":
            body += ast.parse("\n" * (cell.line - 1) + cell.text).body
    return ast.Module(body, [])


def aliases(tree):
    """Names of this package's modules in a notebook: ``{"bnn": "numpyro_bnn"}``; and what is imported
    from them, as pairs of module and name."""
    modules, members = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = {a.asname or a.name: a.name for a in node.names}
            modules |= {k: v for k, v in found.items() if v.startswith("numpyro_bnn")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numpyro_bnn"):
            for alias in node.names:
                members.append((node.module, alias.name))
                if alias.name in numpyro_bnn._MODULES:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return modules, members


def dotted(node):
    """``a.b.c`` as a list; empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def missing_names(tree):
    """What a notebook asks of this package that is not public there."""
    modules, members = aliases(tree)
    wanted = {(module, name) for module, name in members}
    wanted |= {
        (modules[parts[0]], ".".join(parts[1:]))
        for node in ast.walk(tree)
        if (parts := dotted(node)) and parts[0] in modules and len(parts) > 1
    }
    return sorted(f"{module}.{name}" for module, name in wanted if not is_public(module, name))


def is_public(module, name):
    owner = numpyro_bnn
    for part in [*module.split(".")[1:], *name.split(".")]:
        listed = getattr(owner, "__all__", None)
        if part.startswith("_") or (listed is not None and part not in listed):
            return False
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_it_is_a_title_prose_and_code_of_public_names(path):
    found = percent.cells(path)
    assert found[0].kind == "markdown"
    assert found[0].text.lstrip().startswith("# "), "begin with a title"
    titles = [line for c in found for line in c.text.splitlines() if c.kind == "markdown"]
    assert sum(line.startswith("# ") for line in titles) == 1, "one title"
    if path in TOLD:
        # Without its end jupytext does not see the kernel.
        head = path.read_text(encoding="utf-8").split("# %%")[0]
        assert head.startswith("# ---\n")
        assert head.rstrip().endswith("name: python3\n# ---")
        assert sum(len(c.text.split()) for c in found if c.kind == "markdown") >= FEWEST_WORDS
    assert missing_names(code_of(path)) == []


def test_a_name_that_is_not_public_is_found():
    tree = ast.parse(
        "import numpyro_bnn as bnn\n"
        "from numpyro_bnn import priors, nothing\n"
        "bnn.fit(bnn.priors.FanIn(), priors.Cauchy())\n"
        "bnn.scores.lppd(bnn.hmc)\n"
        "fitted.predict(x).whatever\n"
    )
    assert missing_names(tree) == [
        "numpyro_bnn.hmc",
        "numpyro_bnn.nothing",
        "numpyro_bnn.priors.Cauchy",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\n# %%\nos.sep\n", "stands before the first cell"),
        ("# %% [markdown]\n# A title\nnot a comment\n", "prose must be commented out, got 'not a"),
    ],
)
def test_text_that_is_no_notebook_is_refused(tmp_path, text, words):
    path = tmp_path / "one.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        percent.cells(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")
# Estimators of few draws say so.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch, optimised):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path[:])
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    figures = 0
    for _ in percent.run(path):
        figures += len(plt.get_fignums())
        plt.close("all")
    # The last one is about files and devices.
    assert figures > 0 or path.stem.startswith("06")


def test_the_weekly_run_executes_all_of_them():
    weekly = (FOLDER.parent / ".ci" / "weekly").read_text()
    (pattern,) = re.findall(r'^cp notebooks/(\S+) "\$work/notebooks"', weekly, re.MULTILINE)
    assert sorted(FOLDER.glob(pattern)) == TOLD
