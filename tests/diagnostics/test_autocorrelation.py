"""Autocorrelation times, errors of averages and the test of chains, against short NumPy and SciPy."""

import numpy as np
import pytest

from numpyro_bnn.diagnostics.convergence.rhat import by_first_lags, geyer
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import chain_moments


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("most", [3, 8, 11, 100])
def test_lags_are_means_of_products_over_chains_until_they_are_enough(rng, most):
    deviation = rng.normal(size=(2, 3, 100))
    wanted = np.array([4, 11])
    seen = {}

    def function(covariance, rows):
        seen.update(zip(rows.tolist(), covariance))
        return np.where(covariance.shape[1] >= wanted[rows], 1.0, np.nan)

    given = by_first_lags(deviation, function, most)
    np.testing.assert_array_equal(np.isnan(given), wanted > most)
    # Lags double: 4, 8, 16 …, up to the most.
    assert [len(seen[row]) for row in (0, 1)] == [min(4, most), min(16, most)]
    for row, covariance in seen.items():
        x = deviation[row]
        expected = [np.sum(x[:, : 100 - k] * x[:, k:]) / 300 for k in range(len(covariance))]
        np.testing.assert_allclose(covariance, expected, rtol=1e-12)


def geyer_by_hand(covariance, between, m, n):
    """The sum of section 3.2 of Vehtari et al. 2021 over a list of correlations."""
    total = covariance[0] + between
    rho = 1 - (covariance[0] * n / (n - 1) - covariance) / total
    rho[0] = 1.0
    pairs = [rho[2 * k] + rho[2 * k + 1] for k in range(max((n - 1) // 2 - 1, 0) + 1)]
    end = next((k for k, pair in enumerate(pairs) if pair <= 0), len(pairs) - 1)
    tail = rho[2 * end] if rho[2 * end] > 0 or pairs[end] >= 0 else 0.0
    added = np.minimum.accumulate(pairs[:end]).sum() if end else 0.0
    return max(2 * added - 1 + tail, 1 / np.log10(m * n))


@pytest.mark.parametrize("correlation", [-0.8, -0.3, 0.0, 0.4, 0.9])
def test_autocorrelation_times_are_geyers_sum(rng, correlation):
    """And for a long chain nearly (1 + r) / (1 - r), what an AR(1) process has."""
    m, n = 4, 1500
    x = np.empty((m, n))
    x[:, 0] = rng.normal(size=m)
    for i in range(1, n):
        noise = rng.normal(size=m)
        x[:, i] = correlation * x[:, i - 1] + np.sqrt(1 - correlation**2) * noise
    deviation, between = x - x.mean(1, keepdims=True), x.mean(1).var(ddof=1)

    def function(covariance, rows):
        return geyer(covariance, np.full(len(rows), between), m, n)

    time = by_first_lags(deviation[None], function, n)
    covariance = np.array(
        [np.sum(deviation[:, : n - k] * deviation[:, k:]) / (n * m) for k in range(n)]
    )
    assert time[0] == pytest.approx(geyer_by_hand(covariance, between, m, n), rel=1e-9)
    assert time[0] == pytest.approx((1 + correlation) / (1 - correlation), rel=0.25, abs=0.3)
    # Too few lags to end the sum: not known, in place of a number that is too small.
    if correlation == 0.9:
        assert np.isnan(by_first_lags(deviation[None], function, 6)[0])


@pytest.mark.parametrize("n", [4, 5, 6, 9])
def test_short_chains_end_at_their_last_pair(rng, n):
    m = 3
    deviation = rng.normal(size=(m, n)).cumsum(1)
    deviation -= deviation.mean(1, keepdims=True)
    covariance = np.array(
        [np.sum(deviation[:, : n - k] * deviation[:, k:]) / (n * m) for k in range(n)]
    )
    between = np.array([0.0, 1.0, 50.0])
    expected = [geyer_by_hand(covariance, each, m, n) for each in between]
    time = geyer(np.tile(covariance, (3, 1)), between, m, n)
    np.testing.assert_allclose(time, expected, rtol=1e-9)


def moments(values):
    """Averages, variance of the draws and variance of a chain's average, of `(b, m, n)`."""
    within, of_mean, means = chain_moments(values.copy())
    return means, within, of_mean


def test_moments_of_chains_are_those_of_numpy_far_from_zero_too(rng):
    values = rng.normal(size=(3, 4, 200)) + np.array([0.0, 1e6, -3e8])[:, None, None]
    means, within, of_mean = moments(values)
    np.testing.assert_allclose(means, values.mean(2), rtol=1e-12)
    np.testing.assert_allclose(within, values.var(axis=2).mean(1), rtol=1e-6)
    assert ((of_mean > 0.3 / 200) & (of_mean < 3 / 200)).all()


@pytest.mark.parametrize("correlation", [0.0, 0.7, 0.95])
def test_the_variance_of_an_average_is_that_over_many_chains(rng, correlation):
    """Each scalar has its own chains; the mean estimate is compared with the spread of all averages."""
    b, m, n = 60, 4, 800
    x = np.empty((b, m, n))
    x[..., 0] = rng.normal(size=(b, m))
    noise = rng.normal(size=(b, m, n)) * np.sqrt(1 - correlation**2)
    for i in range(1, n):
        x[..., i] = correlation * x[..., i - 1] + noise[..., i]
    means, _, of_mean = moments(x)
    # The exact variance of the average of a stationary AR(1) chain.
    lags = np.arange(1, n)
    exact = (1 + 2 * np.sum((1 - lags / n) * correlation**lags)) / n
    assert of_mean.mean() == pytest.approx(exact, rel=0.1)
    spread = means.var()
    assert spread == pytest.approx(exact, rel=4 * np.sqrt(2 / means.size))


def test_chains_that_stand_still_have_no_variance(rng):
    values = np.stack([np.full((2, 40), 0.1), np.stack([np.full(40, 1.0), np.full(40, 2.0)])])
    means, within, of_mean = moments(values)
    np.testing.assert_allclose(means, [[0.1, 0.1], [1.0, 2.0]])
    assert (within == 0).all()
    assert (of_mean == 0).all()
