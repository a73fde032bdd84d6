"""Scores against values computed another way: scikit-learn, closed form, brute force, integral."""

import numpy as np
import pytest
from scipy import integrate, stats
from sklearn import metrics

from numpyro_bnn import scores
from numpyro_bnn.posterior.predictive_draws import Predictions


def random_probs(rng, *shape):
    return rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])


class Least:
    """The least that a score needs of an object of predictions."""

    def __init__(self, log_prob=None, **values):
        self.values = values
        self._log_prob = log_prob

    def log_prob(self, y):
        return self._log_prob(y)


def test_lppd_is_the_log_of_the_mean_density_even_where_densities_underflow(rng):
    log_prob = rng.normal(size=(2, 5, 7))
    rows = np.log(np.exp(log_prob).mean(axis=(0, 1)))
    assert scores.lppd(log_prob) == pytest.approx(rows.mean(), abs=1e-12)
    np.testing.assert_allclose(scores.lppd(log_prob, pointwise=True), rows, atol=1e-12)
    assert scores.lppd(log_prob - 2000) == pytest.approx(rows.mean() - 2000, abs=1e-9)
    # One draw that holds the row impossible halves its density; all of them make it -inf.
    assert scores.lppd([[0.0], [-np.inf]]) == pytest.approx(np.log(0.5))
    assert scores.lppd([[-np.inf]]) == -np.inf


def test_rmse_averages_the_draws_before_it_squares(rng):
    mean, y = rng.normal(size=(2, 4, 6)), rng.normal(size=6)
    expected = metrics.mean_squared_error(y, mean.mean(axis=(0, 1))) ** 0.5
    assert scores.rmse(mean, y) == pytest.approx(expected, rel=1e-12)
    assert scores.rmse(mean, y, pointwise=True).mean() ** 0.5 == pytest.approx(expected, rel=1e-12)
    two_outputs = scores.rmse(np.stack([mean, mean], -1), np.stack([y, y], -1))
    assert two_outputs == pytest.approx(expected, rel=1e-12)


def test_crps_of_one_gaussian_is_the_closed_form_of_gneiting_and_raftery():
    y, mean, scale = 1.3, 0.4, 0.7
    z = (y - mean) / scale
    expected = scale * (
        z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
    )
    assert scores.crps([[mean]], [y], scale=scale) == pytest.approx(expected, rel=1e-12)


# 3 draws take the pairs, 400 the quadrature; a component a thousand times narrower the pairs.
@pytest.mark.parametrize(("draws", "narrow"), [(3, 1.0), (400, 1.0), (40, 1e-3)])
def test_crps_of_a_mixture_is_the_integral_of_the_squared_gap_of_distributions(rng, draws, narrow):
    mean, scale = rng.normal(size=draws), rng.uniform(0.5, 2.0, size=draws)
    scale[0] *= narrow
    y = 0.8

    def gap(x):
        return (stats.norm.cdf((x - mean) / scale).mean() - (x >= y)) ** 2

    points = sorted([y, mean[0] - 5 * scale[0], mean[0], mean[0] + 5 * scale[0]])
    expected = integrate.quad(gap, -25, 25, points=points, epsabs=1e-11, limit=500)[0]
    given = scores.crps(mean[:, None], [y], scale=scale[:, None])
    assert given == pytest.approx(expected, abs=1e-9)


def test_both_ways_to_the_spread_of_a_mixture_agree(rng, monkeypatch):
    from numpyro_bnn.scores.against_targets import _mixture_spread

    mean, scale = rng.normal(size=(2, 300)), rng.uniform(0.5, 1.0, size=(2, 300))
    by_nodes = _mixture_spread(mean, scale)
    monkeypatch.setattr("numpyro_bnn.data.units.BLOCK_SIZE", 1000)
    pairs = np.hypot(scale[:, :, None], scale[:, None, :])
    folded = stats.foldnorm(abs(mean[:, :, None] - mean[:, None, :]) / pairs, scale=pairs)
    np.testing.assert_allclose(by_nodes, folded.mean().mean(axis=(1, 2)), rtol=1e-12)


