"""All sentences that reports can say: one table, complete, of short sentences; reports of few lines."""

import ast
import io
import re
import string
from base64 import b64decode
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from architecture import FILES, tree_of
from checked_fits import checked
from matplotlib.pyplot import imread
from test_diagnostics import SITUATIONS, report_of

from numpyro_bnn._html import Grid, Section, html_of, picture
from numpyro_bnn._sentences import PARTS, SENTENCES
from numpyro_bnn._text import wrapped
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.workflow.until import StoppingCheck, UntilKnown

# Where reports are made.
MAKERS = [name for name, path in FILES.items() if "_sentences import" in path.read_text("utf-8")]
# Captions of the page of a job stand with their tables.
MAKERS.remove("cli.job_report")
MOST_WORDS, MOST_LINES = 25, 12


def sentences_in(text):
    return re.split(r"(?<=[.!?]) +", text)


def strings_of(tree):
    """Plain texts and parts of f-strings, without those of docstrings and errors."""
    left_out = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    left_out |= {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        for inner in ast.walk(node)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in left_out
    ]


@pytest.mark.parametrize("key", SENTENCES)
def test_no_sentence_of_the_table_is_long_and_each_is_one(key):
    for sentence in sentences_in(SENTENCES[key]):
        assert len(sentence.split()) <= MOST_WORDS
        assert sentence[0].isupper() or sentence[0] in "{`"
        assert sentence[-1] == "." or sentence.endswith("{advice}")


def test_each_sentence_is_said_somewhere_and_no_other():
    texts = set()
    for path in FILES.values():
        if path.name != "_sentences.py":
            texts |= set(strings_of(tree_of(path)))
    verdicts = {"within tolerance", "within tolerance on average", "run longer", "chains disagree"}
    verdicts |= {key for key in SENTENCES if key.startswith("stopped: ") and key[9:] in texts}
    assert not set(SENTENCES | PARTS) - texts - verdicts


@pytest.mark.parametrize("name", MAKERS)
def test_makers_of_reports_say_nothing_that_is_not_in_the_table(name):
    """Their own texts are words and parts of lines: none begins a sentence and ends it."""
    for text in strings_of(tree_of(FILES[name])):
        whole = text[:1].isupper() and text.rstrip().endswith(".") and len(text.split()) > 5
        captions = (
            "How far averages|Parameters that are|Hidden units|Quantities of|Rows that|Within|"
        )
        captions += "On the|Mean over draws|R-hat of weights"
        assert not whole or text.startswith(tuple(captions.split("|"))), text


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_report_has_few_lines_and_every_sentence_is_of_the_table(name):
    report = report_of(name)
    lines = str(report).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 88
    for said in (*report.sentences, report.advice):
        for sentence in sentences_in(said):
            assert len(sentence.split()) <= MOST_WORDS, sentence
            assert is_of(SENTENCES, sentence), sentence
    assert all(sentence in report.details() for sentence in report.sentences)
    assert all(words in " ".join(lines) for words in report.not_judged)
    for part in report.headline.split("; "):
        assert is_of(PARTS, part) or is_of(SENTENCES, f"{part}."), part


def is_of(table, said):
    """Whether one entry can look like this, or one of its sentences, whatever its values are."""
    forms = []
    for form in {form for entry in table.values() for form in sentences_in(entry)}:
        parts = string.Formatter().parse(form)
        forms += [
            "".join(re.escape(text) + ("" if field is None else ".*") for text, field, *_ in parts)
        ]
    # Advice is an entry of its own.
    return any(re.fullmatch(form, said) for form in forms if form != ".*")


def test_the_live_line_of_a_run_is_of_the_table():
    report = report_of("independent")
    lines = set()
    for reason, left, most in product((None, "max_minutes"), (np.nan, 20.0, 80.0), (None, 60.0)):
        looks = [StoppingCheck(100, 0, report, 30.0, left)]
        judge = SimpleNamespace(looks=looks, reason=reason, max_seconds=most)
        lines.add(UntilKnown._message(judge))
    assert any(line.endswith("about 80 s left, of which about 30 s are allowed") for line in lines)
    assert any(line.endswith("; stopped: max_minutes") for line in lines)
    for part in {part for line in lines for part in line.split("; ")}:
        assert is_of(PARTS, part), part
    assert not is_of(SENTENCES, "Feed the cat.")
    assert not is_of(PARTS, "feed the cat")


def test_a_report_of_all_things_at_once_has_few_lines():
    rng = np.random.default_rng(0)
    shape = (2, 300)
    draws = {f"a_long_name_of_a_parameter_{i}": rng.normal(size=(*shape, 3)) for i in range(9)}
    stats = {
        "diverging": rng.random(shape) < 0.5,
        "kinetic_temperature": 3 + rng.normal(size=shape),
        "num_steps": np.full(shape, 7),
        "max_num_steps": 7,
    }
    predictions = {"mean": rng.normal(size=(*shape, 5)), "scale": np.ones((*shape, 5))}
    for chain, shift in product((0, 1), (0.0, 3.0)):
        draws["tau"] = rng.normal(size=shape)
        draws["tau"][chain] += shift
        report = diagnose_draws(None, predictions, parameters=draws, sample_stats=stats)
        assert len(str(report).splitlines()) <= MOST_LINES
        assert "Beware (1 of 3)" in str(report)
        # Of the parameters known worst, in the order of the model.
        rows = re.findall(r"^a_long_name_of_a_parameter_(\d)\[(\d)\]", report.details(), re.M)
        assert len(rows) > 9
        assert rows == sorted(rows)


