"""Scores that compare predictive distributions, against closed forms and other libraries."""

import numpy as np
import pytest
from scipy import integrate, stats
from sklearn import metrics

from numpyro_bnn import scores
from numpyro_bnn.posterior.predictive_draws import Predictions


def random_probs(rng, *shape):
    return rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])


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
