"""Monte Carlo errors against true errors in closed form; autocorrelation times against NumPy and SciPy."""

import numpy as np
import pytest
from autoregressive import autoregressive
from scipy.stats import norm

from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.convergence.rhat import by_first_lags, geyer
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import chain_moments, mean_errors
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError, monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

MANY = 400


def true_error(chains, draws, rho):
    """Standard error of the average of all draws: exact, for AR(1) of unit variance."""
    lags = np.arange(1, draws)
    return np.sqrt((1 + 2 * ((1 - lags / draws) * rho**lags).sum()) / (chains * draws))


SETTINGS = [
    (4, 300, 0.0),
    (4, 300, -0.5),
    (4, 300, 0.33),
    (4, 1000, 0.5),
    (4, 1000, 0.9),
    (4, 3000, 0.98),
    (2, 1000, 0.5),
    (16, 300, 0.5),
    (64, 50, 0.0),
    (32, 300, 0.9),
]


@pytest.mark.parametrize(("chains", "draws", "rho"), SETTINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_errors_are_those_of_autoregressive_chains(rng, chains, draws, rho, dtype):
    x = (3 + 2 * autoregressive(rng, (chains, draws, MANY), rho)).astype(dtype)
    found, true = mean_errors(x), 2 * true_error(chains, draws, rho)
    assert found.known.mean() > 0.8
    stated = found.error[found.known] / true
    # The mean over scalars of the ratio between to within is uncertain like a mean of chi-squares
    # with chains - 1 degrees of freedom; half of that in the error, three times over.
    chance = 1.5 * np.sqrt(2 / ((chains - 1) * MANY))
    assert stated.mean() == pytest.approx(1, abs=0.03 + chance)
    # With the larger of the two errors by itself it would be 1.9 for four chains.
    assert np.quantile(stated, 0.99) < 1.6
    # Of normal errors 90 % are below 1.645 standard deviations: binomial, and 5 % of the error.
    covered = np.abs(found.mean - 3)[found.known] <= 1.645 * found.error[found.known]
    spread = 3 * np.sqrt(0.09 / covered.size) + 2 * 1.645 * norm.pdf(1.645) * 0.05
    assert covered.mean() == pytest.approx(0.9, abs=spread)
    np.testing.assert_allclose(found.mean, x.mean(axis=(0, 1), dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(found.sd, x.std(axis=(0, 1), dtype=np.float64), rtol=1e-3)


@pytest.mark.parametrize("chains", [4, 16])
def test_the_error_from_between_chains_counts_where_chains_differ(rng, chains):
    x = autoregressive(rng, (chains, 400, MANY), 0.3)
    centers = rng.standard_normal((chains, 1, MANY))
    found = mean_errors(x + centers)
    # The average of so many chains errs like that of as many centres.
    assert (found.error.mean() * np.sqrt(chains)) == pytest.approx(1, rel=0.3)
    assert found.within.mean() * np.sqrt(chains) < 0.1
    # One scalar in fifty that differs is seen, and the others keep their errors.
    centers[:, :, MANY // 50 :] = 0
    found = mean_errors(x + centers)
    assert np.median(found.error[: MANY // 50]) * np.sqrt(chains) > 0.5
    rest = found.error[MANY // 50 :] / true_error(chains, 400, 0.3)
    assert rest.mean() == pytest.approx(1, abs=0.06)


def test_one_chain_is_judged_by_its_halves(rng):
    x = autoregressive(rng, (1, 2000, MANY), 0.5)
    found = mean_errors(x)
    assert found.chain_means.shape == (2, MANY)
    assert found.error.mean() == pytest.approx(
        true_error(1, 2000, 0.5), rel=0.03 + 1.5 * np.sqrt(2 / MANY)
    )
    assert mean_errors(x + np.linspace(0, 3, 2000)[:, None]).error.mean() > 0.3


@pytest.mark.parametrize(
    ("x", "needed"),
    [
        # Fifty effective draws are asked for, and ten autocorrelation times a chain.
        (np.random.default_rng(1).normal(size=(2, 20)), 50 / 40),
        (np.random.default_rng(1).normal(size=(10, 5)), 10 / 5),
    ],
)
def test_errors_of_short_runs_are_unknown(x, needed):
    x = np.repeat(x[:, :, None], 2, axis=2)
    found = mean_errors(x)
    assert not found.known.any()
    assert (found.needed > 1).all()
    assert found.needed[0] == pytest.approx(needed, rel=0.6)
    np.testing.assert_allclose(found.error, x.std(axis=(0, 1)))


def test_slow_scalars_are_unknown_and_constants_are_known(rng):
    slow = autoregressive(rng, (4, 500, 1), 0.995)
    constant = np.full((4, 500, 1), 0.1, np.float32)
    stuck = np.broadcast_to(np.arange(4.0)[:, None, None], (4, 500, 1))
    found = mean_errors(np.concatenate([slow, constant, stuck], axis=2))
    assert found.known.tolist() == [False, True, False]
    assert found.error[1] == 0
    assert found.error[2] == pytest.approx(np.arange(4).std())
    assert np.isinf(found.needed[2])


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_errors_have_the_units_of_the_draws(rng, scale):
    x = autoregressive(rng, (4, 500, 20), 0.5).astype(np.float32)
    np.testing.assert_allclose(
        mean_errors(np.float32(scale) * x).error, scale * mean_errors(x).error, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 3, 2)), "four draws a chain or more"),
        (np.zeros((1, 7, 2)), "eight for one chain"),
        (np.full((4, 30, 2), np.nan), "finite draws"),
        (np.zeros(4), r"\(chain, draw, ...\)"),
    ],
)
def test_what_has_no_error_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        mean_errors(x)


def test_classes_in_total_variation(rng):
    # Two classes: p and 1 - p have the same error, so a row errs by s sqrt(2 / pi) on average.
    p = 0.5 + 0.1 * autoregressive(rng, (4, 1000, 400), 0.0)
    found = monte_carlo_error({"probs": np.stack([p, 1 - p], axis=-1)})
    s = 0.1 * true_error(4, 1000, 0.0)
    assert found.total_variation == pytest.approx(s * np.sqrt(2 / np.pi), rel=0.06)
    assert found.total_variation_99 < 1.2 * found.total_variation
    assert found.by_row["total_variation"].shape == (400,)
    assert found.relative is None
    assert found.log_score is None
    # p - (1 - p) errs by 2 s: |2 (mean - 1/2)| <= 4 s with the chance of two errors.
    assert found.decisions_open == pytest.approx(0.954, abs=0.05)
    decided = monte_carlo_error({"probs": np.stack([p + 0.1, 0.9 - p], axis=-1)})
    assert decided.decisions_open == 0


def test_regression_in_predictive_standard_deviations(rng):
    mean = 5 + 0.3 * autoregressive(rng, (4, 1000, 300), 0.5)
    scale = np.full(mean.shape, 0.4)
    found = monte_carlo_error({"mean": mean, "scale": scale})
    # The predictive standard deviation is that of the mixture: 0.5.
    assert found.relative == pytest.approx(0.3 * true_error(4, 1000, 0.5) / 0.5, rel=0.06)
    alone = monte_carlo_error({"rate": mean})
    assert alone.relative == pytest.approx(true_error(4, 1000, 0.5), rel=0.06)
    assert alone.total_variation is None
    # Several outputs: the largest of a row.
    several = monte_carlo_error({"mean": np.stack([mean, 0 * mean], axis=-1)})
    np.testing.assert_allclose(several.by_row["relative"], alone.by_row["relative"])


def test_the_log_score_errs_as_stated(rng):
    # log p_i is normal of sd 0.5 around known centres: the mean of p_i is known.
    stated, errors, biases = [], [], []
    for _ in range(60):
        normal = autoregressive(rng, (4, 200, 5), 0.5)
        ll = -1 + 0.5 * normal @ np.eye(5)[rng.integers(5, size=50)].T
        found = monte_carlo_error({"rate": normal}, log_likelihood=ll)
        score = np.log(np.exp(ll).mean(axis=(0, 1))).mean()
        errors.append(score - (-1 + 0.125))
        stated.append(found.log_score)
        biases.append(found.log_score_bias)
    # A standard deviation from 60 runs is known to 9 %.
    assert np.mean(stated) == pytest.approx(np.std(errors), rel=0.3)
    assert np.mean(biases) == pytest.approx(np.mean(errors), abs=3 * np.std(errors) / np.sqrt(60))
    assert np.mean(biases) < 0
    assert found.log_score_rows < 0.2


def test_the_log_score_of_improbable_rows_is_finite(rng):
    ll = -1000 + autoregressive(rng, (4, 300, 20), 0.0)
    found = monte_carlo_error({"rate": ll}, log_likelihood=ll)
    assert 0 < found.log_score < 0.1


@pytest.mark.parametrize("slow_rows", [1, 50])
def test_unknown_rows_are_never_within_tolerance(rng, slow_rows):
    x = autoregressive(rng, (4, 2000, 200), 0.0)
    x[:, :, :slow_rows] = autoregressive(rng, (4, 2000, slow_rows), 0.999)
    found = monte_carlo_error({"rate": x})
    assert np.isinf(found.by_row["relative"][:slow_rows]).all()
    assert np.isfinite(found.by_row["relative"][slow_rows:]).all()
    assert found.num_unknown == slow_rows
    few = slow_rows == 1
    assert found.within(Tolerance()) == few
    assert np.isinf(found.relative) != few
    assert found.needed_to_know > 1
    if not few:
        factor, what = found.needed(Tolerance())
        assert factor == found.needed_to_know
        assert "unknown" in what


def test_a_slow_probability_that_cannot_matter_is_no_matter(rng):
    p = np.full((4, 500, 50, 3), 1 / 3)
    p += 0.01 * autoregressive(rng, (4, 500, 150), 0.0).reshape(p.shape)
    p[..., 2] = 1e-5 * np.exp(0.5 * autoregressive(rng, (4, 500, 50), 0.999))
    found = monte_carlo_error({"probs": p})
    assert found.num_unknown > 40
    assert np.isfinite(found.by_row["total_variation"]).all()
    assert found.within(Tolerance())


@pytest.mark.parametrize(
    ("kind", "mean", "worst", "limit", "within", "on_average", "needed", "by"),
    [
        ("total_variation", 0.01, 0.03, 0.01, True, True, 1, "total variation"),
        ("total_variation", 0.01, 0.06, 0.01, False, True, 4, "worst rows"),
        ("total_variation", 0.02, 0.03, 0.01, False, False, 4, "mean total"),
        ("total_variation", 0.02, 0.06, 0.02, True, True, 1, "total variation"),
        ("relative", 0.05, 0.1, 0.1, True, True, 1, "predictive sd"),
        ("relative", 0.1, 0.1, 0.1, False, False, 4, "mean error"),
        ("relative", 0.1, 0.2, 0.2, True, True, 1, "predictive sd"),
        ("log_score", 0.01, 1.0, 0.005, False, False, 4, "log score"),
        ("log_score", 0.004, 0.01, 0.005, False, False, 4, "log score"),
        ("log_score", 0.004, np.nan, 0.005, True, True, 0.64, "log score"),
        ("log_score", 0.03, 1.0, 0.03, True, True, 1, "log score"),
    ],
)
def test_the_rules_of_a_tolerance(kind, mean, worst, limit, within, on_average, needed, by):
    error, rows = {kind: mean}, {}
    if kind == "log_score":
        error["log_score_rows"] = worst
    else:
        error[f"{kind}_99"] = worst
        # Rows whose mean and largest are those given.
        rows[kind] = np.array([2 * mean - worst, worst])
    limits, found = Tolerance(**{kind: limit}), MonteCarloError(**error, by_row=rows)
    assert found.within(limits) == within
    assert found.within_on_average(limits) == on_average
    factor, what = found.needed(limits)
    assert factor == pytest.approx(needed)
    assert by in what


def test_as_many_draws_as_are_asked_for_suffice(rng):
    x = autoregressive(rng, (4, 150, 400), 0.5)
    needed, _ = monte_carlo_error({"rate": x}).needed(Tolerance())
    assert 1.5 < needed < 6
    longer = autoregressive(rng, (4, int(150 * 1.15 * needed), 400), 0.5)
    assert monte_carlo_error({"rate": longer}).within(Tolerance())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Tolerance(total_variation=0), ValueError, "total_variation must be positive"),
        (lambda: Tolerance(relative=np.nan), ValueError, "relative must be positive and finite"),
        (lambda: Tolerance(relative="a"), TypeError, "relative must be a number"),
        (lambda: Tolerance(log_score=np.inf), ValueError, "log_score must be positive and finite"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("kind", "powers"), [(np.float32, (-83, -60, 64, 100)), (np.float64, (-665, -400, 400, 665))]
)
def test_errors_of_draws_of_any_size_are_those_of_draws_of_size_one(rng, kind, powers):
    x = rng.normal(size=(4, 200, 5)).astype(kind)
    x[2] += 3
    one, whole = mean_errors(x), diagnose_draws(None, x)
    assert whole.verdict == "chains_disagree"
    for power in powers:
        scaled = np.ldexp(x, power)
        found = mean_errors(scaled)
        for name in ("time", "ess", "known", "needed", "ratio"):
            np.testing.assert_array_equal(getattr(found, name), getattr(one, name))
        for name in ("mean", "sd", "error", "within", "chain_means"):
            np.testing.assert_array_equal(getattr(found, name), np.ldexp(getattr(one, name), power))
        report = diagnose_draws(None, scaled)
        assert report.headline == whole.headline
        np.testing.assert_array_equal(report.agreement.members, [0, 0, 1, 0])
    # Scalars of different sizes beside each other.
    mixed = np.ldexp(x, np.array([0, *powers]))
    np.testing.assert_array_equal(mean_errors(mixed).ess, one.ess)


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
    assert means.var() == pytest.approx(exact, rel=4 * np.sqrt(2 / means.size))


def test_chains_that_stand_still_have_no_variance(rng):
    values = np.stack([np.full((2, 40), 0.1), np.stack([np.full(40, 1.0), np.full(40, 2.0)])])
    means, within, of_mean = moments(values)
    np.testing.assert_allclose(means, [[0.1, 0.1], [1.0, 2.0]])
    assert (within == 0).all()
    assert (of_mean == 0).all()