def test_crps_of_samples_by_brute_force(rng):
    samples, y = rng.normal(size=(2, 15, 4)), rng.normal(size=4)
    flat = samples.reshape(30, 4)
    pairs = np.abs(flat[:, None] - flat[None]).mean(axis=(0, 1))
    expected = np.abs(flat - y).mean(axis=0) - 0.5 * pairs
    np.testing.assert_allclose(scores.crps(samples, y, pointwise=True), expected, rtol=1e-12)
    assert scores.crps([[2.0]], [5.0]) == 3.0


def test_accuracy_brier_and_entropy_agree_with_scikit_learn_and_scipy(rng):
    probs, y = random_probs(rng, 2, 3, 50, 4), rng.integers(0, 4, 50)
    mean = probs.mean(axis=(0, 1))
    assert scores.accuracy(probs, y) == metrics.accuracy_score(y, mean.argmax(1))
    expected = np.mean([np.sum((p - (np.arange(4) == k)) ** 2) for p, k in zip(mean, y)])
    assert scores.brier(probs, y) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(scores.entropy(probs), stats.entropy(mean, axis=1), rtol=1e-12)
    # -log p of the label, averaged, is the log loss.
    log_prob = np.log(mean[np.arange(50), y])
    assert scores.lppd(log_prob) == pytest.approx(-metrics.log_loss(y, mean), rel=1e-9)


def binary(confidence):
    return np.stack([confidence, 1 - confidence], axis=-1)


def test_calibration_bins_are_closed_on_the_right_and_hold_each_row_once():
    # In fifths: 0.6 belongs to (0.4, 0.6], 0.8 to (0.6, 0.8], 1.0 to the last.
    table = scores.reliability(
        binary(np.array([0.6, 0.6, 0.8, 1.0, 0.55, 0.85])), np.zeros(6, int), 5
    )
    np.testing.assert_array_equal(table.num_rows, [0, 0, 3, 1, 2])
    np.testing.assert_allclose(table.confidence[2:], [(0.6 + 0.6 + 0.55) / 3, 0.8, 0.925])
    assert np.isnan(table.accuracy[:2]).all()


@pytest.mark.parametrize("num_bins", [1, 3, 7, 10, 15, 20, 100])
def test_every_edge_is_counted_once_in_the_bin_below_it(num_bins):
    edges = np.arange(1, num_bins + 1) / num_bins
    edges = edges[edges >= 0.5]
    table = scores.reliability(binary(edges), np.zeros(len(edges), int), num_bins)
    assert table.num_rows.sum() == len(edges)
    assert table.num_rows.max() == 1


def test_calibration_error_by_hand():
    # Bin (0.6, 0.7]: confidence 0.65, half right. Bin (0.9, 1.0]: confidence 1, all right.
    probs = binary(np.array([0.65, 0.65, 1.0, 1.0]))
    given = scores.expected_calibration_error(probs, [0, 1, 0, 0], num_bins=10)
    assert given == pytest.approx(0.5 * 0.15 + 0.5 * 0.0)


def test_calibration_error_by_a_loop_over_bins(rng):
    probs, y = random_probs(rng, 400, 3), rng.integers(0, 3, 400)
    confidence, right = probs.max(1), probs.argmax(1) == y
    expected = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert scores.expected_calibration_error(probs, y) == pytest.approx(expected, rel=1e-12)


def test_pit_of_a_mixture_is_its_distribution_function(rng):
    mean, scale, y = rng.normal(size=(5, 3)), rng.uniform(1, 2, (5, 3)), rng.normal(size=3)
    expected = stats.norm.cdf(y, mean, scale).mean(axis=0)
    np.testing.assert_allclose(scores.pit(mean, y, scale), expected, rtol=1e-12)


