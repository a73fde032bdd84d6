"""Leave-one-out densities, calibration and quantities of data, against exact distributions."""

import numpy as np
import pytest
from scipy.stats import kstest, norm, poisson

from numpyro_bnn.fit_check.loo import LeaveOneOut, leave_one_out, of_classes, of_distribution
from numpyro_bnn.fit_check.record import of_labels, of_residuals

NOISE = 0.5


class Linear:
    """Data of a linear model with standard normal weights, and all of its posteriors."""

    def __init__(self, rng, rows=30, weights=4):
        self.rng = rng
        self.x = rng.normal(size=(rows, weights))
        self.y = self.x @ rng.normal(size=weights) + NOISE * rng.normal(size=rows)

    def set_target(self, row, value):
        self.y[row] = value
        return self

    def loo(self):
        """Mean and standard deviation of each target given all others, by the inverse covariance."""
        inverse = np.linalg.inv(self.x @ self.x.T + NOISE**2 * np.eye(len(self.y)))
        variance = 1 / np.diag(inverse)
        return self.y - variance * (inverse @ self.y), np.sqrt(variance)

    def means(self, chains=4, draws=1000, correlation=0.0):
        """Means of the rows under draws of the posterior, each chain autoregressive."""
        precision = np.eye(self.x.shape[1]) + self.x.T @ self.x / NOISE**2
        mean = np.linalg.solve(precision, self.x.T @ self.y) / NOISE**2
        z = self.rng.normal(size=(chains, draws, len(mean)))
        for t in range(1, draws if correlation else 1):
            z[:, t] = correlation * z[:, t - 1] + np.sqrt(1 - correlation**2) * z[:, t]
        return (mean + z @ np.linalg.cholesky(np.linalg.inv(precision)).T) @ self.x.T

    def log_likelihood(self, **options):
        return norm.logpdf(self.y, self.means(**options), NOISE)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_the_errors_are_those_that_are_made(correlation):
    """Exact leave-one-out densities, and errors that are neither twice too large nor twice too small."""
    rng = np.random.default_rng(0)
    rows, sums = [], []
    for _ in range(40):
        data = Linear(rng)
        found = leave_one_out(data.log_likelihood(draws=500, correlation=correlation))
        mean, sd = data.loo()
        exact = norm.logpdf(data.y, mean, sd)
        good = found.pareto_k <= found.good_k
        rows.append(((found.by_row - exact) / found.error_by_row)[good])
        sums.append((found.elpd - exact.sum()) / found.error)
    together = np.concatenate(rows)
    # The rows of one data set share their draws, and do not count as so many errors.
    assert 0.7 < np.sqrt(np.mean(together**2)) < 1.4
    assert np.mean(np.abs(together) > 5) < 0.002
    assert 0.7 < np.sqrt(np.mean(np.square(sums))) < 1.4


def test_a_planted_outlier_has_a_tail_that_no_draws_reach():
    rng = np.random.default_rng(1)
    data = Linear(rng).set_target(7, 12.0)
    found = leave_one_out(data.log_likelihood())
    assert found.pareto_k[7] > 0.7
    assert list(found.bad_rows[:1]) == [7]
    good, bad, very_bad = found.counts
    assert (good, bad + very_bad) == (len(data.y) - found.bad_rows.size, found.bad_rows.size)
    mean, sd = data.loo()
    exact = norm.logpdf(data.y, mean, sd).sum()
    assert found.elpd > exact + 5 * found.error  # as said: too high, and by more than its error


def test_the_number_of_parameters():
    found = leave_one_out(Linear(np.random.default_rng(2), rows=300).log_likelihood())
    assert 3.0 < found.p_loo < 5.5


def test_rows_that_have_one_density_under_all_draws_are_exact():
    moving = np.random.default_rng(1).normal(size=(4, 500, 6))
    masked = np.concatenate([moving, np.zeros((4, 500, 2))], -1)
    found, alone = leave_one_out(masked), leave_one_out(moving)
    np.testing.assert_allclose(found.by_row, [*alone.by_row, 0, 0], rtol=1e-12)
    np.testing.assert_array_equal(found.pareto_k, [*alone.pareto_k, 0, 0])
    np.testing.assert_allclose(found.log_weights[..., 6:], -np.log(2000))
    assert found.p_loo == pytest.approx(alone.p_loo)
    assert found.error == pytest.approx(alone.error)
    assert found.se == pytest.approx(np.sqrt(8) * np.std([*alone.by_row, 0, 0], ddof=1))


def test_rows_without_a_tail_are_not_good():
    densities = np.repeat([[[-1.0] * 2], [[-2.0] * 2]], 200, 1)
    found = leave_one_out(densities)
    # The average over the posterior without the row of its density, with weights of 1 over it.
    assert found.by_row == pytest.approx(np.log(2 / (np.exp(1) + np.exp(2))))
    assert found.counts == (0, 0, 2)


