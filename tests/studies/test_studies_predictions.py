"""Studies of predictions: exact posteriors, the theory of descent, and tables of scores."""

import csv
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_bnn as bnn
from benchmarks._shared.data_sets import Split
from benchmarks.predictions import (
    boundary_by_rows,
    calibration,
    polynomials,
    sgd_as_inference,
    sgd_theory,
    step_size,
    tabular,
)
from benchmarks.predictions.quadrature import nodes_of


def test_quadrature_has_the_moments_of_a_gaussian_and_of_a_skewed_density():
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    precision, mean = np.linalg.inv(covariance), np.array([1.0, -3.0])

    def gaussian(points):
        return -0.5 * np.einsum("ni,ij,nj->n", points - mean, precision, points - mean)

    nodes = nodes_of(gaussian, lambda _: precision, 2)
    np.testing.assert_allclose(nodes.mean, mean, atol=1e-9)
    np.testing.assert_allclose(nodes.covariance, covariance, rtol=1e-9)
    # The logarithm of an exponential variable.
    nodes = nodes_of(lambda p: p[:, 0] - np.exp(p[:, 0]), lambda _: np.eye(1), 1, 400, 30.0)
    np.testing.assert_allclose(nodes.mean, -np.euler_gamma, rtol=1e-6)
    np.testing.assert_allclose(nodes.covariance, np.pi**2 / 6, rtol=1e-6)


def test_the_exact_logistic_posterior_is_that_of_the_model():
    nodes = step_size.exact()
    x, y = step_size.data()
    potential = bnn.potential_of(step_size.MODELS["logistic"], x, y)

    def energy(theta):
        return potential({"net/Dense_0.bias": theta[:1], "net/Dense_0.kernel": theta[1:, None]})

    some = nodes.points[np.argsort(-nodes.weights)[[0, 50, 2000]]]
    energies = np.array([float(energy(jnp.asarray(p, jnp.float32))) for p in some])
    log_weights = np.log(nodes.weights[np.argsort(-nodes.weights)[[0, 50, 2000]]])
    np.testing.assert_allclose(np.diff(log_weights), -np.diff(energies), atol=2e-4)
    squares = step_size.whitened_square(nodes.points, nodes)
    np.testing.assert_allclose(nodes.weights @ squares, 1, rtol=1e-9)


def test_the_evidence_finds_the_degree_of_a_polynomial():
    rng = np.random.default_rng(0)
    x, x_new = rng.normal(size=(80, 2)), rng.normal(size=(40, 2))

    def cubic(x):
        return x[:, 0] ** 3 - 2 * x[:, 0] * x[:, 1] + 1

    forecast, degree = polynomials.best_polynomial(x, cubic(x) + 0.1 * rng.normal(size=80), x_new)
    assert degree == 3
    y = cubic(x_new) + 0.1 * rng.normal(size=40)
    log_prob = forecast.predictions.log_prob(y)[0, 0]
    # The mean of 40 log densities, and the noise that ten coefficients of 80 rows add.
    expected = -0.5 * np.log(2 * np.pi * 0.1**2) - 0.5
    assert abs(log_prob.mean() - expected) < 4 * np.sqrt(0.5 / 40)


def test_rows_beyond_lie_on_one_side_of_all_others(shared):
    x = np.random.default_rng(0).normal(size=(50, 3))
    kept, tested = polynomials.beyond(x, 3)
    assert sorted([*kept, *tested]) == list(range(50))
    assert len(tested) == 10
    along = x @ np.random.default_rng(3).normal(size=3)
    assert along[kept].max() < along[tested].min()
    rows = polynomials.rows_of(shared / "data", "yacht", "beyond", 3)
    np.testing.assert_allclose([rows.y.mean(), rows.y.std()], [0, 1], atol=1e-5)
    # Beyond what was seen, some input lies further out than any.
    assert (np.abs(rows.x_test.mean(0)) > 0.5).any()


@pytest.fixture
def problem():
    rng = np.random.default_rng(3)
    rows = np.column_stack([np.ones(4), rng.normal(size=4)])
    noise = 0.7
    target = rng.normal(size=4)
    hessian = rows.T @ rows / noise**2 + np.eye(2)
    optimum = np.linalg.solve(hessian, rows.T @ target / noise**2)
    return rows, target, noise, hessian, optimum


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_covariance_of_sgd_is_kept_by_a_step_over_all_minibatches(problem, batch_size):
    rows, target, noise, hessian, optimum = problem
    slopes = (rows @ optimum - target) / noise**2
    given = sgd_theory.Setting(rows, slopes, hessian, batch_size)
    rate = 0.4 / np.linalg.eigvalsh(hessian)[-1]
    covariance = sgd_theory.of_linear_regression(given, rate, noise)
    # Points of mean 0 and that covariance, moved by the gradient of every minibatch.
    points = math.sqrt(2) * np.linalg.cholesky(covariance).T
    points = optimum + np.concatenate([points, -points])
    second = np.zeros((2, 2))
    batches = list(itertools.product(range(4), repeat=batch_size))
    for theta in points:
        for batch in map(list, batches):
            residual = (rows[batch] @ theta - target[batch]) / noise**2
            gradient = 4 / batch_size * rows[batch].T @ residual + theta
            moved = theta - rate * gradient - optimum
            second += np.outer(moved, moved) / (len(points) * len(batches))
    np.testing.assert_allclose(second, covariance, rtol=1e-10)


