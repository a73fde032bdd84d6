"""The compiled loops under R-hat, effective sizes and the test of chains, against short NumPy and SciPy."""

import numpy as np
import pytest
from scipy import stats

from numpyro_bnn.diagnostics.convergence import compiled_loops as loops
from numpyro_bnn.diagnostics.monte_carlo.permutation_loops import permuted_rows
from numpyro_bnn.diagnostics.monte_carlo.time_loops import MOST_LAGS, chain_rows


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def sorted_rows(values):
    """Rows in order with the former places, as the package calls the loop."""
    ordered, place = values.copy(), np.empty(values.shape, np.int32)
    bits = ordered.view(f"u{values.itemsize}")
    pair = (2, values.shape[1])
    work = (np.empty(pair, bits.dtype), np.empty(pair, np.int32), np.empty(loops.DIGITS, "u4"))
    loops.sort_rows(bits, place, *work)
    return ordered, place


def awkward(rng, kind, dtype):
    """Numbers on which a sort by bits can go wrong."""
    tiny = np.finfo(dtype).tiny
    values = {
        "normal": rng.normal(size=(3, 400)),
        "ties": rng.integers(-3, 4, (3, 400)),
        "all equal": np.full((2, 20), -1.5),
        "both signs of zero": rng.choice([0.0, -0.0, 1.0, -1.0], (2, 50)),
        "wide": rng.choice([-1, 1], (2, 300)) * np.exp(rng.uniform(-80, 80, (2, 300))),
        "smallest": rng.choice([tiny, -tiny, tiny / 4, -tiny / 4, 0.0], (2, 100)),
        "infinite": rng.choice([np.inf, -np.inf, 3.0, -4.0], (2, 100)),
    }[kind]
    return values.astype(dtype)