def test_pit_of_samples_counts_a_tie_half():
    samples = np.array([[0.0], [1.0], [1.0], [2.0]])
    assert scores.pit(samples, [1.0])[0] == pytest.approx((1 + 1 + 0.5) / 5)
    assert scores.pit(samples, [-1.0])[0] == pytest.approx(0.1)


def test_coverage_of_calibrated_predictions_is_the_level(rng):
    y = rng.normal(size=20_000)
    levels = np.array([0.5, 0.9])
    error = np.sqrt(levels * (1 - levels) / y.size)
    mixture = scores.coverage(np.zeros((1, y.size)), y, 1.0, level=levels)
    assert np.all(np.abs(mixture - levels) < 4 * error)
    samples = scores.coverage(rng.normal(size=(99, y.size)), y, level=levels)
    assert np.all(np.abs(samples - levels) < 4 * error)
    # Half the scale: P(|N| < z/2), far too little.
    narrow = scores.coverage(np.zeros((1, y.size)), y, 0.5, level=0.9)
    expected = 2 * stats.norm.cdf(stats.norm.ppf(0.95) / 2) - 1
    assert narrow == pytest.approx(expected, abs=0.015)
    rows = scores.coverage(np.zeros((1, y.size)), y, 0.5, level=0.9, pointwise=True)
    assert rows.shape == y.shape
    assert rows.mean() == narrow


def test_ood_auroc_of_predictions_is_that_of_their_entropy():
    # Inside: each draw unsure, all alike. Outside: each draw sure, and they disagree.
    alike = Least(probs=np.full((1, 2, 3, 2), 0.5))
    split = Least(probs=np.stack([np.tile([1.0, 0.0], (3, 1)), np.tile([0.0, 1.0], (3, 1))])[None])
    assert scores.ood_auroc(alike, split) == 0.5
    parts = (scores.uncertainty(each).epistemic for each in (alike, split))
    assert scores.ood_auroc(*parts) == 1.0


def test_standard_error_and_paired_difference_are_those_of_a_t_test(rng):
    a, b = rng.normal(size=40), rng.normal(size=40)
    assert scores.standard_error(a) == pytest.approx(stats.sem(a), rel=1e-12)
    paired = scores.paired_difference(a, b)
    assert paired.num_rows == 40
    statistic = stats.ttest_rel(a, b).statistic
    assert paired.difference / paired.standard_error == pytest.approx(statistic, rel=1e-12)


def test_rows_without_a_target_are_left_out_and_a_score_that_one_side_lacks_is_not():
    a, b = np.array([1.0, 2.0, np.nan, 4.0]), np.array([0.0, 1.0, np.nan, 2.0])
    assert scores.paired_difference(a, b) == scores.paired_difference(a[[0, 1, 3]], b[[0, 1, 3]])
    b[0] = np.nan
    difference, error, num_rows = scores.paired_difference(a, b)
    assert np.isnan([difference, error]).all()
    assert num_rows == 3
    with pytest.raises(ValueError, match="at least two rows"):
        scores.standard_error([1.0, np.nan])


def test_standard_error_of_a_root_mean_is_right_over_many_test_sets(rng):
    squared = rng.normal(size=(3000, 200)) ** 2
    spread = np.sqrt(squared.mean(axis=1)).std()
    given = np.mean([scores.standard_error(rows, root=True) for rows in squared[:200]])
    assert given == pytest.approx(spread, rel=0.06)


def test_predictions_and_their_arrays_score_alike(rng):
    probs, labels = random_probs(rng, 2, 3, 8, 4), rng.integers(0, 4, 8)
    classes = Least(lambda y: np.log(probs[..., np.arange(8), y]), probs=probs)
    for score in (scores.accuracy, scores.brier, scores.expected_calibration_error):
        assert score(classes, labels) == score(probs, labels)
    expected = scores.lppd(np.log(probs[..., np.arange(8), labels]))
    assert scores.lppd(classes, labels) == expected
    for compare in (scores.agreement, scores.total_variation):
        assert compare(classes, probs[:1]) == compare(probs, probs[:1])
    assert scores.wasserstein(classes, classes) == 0.0
    np.testing.assert_array_equal(scores.uncertainty(classes), scores.uncertainty(probs))

    mean, scale, y = rng.normal(size=(2, 3, 8)), rng.uniform(1, 2, (2, 3, 8)), rng.normal(size=8)
    real = Least(mean=mean, scale=scale)
    assert scores.rmse(real, y) == scores.rmse(mean, y)
    assert scores.crps(real, y) == scores.crps(mean, y, scale)
    assert scores.coverage(real, y) == scores.coverage(mean, y, scale)
    np.testing.assert_array_equal(scores.uncertainty(real), scores.uncertainty(mean, scale))


