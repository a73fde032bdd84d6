"""Relevance of inputs against closed forms of a linear model."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

import numpyro_bnn as bnn
from numpyro_bnn.cli import job_report
from numpyro_bnn.cli.job_report import relevance

SCALE = 0.5


def test_the_fall_is_that_of_a_linear_model(monkeypatch):
    """Shuffling column j adds w² · 2 Var(x) to the squared error: the fall is w² Var(x) / scale²."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32)
    slopes = np.array([0.0, 0.3, 0.6])
    y = (x @ slopes + SCALE * rng.normal(size=4000)).astype(np.float32)
    draws = bnn.Draws({"w": np.tile(slopes.astype(np.float32), (2, 60, 1))}, lambda x, y=None: None)
    score = lambda draws, x, y: norm.logpdf(y, x @ draws["w"][0, 0], SCALE)  # noqa: E731
    monkeypatch.setattr(job_report, "_log_scores", score)
    groups = [("none", [0]), ("some", [1]), ("much", [2]), ("both", [1, 2])]
    found = list(relevance(draws, x, y, groups, num_shuffles=5))
    assert [name for name, *_ in found] == ["none", "some", "much", "both"]
    assert found[0][1] == pytest.approx(0, abs=1e-5)
    for (_, drop, error), size in zip(found[1:], (0.09, 0.36, 0.45)):
        # Shuffles of the same rows share their errors: the error over rows is the larger part.
        assert abs(drop - size / SCALE**2) < 4 * error
        assert 0 < error < 0.2 * drop
    assert list(relevance(draws, x, y, groups[1:2], num_shuffles=5)) == found[1:2]
    # On the page the largest is the first, and bars are shares of it.
    monkeypatch.setattr(job_report, "draws_of", lambda run: draws)
    monkeypatch.setattr(job_report, "relevance", lambda *_, **__: [("a", 1.0, 0.5), *found])
    table = SimpleNamespace(x=x, y=y, groups=groups)
    options = SimpleNamespace(seed=0)
    shown = job_report._relevance(SimpleNamespace(table=table, test=..., mcmc=0, options=options))
    assert [row[0] for row in shown.rows] == ["both", "much", "a", "some", "none"]
    assert shown.rows[2][1:] == (1 / found[3][1], "1.0000 (0.1775 to 1.8225)")
