"""The main job: which rows are fitted and tested, what is refused or warned of, relevance of inputs."""

from types import SimpleNamespace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import numpyro_bnn as bnn
from numpyro_bnn import scores
from numpyro_bnn.cli import job, job_report, tables
from numpyro_bnn.cli.job import guess, score, warnings_of
from numpyro_bnn.cli.job_report import cells, headings, relevance
from numpyro_bnn.posterior.predictive_draws import Predictions


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
    fitted = SimpleNamespace(mcmc=None, seconds={"optimise": 7.2})
    monkeypatch.setattr(job, "fit", lambda *_, **__: fitted)
    said = r"^--minutes 0.01 is too little for more than these scores: optimising took 7 s of it\. Give a"
    with pytest.raises(ValueError, match=said):
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


def _table(y, classes=()):
    kind = "classification" if classes else "regression"
    sources, names = (tables.Source("a", "numbers"),), tuple(map(str, range(len(y))))
    return tables.Table("t", np.zeros((len(y), 1)), y, kind, ("a",), "y", classes, sources, names)


def _of_classes(probs):
    def evaluate(what, y):
        picked = np.take_along_axis(probs, np.asarray(y)[None, None, :, None], -1)[..., 0]
        return {what: np.log(picked)}

    return Predictions({"probs": probs}, evaluate)


def test_classes_are_guessed_by_their_shares_one_row_more_of_each():
    y = np.array([0] * 7 + [1] * 2 + [0, 1, 2])
    guessed = guess(_table(y, ("a", "b", "c")), np.arange(9), 3)
    np.testing.assert_allclose(guessed.probs[0, 0], [[8 / 12, 3 / 12, 1 / 12]] * 3)
    row = score("", guessed, y[9:], 0.0)
    assert row.by_row.mean() == pytest.approx(np.log([8 / 12, 3 / 12, 1 / 12]).mean())
    assert row.error == pytest.approx(2 / 3)
    # One bin: the largest probability against the share that is right.
    assert row.calibration == pytest.approx(8 / 12 - 1 / 3)


@pytest.mark.parametrize("center", [3.0, 1.7e9])
def test_a_quantity_is_guessed_by_a_normal_distribution(center):
    rng = np.random.default_rng(0)
    y = rng.normal(center, 2.0, 4000)
    guessed = guess(_table(y), np.arange(2000), 2000)
    mean, sd = y[:2000].mean(), y[:2000].std()
    by_row = scores.lppd(guessed, y[2000:], pointwise=True)
    np.testing.assert_allclose(by_row, norm(mean, sd).logpdf(y[2000:]), rtol=1e-5)
    row = score("", guessed, y[2000:], 0.0)
    assert row.error == pytest.approx(np.sqrt(np.mean((y[2000:] - mean) ** 2)))
    inside = np.abs(y[2000:] - mean) < norm.ppf(0.95) * sd
    assert row.calibration == pytest.approx(inside.mean())


def _warnings(y, probs, table):
    guessed = guess(table, np.arange(100), 100)
    return warnings_of(*(score("", p, y, 0.0) for p in (guessed, _of_classes(probs))), y, table)


def test_unequal_classes_and_a_network_that_learned_nothing_are_warned_of():
    y = np.array([0] * 90 + [1] * 10)
    table = _table(y, ("no", "yes"))
    shares = guess(table, np.arange(100), 100).probs
    said = " ".join(_warnings(y, np.broadcast_to(shares, (2, 3, 100, 2)), table))
    assert "no better than that of guessing (majority class): +0.000 ± 0.000 nats" in said
    assert "Always answering the majority class is wrong on 10 %" in said
    assert "90 % of the test rows are 'no', so that guessing errs on 10 %" in said
    sure = np.where(y[:, None] == np.arange(2), 0.95, 0.05)
    (said,) = _warnings(y, np.broadcast_to(sure, (2, 3, 100, 2)), table)
    assert "Classes are unequal" in said
    half = np.array([0, 1] * 50)
    sure = np.where(half[:, None] == np.arange(2), 0.95, 0.05)
    assert not _warnings(half, np.broadcast_to(sure, (2, 3, 100, 2)), _table(half, ("no", "yes")))


SCALE = 0.5


def test_scores_of_classes_are_log_probabilities_of_their_average():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal().expand([2, 3]).to_event(2))
        bnn.likelihoods.categorical(x @ w, y)

    rng = np.random.default_rng(0)
    draws = bnn.Draws({"w": rng.normal(size=(2, 5, 2, 3)).astype(np.float32)}, model)
    x, y = rng.normal(size=(4, 2)).astype(np.float32), np.array([0, 2, 1, 2])
    expected = bnn.scores.lppd(bnn.predict(None, draws, x), y, pointwise=True)
    np.testing.assert_allclose(job_report._log_scores(draws, x, y), expected, rtol=1e-5)


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
