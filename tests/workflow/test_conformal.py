"""Conformal scores, thresholds and temperatures by hand."""

import numpy as np
import pytest
from scipy.stats import norm

from numpyro_bnn.workflow import calibration as conformal

PROBS = np.array([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.1, 0.6]])


@pytest.mark.parametrize(
    ("coverage", "rows"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.8, 4), (0.55, 2)]
)
def test_the_least_number_of_rows_is_that_of_a_finite_rank(coverage, rows):
    assert conformal.rows_needed(coverage) == rows
    scores = np.arange(float(rows))
    assert conformal.threshold(scores, coverage) == rows - 1
    with pytest.raises(ValueError, match=f"{rows - 1} calibration rows .* at least {rows} rows"):
        conformal.threshold(scores[1:], coverage)


def test_rounding_adds_no_rank():
    """100 * 0.55 is 55.00000000000001 in floating point."""
    assert conformal.rank(0.55, 99) == 55
    assert conformal.threshold(np.random.default_rng(0).permutation(np.arange(99.0)), 0.55) == 54.0


def test_a_class_scores_what_is_above_it_and_a_share_of_its_own():
    u = np.array([0.5, 0.1])
    expected = [[0.25, 0.65, 0.875, 0.975], [0.81, 0.62, 0.91, 0.06]]
    np.testing.assert_allclose(conformal.set_scores(PROBS, u), expected)
    # Two classes are free; the third costs a penalty and the fourth two.
    more = conformal.set_scores(PROBS, u, penalty=0.1) - expected
    np.testing.assert_allclose(more, [[0, 0, 0.1, 0.2], [0.1, 0, 0.2, 0]], atol=1e-12)


def test_scores_of_a_distribution_grow_outwards_and_never_stop():
    """Inside they are |F - 1/2|, beyond they are distances in widths, without a jump back at the seam."""
    low, high = norm.ppf([conformal.TAIL, 1 - conformal.TAIL])
    y = np.linspace(0, 40, 2000)
    ends = np.full(2000, low), np.full(2000, high), np.full(2000, high - low)
    scores = conformal.cdf_scores(norm.cdf(y), y, *ends)
    near = y < high
    np.testing.assert_allclose(scores[near], norm.cdf(y[near]) - 0.5)
    np.testing.assert_allclose(scores[~near], 0.4999 + (y[~near] - high) / (high - low))
    assert (np.diff(scores) > 0).all()
    mirrored = conformal.cdf_scores(norm.cdf(-y), -y, *ends)
    np.testing.assert_allclose(mirrored, scores, atol=1e-12)


def test_an_interval_scores_how_far_the_target_is_outside():
    y, low, high = np.array([0.0, 2.0, 5.0]), np.full(3, 1.0), np.full(3, 4.0)
    np.testing.assert_array_equal(conformal.interval_scores(y, low, high), [1.0, -1.0, 1.0])


def test_a_temperature_of_one_changes_nothing_and_certain_rows_stay_finite():
    np.testing.assert_allclose(conformal.tempered(PROBS, 1.0), PROBS)
    certain = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    # Three of four are right: the least loss gives them odds of three to one.
    labels = np.array([0, 0, 1, 1])
    temperature = conformal.temperature_of(certain, labels)
    np.testing.assert_allclose(conformal.tempered(certain, temperature)[0], [0.75, 0.25], rtol=1e-3)