def test_every_mean_score_is_the_mean_of_its_rows(rng):
    probs, labels = random_probs(rng, 3, 9, 4), rng.integers(0, 4, 9)
    mean, scale, y = rng.normal(size=(3, 9)), rng.uniform(1, 2, (3, 9)), rng.normal(size=9)
    for score, arguments in [
        (scores.lppd, (mean,)),
        (scores.crps, (mean, y)),
        (scores.crps, (mean, y, scale)),
        (scores.coverage, (mean, y, scale)),
        (scores.accuracy, (probs, labels)),
        (scores.brier, (probs, labels)),
        (scores.agreement, (probs, probs[:1])),
        (scores.total_variation, (probs, probs[:1])),
        (scores.wasserstein, (mean, scale)),
    ]:
        rows = score(*arguments, pointwise=True)
        assert rows.shape == (9,), score
        assert score(*arguments) == pytest.approx(rows.mean(), rel=1e-12), score


def test_arrays_of_jax_are_taken_in_their_own_precision():
    import jax.numpy as jnp

    probs = jnp.array([[[0.9, 0.1], [0.2, 0.8]]], dtype=jnp.bfloat16)
    assert scores.accuracy(probs, jnp.array([0, 1])) == 1.0


PROBS = np.array([[0.7, 0.3], [0.2, 0.8]])
BAD_INPUTS = [
    (lambda: scores.accuracy(PROBS * 2, [0, 1]), "sum to one.*sum of 2"),
    (lambda: scores.accuracy([[1.5, -0.5]], [0]), "must not be negative, got -0.5"),
    (lambda: scores.brier(PROBS * [[np.nan], [1]], [0, 1]), "2 of 4 values"),
    (lambda: scores.accuracy(PROBS[:, 0], [0, 1]), r"np.stack\(\[1 - p, p\]"),
    (lambda: scores.accuracy(PROBS, [[0], [1]]), r"shape \(2, 1\), .*y\.squeeze"),
    (lambda: scores.accuracy(PROBS, np.eye(2)), "one-hot"),
    (lambda: scores.accuracy(PROBS, [0, 1, 0]), "3 labels for predictions of 2 rows"),
    (lambda: scores.accuracy(PROBS, [0.0, 1.0]), "dtype float64, expected whole", TypeError),
    (lambda: scores.brier(PROBS, [1, 2]), "values from 1 to 2, expected whole numbers from 0 to 1"),
    (lambda: scores.brier(PROBS, [-1, 0]), "from -1 to 0"),
    (lambda: scores.lppd(PROBS, [0, 1]), r"y is for predictions.*np\.log\(p\["),
    (lambda: scores.accuracy([["a", "b"]], [0]), "expected numbers", TypeError),
    (
        lambda: scores.accuracy(Least(mean=PROBS, scale=PROBS), [0, 1]),
        r"'probs', got predictions with \['mean', 'scale'\]",
    ),
    (lambda: scores.rmse(np.ones((3, 4)), np.ones((4, 1))), r"Pass y\[:, 0\]"),
    (lambda: scores.rmse(np.ones((3, 4, 1)), np.ones(4)), "Drop the last axis"),
    (lambda: scores.rmse(np.ones((3, 4)), np.ones(5)), r"\(5,\), got shape \(3, 4\)"),
    (lambda: scores.rmse([[np.inf]], [1.0]), "mean must be finite, got 1 of 1"),
    (lambda: scores.rmse([[1.0]], [np.nan]), "no value but NaN"),
    (lambda: scores.crps([[1.0]], [1.0], scale=0.0), "scale must be positive, got 0"),
    (lambda: scores.crps(np.ones((3, 3)), np.ones(3), np.ones(3)), r"scale\[..., None\]"),
    (lambda: scores.crps(Least(mean=np.ones((1, 1, 1))), [1.0]), "'scale'"),
    (lambda: scores.coverage([[1.0]], [1.0], 1.0, level=90), "got 90"),
    (lambda: scores.lppd([[np.nan]]), "1 of 1 values"),
    (lambda: scores.lppd([[np.inf]]), "1 of 1 values"),
    (
        lambda: scores.lppd(Least(lambda y: np.zeros((1, 2, 3, 3))), np.zeros((3, 1))),
        r"\(1, 2, 3, 3\) for a target of shape \(3, 1\)",
    ),
    (lambda: scores.reliability(PROBS, [0, 1], 0), "num_bins must be a positive integer, got 0"),
    (lambda: scores.agreement(PROBS, PROBS[:1]), r"\(2, 2\) and \(1, 2\)"),
    (lambda: scores.wasserstein(PROBS, PROBS[:, :1]), "Predict at the same inputs"),
    (lambda: scores.wasserstein(PROBS, PROBS, event_dim=2), "in the last 3 axes"),
    (lambda: scores.ood_auroc([np.nan], [1.0]), "scores_in must hold"),
    (lambda: scores.uncertainty([[1.0]], -1.0), "scale must be positive, got -1"),
    (lambda: scores.standard_error([[1.0, 2.0]]), "pointwise=True"),
]


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_a_mistake_gets_an_error_that_names_it(case):
    call, message, *error = case
    with pytest.raises(*error or [ValueError], match=message):
        call()


