"""What the page of a job and the terminal show, without a fit."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from numpyro_bnn._html import Grid
from numpyro_bnn.cli import job_report
from numpyro_bnn.cli.job import POSTERIOR, Options, Outcome, score
from numpyro_bnn.cli.main import main
from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.posterior.predictive_draws import Predictions


def _predictions(probs):
    """Predictions (chain, draw, row, class) that know the density of each class."""

    def evaluate(what, y):
        return {what: np.log(np.take_along_axis(probs, y[None, None, :, None], -1)[..., 0])}

    return Predictions({"probs": probs}, evaluate)


pytestmark = pytest.mark.usefixtures("undrawn")


def _sections(y, probs, classes):
    table = SimpleNamespace(y=y, classes=classes)
    outcome = SimpleNamespace(
        table=table, test=np.arange(len(y)), posterior=_predictions(probs[None, None])
    )
    return {section.heading: section.parts for section in job_report._of_classes(outcome)}


def test_of_two_classes_a_threshold_is_shown_by_what_it_does(undrawn):
    y = np.array([0, 0, 0, 1, 1, 0])
    p = np.array([0.01, 0.3, 0.6, 0.55, 0.92, 0.2])
    found = _sections(y, np.stack([1 - p, p], -1), ("benign", "malignant"))
    grid, curves = found["Telling malignant from benign"]
    figure = Figure()
    undrawn[curves.alt](figure)
    labels = [ax.get_legend().get_texts()[0].get_text() for ax in figure.axes]
    assert labels == ["malignant (AUC = 0.88)", "malignant (AP = 0.83)"]
    rows = {row[0]: row[1:] for row in grid.rows}
    assert rows["25%"] == ("100.0%", "50.0%", "50.0%")
    assert rows["75%"] == ("50.0%", "100.0%", "100.0%")
    assert rows["95%"] == ("0.0%", "100.0%", "–")
    recall, confusion = found["Class by class"]
    assert recall.rows == [("benign", "4", "75.0%", 0.75), ("malignant", "2", "100.0%", 1.0)]
    assert confusion.alt == "Confusion matrix"


@pytest.mark.parametrize(("count", "drawn"), [(3, True), (30, False)])
def test_more_classes_have_no_threshold_and_very_many_no_matrix(count, drawn):
    y = np.arange(count)
    probs = np.full((count, count), 1 / count)
    found = _sections(y, probs, tuple(f"class {k}" for k in range(count)))
    assert list(found) == ["Class by class", "Are the probabilities right?"]
    grid, *pictures = found["Class by class"]
    assert isinstance(grid, Grid)
    assert len(pictures) == drawn


@pytest.mark.parametrize(("spread", "alike"), [(0.0, True), (1e-4, True), (0.2, False)])
def test_an_ensemble_of_one_function_is_named_as_such(spread, alike):
    p = 0.5 + spread * np.array([-1.0, 1.0, 0.5])[:, None] * np.ones(8)
    members = _predictions(np.stack([1 - p, p], -1)[:, None])
    options = Options(num_chains=3)
    table = SimpleNamespace(y=np.arange(8) % 2)
    outcome = SimpleNamespace(
        options=options, table=table, test=np.arange(8), predictions={"deep ensemble of 3": members}
    )
    assert Outcome.one_function.fget(outcome) == alike


@pytest.fixture
def outcome():
    """Four test rows, of which the posterior gets all right and plain training three."""
    y, names = np.array([0, 1, 1, 0]), ("majority class", "plain training", POSTERIOR)
    p = np.array([[0.1, 0.9, 0.8, 0.4], [0.4, 0.6, 0.4, 0.4], [0.5] * 4])
    own, plain, even = (_predictions(np.stack([1 - q, q], -1)[None, None]) for q in p)
    known = {"name": "shop", "target": "ill", "task": "classification", "classes": ("no", "yes")}
    mean = np.random.default_rng(0).normal(size=(4, 300, 4))
    return SimpleNamespace(
        table=SimpleNamespace(y=y, row_names=[*"abcd"], sources=(), **known),
        test=np.arange(4),
        train=(),
        scores=[score(n, p, y, 0.0) for n, p in zip(names, (even, plain, own))],
        posterior=own,
        one_function=True,
        options=Options(num_chains=3),
        evaluation=None,
        warnings=["Look twice."],
        fitted=SimpleNamespace(
            check=Mock(side_effect=ValueError("No check.")),
            report=diagnose_draws(None, {"mean": mean, "scale": np.ones_like(mean)}),
        ),
        mcmc=SimpleNamespace(stopped="Stopped. " * 20),
    )


def test_the_answer_is_first_and_what_is_behind_it_is_folded(outcome, monkeypatch):
    for name in ("_relevance", "_settings"):
        monkeypatch.setattr(job_report, name, lambda outcome: ["."])
    frame = pd.DataFrame({"row": [*"abcd"]})
    _, answer, used, *others = job_report.parts_of(outcome, frame)
    lead, gain, grid, alike = answer.parts
    right = (
        "100.0% of the 4 test rows are classified right. Guessing without inputs gets 50.0%, plain"
    )
    assert lead.text == f"{right} training 75.0%."
    assert "is +0.3760 ± " in gain
    assert (len(grid.rows), grid.bold) == (3, [POSTERIOR])
    assert alike.startswith("The 3 members of the ensemble are one function")
    assert (used.heading, used.parts[1].text) == ("May they be used as they are?", "Look twice.")
    opened = [section.heading for section in others if not section.folded]
    assert opened[-1] == "Relevance of inputs"
    assert {"Rows that are predicted worst", "Does the model fit?"}.isdisjoint(opened)
    (worst,) = next(section.parts for section in others if "predicted worst" in section.heading)
    assert [row[0] for row in worst.rows] == [*"dcab"]


def test_the_terminal_ends_in_the_page_and_leaves_out_what_python_alone_can_do(
    outcome, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr("numpyro_bnn.cli.job.run", lambda *_, **__: outcome)
    monkeypatch.setattr(job_report, "write", lambda outcome, folder: folder / "report.html")
    assert main(["--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"All of it, with pictures: {tmp_path / 'report.html'}"
    assert "Beware: Look twice." in lines
    assert max(map(len, lines[:-1])) <= 88
    assert " ".join(lines).count("Stopped.") == 20
    assert "details()" not in " ".join(lines)
