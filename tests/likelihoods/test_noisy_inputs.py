"""Inputs with a known error: exact densities, exact predictions at new measurements, clear refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import NUTS
from scipy import integrate, stats

import numpyro_bnn as bnn
from numpyro_bnn.likelihoods.noisy_inputs import Measured

ERROR, NOISE = 0.7, 0.5
RNG = np.random.default_rng(0)
TRUE = RNG.normal(size=30)
X = np.float32(TRUE + ERROR * RNG.normal(size=30))
Y = np.float32(2 * TRUE + NOISE * RNG.normal(size=30))
NEW = np.float32([-2.0, 0.3, 1.5])


def model(x, y=None):
    inputs = bnn.noisy_inputs(x, ERROR, prior=dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    bnn.likelihoods.gaussian(slope * inputs, y, noise=NOISE)


@pytest.fixture(scope="module")
def run():
    mcmc = bnn.MCMC(NUTS(model), num_warmup=300, num_samples=1000, progress_bar=False)
    mcmc.run(jax.random.key(0), X, Y)
    return mcmc


def test_the_density_is_that_of_value_and_measurement():
    values = np.array([0.3, 1.2])
    measured, error = np.array([0.1, 2.0]), np.array([0.4, 0.9])

    def inputs(x):
        bnn.noisy_inputs(x, error, prior=dist.LogNormal(0.2, 0.5))

    prior = stats.lognorm(0.5, scale=np.exp(0.2)).logpdf(values).sum()
    right = stats.norm(values, error).logpdf(measured).sum()
    potential = bnn.potential_of(inputs, measured)
    z = potential.unconstrain({"x_true": jnp.asarray(values)})
    found = potential.log_joint_by_site({"x_true": jnp.asarray(values)})
    assert found["x_true"] == pytest.approx(prior, rel=1e-5)
    # The measurement is data, which samplers temper and evidences count.
    assert potential.energies(z)[1] == pytest.approx(-right, rel=1e-5)


@pytest.mark.parametrize(("measured", "error"), [(0.9, 0.1), (0.9, 5.0), (-0.2, 0.4)])
@pytest.mark.parametrize(
    "prior", [dist.Normal(0.5, 2.0), dist.LogNormal(0.2, 0.5)], ids=["normal", "lognormal"]
)
def test_draws_given_a_measurement_are_from_its_posterior(prior, measured, error):
    given = Measured(prior, jnp.float32(measured), jnp.float32(error))
    draws = np.asarray(given.sample(jax.random.key(1), (4000,)), np.float64)
    low, high = (1e-6, 30.0) if isinstance(prior, dist.LogNormal) else (-30.0, 30.0)
    grid = np.linspace(low, high, 200_001)
    log_density = np.asarray(prior.log_prob(grid), np.float64)
    density = np.exp(log_density + stats.norm(grid, error).logpdf(measured))
    mass, first, second = (integrate.trapezoid(density * grid**k, grid) for k in range(3))
    mean = first / mass
    variance = second / mass - mean**2
    squares = (draws - mean) ** 2
    assert abs(draws.mean() - mean) < 5 * np.sqrt(variance / 4000)
    assert abs(squares.mean() - variance) < 5 * squares.std() / np.sqrt(4000)


def test_predictions_at_new_measurements_know_the_error():
    slope = 2.0
    draws = {"slope": np.full((4, 1000), slope), "x_true": np.zeros((4, 1000, 30))}
    means = np.asarray(bnn.predict(model, draws, NEW).mean, np.float64).reshape(4000, 3)
    shrunk = 1 / (1 + ERROR**2)
    right, sd = slope * NEW * shrunk, slope * ERROR * np.sqrt(shrunk)
    assert (abs(means.mean(0) - right) < 5 * sd / np.sqrt(4000)).all()
    assert (abs(means.var(0) / sd**2 - 1) < 5 * np.sqrt(2 / 4000)).all()
    # Each row has an error of its own.
    assert abs(np.corrcoef(means.T)[0, 1]) < 5 / np.sqrt(4000)


def test_rows_of_the_fit_have_the_inputs_of_the_fit(run, tmp_path):
    draws = run.get_samples(group_by_chain=True)
    there = np.asarray(bnn.predict(None, run, X).mean)
    np.testing.assert_allclose(there, draws["slope"][..., None] * draws["x_true"], rtol=1e-5)
    elsewhere = np.asarray(bnn.predict(None, run, X[::-1]).mean)[..., ::-1]
    assert np.corrcoef(there[..., 0], elsewhere[..., 0])[0, 1] < 0.5
    assert bnn.predict(None, run, NEW).mean.shape == (1, 1000, 3)
    with pytest.raises(ValueError, match="x_true"):
        bnn.export(run, NEW, tmp_path / "a.bin")


def only_inputs(x, y=None):
    bnn.likelihoods.gaussian(
        bnn.noisy_inputs(x, ERROR, prior=dist.Normal(0.0, 1.0)), y, noise=NOISE
    )


@pytest.mark.parametrize("lead", [(4, 1000), (4000,)])
def test_a_model_of_measured_inputs_alone_predicts_at_new_measurements(lead):
    means = bnn.predict(only_inputs, {"x_true": np.zeros((*lead, 30))}, NEW).mean
    assert means.shape == (1, *lead, 3)[-3:]
    shrunk = 1 / (1 + ERROR**2)
    off = means.reshape(-1, 3).mean(0) - NEW * shrunk
    assert (abs(off) < 5 * ERROR * np.sqrt(shrunk / 4000)).all()


SMALL, SMALL_Y = X[:4] + 2, 2 * X[:4] + 4


def hierarchical(x, y=None):
    centre = numpyro.sample("centre", dist.Normal(0.0, 2.0))
    inputs = bnn.noisy_inputs(x, 0.5, prior=dist.Normal(centre, 1.0))
    bnn.likelihoods.gaussian(2 * inputs, y, noise=NOISE)


def exact():
    """Mean and standard deviation of the centre, and the log density of measurements and targets."""
    of_centre, apart = np.r_[np.ones(4), 2 * np.ones(4)], np.r_[np.eye(4), 2 * np.eye(4)]
    covariance = 4 * np.outer(of_centre, of_centre) + apart @ apart.T + 0.25 * np.eye(8)
    z = np.r_[SMALL, SMALL_Y]
    gain = 4 * np.linalg.solve(covariance, of_centre)
    sd = np.sqrt(4 - 4 * gain @ of_centre)
    return gain @ z, sd, stats.multivariate_normal(np.zeros(8), covariance).logpdf(z)


def test_tempering_is_exact_under_a_prior_with_parameters():
    mcmc = bnn.MCMC(
        bnn.ParallelTempering(hierarchical),
        num_warmup=300,
        num_samples=1500,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), SMALL, SMALL_Y)
    mean, sd, evidence = exact()
    centres = np.asarray(mcmc.get_samples(group_by_chain=True)["centre"])[..., None]
    effective = bnn.diagnostics.ess(centres).min()
    assert abs(centres.mean() - mean) < 4 * sd / np.sqrt(effective)
    assert abs(centres.std() / sd - 1) < 4 / np.sqrt(2 * effective)
    found, error = mcmc.log_evidence.mean(), np.linalg.norm(mcmc.log_evidence_error) / 4
    assert abs(found - evidence) < 4 * error < 0.5


def test_an_evidence_bound_is_of_measurements_and_targets():
    *_, evidence = exact()
    found = bnn.mean_field(
        hierarchical, jax.random.key(0), SMALL, SMALL_Y, num_samples=200, progress_bar=False
    )
    # The posterior is Gaussian, so that only its correlations are missing.
    assert evidence - 1.5 < found.info["elbo"] < evidence


def test_the_measurement_is_data_beside_the_one_target():
    potential = bnn.potential_of(hierarchical, SMALL, SMALL_Y)
    assert potential.structure.targets == ["y"]
    assert potential.structure.evidence == ["x_true.measured", "y"]
    # Minibatches of the target count each measurement once.
    z = {"centre": jnp.float32(1.5), "x_true": jnp.asarray(SMALL)}
    part = jax.jit(lambda rows: potential.minibatch(z, rows, "data"))
    rows = [part(np.arange(2) + 2 * k) for k in range(2)]
    assert np.mean(rows) == pytest.approx(float(jax.jit(potential)(z)), rel=1e-5)
    with pytest.raises(ValueError, match="Nothing is observed"):
        bnn.MCMC(NUTS(hierarchical), num_warmup=1, num_samples=1).run(jax.random.key(0), SMALL)


def test_weights_are_integrated_out_beside_measured_inputs():
    potential = bnn.potential_of(bnn.integrate_output(model), X, Y)
    covariance = 9 * np.outer(TRUE, TRUE) + NOISE**2 * np.eye(30)
    right = stats.multivariate_normal(np.zeros(30), covariance).logpdf(Y)
    right += (stats.norm(0, 1).logpdf(TRUE) + stats.norm(TRUE, ERROR).logpdf(X)).sum()
    # Operation by operation each would compile by itself.
    found = jax.jit(potential)({"x_true": jnp.asarray(TRUE)})
    assert float(found) == pytest.approx(-right, rel=1e-4)


def test_members_of_randomized_map_are_as_wide_as_the_posterior():
    mean, sd, _ = exact()
    found = bnn.randomized_map(
        hierarchical, jax.random.key(0), SMALL, SMALL_Y, num_members=200, progress_bar=False
    )
    assert abs(np.mean(found["centre"]) - mean) < 5 * sd / np.sqrt(200)
    assert abs(np.std(found["centre"]) / sd - 1) < 5 / np.sqrt(400)


def test_a_prior_with_parameters_is_learnt_from_the_measurements():
    def with_prior(x, y=None):
        centre = numpyro.sample("centre", dist.Normal(0.0, 10.0))
        bnn.likelihoods.gaussian(
            bnn.noisy_inputs(x, ERROR, prior=dist.Normal(centre, 1.0)), y, noise=NOISE
        )

    potential = bnn.potential_of(with_prior, X, Y)

    def energy(centre):
        return float(potential({"centre": jnp.float32(centre), "x_true": jnp.asarray(X)}))

    def log_density(centre):
        return stats.norm(centre, 1).logpdf(X).sum() + stats.norm(0, 10).logpdf(centre)

    right = log_density(1.5) - log_density(0.0)
    assert energy(0.0) - energy(1.5) == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"sd": 0.0}, ValueError, "sd must be positive"),
        ({"sd": np.ones(4)}, ValueError, "broadcast"),
        ({"prior": 1.0}, AttributeError, "event_shape"),
        ({"prior": dist.Poisson(1.0)}, ValueError, "one real number"),
        ({"x": np.array([1.0, np.nan])}, ValueError, "NaN"),
        ({"x": [1.0]}, TypeError, "array"),
    ],
)
def test_what_is_no_measurement_is_refused(change, error, words):
    given = {"x": X, "sd": ERROR, "prior": dist.Normal(0.0, 1.0)} | change
    with pytest.raises(error, match=words):
        bnn.noisy_inputs(**given)
