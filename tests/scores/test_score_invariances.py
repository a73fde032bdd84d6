"""What scores must not depend on, and what must change them by a known factor."""

import numpy as np
import pytest
from scipy import stats
from test_score_distributions import random_probs

from numpyro_bnn import scores


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# Each takes draws (draw, row) and targets (row,), and gives one number.
OF_REGRESSIONS = {
    "rmse": lambda m, y: scores.rmse(m, y),
    "crps of samples": lambda m, y: scores.crps(m, y),
    "crps of a mixture": lambda m, y: scores.crps(m, y, 0.7),
    "coverage of samples": lambda m, y: scores.coverage(m, y, level=0.6),
    "coverage of a mixture": lambda m, y: scores.coverage(m, y, 0.7, level=0.6),
    "mean of PIT": lambda m, y: scores.pit(m, y, 0.7).mean(),
    "lppd": lambda m, y: scores.lppd(stats.norm.logpdf(y, m, 0.7)),
    "epistemic": lambda m, y: scores.uncertainty(m, 0.7).epistemic.mean(),
}
OF_CLASSES = {
    "accuracy": scores.accuracy,
    "brier": scores.brier,
    "calibration": scores.expected_calibration_error,
    "entropy": lambda p, y: scores.entropy(p).mean(),
    "mutual information": lambda p, y: scores.uncertainty(p).epistemic.mean(),
    "lppd": lambda p, y: scores.lppd(np.log(p[..., np.arange(len(y)), y])),
}


@pytest.mark.parametrize("name", OF_REGRESSIONS)
def test_the_order_of_draws_and_how_chains_split_them_do_not_matter(rng, name):
    score = OF_REGRESSIONS[name]
    mean, y = rng.normal(size=(12, 20)), rng.normal(size=20)
    expected = score(mean, y)
    assert score(mean[rng.permutation(12)], y) == pytest.approx(expected, rel=1e-12)
    assert score(mean.reshape(3, 4, 20), y) == pytest.approx(expected, rel=1e-12)
    rows = rng.permutation(20)
    assert score(mean[:, rows], y[rows]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", OF_CLASSES)
def test_the_order_of_draws_rows_and_classes_does_not_matter(rng, name):
    score = OF_CLASSES[name]
    probs, y = random_probs(rng, 6, 40, 5), rng.integers(0, 5, 40)
    expected = score(probs, y)
    assert score(probs[rng.permutation(6)], y) == pytest.approx(expected, rel=1e-12)
    assert score(probs.reshape(2, 3, 40, 5), y) == pytest.approx(expected, rel=1e-12)
    rows = rng.permutation(40)
    assert score(probs[:, rows], y[rows]) == pytest.approx(expected, rel=1e-12)
    # New class k is the old class `order[k]`.
    order = rng.permutation(5)
    assert score(probs[..., order], np.argsort(order)[y]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("score", "power"),
    [
        (lambda m, y, s: scores.rmse(m, y), 1),
        (lambda m, y, s: scores.crps(m, y), 1),
        (lambda m, y, s: scores.crps(m, y, s), 1),
        (lambda m, y, s: scores.wasserstein(m, m + y), 1),
        (lambda m, y, s: scores.uncertainty(m, s).total.mean(), 2),
        (lambda m, y, s: scores.uncertainty(m, s).epistemic.mean(), 2),
        (lambda m, y, s: scores.coverage(m, y, s), 0),
        (lambda m, y, s: scores.pit(m, y, s).mean(), 0),
        (lambda m, y, s: scores.pit(m, y).mean(), 0),
    ],
)
def test_scores_are_in_the_units_of_the_target(rng, score, power):
    mean, y, scale = rng.normal(size=(9, 11)), rng.normal(size=11), rng.uniform(0.2, 2, (9, 11))
    plain = score(mean, y, scale)
    for unit in (1e-3, 2.54, 1e6):
        given = score(unit * mean, unit * y, unit * scale)
        assert given == pytest.approx(unit**power * plain, rel=1e-9)


def test_the_sliced_distance_uses_the_same_directions_for_the_same_seed(rng):
    p, q = rng.normal(size=(10, 3, 4)), rng.normal(size=(10, 3, 4))
    one, again, other = (
        scores.wasserstein(p, q, event_dim=1, num_projections=8, seed=seed) for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
