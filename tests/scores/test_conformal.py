"""Split conformal prediction covers exactly ⌈(n + 1) c⌉ / (n + 1), with any scores without ties."""

import numpy as np
import pytest

from numpyro_bnn.scores.conformal import (
    central_scores,
    quantile_scores,
    set_scores,
    threshold,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("count", "coverage"), [(9, 0.9), (10, 0.9), (37, 0.8), (60, 0.5)])
def test_coverage_is_exact_for_exchangeable_scores(count, coverage):
    """One rank more or less moves the share by 1 / (n + 1), many standard errors."""
    repeats = 40_000
    scores = RNG.exponential(size=(repeats, count + 1))
    limits = np.array([threshold(own, coverage) for own in scores[:, :-1]])
    share = np.mean(scores[:, -1] <= limits)
    exact = np.ceil((count + 1) * coverage - 1e-9) / (count + 1)
    error = np.sqrt(exact * (1 - exact) / repeats)
    assert abs(share - exact) < 4 * error
    assert 1 / (count + 1) > 5 * error
    assert coverage <= exact


@pytest.mark.parametrize(
    ("count", "coverage", "text"),
    [
        (8, 0.9, "8 calibration rows cannot cover 0.9: that takes at least 9"),
        (18, 0.95, "takes at least 19"),
        (5, 1.0, "strictly between 0 and 1, got 1.0"),
    ],
)
def test_too_few_rows_are_refused(count, coverage, text):
    with pytest.raises(ValueError, match=text):
        threshold(np.arange(count), coverage)


def test_as_few_rows_as_that_are_enough():
    assert threshold(np.arange(9), 0.9) == 8
    assert threshold(np.arange(19), 0.95) == 18


def test_scores_of_numbers_by_hand():
    np.testing.assert_allclose(central_scores([0.5, 0.05, 0.9]), [0.0, 0.45, 0.4])
    low, high, y = np.array([0.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0]), np.array([0.5, -2.0, 4.0])
    np.testing.assert_allclose(quantile_scores(low, high, y), [-0.5, 2.0, 3.0])


def test_scores_of_classes_by_hand():
    probs = np.array([[0.2, 0.7, 0.1]])
    np.testing.assert_allclose(set_scores(probs, np.zeros(1)), [[0.9, 0.7, 1.0]])
    np.testing.assert_allclose(set_scores(probs, np.array([0.5])), [[0.8, 0.35, 0.95]])
    np.testing.assert_allclose(set_scores(probs, np.zeros(1), 0.1, 1), [[1.0, 0.7, 1.2]])


def test_scores_of_true_classes_are_uniform_under_the_true_probabilities():
    probs = RNG.dirichlet([0.3, 1.0, 2.0, 0.7], size=20_000)
    labels = (RNG.uniform(size=(len(probs), 1)) > probs.cumsum(1)).sum(1)
    own = set_scores(probs, RNG.uniform(size=len(probs)))[np.arange(len(probs)), labels]
    for level in (0.1, 0.5, 0.9):
        assert abs(np.mean(own <= level) - level) < 4 * np.sqrt(level * (1 - level) / len(probs))