@pytest.mark.parametrize("planted", [False, True])
def test_a_check_of_a_fit_has_few_lines_and_short_sentences(planted):
    check = checked(planted)
    assert len(str(check).splitlines()) <= MOST_LINES
    assert ("largest of standardised residuals (too large)" in " ".join(check.sentences)) == planted
    order = np.argsort(-np.abs(check.loo.effect), kind="stable")
    assert [row[0] for row in check.worst_rows()] == [check.names[i] for i in order[:10]]
    classes = SimpleNamespace(kind="confidence", is_rare=True, p=0.001, distance=0.2)
    found = "The model is too sure: the likeliest class is right 20 % of rows less often"
    assert any(found in said for said in replace(check, calibration=classes).sentences)
    for said in check.sentences:
        assert all(len(sentence.split()) <= MOST_WORDS for sentence in sentences_in(said))
        assert said in check.details()


@pytest.fixture(scope="module")
def report():
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(4, 300, 30))
    scale = np.ones_like(mean)
    return diagnose_draws({"<w>": rng.normal(size=(4, 300, 5))}, {"mean": mean, "scale": scale})


def test_the_page_of_a_report_says_the_verdict_and_its_two_numbers_first(report, tmp_path):
    page = report.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.S)
    order = [
        report.verdict.words.capitalize(),
        report.headline[1:],
        "Monte Carlo error",
        "The chains agree",
        "R-hat",
    ]
    # The reasons, which say the same, are folded below the verdict.
    text = re.sub(r"Why this verdict .*? chains ×", "", text, flags=re.S)
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert f"p = {report.agreement.p:.2g}" in text
    for check in report.monte_carlo_error.checks(report.tolerance):
        assert check.what.replace(" of the worst", ", worst") in text
        assert f"{check.limit:.3g}" in text
    assert "&lt;w&gt;" in page
    assert "<w>" not in page
    assert "http" not in page
    # Nothing was recorded by a sampler.
    assert "Temperatures" not in page


def test_lines_do_not_break_within_a_number_and_its_error():
    assert html_of("9 % ± 1 %").strip() == "<p>9&nbsp;%&nbsp;±&nbsp;1&nbsp;%</p>"
    assert wrapped(f"{'x' * 77} is 90 % ± 1 %", most=2) == [f"{'x' * 77} is", "90 % ± 1 %"]


def test_the_rows_that_are_known_worst_are_named(report, undrawn):
    names = [f"house {i}" for i in range(30)]
    errors = report.monte_carlo_error.by_row["relative"]
    rows = html_of(*report.sections(names)[2:3])
    order = re.findall(r"house \d+", rows)
    assert order == [names[i] for i in np.argsort(-errors, kind="stable")[:10]]
    with pytest.raises(ValueError, match="got 3 names of rows for 30 rows that were judged"):
        report.to_html(rows=names[:3])


def test_chains_that_disagree_and_draws_that_are_too_few(undrawn):
    rng = np.random.default_rng(1)
    mean = rng.normal(size=(4, 300, 30)) + 5 * np.arange(4)[:, None, None]
    apart = diagnose_draws({}, {"mean": mean, "scale": np.ones_like(mean)})
    assert '<p class="bad"><strong>Chains disagree:</strong> Averages over them' in html_of(
        apart.in_one_line()
    )
    assert "Every chain tells its own story" in html_of(apart.sections()[1])
    few = diagnose_draws({}, {"mean": mean[:, :20], "scale": np.ones((4, 20, 30))})
    assert 'class="wait"' in html_of(few.in_one_line())
    assert html_of(*few.sections()[1:3]).strip() == ""


def test_cells_are_escaped_and_bars_stay_inside_their_cell():
    made = html_of(
        Grid(("a<", "b"), [("<i>", 7.0), ("1.5", -1.0), ("d/D_0.w", 0.5)], "x & y", ["d/D_0.w"])
    )
    assert '<p class="faint">x &amp; y</p>' in made
    assert "<th>a&lt;</th>" in made
    assert "<td>&lt;i&gt;</td>" in made
    # Long names break after these characters alone.
    assert "<td><b>d/<wbr>D_<wbr>0.<wbr>w</b></td>" in made
    assert re.findall(r"width:([\d.]+)em", made) == ["7.00", "0.00", "3.50"]
    # Numbers stand on the right of their cell, bars begin on its left.
    assert made.count('<td class="bar">') == 3
    assert html_of(Section("nothing", [])).strip() == ""


def test_a_picture_is_drawn_for_light_and_for_dark_pages():
    papers = []

    def draw(figure):
        papers.append(figure.get_facecolor()[:3])
        figure.subplots().plot([0, 1], [0, 1])

    shown = picture(draw, "a line", "It rises.")
    made, data = html_of(shown), (shown.light, shown.dark)
    light, dark = (
        imread(io.BytesIO(b64decode(address.split(",")[1])))[0, 0, 0] for address in data
    )
    assert light > 0.9
    assert dark < 0.2
    assert papers[0] == (1.0, 1.0, 1.0)
    assert max(papers[1]) < 0.2
    assert len(set(re.findall(r'="(data:image/png;base64,[^"]+)"', made))) == 2
    assert "(prefers-color-scheme: dark)" in made


def test_rows_have_names_where_all_are_predicted_alike(undrawn):
    x = np.random.default_rng(0).normal(size=(4, 200, 1))
    alike = np.repeat(x, 5, axis=2)
    report = diagnose_draws(None, {"mean": alike, "scale": np.ones_like(alike)})
    assert report.monte_carlo_error.by_row["relative"].shape == (5,)
    text = report.to_html(rows=[f"city {letter}" for letter in "ABCDE"])
    assert "city E" in text
