"""Scores of targets of which some are missing: of those that are known, by row, then over rows with any."""

import numpy as np
import pytest

from numpyro_bnn import scores

RNG = np.random.default_rng(0)
MEAN, SCALE = RNG.normal(size=(5, 4, 2)), RNG.uniform(0.5, 1, (5, 4, 2))
Y = RNG.normal(size=(4, 2))
Y[0, 0] = Y[2, 1] = np.nan
Y[3] = np.nan
KNOWN = [(0, 1), (1, 0), (1, 1), (2, 0)]
WARNING = r"scores.*: 1 of 4 rows have no target and are left out"
SCORES = {
    "crps": lambda m, y, s, **o: scores.crps(m, y, s, **o),
    "squared error": lambda m, y, s, **o: scores.rmse(m, y, pointwise=True),
    "coverage": lambda m, y, s, **o: scores.coverage(m, y, s, level=0.5, **o),
    "coverage at levels": lambda m, y, s, **o: scores.coverage(m, y, s, level=[0.2, 0.5], **o),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_that_of_the_known_targets(name):
    score = SCORES[name]
    entry = {
        at: np.asarray(
            score(MEAN[:, *at][:, None], Y[at][None], SCALE[:, *at][:, None], pointwise=True)
        )[..., 0]
        for at in KNOWN
    }
    by_row = [entry[0, 1], (entry[1, 0] + entry[1, 1]) / 2, entry[2, 0]]
    with pytest.warns(UserWarning, match=WARNING):
        found = np.asarray(score(MEAN, Y, SCALE, pointwise=True))
    np.testing.assert_allclose(found[..., :3], np.stack(by_row, -1), rtol=1e-6)
    assert np.isnan(found[..., 3]).all()
    if name != "squared error":
        with pytest.warns(UserWarning, match=WARNING):
            np.testing.assert_allclose(score(MEAN, Y, SCALE), np.mean(by_row, 0), rtol=1e-6)
        return
    with pytest.warns(UserWarning, match=WARNING):
        assert scores.rmse(MEAN, Y) == pytest.approx(np.sqrt(np.mean(by_row)))
    expected = scores.standard_error(by_row, root=True)
    assert scores.standard_error(found, root=True) == pytest.approx(expected)
    difference = scores.paired_difference(found, 2 * found)
    assert difference.num_rows == 3
    assert difference.difference == pytest.approx(-np.mean(by_row))


def test_pit_of_a_missing_target_is_not_known():
    with pytest.warns(UserWarning, match=WARNING):
        np.testing.assert_array_equal(np.isnan(scores.pit(MEAN, Y, SCALE)), np.isnan(Y))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.full((4, 2), np.nan), "no value but NaN or another missing value in column 0"),
        (np.where(np.isnan(Y), np.inf, Y), "the target y must be finite"),
    ],
)
def test_targets_that_no_row_has_or_that_are_infinite_are_refused(y, said):
    for score in (scores.rmse, scores.crps):
        with pytest.raises(ValueError, match=said):
            score(MEAN, y)


LABELLED = {
    "accuracy": lambda p, y: scores.accuracy(p, y, pointwise=True),
    "brier": lambda p, y: scores.brier(p, y, pointwise=True),
    "expected_calibration_error": scores.expected_calibration_error,
    "reliability": scores.reliability,
}


@pytest.mark.parametrize("name", LABELLED)
def test_rows_without_a_label_are_left_out(name):
    score, probs = LABELLED[name], RNG.dirichlet(np.ones(3), (5, 4))
    y = np.array([0, 2, 1, 1])
    right = score(probs[:, :3], y[:3])
    with pytest.warns(UserWarning, match=rf"^scores\.{name}: 1 of 4 rows have no target"):
        found = score(probs, np.where(np.arange(4) == 3, np.nan, y))
    if name in ("accuracy", "brier"):
        right = [*right, np.nan]
    np.testing.assert_equal(found, right)
    with (
        pytest.warns(UserWarning, match="1 of 4 rows"),
        pytest.raises(TypeError, match=rf"^scores\.{name}: class labels must be integers"),
    ):
        score(probs, [0.5, 1.0, 2.0, np.nan])
