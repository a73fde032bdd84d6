"""What scores must not depend on, what must change them by a known factor, and that truth scores best."""

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
    "adaptive": lambda p, y: scores.expected_calibration_error(p, y, 6, adaptive=True),
    "entropy": lambda p, y: scores.entropy(p).mean(),
    "mutual information": lambda p, y: scores.mutual_information(p).mean(),
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


@pytest.mark.parametrize("name", sorted(OF_CLASSES))
def test_a_draw_counted_twice_with_all_others_changes_nothing(rng, name):
    score = OF_CLASSES[name]
    probs, y = random_probs(rng, 4, 15, 3), rng.integers(0, 3, 15)
    assert score(np.concatenate([probs, probs]), y) == pytest.approx(score(probs, y), rel=1e-12)


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


@pytest.mark.parametrize("shift", [-300.0, 12.0])
def test_a_shift_of_predictions_and_targets_changes_no_score(rng, shift):
    mean, y = rng.normal(size=(8, 10)), rng.normal(size=10)
    for name, score in OF_REGRESSIONS.items():
        assert score(mean + shift, y + shift) == pytest.approx(score(mean, y), rel=1e-9), name


def test_the_log_score_falls_by_the_log_of_the_unit(rng):
    """Densities are per unit: a target in units a thousand times smaller is a thousand times less dense."""
    mean, y = rng.normal(size=(5, 8)), rng.normal(size=8)
    plain = scores.lppd(stats.norm.logpdf(y, mean, 0.5))
    finer = scores.lppd(stats.norm.logpdf(1000 * y, 1000 * mean, 500.0))
    assert plain - finer == pytest.approx(np.log(1000), rel=1e-12)


@pytest.mark.parametrize("wrong", [(0.3, 1.0), (0.0, 1.4), (0.0, 0.7), (-0.2, 1.2)])
def test_the_true_distribution_has_the_best_log_score_and_crps_by_the_known_gap(rng, wrong):
    """Of N(0, 1) against N(m, s): the Kullback-Leibler divergence, and the squared Cramér distance."""
    shift, width = wrong
    y = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    at = np.zeros((1, y.size))
    gap = scores.lppd(stats.norm.logpdf(y)[None]) - scores.lppd(stats.norm.logpdf(y, *wrong)[None])
    divergence = np.log(width) + (1 + shift**2) / (2 * width**2) - 0.5
    assert gap == pytest.approx(divergence, abs=1e-3)
    grid = np.linspace(-12, 12, 24_001)
    distance = np.trapezoid((stats.norm.cdf(grid) - stats.norm.cdf(grid, *wrong)) ** 2, grid)
    worse = scores.crps(at + shift, y, width) - scores.crps(at, y, 1.0)
    assert worse == pytest.approx(distance, abs=2e-4)
    assert min(divergence, distance) > 0.005


def test_the_true_probabilities_have_the_best_brier_score_by_their_squared_distance(rng):
    """E Brier(q) - E Brier(p) = |p - q|^2 for labels with probabilities p, with a row for each label."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    true, false = (scores.brier(np.tile(distribution, (100, 1)), labels) for distribution in (p, q))
    assert true == pytest.approx(1 - p @ p, rel=1e-12)
    assert false - true == pytest.approx(np.sum((p - q) ** 2), rel=1e-12)


def test_an_average_of_draws_is_never_worse_than_its_draws_on_average(rng):
    """Jensen: the log score and Brier of the average against the mean of those of each draw."""
    probs, y = random_probs(rng, 7, 25, 4), rng.integers(0, 4, 25)
    log = np.log(probs[:, np.arange(25), y])
    together, alone = scores.lppd(log), [scores.lppd(draw[None]) for draw in log]
    assert together > np.mean(alone) + 0.05
    each = [scores.brier(draw, y) for draw in probs]
    # The gap of Brier is the variance of the draws, exactly.
    variance = probs.var(axis=0).sum(axis=1).mean()
    assert np.mean(each) - scores.brier(probs, y) == pytest.approx(variance, rel=1e-12)


def test_crps_of_a_far_target_is_its_distance_less_half_of_the_spread(rng):
    """Far outside |X - y| is y - E X, so that only the spread E|X - X'| is left of the distribution."""
    mean = np.array([[-1.0], [0.0], [4.0]])
    pairs = np.abs(mean - mean.T).mean()
    assert scores.crps(mean, [1000.0]) == pytest.approx(1000 - 1.0 - pairs / 2, rel=1e-12)
    # E|X - X'| of a normal distribution is 2 s / sqrt(pi).
    given = scores.crps([[2.0]], [500.0], scale=3.0)
    assert given == pytest.approx(498 - 3 / np.sqrt(np.pi), rel=1e-12)


def test_a_narrow_mixture_scores_as_its_samples(rng):
    """As the noise goes to zero the mixture becomes the samples, from above."""
    samples, y = rng.normal(size=(15, 6)), rng.normal(size=6)
    exact = scores.crps(samples, y)
    gaps = [abs(scores.crps(samples, y, scale) - exact) for scale in (1e-1, 1e-2, 1e-3)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-3


@pytest.mark.parametrize("distance", ["total_variation", "wasserstein", "disagreement"])
def test_distances_are_zero_for_equals_symmetric_and_triangular(rng, distance):
    measure = {
        "total_variation": scores.total_variation,
        "wasserstein": lambda a, b: scores.wasserstein(a, b, event_dim=1),
        "disagreement": lambda a, b: 1 - scores.agreement(a, b),
    }[distance]
    for _ in range(10):
        a, b, c = (random_probs(rng, 3, 12, 4) for _ in range(3))
        assert measure(a, a) == 0.0
        assert measure(a, b) == pytest.approx(measure(b, a), rel=1e-12)
        assert measure(a, c) <= measure(a, b) + measure(b, c) + 1e-12
    assert measure(a, b) > 0


def test_the_sliced_distance_uses_the_same_directions_for_the_same_seed(rng):
    p, q = rng.normal(size=(10, 3, 4)), rng.normal(size=(10, 3, 4))
    one, again, other = (
        scores.wasserstein(p, q, event_dim=1, num_projections=8, seed=seed) for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other
    # No projection moves farther than the vectors themselves.
    longest = np.linalg.norm(p[:, None] - q[None], axis=-1).max()
    assert one < longest


def test_total_variation_bounds_every_difference_of_probabilities(rng):
    """It is the largest difference of the probability of any set of classes, found by trying all sets."""
    p, q = random_probs(rng, 9, 4), random_probs(rng, 9, 4)
    sets = np.array([[bool(k & (1 << c)) for c in range(4)] for k in range(16)])
    largest = np.abs((p - q) @ sets.T).max(axis=1)
    rows = scores.total_variation(p, q, pointwise=True)
    np.testing.assert_allclose(rows, largest, rtol=1e-12)
