"""Stated Monte Carlo errors against chains whose true error is known in closed form."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm

from numpyro_bnn.diagnostics import diagnose_draws
from numpyro_bnn.diagnostics.monte_carlo.mean_errors import mean_errors
from numpyro_bnn.diagnostics.monte_carlo.monte_carlo_error import MonteCarloError, monte_carlo_error
from numpyro_bnn.diagnostics.monte_carlo.tolerance import Tolerance

MANY = 400


def autoregressive(rng, shape, rho):
    """Stationary AR(1) of unit variance along axis 1."""
    x = rng.standard_normal(shape)
    x[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], x, axis=1)


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
    ("error", "tolerance", "within", "on_average", "needed", "by"),
    [
        (
            {"total_variation": 0.01, "total_variation_99": 0.03},
            {},
            True,
            True,
            1,
            "total variation",
        ),
        ({"total_variation": 0.01, "total_variation_99": 0.06}, {}, False, True, 4, "worst rows"),
        ({"total_variation": 0.02, "total_variation_99": 0.03}, {}, False, False, 4, "mean total"),
        (
            {"total_variation": 0.02, "total_variation_99": 0.06},
            {"total_variation": 0.02},
            True,
            True,
            1,
            "total variation",
        ),
        ({"relative": 0.05, "relative_99": 0.1}, {}, True, True, 1, "predictive sd"),
        ({"relative": 0.1, "relative_99": 0.1}, {}, False, False, 4, "mean error"),
        ({"relative": 0.1, "relative_99": 0.2}, {"relative": 0.2}, True, True, 1, "predictive sd"),
        ({"log_score": 0.01, "log_score_rows": 1.0}, {}, False, False, 4, "log score"),
        ({"log_score": 0.004, "log_score_rows": 0.01}, {}, False, False, 4, "log score"),
        ({"log_score": 0.004, "log_score_rows": np.nan}, {}, True, True, 0.64, "log score"),
        (
            {"log_score": 0.03, "log_score_rows": 1.0},
            {"log_score": 0.03},
            True,
            True,
            1,
            "log score",
        ),
    ],
)
def test_the_rules_of_a_tolerance(error, tolerance, within, on_average, needed, by):
    rows = {
        key: np.array([error[key], error[f"{key}_99"]]) for key in error if f"{key}_99" in error
    }
    # Rows whose mean and largest are those given.
    for key, (mean, worst) in rows.items():
        rows[key] = np.array([2 * mean - worst, worst])
    found, limits = MonteCarloError(**error, by_row=rows), Tolerance(**tolerance)
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
