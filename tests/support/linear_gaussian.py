"""A conjugate model with its exact posterior, and what to compare draws with it by."""

import jax
import nets
import numpy as np

import numpyro_bnn as bnn
from numpyro_bnn.approximations.member_optimizer import MemberOptimizer
from numpyro_bnn.approximations.modes import draw_noise, gaussian_priors, known_noise
from numpyro_bnn.potential.starts import BoundModel

NOISE, SCALE = 0.5, 0.8
KERNEL, BIAS = "net/Dense_0.kernel", "net/Dense_0.bias"


def data(rows=20, columns=3, seed=0):
    """Inputs and targets of a linear function with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns)) @ (np.eye(columns) + 0.3)
    return x, x @ np.linspace(1.0, -2.0, columns) + 0.3 + NOISE * rng.normal(size=rows)


def model(x, y=None):
    """Linear regression with Gaussian weights and known noise."""
    nets.linear_regression(x, y, scale=SCALE, noise=NOISE)


def network(x, y=None):
    """The same by a module of Flax."""
    net = bnn.random_module("net", nets.Linear(), bnn.priors.Normal(SCALE), x[:1])
    bnn.likelihoods.gaussian(net, y, x=x, noise=NOISE)


def members(model, data, **options):
    """The compiled optimisation of members of a model."""
    return MemberOptimizer("test", BoundModel.of(model, data, {}), **options)


def posterior(x, y):
    """Mean and precision of slopes and intercept."""
    rows = np.c_[x, np.ones(len(x))]
    precision = np.eye(rows.shape[1]) / SCALE**2 + rows.T @ rows / NOISE**2
    return np.linalg.solve(precision, rows.T @ y / NOISE**2), precision


def weights(draws):
    """Slopes and intercept of every draw, (chain, draw, columns + 1)."""
    slopes = np.asarray(draws[KERNEL], np.float64)[..., 0]
    return np.concatenate([slopes, np.asarray(draws[BIAS], np.float64)], -1)


def randomized_modes(num_members, x, y):
    """Modes of the members of ``randomized_map`` from ``key()``, (member, columns + 1).

    The same noise again: targets y + σ ε, weights around anchors s a.
    """
    whole = members(model, (x, y)).whole
    (known, counts), anchored = known_noise(whole.centered), gaussian_priors(whole)
    keys = jax.random.split(jax.random.split(key())[0], num_members)
    noise = jax.jit(jax.vmap(lambda own: draw_noise(own, whole, anchored, known, counts)))(keys)
    targets = y + NOISE * np.asarray(noise["y"], np.float64)
    anchors = SCALE * np.c_[noise[KERNEL][..., 0], noise[BIAS]].astype(np.float64)
    right = targets @ np.c_[x, np.ones(len(x))] / NOISE**2 + anchors / SCALE**2
    return np.linalg.solve(posterior(x, y)[1], right.T).T


def within_errors(samples, expected, multiple=5.0):
    """A mean over independent samples, within some Monte Carlo errors of what is expected."""
    error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    np.testing.assert_array_less(np.abs(samples.mean(0) - expected), multiple * error)


def check_distribution(samples, mean, covariance):
    """First and second moments of independent samples (sample, parameter)."""
    within_errors(samples, mean)
    gap = samples - mean
    within_errors(gap[:, :, None] * gap[:, None, :], covariance)


def key(seed=0):
    return jax.random.key(seed)
