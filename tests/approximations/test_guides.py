"""Variational fits with NumPyro's automatic guides, on a Gaussian posterior that is known."""

import functools

import jax.numpy as jnp
import linear_gaussian as linear
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from linear_gaussian import key, posterior
from numpyro.infer import autoguide as auto
from numpyro.infer import init_to_value

import numpyro_bnn as bnn
from numpyro_bnn.data.arguments import innermost

DATA = linear.data()
MEAN, PRECISION = posterior(*DATA)
NUM = 4000


def fit(guide, *, model=linear.model, args=DATA, **options):
    settings = {"num_steps": 3000, "num_particles": 4, "num_samples": NUM, "progress_bar": False}
    return bnn.mean_field(model, key(5), *args, guide=guide, **(settings | options))


def standardised(draws):
    """Draws that are standard normal if they are from the posterior."""
    return (linear.weights(draws)[0] - MEAN) @ np.linalg.cholesky(PRECISION)


def evidence():
    """Log density of the targets: a Gaussian of the inputs and an intercept."""
    x, y = DATA
    rows = np.c_[x, np.ones(len(x))]
    covariance = linear.SCALE**2 * rows @ rows.T + linear.NOISE**2 * np.eye(len(y))
    sign, log_det = np.linalg.slogdet(2 * np.pi * covariance)
    assert sign > 0
    return -0.5 * (log_det + y @ np.linalg.solve(covariance, y))


FULL = {
    "class": auto.AutoMultivariateNormal,
    "full rank": functools.partial(auto.AutoLowRankMultivariateNormal, rank=4),
    "minibatches": auto.AutoMultivariateNormal,
}


@pytest.mark.parametrize("name", FULL)
def test_mean_and_covariance_of_the_posterior_and_its_evidence(name):
    """The family holds the posterior: all moments within 4 Monte Carlo errors, and 2 % for the optimiser.

    The noise of minibatches leaves the optimiser farther away: 5 % of a standard deviation there.
    """
    batches = {"batch_size": 10, "num_steps": 8000} if name == "minibatches" else {}
    draws = fit(FULL[name], **batches)
    white = standardised(draws)
    allowed = 0.05 if batches else 0.02
    assert (np.abs(white.mean(0)) < 4 / np.sqrt(NUM) + allowed).all()
    square = white[:, :, None] * white[:, None, :]
    error = square.std(0) / np.sqrt(NUM)
    assert (np.abs(square.mean(0) - np.eye(4)) < 4 * error + 2 * allowed).all()
    # Independent Gaussians are farther away than that, so that the test sees correlations.
    scaled = np.diag(PRECISION) ** -0.5 * np.eye(4)
    independent = (
        (scaled @ np.linalg.cholesky(PRECISION)).T @ scaled @ np.linalg.cholesky(PRECISION)
    )
    assert (np.abs(independent - np.eye(4)) > 4 * error + 2 * allowed).any()
    assert draws.info["elbo"] == pytest.approx(evidence(), abs=0.5 if batches else 0.05)
    assert draws.info["kernel"].startswith("Auto")


def test_a_laplace_approximation_is_exact_here():
    draws = fit(auto.AutoLaplaceApproximation, num_particles=1, num_steps=2000)
    white = standardised(draws)
    assert (np.abs(white.mean(0)) < 4 / np.sqrt(NUM) + 0.02).all()
    square = white[:, :, None] * white[:, None, :]
    error = square.std(0) / np.sqrt(NUM)
    assert (np.abs(square.mean(0) - np.eye(4)) < 4 * error + 0.02).all()


def test_a_point_is_the_mode():
    draws = fit(auto.AutoDelta, num_samples=2, num_particles=1)
    found = linear.weights(draws)[0]
    np.testing.assert_allclose(found, np.tile(MEAN, (2, 1)), atol=0.01)
    residuals = DATA[1] - np.c_[DATA[0], np.ones(20)] @ MEAN
    at_mode = dist.Normal(0.0, linear.NOISE).log_prob(residuals).sum()
    at_mode += dist.Normal(0.0, linear.SCALE).log_prob(MEAN).sum()
    assert draws.info["elbo"] == pytest.approx(float(at_mode), abs=0.01)


