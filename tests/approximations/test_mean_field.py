"""Mean-field inference and NumPyro's automatic guides against the optimum for a Gaussian posterior."""

import functools

import jax.numpy as jnp
import linear_gaussian as linear
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from linear_gaussian import key, posterior, within_errors
from numpyro.infer import autoguide as auto
from numpyro.infer import init_to_value
from scipy import stats

import numpyro_bnn as bnn
from numpyro_bnn.data.arguments import innermost


@pytest.fixture(scope="module")
def data():
    return linear.data()


def fit(model, *args, **options):
    return bnn.mean_field(model, key(3), *args, **({"progress_bar": False} | options))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"num_particles": 8, "num_steps": 4000}, marks=pytest.mark.slow),
        {"batch_size": 10, "num_steps": 12_000},
    ],
)
def test_mean_and_too_small_variances_of_a_gaussian_posterior(data, options):
    """The mean is exact, a variance 1 / diag(P): the known factor below the right one.

    Beside the Monte Carlo error of the draws there is that of the optimisation, whose steps end at
    zero; one per cent of a standard deviation, or of a variance, is allowed for it.
    """
    mean, precision = posterior(*data)
    draws = fit(linear.model, *data, num_samples=2000, **options)
    standard = (linear.weights(draws)[0] - mean) * np.sqrt(np.diag(precision))
    error = standard.std(0, ddof=1) / np.sqrt(2000)
    assert (np.abs(standard.mean(0)) < 4 * error + 0.01).all()
    square = standard**2
    error = square.std(0, ddof=1) / np.sqrt(2000)
    assert (np.abs(square.mean(0) - 1) < 4 * error + 0.01).all()
    correlations = standard[:, :, None] * standard[:, None, :] * (1 - np.eye(4))
    error = correlations.std(0, ddof=1) / np.sqrt(2000)
    assert (np.abs(correlations.mean(0)) <= 4 * error).all()
    # Far enough from the exact variances for the test to see which of the two it is.
    assert (np.diag(np.linalg.inv(precision)) * np.diag(precision) > 1.2).any()


def test_the_elbo_is_the_evidence_where_the_family_holds_the_posterior():
    """One mean under known noise: q can be exact, and the bound is then log p(y)."""
    y = np.array([0.3, 1.2, -0.4, 2.0])

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        with numpyro.plate("data", 4):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    draws = fit(model, y, num_samples=2000, num_steps=2000, num_particles=4)
    evidence = stats.multivariate_normal(np.zeros(4), np.eye(4) + 4.0).logpdf(y)
    assert draws.info["elbo"] == pytest.approx(evidence, abs=0.01)
    within_errors(np.asarray(draws["mean"], np.float64)[0], y.sum() / (4 + 1 / 4))


def test_a_fit_begins_where_it_is_told(data):
    """Without a step to speak of: draws around the start, as wide as asked for."""
    start = {linear.KERNEL: np.array([[3.0], [-4.0], [5.0]]), linear.BIAS: np.array([-6.0])}
    draws = fit(
        linear.model,
        *data,
        init_params=start,
        init_scale=0.25,
        optimizer=optax.sgd(1e-12),
        num_steps=1,
        num_samples=2000,
    )
    found = linear.weights(draws)[0]
    within_errors(found, [3.0, -4.0, 5.0, -6.0])
    within_errors((found - [3.0, -4.0, 5.0, -6.0]) ** 2, 0.25**2)


def test_the_elbo_is_the_mean_of_many_steps(data):
    still = {"optimizer": optax.sgd(1e-12), "batch_size": 5, "num_samples": 1}
    first, second = (
        fit(linear.model, *data, num_steps=n, **still).info["elbo"] for n in (500, 501)
    )
    assert second == pytest.approx(first, rel=0.02)