KINDS = ["normal", "ties", "all equal", "both signs of zero", "wide", "smallest", "infinite"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_sorted_and_equal_numbers_keep_their_order(rng, kind, dtype):
    values = awkward(rng, kind, dtype)
    ordered, place = sorted_rows(values)
    np.testing.assert_array_equal(ordered, np.sort(values, axis=1))
    np.testing.assert_array_equal(np.take_along_axis(values, place, 1), ordered)
    if kind != "both signs of zero":  # -0 and 0 have other bits, and are ordered by them
        np.testing.assert_array_equal(place, np.argsort(values, axis=1, kind="stable"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_of_either_sign_goes_to_an_end_and_leaves_the_rest_in_order(rng, dtype):
    values = rng.normal(size=(1, 50)).astype(dtype)
    values[0, [3, 7]] = np.nan
    values[0, 11] = -values[0, 3]
    ordered, place = sorted_rows(values)
    known = ordered[0][np.isfinite(ordered[0])]
    np.testing.assert_array_equal(known, np.sort(values[np.isfinite(values)]))
    inner = np.flatnonzero(np.isfinite(ordered[0]))
    assert inner.max() - inner.min() == 46
    assert sorted(place[0]) == list(range(50))


@pytest.mark.parametrize("kind", ["normal", "ties", "all equal", "both signs of zero"])
def test_scores_are_those_of_mean_ranks(rng, kind):
    """Normal scores of (rank - 3/8) / (size + 1/4), Vehtari et al. 2021, with SciPy's ranks."""
    values = awkward(rng, kind, np.float64)
    size = values.shape[1]
    table = stats.norm.ppf((np.arange(2 * size + 1) / 2 - 0.375) / (size + 0.25))
    scores = np.empty(values.shape)
    loops.score_rows(*sorted_rows(values), table, scores)
    expected = stats.norm.ppf((stats.rankdata(values, axis=1) - 0.375) / (size + 0.25))
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "all equal", "wide"])
def test_folded_rows_are_distances_from_the_median_in_order(rng, kind, dtype):
    values = awkward(rng, kind, dtype)
    ordered, place = sorted_rows(values)
    folded, folded_place = np.empty_like(ordered), np.empty_like(place)
    loops.fold_rows(ordered, place, folded, folded_place)
    distance = np.abs(values - np.median(values, axis=1, keepdims=True))
    np.testing.assert_array_equal(folded, np.sort(distance, axis=1))
    np.testing.assert_array_equal(np.take_along_axis(distance, folded_place, 1), folded)
    assert (np.sort(folded_place, axis=1) == np.arange(values.shape[1])).all()


@pytest.mark.parametrize("known", [0, 2])
def test_lags_are_means_of_products_over_chains(rng, known):
    deviation = rng.normal(size=(3, 40))
    covariance = np.full(7, -99.0)
    loops.first_lags(deviation, covariance, known)
    expected = [np.sum(deviation[:, : 40 - k] * deviation[:, k:]) / 120 for k in range(7)]
    np.testing.assert_allclose(covariance[known:], expected[known:], rtol=1e-12)
    assert (covariance[:known] == -99).all()


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
    deviation, between = x - x.mean(1, keepdims=True), np.array([x.mean(1).var(ddof=1)])
    time = np.empty(1)
    loops.time_rows(deviation[None], between, n, time)
    covariance = np.array(
        [np.sum(deviation[:, : n - k] * deviation[:, k:]) / (n * m) for k in range(n)]
    )
    assert time[0] == pytest.approx(geyer_by_hand(covariance, between[0], m, n), rel=1e-9)
    assert time[0] == pytest.approx((1 + correlation) / (1 - correlation), rel=0.25, abs=0.3)
    # Too few lags to end the sum: not known, in place of a number that is too small.
    if correlation == 0.9:
        loops.time_rows(deviation[None], between, 6, time)
        assert np.isnan(time[0])


@pytest.mark.parametrize("n", [4, 5, 6, 9])
def test_short_chains_end_at_their_last_pair(rng, n):
    m = 3
    deviation = rng.normal(size=(m, n)).cumsum(1)
    deviation -= deviation.mean(1, keepdims=True)
    covariance = np.array(
        [np.sum(deviation[:, : n - k] * deviation[:, k:]) / (n * m) for k in range(n)]
    )
    for between in (0.0, 1.0, 50.0):
        expected = geyer_by_hand(covariance, between, m, n)
        assert loops.geyer(covariance, between, m, n) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("length", [4, 5, 7, 8])
def test_shares_between_chains_are_those_of_an_analysis_of_variance(rng, length):
    """Sum of squares between chains over the total, which is k F / (k F + rest) of SciPy's F."""
    chains, scalars, permutations = 3, 6, 5
    batches = rng.normal(size=(chains * length, scalars))
    batches -= batches.mean(0)
    batches *= np.sqrt(length / np.sum(batches**2, 0))
    order = np.stack([rng.permutation(chains * length) for _ in range(permutations)])
    order = order.reshape(permutations, chains, length).astype(np.int32)
    largest, shares = np.zeros(permutations, np.float32), np.empty((permutations, 4), np.float32)
    work = np.empty((3, scalars), np.float32)
    permuted_rows(batches.astype(np.float32), order, work, largest, shares)
    f = np.array([stats.f_oneway(*batches[each]).statistic for each in order])
    odds = f * (chains - 1) / (chains * length - chains)
    expected = odds / (1 + odds)
    means = batches[order].mean(axis=2)
    np.testing.assert_allclose((means**2).sum(1), expected, rtol=1e-9)
    np.testing.assert_allclose(shares, expected[:, :4], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(largest, expected.max(1), rtol=1e-4, atol=1e-6)


def moments(values):
    """Averages, variance of the draws and variance of a chain's average, of `(b, m, n)`."""
    b, m, _ = values.shape
    means, within, of_mean = np.empty((b, m)), np.empty(b), np.empty(b)
    chain_rows(values.copy(), np.empty(MOST_LAGS), means, within, of_mean)
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