@pytest.mark.parametrize(
    "guide", [auto.AutoIAFNormal, functools.partial(auto.AutoBNAFNormal, num_flows=1)]
)
def test_flows_come_near(guide):
    """A flow holds a Gaussian only nearly; its bound is below the evidence by how far it is away."""
    draws = fit(guide, num_steps=2000)
    white = standardised(draws)
    gap = evidence() - draws.info["elbo"]
    assert -0.05 < gap < 0.5
    # Half of a squared mean is part of that distance, which is KL(q ‖ p).
    assert (white.mean(0) ** 2).sum() / 2 < gap + 0.1
    np.testing.assert_allclose(white.var(0), 1.0, atol=0.5)


def test_sites_with_bounds_and_ready_models():
    """Constrained sites and parameters that are computed from others are in the draws as ever."""
    model = bnn.regression(bnn.MLP((), 1), bnn.priors.Hierarchical(2.0, 1.0))
    settings = {"num_steps": 50, "num_particles": 1, "num_samples": 5}
    draws = fit(auto.AutoMultivariateNormal, model=model, **settings)
    parts = ("", ".base", ".precision")
    of_weights = {f"net/Dense_0.{w}{part}" for w in ("kernel", "bias") for part in parts}
    assert draws.keys() == of_weights | {"y.scale"}
    assert (np.asarray(draws["y.scale"]) > 0).all()
    base = draws["net/Dense_0.kernel.base"]
    precision = draws["net/Dense_0.kernel.precision"][..., None, None]
    np.testing.assert_allclose(draws["net/Dense_0.kernel"], base / np.sqrt(precision), rtol=1e-4)
    assert bnn.predict(None, draws, DATA[0]).mean.shape == (1, 5, 20)
    assert draws.model is model


def test_where_a_guide_begins():
    """Its own place for an object that has one; the start that is told before that."""
    still = {"num_steps": 1, "optimizer": optax.sgd(1e-12), "num_samples": 1}
    start = {linear.KERNEL: jnp.full((3, 1), 2.0), linear.BIAS: jnp.full(1, -3.0)}
    own = auto.AutoDelta(linear.model, init_loc_fn=init_to_value(values=start))
    np.testing.assert_allclose(linear.weights(fit(own, **still))[0, 0], [2, 2, 2, -3], rtol=1e-5)
    assert own.model is linear.model
    assert own.prototype_trace is None
    told = {name: value + 1 for name, value in start.items()}
    at = linear.weights(fit(own, init_params=told, **still))[0, 0]
    np.testing.assert_allclose(at, [3, 3, 3, -2], rtol=1e-5)
    by_function = fit(lambda model: auto.AutoDelta(model), init_params=told, **still)
    np.testing.assert_allclose(linear.weights(by_function)[0, 0], [3, 3, 3, -2], rtol=1e-5)
    assert innermost(own.model) is linear.model


def test_a_checkpoint_knows_its_guide(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    kept = {"num_steps": 500, "checkpoint": tmp_path / "fit", "checkpoint_every": 500}
    kept |= {"num_samples": 3, "num_particles": 1, "optimizer": optax.adam(0.01)}
    first = fit(auto.AutoMultivariateNormal, **kept)
    again = fit(auto.AutoMultivariateNormal, **kept)
    np.testing.assert_array_equal(again[linear.KERNEL], first[linear.KERNEL])
    with pytest.raises(ValueError, match="of another run"):
        fit(auto.AutoDelta, **kept)


def other(x, y=None):
    """A model that is not fitted."""
    numpyro.sample("w", dist.Normal())


def test_what_is_refused():
    with pytest.raises(ValueError, match="the guide AutoNormal was made for another model"):
        fit(auto.AutoNormal(other))
    for wrong in ("normal", dist.Normal, lambda model: auto.AutoNormal(other), lambda model: None):
        with pytest.raises(TypeError, match="guide must be an automatic guide of NumPyro, its cl"):
            fit(wrong)
    with pytest.raises(
        ValueError, match="AutoLaplaceApproximation evaluates the model on the rows"
    ):
        fit(auto.AutoLaplaceApproximation, batch_size=5)