def test_thresholds_depend_on_the_number_of_draws():
    data = Linear(np.random.default_rng(3))
    few = leave_one_out(data.log_likelihood(chains=2, draws=100))
    assert few.good_k == pytest.approx(1 - 1 / np.log10(200))
    assert leave_one_out(data.log_likelihood()).good_k == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 60, 1)), "expected two rows or more, got 1"),
        (np.zeros((4, 20, 3)), "4 chains of 20 draws are too few"),
        (np.zeros((50, 3, 3)), "50 chains of 3 draws are too few"),
        (
            np.where(np.arange(3) == 1, -np.inf, np.zeros((2, 60, 3))),
            "row 1 has a log density that is not",
        ),
    ],
)
def test_densities_that_cannot_be_used(values, message):
    with pytest.raises(ValueError, match=message):
        leave_one_out(values)


def known(rows, chains=2, draws=4):
    """A leave-one-out record under which an average is the plain one."""
    even = np.full((chains, draws, rows), -np.log(chains * draws))
    nothing = np.zeros(rows)
    return LeaveOneOut(0.0, 0.0, 0.0, 0.0, nothing, nothing, nothing, 0.7, even)


def constant(values, chains=2, draws=4):
    return np.broadcast_to(values, (chains, draws, *np.shape(values)))


def p_of_pit(data, noise=1.0):
    mean, sd = data.loo()
    return of_distribution(known(len(data.y)), constant(norm.cdf(data.y, mean, noise * sd))).p


def test_loo_pit_of_a_right_model_is_as_uniform_as_it_says():
    rng = np.random.default_rng(4)
    p = np.array([p_of_pit(Linear(rng, rows=40, weights=8)) for _ in range(600)])
    for level in (0.05, 0.2):
        assert abs(np.mean(p < level) - level) < 4 * np.sqrt(level * (1 - level) / 600)


def test_loo_pit_sees_noise_that_is_twice_too_large():
    rng = np.random.default_rng(5)
    found = [p_of_pit(Linear(rng, rows=150), noise=2.0) for _ in range(10)]
    assert np.mean(np.array(found) < 0.01) > 0.9


def test_the_monte_carlo_error_of_few_draws_is_no_evidence_against_a_model():
    """All rows are off together, because few draws put the average elsewhere."""
    rng = np.random.default_rng(6)
    alarms, naive = 0, 0
    for _ in range(16):
        u = rng.uniform(size=40_000)
        shift = rng.normal(0.0, 0.15, (2, 20, 1))
        found = of_distribution(known(40_000, 2, 20), norm.cdf(norm.ppf(u) + shift))
        alarms += found.is_rare
        naive += kstest(found.pit, "uniform").pvalue < 0.01
    assert naive > 3
    assert alarms <= 1


def test_counts_are_uniform_by_chance_within_a_jump():
    rng = np.random.default_rng(7)
    y = rng.poisson(1.3, 3000)
    cdf, mass = poisson.cdf(y, 1.3), poisson.pmf(y, 1.3)
    assert not of_distribution(known(3000), constant(cdf), constant(mass)).is_rare
    # Without that, a jump would be taken for a wrong model.
    assert of_distribution(known(3000), constant(cdf)).is_rare


def beta_bernoulli(rng, rows):
    """Labels of an unknown uniform probability, and the probabilities of each given the others."""
    y = (rng.uniform(size=rows) < rng.uniform()).astype(int)
    p = (1 + y.sum() - y) / (rows + 1)
    return y, np.stack([1 - p, p], -1)


def test_the_confidence_of_a_right_model_is_seldom_called_wrong():
    rng = np.random.default_rng(8)
    found = []
    for _ in range(600):
        y, probs = beta_bernoulli(rng, 40)
        found.append(of_classes(known(40), constant(probs), y).p)
    assert np.mean(np.array(found) < 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 600)


@pytest.mark.parametrize(("said", "sign"), [(0.95, 1), (0.55, -1)])
def test_a_model_that_is_too_sure_is_told_from_one_that_is_not_sure_enough(said, sign):
    y = (np.arange(200) % 4 == 0).astype(int)  # class 0 in three of four rows
    probs = np.tile([said, 1 - said], (200, 1))
    found = of_classes(known(200), constant(probs), y)
    assert found.is_rare
    assert found.distance == pytest.approx(said - 0.75)
    assert np.sign(found.distance) == sign


@pytest.mark.parametrize("rows", [40, 101])
def test_classes_that_tie_call_no_right_model_wrong(rows):
    # Without a row of either class the other one is more frequent: none is right of its own row.
    y = np.arange(rows) % 2
    p = np.random.default_rng(10).beta(1 + y.sum(), 1 + rows - y.sum(), (4, 1000, 1))
    probs = np.stack([1 - p, p], -1).repeat(rows, 2)
    found = of_classes(leave_one_out(np.log(np.where(y, p, 1 - p))), probs, y)
    assert found.distance > 0.4
    assert not found.is_rare


