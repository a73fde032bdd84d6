"""Rows of the main job: which are fitted, calibrated and tested, and what is refused before the fit."""

from types import SimpleNamespace

import numpy as np
import pytest

from numpyro_bnn.cli import job, tables
from numpyro_bnn.cli.job_report import cells, headings


def table_of(num_rows, classes=()):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 2))
    y = np.arange(num_rows) % len(classes) if classes else x.sum(1)
    kind = "classification" if classes else "regression"
    sources = (tables.Source("a", "numbers"), tables.Source("b", "numbers"))
    names = tuple(f"row {i}" for i in range(num_rows))
    return tables.Table("t", x, y, kind, ("a", "b"), "y", classes, sources, names)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_every_row_is_fitted_or_tested_and_none_both(share):
    table = table_of(120)
    train, test = job.split(table, job.Options(test_fraction=share))
    assert len(test) == round(120 * share)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(120))


def test_classes_keep_their_shares_and_seeds_choose_other_rows():
    table = table_of(120, ("no", "yes", "perhaps"))
    splits = [job.split(table, job.Options(seed=seed)) for seed in (0, 0, 1)]
    for train, test in splits:
        np.testing.assert_array_equal(np.bincount(table.y[train]), [30, 30, 30])
        np.testing.assert_array_equal(np.bincount(table.y[test]), [10, 10, 10])
    np.testing.assert_array_equal(splits[0][1], splits[1][1])
    assert set(splits[0][1]) != set(splits[2][1])


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_rows_for_calibration_are_taken_from_the_training_rows(share):
    table = table_of(200)
    options = job.Options(calibration=share, seed=3)
    train, test = job.split(table, options)
    kept, held = job.held_out(table, train, options)
    assert len(held) == round(share * len(train))
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.sort(train))
    assert not set(held) & set(test)
    again = job.held_out(table, train, options)
    np.testing.assert_array_equal(again[1], held)
    other = job.held_out(table, train, options._replace(seed=4))
    assert set(other[1]) != set(held)
    every, none = job.held_out(table, train, job.Options())
    assert (every.size, none.size) == (train.size, 0)


def test_too_little_time_is_named_with_its_option(monkeypatch):
    monkeypatch.setattr(job, "fit", lambda *_, **__: SimpleNamespace(mcmc=None))
    with pytest.raises(ValueError, match=r"^--minutes 0.01 is too little for more than these"):
        job.run(table_of(40), job.Options(max_minutes=0.01))


def test_too_few_rows_for_calibration_are_refused_before_anything_is_fitted(monkeypatch):
    table = table_of(40)
    monkeypatch.setattr(job, "fit", lambda *_, **__: pytest.fail("it was fitted"))
    # An interval of coverage 0.9 needs nine scores: the largest of eight is below it too often.
    with pytest.raises(ValueError, match=r"--calibration 0.2 of 30 rows holds out 6, too few"):
        job.run(table, job.Options(calibration=0.2), progress_bar=False)


@pytest.mark.parametrize(
    ("classes", "outputs", "kind"),
    [
        ((), 1, "regression"),
        (("a", "b"), 2, "classification"),
        (("a", "b", "c"), 3, "classification"),
    ],
)
@pytest.mark.parametrize("prior", job.PRIORS)
def test_the_model_is_what_the_options_say(classes, outputs, kind, prior):
    model = job.model_of(table_of(30, classes), job.Options(hidden=(5, 4), prior=prior))
    assert model.kind == kind
    assert isinstance(model.prior, job.PRIORS[prior])
    assert tuple(model.module.hidden) == (5, 4)
    assert model.module.outputs == outputs


def test_a_row_of_scores_has_a_cell_for_every_heading():
    row = job.Score("MAP", -1.23456 + 0.01234 * np.array([-1, 1]), 0.25, 0.5, 12.4)
    for task in ("classification", "regression"):
        assert len(headings(task)) == len(cells(row)) == 6
    assert cells(row) == ("MAP", "-1.2346", "0.0123", "0.2500", "0.5000", "12")
    assert "calibration error" in headings("classification")
    assert "coverage of 90 %" in headings("regression")


def test_other_columns_of_a_table_are_filled_by_its_training_rows():
    table = table_of(8)
    x = table.x.copy()
    x[[0, 7], 0] = np.nan
    table = table._replace(x=x)
    for train in (np.arange(1, 4), np.arange(4, 7)):
        complete = table.imputed(train)
        assert complete.fill == pytest.approx(tuple(np.median(x[train], 0)))
        np.testing.assert_array_equal(complete.x[[0, 7], 0], complete.fill[0])
        np.testing.assert_array_equal(complete.x[1:7], x[1:7])
