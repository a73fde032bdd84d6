"""Guessing without inputs, and what a reader is warned of."""

import numpy as np
import pytest
from scipy.stats import norm

from numpyro_bnn import scores
from numpyro_bnn.cli import tables
from numpyro_bnn.cli.job import guess, score, warnings_of
from numpyro_bnn.posterior.predictive_draws import Predictions


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
    assert (
        "little or not at all: the log score is +0.000 ± 0.000 nats above that of guessing" in said
    )
    assert "Always answering the majority class is wrong on 10 %" in said
    assert "90 % of the test rows are 'no', so that guessing errs on 10 %" in said
    sure = np.where(y[:, None] == np.arange(2), 0.95, 0.05)
    (said,) = _warnings(y, np.broadcast_to(sure, (2, 3, 100, 2)), table)
    assert "Classes are unequal" in said
    half = np.array([0, 1] * 50)
    sure = np.where(half[:, None] == np.arange(2), 0.95, 0.05)
    assert not _warnings(half, np.broadcast_to(sure, (2, 3, 100, 2)), _table(half, ("no", "yes")))
