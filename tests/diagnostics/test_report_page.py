"""A report as a page: what it says first, what it leaves out, and names of rows."""

import io
import re
from base64 import b64decode

import numpy as np
import pytest
from matplotlib.pyplot import imread

from numpyro_bnn._html import Grid, Section, html_of, picture
from numpyro_bnn._text import wrapped
from numpyro_bnn.diagnostics import diagnose_draws


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