def test_a_fit_that_was_ended_goes_on_to_the_same_draws(data, tmp_path, monkeypatch):
    """The process dies after the second of four checkpoints; a fit of other data is refused."""
    pytest.importorskip("orbax.checkpoint")
    from numpyro_bnn.storage.checkpoints import Checkpoint

    options = {"batch_size": 10, "num_steps": 1700, "num_samples": 20}
    options |= {"optimizer": optax.adam(0.01)}
    whole = fit(linear.model, *data, **options)
    kept = options | {"checkpoint": tmp_path / "fit", "checkpoint_every": 500}
    save, saved = Checkpoint.save, []

    def dies(self, states, progress):
        save(self, states, progress)
        saved.append(progress.steps)
        if len(saved) == 2:
            self.close()
            raise OSError("the machine was taken away")

    monkeypatch.setattr(Checkpoint, "save", dies)
    with pytest.raises(OSError, match="taken away"):
        fit(linear.model, *data, **kept)
    again = fit(linear.model, *data, **kept)
    assert saved == [200, 700, 1200, 1700]
    assert again.info == whole.info
    for name in whole:
        np.testing.assert_array_equal(again[name], whole[name])
    with pytest.raises(ValueError, match="of another run"):
        fit(linear.model, data[0], data[1] + 1, **kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoint_every": 0}, r"checkpoint_every must be a positive integer, got 0"),
        ({"init_params": {linear.BIAS: np.zeros(1)}}, r"init_params lack the sites \['net/Dense_0"),
        ({"num_particles": 0}, r"mean_field: num_particles must be a positive integer, got 0"),
        (
            {"optimizer": optax.sgd(1e20), "num_steps": 20},
            r"mean_field: the fit is not finite.*smaller learning rate",
        ),
    ],
)
def test_bad_input_is_refused(data, change, message):
    with pytest.raises(ValueError, match=message):
        fit(linear.model, *data, **change)


DATA = linear.data()
MEAN, PRECISION = posterior(*DATA)
NUM = 4000


def fit_guide(guide, *, model=linear.model, args=DATA, **options):
    settings = {"num_steps": 6000, "num_particles": 4, "num_samples": NUM, "progress_bar": False}
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
    draws = fit_guide(FULL[name], **batches)
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
    draws = fit_guide(auto.AutoLaplaceApproximation, num_particles=1, num_steps=2000)
    white = standardised(draws)
    assert (np.abs(white.mean(0)) < 4 / np.sqrt(NUM) + 0.02).all()
    square = white[:, :, None] * white[:, None, :]
    error = square.std(0) / np.sqrt(NUM)
    assert (np.abs(square.mean(0) - np.eye(4)) < 4 * error + 0.02).all()


def test_a_point_is_the_mode():
    draws = fit_guide(auto.AutoDelta, num_samples=2, num_particles=1)
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
    draws = fit_guide(guide, num_steps=2000)
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
    draws = fit_guide(auto.AutoMultivariateNormal, model=model, **settings)
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
    """A guide that has a start of its own begins there, and any other at the start that is given to it."""
    still = {"num_steps": 1, "optimizer": optax.sgd(1e-12), "num_samples": 1}
    start = {linear.KERNEL: jnp.full((3, 1), 2.0), linear.BIAS: jnp.full(1, -3.0)}
    own = auto.AutoDelta(linear.model, init_loc_fn=init_to_value(values=start))
    np.testing.assert_allclose(
        linear.weights(fit_guide(own, **still))[0, 0], [2, 2, 2, -3], rtol=1e-5
    )
    assert own.model is linear.model
    assert own.prototype_trace is None
    told = {name: value + 1 for name, value in start.items()}
    at = linear.weights(fit_guide(own, init_params=told, **still))[0, 0]
    np.testing.assert_allclose(at, [3, 3, 3, -2], rtol=1e-5)
    by_function = fit_guide(lambda model: auto.AutoDelta(model), init_params=told, **still)
    np.testing.assert_allclose(linear.weights(by_function)[0, 0], [3, 3, 3, -2], rtol=1e-5)
    assert innermost(own.model) is linear.model


def test_a_checkpoint_knows_its_guide(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    kept = {"num_steps": 500, "checkpoint": tmp_path / "fit", "checkpoint_every": 500}
    kept |= {"num_samples": 3, "num_particles": 1, "optimizer": optax.adam(0.01)}
    first = fit_guide(auto.AutoMultivariateNormal, **kept)
    again = fit_guide(auto.AutoMultivariateNormal, **kept)
    np.testing.assert_array_equal(again[linear.KERNEL], first[linear.KERNEL])
    with pytest.raises(ValueError, match="of another run"):
        fit_guide(auto.AutoDelta, **kept)


def other(x, y=None):
    """A model that is not fitted."""
    numpyro.sample("w", dist.Normal())


def test_what_is_refused():
    with pytest.raises(ValueError, match="the guide AutoNormal was made for another model"):
        fit_guide(auto.AutoNormal(other))
    for wrong in ("normal", dist.Normal, lambda model: auto.AutoNormal(other), lambda model: None):
        with pytest.raises(TypeError, match="guide must be an automatic guide of NumPyro, its cl"):
            fit_guide(wrong)
    with pytest.raises(
        ValueError, match="AutoLaplaceApproximation evaluates the model on the rows"
    ):
        fit_guide(auto.AutoLaplaceApproximation, batch_size=5)