def test_the_error_of_a_confidence_is_that_of_its_draws():
    rng = np.random.default_rng(9)
    p = 0.7 + 0.1 * rng.normal(size=(4, 1000, 1))
    probs = np.concatenate([p, 1 - p], -1)[:, :, None].repeat(50, 2)
    found = of_classes(known(50, 4, 1000), probs, np.zeros(50, int))
    assert found.error == pytest.approx(0.1 / np.sqrt(4000), rel=0.25)


def residuals_of(data, draws=100):
    means = data.means(chains=2, draws=draws)
    made = means + NOISE * data.rng.normal(size=means.shape)
    return of_residuals(means, np.full_like(means, NOISE), data.y, made)


def labels_of(rng, rows=30, draws=100):
    y = (rng.uniform(size=rows) < rng.uniform()).astype(int)
    p = rng.beta(1 + y.sum(), 1 + rows - y.sum(), (2, draws, 1))
    made = (rng.uniform(size=(2, draws, rows)) < p).astype(int)
    return of_labels(np.stack([1 - p, p], -1).repeat(rows, 2), y, made)


@pytest.mark.parametrize(
    "make", [lambda rng: residuals_of(Linear(rng, rows=20)), labels_of], ids=["residuals", "labels"]
)
def test_p_of_data_of_the_models_own_is_calibrated(make):
    """Less spread out than uniform, of mean ½, and rare in one of twenty data sets at most."""
    rng = np.random.default_rng(10)
    found = [make(rng) for _ in range(400)]
    p = np.array([[quantity.p for quantity in each] for each in found])
    np.testing.assert_array_less(np.abs(p.mean(0) - 0.5), 4 * p.std(0) / 20 + 1e-9)
    for level in (0.05, 0.1, 0.25):
        for tail in (p, 1 - p):
            allowed = 2 * level
            most = allowed + 4 * np.sqrt(allowed * (1 - allowed) / 400)
            assert (np.mean(tail < level, axis=0) < most).all()
    rare = np.mean([any(quantity.is_rare for quantity in each) for each in found])
    assert rare < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 400)


def named(quantities):
    return {q.name.split(" of")[0]: q for q in quantities}


def test_residuals_that_the_model_does_not_make():
    rng = np.random.default_rng(11)
    data = Linear(rng, rows=60)
    data.y += np.where(np.arange(60) == 3, 6.0, 0.0)
    found = named(residuals_of(data, 1000))
    assert found["largest"].is_rare
    assert found["largest"].p < 0.005
    assert found["skewness"].is_rare
    assert found["sd"].is_rare
    assert not found["smallest"].is_rare
    assert found["largest"].observed > found["largest"].high


def test_a_noise_that_is_too_large_shows_in_the_sd():
    rng = np.random.default_rng(12)
    data = Linear(rng, rows=60)
    means = data.means(chains=2)
    made = means + 2 * NOISE * rng.normal(size=means.shape)
    found = named(of_residuals(means, np.full_like(means, 2 * NOISE), data.y, made))
    assert found["sd"].is_rare
    assert found["sd"].p > 0.99
    assert found["sd"].observed < found["sd"].low


def test_residuals_in_units_of_the_target_where_noise_has_no_sd():
    rng = np.random.default_rng(13)
    data = Linear(rng)
    means = data.means(chains=2, draws=60)
    (sd, *_) = of_residuals(means, None, data.y, means + NOISE * rng.normal(size=means.shape))
    assert sd.name == "sd of residuals"
    assert 0.5 * NOISE < sd.low < sd.high < 2 * NOISE


def test_labels_that_the_model_does_not_make():
    rng = np.random.default_rng(14)
    y = rng.integers(0, 3, 300)
    probs = np.broadcast_to([0.8, 0.1, 0.1], (2, 200, 300, 3))
    found = {
        q.name: q for q in of_labels(probs, y, rng.choice(3, (2, 200, 300), p=[0.8, 0.1, 0.1]))
    }
    assert set(found) == {
        *(f"share of class {k}" for k in range(3)),
        "share of the most probable class",
        "calibration error",
    }
    assert found["share of class 0"].p > 0.99
    assert (
        of_labels(probs[:, :9], y, probs[:, :9, :, 0], ["benign", "b", "c"])[0].name
        == "share of benign"
    )
    assert found["share of class 1"].p < 0.01
    assert found["calibration error"].is_rare
    # One bin: the gap between 0.8 and the share that is of class 0.
    assert found["calibration error"].observed == pytest.approx(0.8 - np.mean(y == 0), abs=1e-6)
