"""Constant-rate descent and SWAG against the exact law of the iterates."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_gaussian import BIAS, KERNEL, NOISE, SCALE, model, posterior, weights, within_errors

import numpyro_bnn as bnn
from numpyro_bnn.approximations.sgd_iterates import gaussian_of_snapshots

RATE, BATCH = 0.02, 2


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, 1))
    return x, 1.5 * x[:, 0] + 0.3 + NOISE * rng.normal(size=5)


def law(data, rate):
    """Mean and covariance of descent on all 5² minibatches, drawn with replacement.

    z' = A z + b with A = 1 - rate H(I), b = rate c(I) of the minibatch I; the first two moments
    are fixed points of E[z'] and E[z' z'ᵀ].
    """
    x, y = data
    rows = np.c_[x, np.ones(5)]
    steps = []
    for batch in product(range(5), repeat=BATCH):
        some = list(batch)
        hessian = np.eye(2) / SCALE**2 + 5 / BATCH * rows[some].T @ rows[some] / NOISE**2
        steps.append(
            (np.eye(2) - rate * hessian, rate * 5 / BATCH * rows[some].T @ y[some] / NOISE**2)
        )
    a = np.mean([a for a, _ in steps], 0)
    mean = np.linalg.solve(np.eye(2) - a, np.mean([b for _, b in steps], 0))
    twice = np.mean([np.kron(a, a) for a, _ in steps], 0)
    rest = np.mean(
        [np.outer(a @ mean, b) + np.outer(b, a @ mean) + np.outer(b, b) for a, b in steps], 0
    )
    second = np.linalg.solve(np.eye(4) - twice, rest.reshape(-1)).reshape(2, 2)
    return mean, second - np.outer(mean, mean)


OPTIONS = {
    "batch_size": BATCH,
    "num_members": 300,
    "rate": RATE,
    "num_steps": 1,
    "progress_bar": False,
}


@pytest.fixture(scope="module")
def iterates(data):
    return bnn.constant_sgd(
        model, jax.random.key(0), *data, num_samples=20, num_warmup=200, thinning=40, **OPTIONS
    )


def test_iterates_have_the_stationary_mean_and_covariance(data, iterates):
    mean, covariance = law(data, RATE)
    values = weights(iterates)
    assert values.shape == (300, 20, 2)
    within_errors(values.mean(1), mean)
    gap = values - mean
    within_errors(np.einsum("mti,mtj->mij", gap, gap) / 20, covariance)


def test_the_law_tends_to_the_lyapunov_equation_of_the_paper(data):
    """H Σ + Σ H = r C, with C of all minibatches at the optimum; not the posterior covariance."""
    x, y = data
    rows = np.c_[x, np.ones(5)]
    mode, hessian = posterior(x, y)
    by_row = 5 * rows * (rows @ mode - y)[:, None] / NOISE**2
    noise = np.cov(by_row.T, bias=True) / BATCH
    small = 1e-5
    lyapunov = np.kron(hessian, np.eye(2)) + np.kron(np.eye(2), hessian)
    expected = np.linalg.solve(lyapunov, small * noise.reshape(-1)).reshape(2, 2)
    np.testing.assert_allclose(law(data, small)[1], expected, rtol=1e-3)


@pytest.mark.parametrize("noisy", [True, False])
def test_the_automatic_rate_is_the_one_of_the_theorem_or_the_stable_one(data, noisy):
    """2 D / tr C, within the error of the 200 minibatches that it is estimated from."""
    x, y = data[0], data[1] if noisy else 0.1 * data[1]
    rows = np.c_[x, np.ones(5)]
    mode, hessian = posterior(x, y)
    by_row = 5 * rows * (rows @ mode - y)[:, None] / NOISE**2
    noise = np.trace(np.cov(by_row.T, bias=True))
    stable = 1 / np.linalg.eigvalsh(hessian)[-1]
    start = {KERNEL: jnp.asarray(mode[:1, None]), BIAS: jnp.asarray(mode[1:])}
    options = {"init_params": start, "num_steps": 0, "num_warmup": 0, "thinning": 1}
    draws = bnn.constant_sgd(
        model,
        jax.random.key(1),
        x,
        y,
        num_samples=1,
        **(OPTIONS | options | {"rate": "auto", "batch_size": 1}),
    )
    found = np.asarray(draws.info["rate"])
    assert (4 / noise < stable) == noisy
    if noisy:
        within_errors(4 / found[:, None], noise)
    else:
        np.testing.assert_allclose(found, stable, rtol=1e-3)


def test_swag_is_the_gaussian_of_its_snapshots():
    """Its draws are linear in the noise: their covariance, exactly."""
    rng = np.random.default_rng(0)
    snapshots = {
        "a": jnp.asarray(rng.normal(size=(6, 2)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=(6,)), jnp.float32),
    }
    flat = np.c_[snapshots["a"], snapshots["b"]].astype(np.float64)
    deviations = flat[-4:] - flat.mean(0)
    expected = np.diag(flat.var(0)) / 2 + deviations.T @ deviations / (2 * 3)
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = jax.jit(jax.vmap(lambda k: gaussian_of_snapshots(k, snapshots, 4)))(keys)
    drawn = np.c_[drawn["a"], drawn["b"]].astype(np.float64)
    within_errors(drawn, flat.mean(0))
    gap = drawn - flat.mean(0)
    within_errors(gap[:, :, None] * gap[:, None, :], expected)


def test_swag_halves_the_correlations_of_the_iterates(data):
    """K snapshots vary by (K - 1) / K of the variance of all; the low-rank half, of rank K, by all of it."""
    draws = bnn.swag(
        model,
        jax.random.key(2),
        *data,
        num_samples=20,
        num_snapshots=10,
        num_warmup=200,
        thinning=100,
        **OPTIONS,
    )
    mean, covariance = law(data, RATE)
    values = weights(draws)
    within_errors(values.mean(1), mean)
    gap = values - mean
    expected = covariance / 2 + np.diag(np.diag(covariance)) * 0.9 / 2 + covariance / 10
    within_errors(np.einsum("mti,mtj->mij", gap, gap) / 20, expected)


def test_a_rate_at_which_every_member_diverges_is_an_error(data):
    with pytest.raises(ValueError, match=r"swag: no member stayed finite.*smaller learning rate"):
        bnn.swag(model, jax.random.key(0), *data, **(OPTIONS | {"rate": 1e3, "num_members": 2}))


@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        ("constant_sgd", {"rate": "fast"}, "constant_sgd: rate must be a number"),
        ("constant_sgd", {"batch_size": 9}, "batch_size=9 is larger than the 5 rows"),
        ("constant_sgd", {"num_samples": 0}, r"constant_sgd: num_samples must be a positive"),
        ("swag", {"thinning": 0}, r"swag: thinning must be a positive integer, got 0"),
        ("swag", {"num_snapshots": 1}, r"swag: num_snapshots must be .* at least 2, got 1"),
    ],
)
def test_bad_numbers_are_refused(data, function, change, message):
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(bnn, function)(model, jax.random.key(0), *data, **(OPTIONS | change))