def test_agreement_and_total_variation_compare_the_averages(rng):
    p, q = random_probs(rng, 4, 30, 3), random_probs(rng, 2, 5, 30, 3)
    a, b = p.mean(0), q.mean((0, 1))
    assert scores.agreement(p, q) == np.mean(a.argmax(1) == b.argmax(1))
    brute = np.mean([sum(max(x - z, 0) for x, z in zip(u, v)) for u, v in zip(a, b)])
    assert scores.total_variation(p, q) == pytest.approx(brute, rel=1e-12)
    assert scores.total_variation([[1.0, 0.0]], [[0.0, 1.0]]) == 1.0


def test_exact_wasserstein_is_scipys_for_equal_and_for_unequal_numbers_of_draws(rng):
    p = rng.normal(size=(2, 6, 4))
    for q in (rng.normal(size=(12, 4)), rng.normal(size=(7, 4))):
        expected = [stats.wasserstein_distance(p.reshape(12, 4)[:, i], q[:, i]) for i in range(4)]
        given = scores.wasserstein(p, q, pointwise=True)
        np.testing.assert_allclose(given, expected, rtol=1e-12)


def test_sliced_wasserstein_of_a_shift_is_the_mean_projection(rng):
    p = rng.normal(size=(50, 1, 2))
    shift = np.array([3.0, 4.0])
    # A shift moves every projection by u . shift; E |u . v| = 2 |v| / pi on the circle.
    given = scores.wasserstein(p, p + shift, event_dim=1, num_projections=4000)
    assert given == pytest.approx(2 * 5 / np.pi, rel=0.03)
    assert scores.wasserstein(p, p[::-1], event_dim=1) == pytest.approx(0.0, abs=1e-15)


def predictions(key, values):
    """Predictions that hold draws of means or probabilities, (chain, draw, row, …)."""
    more = {"scale": np.ones_like(values)} if key == "mean" else {}
    return Predictions({key: values, **more}, None)


