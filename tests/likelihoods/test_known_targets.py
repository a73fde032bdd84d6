"""Targets of which some are missing: likelihoods and ready models count those that are known."""

import jax
import numpy as np
import pytest
from nets import double
from numpyro.handlers import seed, substitute, trace
from scipy import stats

from numpyro_bnn import likelihoods
from numpyro_bnn.likelihoods import Precision

RNG = np.random.default_rng(0)
SD = np.array([0.5, 1.0, 2.0])
ROOT = np.linalg.cholesky(np.array([[1, 0.8, 0.2], [0.8, 1, -0.3], [0.2, -0.3, 1]]))
F, Y = RNG.normal(size=(2, 6, 3))
KNOWN = np.array([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 0, 1]], bool)
GAPS = np.where(KNOWN, Y, np.nan)


def log_density(observed, **values):
    """The log density of each row, at given values of the other sites."""

    @jax.jit  # Operation by operation each would compile by itself.
    def by_row():
        site = trace(seed(substitute(observed, values), 0)).get_trace()["y"]
        return site["fn"].log_prob(site["value"])

    return np.asarray(by_row(), np.float64)


def marginals(covariance):
    """The log densities of the known entries of each row by SciPy."""
    rows = [
        stats.multivariate_normal(f[k], covariance[np.ix_(k, k)]).logpdf(y[k]) if k.any() else 0.0
        for f, y, k in zip(F, Y, KNOWN)
    ]
    return np.array(rows)


@pytest.mark.parametrize("filling", [np.nan, np.inf])
def test_a_row_of_correlated_targets_counts_with_the_marginal_of_the_known_ones(filling):
    y = np.where(KNOWN, Y, filling)
    with double():
        found = log_density(
            lambda: likelihoods.gaussian(F, y, noise=SD, correlation=1.0, obs_mask=KNOWN),
            **{"y.correlation": ROOT},
        )
    scaled = SD[:, None] * ROOT
    np.testing.assert_allclose(found, marginals(scaled @ scaled.T), rtol=0, atol=1e-10)


def of_entries(distribution):
    return np.where(KNOWN, distribution.logpdf(Y), 0.0)


ELEMENTWISE = {
    "Gaussian": (
        lambda m: likelihoods.gaussian(F, GAPS, noise=SD, obs_mask=m),
        lambda: of_entries(stats.norm(F, SD)).sum(1),
    ),
    "t of several targets": (
        lambda m: likelihoods.gaussian(F, GAPS, noise=Precision(case=4.0), obs_mask=m),
        lambda: of_entries(stats.t(4, F, 1.0)).sum(1),
    ),
}
ONE, LABELS = KNOWN[:, 0], np.array([0, 2, 1, 0, 1, 2])
ROWS = {
    "Gaussian": (
        lambda m: likelihoods.gaussian(F[:, 0], GAPS[:, 0], noise=0.7, obs_mask=m),
        lambda: stats.norm(F[:, 0], 0.7).logpdf(Y[:, 0]),
    ),
    "t": (
        lambda m: likelihoods.student_t(F[:, 0], GAPS[:, 0], noise=0.7, df=3.0, obs_mask=m),
        lambda: stats.t(3, F[:, 0], 0.7).logpdf(Y[:, 0]),
    ),
    "heteroscedastic": (
        lambda m: likelihoods.heteroscedastic(F[:, :2], GAPS[:, 0], obs_mask=m),
        lambda: stats.norm(F[:, 0], np.logaddexp(0, F[:, 1])).logpdf(Y[:, 0]),
    ),
    "classes": (
        lambda m: likelihoods.categorical(F, np.where(m, LABELS, -1), obs_mask=m),
        lambda: np.log(np.exp(F)[range(6), LABELS] / np.exp(F).sum(1)),
    ),
    "two classes": (
        lambda m: likelihoods.bernoulli(F[:, 0], np.where(m, LABELS > 0, 7), obs_mask=m),
        lambda: np.log(1 / (1 + np.exp(np.where(LABELS > 0, -1, 1) * F[:, 0]))),
    ),
}


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_targets_with_noise_of_their_own_count_where_they_are_known(kind):
    make, expected = ELEMENTWISE[kind]
    found = log_density(lambda: make(KNOWN), **{"y.precision": 1.0})
    np.testing.assert_allclose(found, expected(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_without_its_target_has_no_log_density(kind):
    make, expected = ROWS[kind]
    found = log_density(lambda: make(ONE))
    np.testing.assert_allclose(found, np.where(ONE, expected(), 0.0), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("mask", [KNOWN[:, :2], KNOWN * 1.0])
def test_masks_that_say_nothing_of_each_target_are_refused(mask):
    with pytest.raises(ValueError, match=r"obs_mask has shape .* expected booleans .*\(6, 3\)"):
        trace(seed(lambda: likelihoods.gaussian(F, GAPS, noise=SD, obs_mask=mask), 0)).get_trace()


def test_noise_of_a_hierarchy_is_no_longer_conjugate_where_targets_are_missing():
    """Gibbs draws of a precision count its residuals, and some are no residuals here."""

    def infer(mask):
        observed = seed(lambda: likelihoods.gaussian(F, Y, noise=Precision(), obs_mask=mask), 0)
        return trace(observed).get_trace()["y.precision"]["infer"]

    assert "hierarchy" in infer(None)
    assert "hierarchy" not in infer(KNOWN)
