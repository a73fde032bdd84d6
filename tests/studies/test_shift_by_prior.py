"""The study of covariate shift by prior: its priors, averages and differences."""

import jax
import numpy as np
import pytest

from benchmarks._shared import mnist_posteriors
from benchmarks._shared.converged import rows_of
from benchmarks.predictions import shift_by_prior, shift_by_prior_words


def test_a_prior_along_centred_components_has_the_variance_of_the_other():
    x = np.random.default_rng(0).normal(1.0, [0.2, 0.5, 1.0, 0.0], (300, 4)).astype(np.float32)
    inputs = shift_by_prior.inputs_under(shift_by_prior.EMPCOV, x)
    np.testing.assert_allclose(inputs.shift, x.mean(0), rtol=1e-6)
    covariance, moments = inputs.root @ inputs.root.T, np.cov(x.T, bias=True)
    small = mnist_posteriors.SMALL * np.eye(4)
    a = (covariance - small)[1, 1] / moments[1, 1]
    np.testing.assert_allclose(covariance, a * moments + small, atol=1e-6)
    variance = shift_by_prior.EMPCOV_SCALE**2 * np.trace(moments)
    np.testing.assert_allclose(np.trace((covariance - small) @ moments), variance, rtol=1e-4)
    plain = shift_by_prior.inputs_under(0.1, x)
    np.testing.assert_allclose(plain.of(x), 0.1 * x, rtol=1e-6)


def test_probabilities_are_averaged_over_the_draws_of_each_chain():
    rng = np.random.default_rng(1)
    shapes = {"Dense_0.kernel": (3, 50), "Dense_0.bias": (50,)}
    shapes |= {"Dense_1.kernel": (50, 10), "Dense_1.bias": (10,)}
    w = {f"net/{k}": rng.normal(size=(2, 3, *s)).astype(np.float32) for k, s in shapes.items()}
    x = rng.normal(size=(4, 3)).astype(np.float32)
    hidden = np.maximum(x @ w["net/Dense_0.kernel"] + w["net/Dense_0.bias"][..., None, :], 0)
    logits = hidden @ w["net/Dense_1.kernel"] + w["net/Dense_1.bias"][..., None, :]
    expected = jax.nn.softmax(logits).mean(1)
    np.testing.assert_allclose(np.exp(shift_by_prior.log_averages(w, x)), expected, rtol=1e-4)


def test_differences_are_paired_by_image_and_joined_over_subsets():
    words, y = shift_by_prior_words, np.array([0, 1])
    logs = [np.log([[[0.6, 0.4], [0.7, 0.3]]]), np.log([[[0.4, 0.6], [0.2, 0.8]]])]
    one = words.by_image(logs, y)
    np.testing.assert_allclose(one.wrong, [0.5, 0.5])
    np.testing.assert_allclose(one.scores, np.log([0.24, 0.24]) / 2)
    other = words.ByImage(np.array([0.0, 1.0]), np.log([0.5, 0.25]), np.empty(0))
    row = words.beyond(one, other, "MAP")
    assert row["error beyond MAP"] == pytest.approx(0.0)
    assert row["error beyond MAP, se"] == pytest.approx(0.5)
    # Both are single networks.
    assert row["score beyond MAP, chains"] == 0
    where = {"rows": 3000, "kind": "blur"}
    rows = [{**where, "gap": gap, "gap, se": 0.3} for gap in (0.0, 0.8)]
    rows += [{**where, "kind": "noise", "gap": 9.0, "gap, se": 0.0}]
    # The spread of two subsets is 0.4, the error over images that they share 0.3.
    assert words.over_subsets(rows, "gap", where) == pytest.approx((0.4, 0.5))
    # A Monte Carlo error that one of the two has stands for both.
    rows[0]["gap, chains"] = 0.6
    assert words.over_subsets(rows, "gap", where).error == pytest.approx((0.5**2 + 0.18) ** 0.5)


def test_stored_rows_have_the_columns_of_new_ones():
    """Otherwise the command would refuse to add a cell to them."""
    logs = np.log([[[0.6, 0.4], [0.7, 0.3]]])
    one = shift_by_prior_words.by_image([logs], np.zeros(2, int))
    stored = rows_of("predictions/shift_by_prior")[0]
    for name in ("MAP", "ensemble"):
        assert set(shift_by_prior_words.beyond(one, one, name)) <= set(stored)


def test_scores_of_averages_have_the_monte_carlo_error_of_their_chains():
    """Log scores of chains that hardly differ have an average that is nearly linear in them."""
    words, rng = shift_by_prior_words, np.random.default_rng(3)
    y = np.zeros(4, int)
    right = 0.5 + 0.001 * rng.normal(size=(2, 6, 1)) + np.zeros((2, 6, 4))
    found = words.by_image(list(np.log(np.stack([right, 1 - right], -1))), y)
    # The mean over severities of each chain's probability, over the probability.
    own = right.mean((0, 2)) / 0.5
    assert found.monte_carlo == pytest.approx(own.std(ddof=1) / 6**0.5, rel=0.01)
    again = words.by_image(list(np.log(np.stack([right, 1 - right], -1))), y)
    row = words.beyond(found, again, "ensemble")
    assert row["score beyond ensemble, chains"] == pytest.approx(2**0.5 * found.monte_carlo)
    assert words.beyond(found, found, "ensemble")["score beyond ensemble, chains"] == 0
