"""The studies of bands, boundaries, flat directions and SGD: what they compute, and that they run."""

import csv
import importlib
import itertools
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, kve

import numpyro_bnn as bnn

BENCHMARKS = Path(bnn.__file__).parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks are not beside this package", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import cells  # noqa: E402
import decision_boundary  # noqa: E402
import flat_directions  # noqa: E402
import gaussian_process_limit as limit  # noqa: E402
import runs  # noqa: E402
import sgd_as_inference  # noqa: E402
import sgd_theory  # noqa: E402
from quadrature import nodes_of  # noqa: E402
from real_data import Split  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_compile")
SCRIPTS = {
    "regression_band": ["regression_band"],
    "decision_boundary": ["decision_boundary", "step_size_bias"],
    "flat_directions": ["flat_directions"],
    "gaussian_process_limit": ["gaussian_process_limit"],
    "sgd_as_inference": ["sgd_as_inference"],
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_study_runs_is_finite_and_computes_nothing_twice(script, tmp_path, capsys, shared):
    main = importlib.import_module(script).main
    main(["--toy", "--output", str(tmp_path)])
    kept = {}
    for name in SCRIPTS[script]:
        text = (tmp_path / f"{name}.csv").read_text()
        kept[name] = text
        for row in csv.DictReader(text.splitlines()):
            values = [row[column] for column in row if column != "machine"]
            assert not {"nan", "inf", "-inf"} & {part for v in values for part in v.split()}
        assert (tmp_path / f"{name}.md").stat().st_size > 100
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
    capsys.readouterr()
    main(["--toy", "--output", str(tmp_path)])
    assert "rows are there, and kept" in capsys.readouterr().out
    assert kept == {name: (tmp_path / f"{name}.csv").read_text() for name in kept}


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
    nodes = decision_boundary.exact()
    x, y = decision_boundary.data()
    potential = bnn.potential_of(decision_boundary.MODELS["logistic"], x, y)

    def energy(theta):
        return potential({"net/Dense_0.bias": theta[:1], "net/Dense_0.kernel": theta[1:, None]})

    some = nodes.points[np.argsort(-nodes.weights)[[0, 50, 2000]]]
    energies = np.array([float(energy(jnp.asarray(p, jnp.float32))) for p in some])
    log_weights = np.log(nodes.weights[np.argsort(-nodes.weights)[[0, 50, 2000]]])
    np.testing.assert_allclose(np.diff(log_weights), -np.diff(energies), atol=2e-4)
    squares = decision_boundary.whitened_square(nodes.points, nodes)
    np.testing.assert_allclose(nodes.weights @ squares, 1, rtol=1e-9)


@pytest.mark.parametrize("difference", [0, 3, 7])
def test_the_law_along_a_ridge_has_the_moments_of_a_bessel_integral(difference):
    rho = np.array([0.01, 0.5, 4.0, 300.0])
    mean, variance = flat_directions.along_ridge(rho, difference)
    # exp(ν s - ρ cosh s), s = 2t, integrates to 2 K_ν(ρ): derivatives of its log by ν.
    step, order = 1e-3, difference / 2
    logs = [np.log(kve(order + k * step, rho)) for k in (-1, 0, 1)]
    np.testing.assert_allclose(mean, (logs[2] - logs[0]) / (4 * step), atol=1e-5)
    np.testing.assert_allclose(
        variance, (logs[2] - 2 * logs[1] + logs[0]) / (4 * step**2), rtol=1e-4
    )


def test_prior_draws_have_the_exact_variance_along_their_ridges_and_squeezed_ones_have_not():
    rng = np.random.default_rng(0)
    draws = {
        "net/Dense_0.kernel": rng.normal(size=(4, 1000, 3, 5)),
        "net/Dense_0.bias": rng.normal(size=(4, 1000, 5)),
        "net/Dense_1.kernel": rng.normal(size=(4, 1000, 5, 1)),
    }
    found = flat_directions.ridge(draws)
    error = found["ridge: error of that"]
    assert error < 0.03
    assert abs(found["ridge: variance over the exact one"] - 1) < 4 * error
    assert abs(found["ridge: mean off by, in sd"]) < 4 * found["ridge: its error"]
    # One weight too many or too few in the Jacobian would not be seen as such a posterior.
    moved = draws | {"net/Dense_1.kernel": 1.1 * draws["net/Dense_1.kernel"]}
    found = flat_directions.ridge(moved)
    assert abs(found["ridge: mean off by, in sd"]) > 4 * found["ridge: its error"]


def test_units_that_no_row_switches_on_are_counted():
    draws = {
        "net/Dense_0.kernel": np.ones((2, 10, 1, 4)),
        "net/Dense_0.bias": np.tile([-5.0, -5.0, 0.0, -0.5], (2, 10, 1)),
    }
    assert flat_directions.never_on(draws, np.linspace(-1, 1, 9)[:, None]) == 0.5


def test_the_arc_sine_kernel_is_the_covariance_of_erf_units():
    rng = np.random.default_rng(0)
    x = np.array([[-1.0], [0.3], [2.0]])
    bias = limit.BIAS**0.5 * rng.normal(size=200_000)
    weight = limit.WEIGHT**0.5 * rng.normal(size=200_000)
    units = erf(bias + x * weight)
    products = limit.OUT * units[:, None] * units[None]
    error = products.std(-1) / math.sqrt(bias.size)
    assert (np.abs(products.mean(-1) - limit.kernel(x, x)) < 4 * error).all()
    assert (error < 0.002).all()


def test_the_process_given_one_target_is_the_scalar_formula():
    x, at = np.array([[0.5]]), np.array([[0.5], [1.5]])
    mean, sd = limit.process(x, np.array([2.0]), at)
    prior, cross = limit.kernel(x, x)[0, 0], limit.kernel(x, at)[0]
    gain = cross / (prior + limit.NOISE**2)
    np.testing.assert_allclose(mean, 2 * gain, rtol=1e-12)
    np.testing.assert_allclose(sd**2, np.diag(limit.kernel(at, at)) - gain * cross, rtol=1e-12)


def test_gaps_are_in_units_of_the_exact_sd_beside_their_errors():
    rng = np.random.default_rng(0)
    f = 1.0 + 3.0 * rng.normal(size=(4, 500, 30))
    found = limit.differences(f, np.full(30, 1.0), np.full(30, 3.0))
    for name in ("mean", "sd"):
        ratio = found[f"{name}: rms difference"] / found[f"{name}: rms error"]
        assert 0.6 < ratio < 1.5
    found = limit.differences(f, np.full(30, 4.0), np.full(30, 2.0))
    assert found["mean: gap"] == pytest.approx(1.5, abs=0.02)
    assert found["sd: gap"] == pytest.approx(0.5, abs=0.02)


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


def test_small_steps_have_the_law_of_small_steps_and_large_ones_none(problem):
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


def test_curves_survive_a_cell_and_chains_that_disagree_have_not_converged():
    values = np.array([0.5, -1.25, 3e-7])
    np.testing.assert_array_equal(cells.from_text(cells.as_text(values)), values)
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 500, 3))
    assert runs.convergence(draws)["converged"] == "yes"
    draws[0, :, 2] += 2
    found = runs.convergence(draws)
    assert found["converged"] == "no"
    assert found["worst R-hat"] > 1.1 > 1.01 > found["median R-hat"]
    assert runs.convergence(draws[:, :1])["converged"] == ""
