"""Pages show what studies found: reports follow from the stored rows, and pages from the reports."""

import re
import shutil

import pytest
from documents import README

from benchmarks._shared import converged, pages
from benchmarks._shared.study import ROOT, Study, markdown_table, parser
from benchmarks.predictions import starts

FOLDER = ROOT / "benchmarks"
# Reports that are written from other files than rows of that name.
APART = {"neal/story", "mixing/against_blackjax"}


def stem_of(path):
    return f"{path.parts[-3]}/{path.stem}"


def study_of(path):
    """The module whose report this is: the longest name that it begins with."""
    names = (p.stem for p in path.parents[1].glob("*.py") if "def main(" in p.read_text())
    return max((n for n in names if f"{path.stem}_".startswith(f"{n}_")), key=len)


REPORTS = sorted(FOLDER.glob("*/results/*.md"))
STUDIES = sorted(
    {(path.parents[1], study_of(path)) for path in REPORTS if stem_of(path) not in APART}
)


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_shows_what_is_stored(path):
    page = path.read_text(encoding="utf-8")
    assert pages.filled(page) == page, "run python -m benchmarks._shared.pages"


@pytest.mark.parametrize(("theme", "name"), STUDIES, ids=lambda part: getattr(part, "name", part))
def test_a_report_follows_from_the_stored_rows(theme, name, tmp_path, monkeypatch):
    """The study writes it anew from the rows alone, without a figure."""
    if name == "streaming":
        pytest.skip("It measures what is not in its rows.")
    for path in (theme / "results").glob(f"{name}*.csv"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(Study, "figure", None)
    module = pytest.importorskip(f"benchmarks.{theme.name}.{name}")
    module.main(["--report", "--output", str(tmp_path)])
    made = sorted(tmp_path.glob("*.md"))
    assert made
    for path in made:
        assert path.read_text(encoding="utf-8") == (theme / "results" / path.name).read_text(
            encoding="utf-8"
        )


def test_a_row_that_changes_is_seen(tmp_path):
    """On a page, by way of the report."""
    stored = FOLDER / "predictions" / "results" / "starts.csv"
    lines = stored.read_text(encoding="utf-8").splitlines(keepends=True)
    # Without its last cell: a rule before and a rule now.
    (tmp_path / "starts.csv").write_text("".join(lines[:-2]), encoding="utf-8")
    starts.main(["--report", "--output", str(tmp_path)])
    report = (tmp_path / "starts.md").read_text(encoding="utf-8")
    assert report != stored.with_suffix(".md").read_text(encoding="utf-8")


@pytest.fixture
def own_reports(tmp_path, monkeypatch):
    results = tmp_path / "benchmarks" / "theme" / "results"
    results.mkdir(parents=True)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return results


def test_a_mark_is_filled_by_findings_a_table_or_a_text(own_reports):
    (own_reports / "one.md").write_text(
        "- First.\n- Second.\n\n| a |\n| --- |\n| 1 |\n\n3 minutes.\n"
    )
    (own_reports / "two.md").write_text("- Of 2: −0.3 ± 0.1 (a), 5 %.\n")
    (own_reports / "told.txt").write_text("head\n\nrest \\1\n")
    (own_reports / "rows.csv").write_text("what,value\na,1.5\nend\n")
    for given, shown in (
        ("x <!-- made: theme/one -->old<!-- end --> y", "First"),
        ("x <!-- made: theme/one 2 -->old<!-- end --> y", "Second"),
        ("x <!-- made: theme/two 1.2 -->old<!-- end --> y", "−0.3 ± 0.1"),
        ("x <!-- made: theme/two 1.3 -->old<!-- end --> y", "5 %"),
        (
            "<!-- made: theme/one -->\nold\n<!-- end -->\n",
            "\n\n- First.\n- Second.\n\n| a |\n| --- |\n| 1 |\n\n",
        ),
        ("<!-- made: theme/one findings -->\n<!-- end -->", "\n\n- First.\n- Second.\n\n"),
        ("<!-- made: theme/one table -->\n<!-- end -->", "\n\n| a |\n| --- |\n| 1 |\n\n"),
        ("<!-- made: theme/told -->\n<!-- end -->", "\n\n```text\nhead\n\nrest \\1\n```\n\n"),
        ("<!-- made: theme/told head -->\n<!-- end -->", "\n\n```text\nhead\n```\n\n"),
        (
            "<!-- made: theme/rows -->\n<!-- end -->",
            "\n\n| what | value |\n| --- | --- |\n| a | 1.5 |\n| end |  |\n\n",
        ),
    ):
        begin, end = given.index("-->") + 3, given.index("<!-- end")
        new = pages.filled(given)
        assert new == given[:begin] + shown + given[end:]
        assert pages.filled(new) == new


@pytest.mark.parametrize("ends", ["; ", ", "])
def test_a_long_sentence_is_shown_as_a_list(ends):
    """Of what stands after its colon, also where names have commas; other sentences stay."""
    parts = [f"one, two, of a long name {i} (a; b, c)" for i in range(9)]
    listed = "".join(f"\n    - {part}" for part in parts)
    assert pages.readable(f"- Short. Head: {ends.join(parts)}.") == f"- Short.\n    - Head:{listed}"
    assert pages.readable("- Head: 1, 2.") == "- Head: 1, 2."


def test_a_long_table_is_shown_where_it_is_asked_for(own_reports):
    rows = [{"a": i} for i in range(pages.LONGEST_TABLE + 1)]
    (own_reports / "long.md").write_text(f"- First.\n\n{markdown_table(rows)}\n")
    short, whole = (
        pages.filled(f"<!-- made: theme/long{part} -->\n<!-- end -->") for part in ("", " table")
    )
    assert "First" in short
    assert "| 1 |" not in short
    assert "| 1 |" in whole


def test_a_report_has_sentences_a_table_and_what_it_took(tmp_path):
    given = parser("doc").parse_args(["--output", str(tmp_path), "--report"])
    (tmp_path / "which.csv").write_text("x,seconds,machine\n1,120,a core\n")
    study = Study("which.py", ["x"], given)
    study.run([{"x": 2}], lambda x: pytest.fail("A report computes nothing."))
    study.publish([{"x": 1, "y": 0.123456}], ["It is so."], lambda: pytest.fail("no figure"))
    assert (tmp_path / "which.md").read_text() == (
        "- It is so.\n\n| x | y |\n| --- | --- |\n| 1 | 0.1235 |\n\n2 minutes on a core.\n"
    )


def test_every_study_with_a_report_is_on_a_page():
    shown = "".join(path.read_text(encoding="utf-8") for path in pages.pages())
    named = set(re.findall(r"<!-- made: (\S+?)(?: [\w.]+)? -->", shown))
    assert len(named) > 50
    studies = {f"{theme.name}/{name}" for theme, name in STUDIES}
    # Its table is long, and linked.
    hidden = {"speed/steps_by_chains"}
    for study in studies - hidden:
        assert any(f"{name}_".startswith(f"{study}_") for name in named), study
    assert "made: diagnostics/stored_reports_digits" in README.read_text(encoding="utf-8")


def test_every_study_that_stores_a_sign_of_convergence_is_headed_by_it():
    signs = re.compile(r"R-hat|rhat|converged|verdict", re.I)
    stored = [
        path
        for path in sorted(FOLDER.glob("*/results/*.csv"))
        if signs.search(path.read_text().partition("\n")[0])
    ]
    assert len(stored) > 20
    # Chains of known distribution, which show what R-hat says; figures of other runs of the same study.
    apart = {"diagnostics/verdict_calibration"}
    apart |= {"neal/posteriors_earlier_runs", "neal/posteriors_integrated"}
    # Counted with the first table of their study.
    apart |= {f"mixing/{name}" for name in ("which_sampler_seeds", "which_sampler_added")}
    apart |= {"mixing/against_hmc_prior"}
    counted = [n for n in converged.CONVERGED if n not in ("neal/tempering", "neal/story")]
    assert {stem_of(path) for path in stored} - apart == set(counted)
    for name in converged.CONVERGED:
        pages_of = (FOLDER / name.split("/")[0]).glob("*.md")
        page = "".join(path.read_text(encoding="utf-8") for path in pages_of)
        assert f"<!-- made: {name} converged -->" in page, name


def test_a_head_counts_the_runs_that_have_not_converged(monkeypatch):
    for runs, shown in (
        ([True, False, False], "**Not converged: 2 of 3 runs.**"),
        ([True, True], ""),
    ):
        monkeypatch.setitem(converged.CONVERGED, "priors/prior_scale", lambda runs=runs: runs)
        assert converged.head("priors/prior_scale") == shown
