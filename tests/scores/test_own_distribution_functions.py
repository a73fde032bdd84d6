"""PIT and coverage by the predictions' own distribution function, and what scores do not depend on."""

import numpy as np
import pytest
from scipy import stats
from test_scores import random_probs

from numpyro_bnn import scores
from numpyro_bnn.data import units


class StudentPredictions:
    """Predictions of Student's t noise: a mixture of normal ones with the same scales differs."""

    def __init__(self, mean, scale, df=3.0, broken=None):
        self.values = {"mean": mean, "scale": scale}
        self.df = df
        self.broken = broken

    def cdf(self, y):
        if self.broken == "unknown":
            raise NotImplementedError
        found = stats.t.cdf(y, self.df, self.values["mean"], self.values["scale"])
        return np.full_like(found, np.nan) if self.broken == "nan" else found


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def case(rng):
    mean, scale = rng.normal(size=(2, 3, 8)), rng.uniform(0.5, 2, (2, 3, 8))
    return mean, scale, 3 * rng.normal(size=8)


def test_pit_is_the_average_of_the_own_distribution_functions(case):
    mean, scale, y = case
    expected = stats.t.cdf(y, 3.0, mean, scale).mean(axis=(0, 1))
    given = scores.pit(StudentPredictions(mean, scale), y)
    np.testing.assert_allclose(given, expected, rtol=1e-12)
    # Heavier tails: the normal distribution is off by more than rounding.
    assert np.abs(given - scores.pit(mean, y, scale)).max() > 0.01


@pytest.mark.parametrize("broken", ["unknown", "nan"])
def test_without_a_function_that_works_the_normal_mixture_is_taken(case, broken):
    mean, scale, y = case
    given = scores.pit(StudentPredictions(mean, scale, broken=broken), y)
    np.testing.assert_array_equal(given, scores.pit(mean, y, scale))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_coverage_is_the_level_under_the_own_distribution_and_not_under_another(rng, level):
    y = stats.t.ppf((np.arange(4000) + 0.5) / 4000, 3.0)
    zeros, ones = np.zeros((1, 1, y.size)), np.ones((1, 1, y.size))
    own = scores.coverage(StudentPredictions(zeros, ones), y, level=level)
    assert own == pytest.approx(level, abs=1e-3)
    normal = scores.coverage(zeros[0], y, 1.0, level=level)
    exact = 2 * stats.t.cdf(stats.norm.ppf((1 + level) / 2), 3.0) - 1
    assert normal == pytest.approx(exact, abs=1e-3)
    assert normal < level - 0.02


def test_suspect_chains_warn_through_every_door():
    """Scores of values, of log densities and of distribution functions all ask for the same warning."""
    told = []

    class Suspect(StudentPredictions):
        suspect = (1,)

        def warn_of_suspects(self, what):
            told.append(what)

        def log_prob(self, y):
            return stats.norm.logpdf(y, self.values["mean"], self.values["scale"])

    predictions = Suspect(np.zeros((2, 1, 3)), np.ones((2, 1, 3)))
    for call in (scores.rmse, scores.crps, scores.lppd, scores.pit):
        told.clear()
        call(predictions, np.zeros(3))
        assert told, call
        assert set(told) == {"scores"}


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
@pytest.mark.parametrize("scale_shape", [(), (1,), (6,)])
def test_a_scale_stands_for_every_draw_only_where_its_axes_say_so(rng, shape, scale_shape):
    mean, y = rng.normal(size=shape), rng.normal(size=6)
    scale = rng.uniform(0.5, 2.0, scale_shape)
    full = np.broadcast_to(scale, shape)
    expected = scores.crps(mean, y, full)
    if scale_shape == ():
        assert scores.crps(mean, y, scale) == pytest.approx(expected, rel=1e-14)
        return
    with pytest.raises(ValueError, match=r"scale must be one number or have the axes of the mean"):
        scores.crps(mean, y, scale)
    lifted = scale.reshape((1,) * (len(shape) - 1) + scale_shape)
    assert scores.crps(mean, y, lifted) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("block", [1, 5, 64, 10_000])
def test_no_score_depends_on_the_size_of_its_blocks(rng, monkeypatch, block):
    mean, scale, y = rng.normal(size=(6, 9)), rng.uniform(0.5, 2, (6, 9)), rng.normal(size=9)
    probs = rng.dirichlet(np.ones(3), size=(6, 9))
    calls = (
        lambda: scores.crps(mean, y, pointwise=True),
        lambda: scores.crps(mean, y, scale, pointwise=True),
        lambda: scores.pit(mean, y),
        lambda: scores.pit(mean, y, scale),
        lambda: scores.wasserstein(mean, mean[:4] + 1, pointwise=True),
        lambda: scores.wasserstein(probs, probs[::-1] ** 2, event_dim=1, pointwise=True),
        lambda: scores.uncertainty(probs).epistemic,
        lambda: scores.lppd(-np.abs(mean), pointwise=True),
    )
    before = [call() for call in calls]
    monkeypatch.setattr(units, "BLOCK_SIZE", block)
    for call, expected in zip(calls, before):
        np.testing.assert_allclose(call(), expected, rtol=1e-12)


@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (7, 3), (10, 10**9), (1000, 1)])
def test_blocks_of_rows_follow_each_other_without_gap(monkeypatch, num_rows, size):
    monkeypatch.setattr(units, "BLOCK_SIZE", 64)
    blocks = list(units.row_blocks(num_rows, size))
    assert np.concatenate([np.arange(num_rows)[b] for b in blocks]).tolist() == list(
        range(num_rows)
    )
    assert all((b.stop - b.start) * size <= max(64, size) for b in blocks)


@pytest.mark.parametrize("outputs", [1, 3])
def test_several_outputs_are_averaged_within_a_row(rng, outputs):
    mean, y = rng.normal(size=(5, 7, outputs)), rng.normal(size=(7, outputs))
    for score in (scores.crps, scores.rmse):
        rows = score(mean, y, pointwise=True)
        each = [score(mean[..., k], y[:, k], pointwise=True) for k in range(outputs)]
        np.testing.assert_allclose(rows, np.mean(each, axis=0), rtol=1e-12)
    assert scores.pit(mean, y).shape == (7, outputs)
    inside = scores.coverage(mean, y, level=[0.3, 0.7], pointwise=True)
    apart = [
        scores.coverage(mean[..., k], y[:, k], level=[0.3, 0.7], pointwise=True)
        for k in range(outputs)
    ]
    np.testing.assert_allclose(inside, np.mean(apart, axis=0))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, bool])
def test_numbers_of_any_kind_score_as_their_doubles(rng, dtype):
    values = (rng.uniform(size=(4, 6)) > 0.5).astype(dtype)
    y = rng.normal(size=6)
    assert scores.rmse(values, y) == pytest.approx(scores.rmse(values.astype(float), y), rel=1e-6)
    assert scores.crps(values, y) == pytest.approx(scores.crps(values.astype(float), y), rel=1e-6)


def test_an_infinite_score_has_an_infinite_error_and_a_perfect_one_none():
    assert scores.standard_error([0.0, -np.inf, 1.0]) == np.inf
    assert scores.standard_error([0.0, 0.0, 0.0], root=True) == 0.0
    assert scores.standard_error([2.0, 2.0, 2.0]) == 0.0


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
