"""Laplace with a covariance of low rank, against the dense matrix of a small network."""

import functools
import sys

import jax
import jax.numpy as jnp
import linear_gaussian as linear
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from linear_gaussian import check_distribution, key, posterior
from small_models import network_model, row_model

import numpyro_bnn as bnn
from numpyro_bnn.approximations import curvature
from numpyro_bnn.approximations.laplace import low_rank

X, Y = linear.data(40)
NEWTON = {"optimizer": optax.lbfgs(), "num_steps": 40, "progress_bar": False}
LABELS = np.digitize(Y, [-1.0, 1.0])
SCALE = 1.5

classes = network_model(nets.MLP(3), bnn.priors.Normal(SCALE), bnn.likelihoods.categorical)


@functools.cache
def dense():
    """At some weights: their values, the Gauss-Newton covariance, and the eigenvalues that the data add."""
    with nets.double():
        found = linear.members(classes, (X, LABELS))
        rng = np.random.default_rng(4)
        sites = found.whole.sites
        shapes = found.whole.centered.structure.shapes
        z = {name: jnp.asarray(0.7 * rng.normal(size=shapes[name])) for name in sites}
        matrix = curvature.matrix(found, z, sites, "gauss_newton")
        return found, z, sites, matrix


def of_rank(rank):
    with nets.double():
        found, z, sites, _ = dense()
        result = low_rank(found, z, sites, rank)
        root = np.asarray(result.steps(jnp.eye(result.prior.size)))
        return result, root.T @ root


def truncated(rank):
    """The covariance that keeps the `rank` largest eigenvalues of what the data add, by dense algebra."""
    _, _, _, matrix = dense()
    added = SCALE**2 * matrix - np.eye(len(matrix))
    values, vectors = np.linalg.eigh(added)
    kept, directions = values[-rank:], vectors[:, -rank:]
    inside = np.eye(len(matrix)) - (directions * (kept / (1 + kept))) @ directions.T
    return SCALE**2 * inside, 1 + kept[0]


def test_all_directions_give_the_dense_covariance():
    _, _, _, matrix = dense()
    result, covariance = of_rank(len(matrix))
    np.testing.assert_allclose(covariance, np.linalg.inv(matrix), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(result.prior, SCALE**-2, rtol=1e-9)
    assert result.variance_factor == 1.0


def test_fewer_directions_converge_from_above():
    """Each rank is the best of its rank, and variances fall to the exact ones."""
    _, _, _, matrix = dense()
    exact = np.diag(np.linalg.inv(matrix))
    errors = []
    for rank in (2, 5, 10, 20):
        result, covariance = of_rank(rank)
        best, factor = truncated(rank)
        # The last of the directions is the least exact one.
        np.testing.assert_allclose(covariance, best, atol=0.02 * SCALE**2)
        assert (np.diag(covariance) > exact * (1 - 1e-6)).all()
        assert result.variance_factor == pytest.approx(factor, rel=0.02)
        assert (np.diag(covariance) < exact * result.variance_factor * 1.02).all()
        errors.append(np.max(np.diag(covariance) / exact - 1))
    assert (np.diff(errors) < 0).all()
    assert errors[-1] < 0.05 < errors[0]


def test_draws_are_from_the_posterior_of_a_linear_model():
    data = linear.data()
    mean, precision = posterior(*data)
    draws = bnn.laplace(
        linear.model, key(1), *data, covariance="low_rank", num_samples=4000, **NEWTON
    )
    check_distribution(linear.weights(draws)[0], mean, np.linalg.inv(precision))
    assert draws.info["covariance"] == "low_rank"
    assert draws.info["rank"] == 4
    assert draws.info["variance_factor"] == 1.0


def test_more_directions_than_the_data_determine():
    """Three rows leave most of 31 directions to the prior: the iteration breaks down before its end."""
    found = linear.members(classes, (X[:3], LABELS[:3]))
    _, z, sites, _ = dense()
    z = {name: value.astype(jnp.float32) for name, value in z.items()}
    result = low_rank(found, z, sites, 20)
    size = result.prior.size
    root = np.asarray(result.steps(jnp.eye(size)), np.float64)
    matrix = curvature.matrix(found, z, sites, "gauss_newton")
    np.testing.assert_allclose(root.T @ root, np.linalg.inv(matrix), atol=1e-4 * SCALE**2)
    gram = result.directions.T @ result.directions
    np.testing.assert_allclose(gram, np.eye(20), atol=1e-5)
    assert result.variance_factor == pytest.approx(1.0, abs=1e-4)


def test_a_subset_of_the_sites():
    data = linear.data()
    mean, precision = posterior(*data)
    options = {"covariance": "low_rank", "rank": 3, "subset": [linear.KERNEL]}
    draws = bnn.laplace(linear.model, key(1), *data, num_samples=4000, **NEWTON, **options)
    assert np.unique(draws[linear.BIAS]).size == 1
    check_distribution(linear.weights(draws)[0][:, :3], mean[:3], np.linalg.inv(precision[:3, :3]))


def coupled(x, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal())
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.1), obs=y)


heavy = row_model(
    lambda x, w: dist.Normal(x @ w, 0.1), w=dist.StudentT(1.0, 0.0, 0.01).expand([3]).to_event(1)
)


def at(model, **values):
    values = {name: np.asarray(value)[None, None] for name, value in values.items()}
    return {"mode": bnn.Draws(values, model), "num_samples": 2, "progress_bar": False}


def test_what_is_refused(monkeypatch):
    data = linear.data()

    def fit(model=linear.model, **options):
        return bnn.laplace(model, jax.random.key(0), *data, **options)

    with pytest.raises(ValueError, match="rank must be a positive integer, got 0"):
        fit(covariance="low_rank", rank=0)
    start = at(linear.model, **{linear.KERNEL: np.ones((3, 1)), linear.BIAS: np.ones(1)})
    with pytest.raises(ValueError, match="needs a prior of independent parameters at the mode"):
        fit(coupled, covariance="low_rank", **at(coupled, scale=0.5, w=np.ones(3)))
    with pytest.raises(ValueError, match=r"needs a log-concave prior at the mode.* as low as -"):
        fit(heavy, covariance="low_rank", **at(heavy, w=np.ones(3)))
    monkeypatch.setitem(sys.modules, "matfree", None)
    with pytest.raises(ImportError, match=r"matfree\. Install them by .*\[low_rank\]"):
        fit(covariance="low_rank", **start)