@pytest.mark.parametrize("other_draws", [5, 7])
def test_wasserstein_of_several_outputs_is_the_mean_of_theirs(rng, other_draws):
    """Two, and as many as rows: neither are taken for rows, nor rows for draws."""
    for outputs in ((2,), (4,), (2, 3)):
        p = rng.normal(size=(2, 5, 4, *outputs))
        q = 1 + rng.normal(size=(2, other_draws, 4, *outputs))
        single = [
            [stats.wasserstein_distance(a, b) for a, b in zip(of_p, of_q)]
            for of_p, of_q in zip(columns(p), columns(q))
        ]
        given = scores.wasserstein(predictions("mean", p), predictions("mean", q), pointwise=True)
        np.testing.assert_allclose(given, np.mean(single, 1), rtol=1e-12)
    # An array of draws beside predictions has the axes of their rows too, on either side.
    for pair in ((predictions("mean", p), q), (p, predictions("mean", q))):
        np.testing.assert_array_equal(scores.wasserstein(*pair, pointwise=True), given)
    with pytest.raises(ValueError, match="both need the same inputs in the last 3 axes"):
        scores.wasserstein(predictions("mean", p), q[:, :, :3])


def columns(values):
    """Draws of each output of each row."""
    flat = values.reshape(-1, *values.shape[2:])
    return [flat[:, row].reshape(len(flat), -1).T for row in range(flat.shape[1])]


def test_wasserstein_of_predictions_that_change_sides_is_seen(rng):
    """Rows that swap their predictions: all draws of all rows together are the same numbers."""
    p = np.stack([np.full((1, 4, 2), -1.0), np.full((1, 4, 2), 1.0)], 2) * [1.0, 10.0]
    assert scores.wasserstein(predictions("mean", p), predictions("mean", -p)) == 11.0
    probs = rng.dirichlet(np.ones(3), size=(2, 5, 4, 2))
    others = rng.dirichlet(np.ones(3), size=(2, 5, 4, 2))
    one_by_one = [
        scores.wasserstein(probs[..., k, :], others[..., k, :], event_dim=1, pointwise=True)
        for k in (0, 1)
    ]
    given = scores.wasserstein(
        predictions("probs", probs), predictions("probs", others), pointwise=True
    )
    np.testing.assert_allclose(given, np.mean(one_by_one, 0), rtol=1e-12)


def test_ood_auroc_is_scikit_learns_ties_included(rng):
    familiar, strange = rng.integers(0, 6, 40), rng.integers(2, 8, 30)
    expected = metrics.roc_auc_score([0] * 40 + [1] * 30, np.concatenate([familiar, strange]))
    assert scores.ood_auroc(familiar, strange) == pytest.approx(expected, rel=1e-12)


def test_uncertainty_of_classes_splits_by_entropies(rng):
    probs = random_probs(rng, 3, 4, 10, 5)
    parts = scores.uncertainty(probs)
    flat = probs.reshape(12, 10, 5)
    np.testing.assert_allclose(parts.total, stats.entropy(flat.mean(0), axis=1), rtol=1e-12)
    np.testing.assert_allclose(parts.aleatoric, stats.entropy(flat, axis=2).mean(0), rtol=1e-12)
    # Mutual information as the mean divergence of each draw from the average.
    divergence = stats.entropy(flat, flat.mean(0)[None], axis=2).mean(0)
    np.testing.assert_allclose(parts.epistemic, divergence, rtol=1e-10)


def test_uncertainty_of_a_regression_is_the_variance_of_the_mixture(rng):
    mean, scale = rng.normal(size=(3, 2)), rng.uniform(1, 2, (3, 2))
    parts = scores.uncertainty(mean, scale)

    def second_moment(x, i):
        return x**2 * stats.norm.pdf(x, mean[:, i], scale[:, i]).mean()

    for i in range(2):
        second = integrate.quad(second_moment, -30, 30, args=(i,))[0]
        assert parts.total[i] == pytest.approx(second - mean[:, i].mean() ** 2, rel=1e-8)
    np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic, rtol=1e-12)
    np.testing.assert_allclose(parts.aleatoric, (scale**2).mean(0), rtol=1e-12)