def test_small_steps_have_the_distribution_of_small_steps_and_large_ones_none(problem):
    rows, target, noise, hessian, optimum = problem
    given = sgd_theory.Setting(rows, (rows @ optimum - target) / noise**2, hessian, 1)
    tiny = 1e-6
    ratios = [
        f(given, tiny, *more) / sgd_theory.of_small_steps(given, tiny)
        for f, more in ((sgd_theory.of_this_step, ()), (sgd_theory.of_linear_regression, (noise,)))
    ]
    np.testing.assert_allclose(ratios, 1, rtol=1e-3)
    assert np.isinf(sgd_theory.of_linear_regression(given, 1.0, noise)).all()


def test_the_recommended_rate_is_nearest_to_the_posterior(problem):
    rows, target, noise, hessian, optimum = problem
    slopes = (rows @ optimum - target) / noise**2
    # Enough noise that the rate is not bounded by the curvature.
    given = sgd_theory.Setting(rows, 5 * slopes, hessian, 1)
    assert given.rate < 1 / np.linalg.eigvalsh(hessian)[-1]

    def divergence(rate):
        covariance = sgd_theory.of_small_steps(given, rate)
        return np.trace(hessian @ covariance) - np.linalg.slogdet(covariance)[1]

    best = divergence(given.rate)
    assert best < min(divergence(0.95 * given.rate), divergence(1.05 * given.rate))


@pytest.mark.parametrize("name", ["linear", "logistic"])
def test_exact_posteriors_are_those_of_the_models(name):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=30)).astype(np.float32)
    y = (y > 0).astype(np.int32) if name == "logistic" else y
    exact = sgd_as_inference.Exact(name, Split(x, y, x, y))
    potential = bnn.potential_of(sgd_as_inference.MODELS[name], x, y)

    def energy(theta):
        return potential({"net/Dense_0.bias": theta[:1], "net/Dense_0.kernel": theta[1:, None]})

    theta = jnp.asarray(exact.mean, jnp.float32)
    np.testing.assert_allclose(jax.jit(jax.grad(energy))(theta), 0, atol=1e-4)
    hessian = jax.jit(jax.hessian(energy))(theta)
    np.testing.assert_allclose(np.linalg.inv(hessian), exact.covariance, rtol=1e-3, atol=1e-6)


def test_variances_of_draws_from_the_exact_posterior_are_one():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2)).astype(np.float32)
    exact = sgd_as_inference.Exact("linear", Split(x, x[:, 0], x, x[:, 0]))
    theta = rng.multivariate_normal(exact.mean, exact.covariance, size=(4, 500))
    draws = {"net/Dense_0.bias": theta[..., :1], "net/Dense_0.kernel": theta[..., 1:, None]}
    found = sgd_as_inference.variances(draws, exact)
    assert abs(found["variance over the exact one"] - 1) < 4 * found["its error"] < 0.2
    assert found["mean off, in sd"] < 4 / math.sqrt(2000)


@pytest.mark.slow
def test_tables_run_and_are_kept(shared, tmp_path, capsys):
    pytest.importorskip("matplotlib").use("Agg")
    arguments = ["--toy", "--output", str(tmp_path), "--data", str(shared / "data")]
    tabular.main(arguments)
    first = (tmp_path / "tabular.csv").read_text()
    rows = list(csv.DictReader(first.splitlines()))
    assert [row["method"] for row in rows] == list(tabular.SHORT["toy"])
    # A point has no R-hat, and a process no draws.
    assert np.isfinite([float(row[name]) for row in rows for name in ("rmse", "lppd")]).all()
    assert all((tmp_path / f"tabular.{kind}").stat().st_size for kind in ("md", "png"))
    capsys.readouterr()
    tabular.main(arguments)
    assert (tmp_path / "tabular.csv").read_text() == first
    assert f"{len(rows)} rows are there, and kept" in capsys.readouterr().out


def test_what_an_average_gains_has_an_error_over_rows_and_one_over_chains():
    """Chains whose probabilities are 0.5 + a normal number around: linear in chains to first order."""
    rng = np.random.default_rng(4)
    offsets = 0.02 * rng.normal(size=8)
    one = np.log(rng.uniform(0.3, 0.7, 50))
    average = np.log(0.5 + offsets)[:, None, None] * np.ones((8, 3, 50))
    found = boundary_by_rows.gain_of(average, one[None, None])
    gains = np.log(0.5 + offsets.mean()) - one
    assert found["gain"] == pytest.approx(gains.mean())
    assert found["gain, se"] == pytest.approx(gains.std(ddof=1) / 50**0.5)
    assert found["gain, chains"] == pytest.approx(offsets.std(ddof=1) / 8**0.5 / 0.5, rel=0.02)


def test_rows_of_the_calibration_study_are_in_one_part_each():
    fit, held, test = calibration.parts(442, split=3, most=None)
    assert (len(held), len(test)) == (88, 88)
    np.testing.assert_array_equal(np.sort(np.concatenate([fit, held, test])), np.arange(442))
    assert sum(map(len, calibration.parts(442, split=3, most=50))) == 50
