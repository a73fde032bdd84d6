"""Optimised ensembles: what they minimise, what they keep, and what they leave out."""

from functools import partial

import jax
import jax.numpy as jnp
import linear_gaussian as linear
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from linear_gaussian import BIAS, KERNEL, NOISE, SCALE, check_distribution, key, posterior
from numpyro import handlers
from scipy import stats
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.approximations import finish
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.stopping import held_out_call

QUIET = {"progress_bar": False}
NEWTON = {"optimizer": optax.lbfgs(), "num_steps": 40} | QUIET


@pytest.fixture(scope="module")
def data():
    return linear.data()


hierarchical = network_model(nets.Linear(), priors.Hierarchical(2.0, 0.5), noise=NOISE)


def test_the_mode_of_a_linear_model_is_its_posterior_mean(data):
    draws = bnn.map_estimate(linear.model, key(), *data, num_starts=2, **NEWTON)
    assert isinstance(draws, bnn.Draws)
    assert (draws.num_chains, draws.num_draws) == (1, 1)
    mean, _ = posterior(*data)
    np.testing.assert_allclose(linear.weights(draws)[0, 0], mean, rtol=1e-4)
    x, y = data
    residual = y - np.c_[x, np.ones(20)] @ mean
    energy = (residual @ residual) / NOISE**2 / 2 + 10 * np.log(2 * np.pi * NOISE**2)
    energy += mean @ mean / SCALE**2 / 2 + 2 * np.log(2 * np.pi * SCALE**2)
    np.testing.assert_allclose(draws.stats["potential_energy"], [[energy]], rtol=1e-5)


def test_no_more_steps_are_taken_than_asked_for_without_a_progress_bar(data, monkeypatch):
    monkeypatch.setattr(finish, "_by_fixed_matrix", lambda newton, z, noise: (z, np.ones(1)))
    with pytest.warns(UserWarning, match="not reached"):
        draws = bnn.map_estimate(linear.model, key(), *data, num_steps=400, **QUIET)
    assert draws.info["gradients"] <= 400


@pytest.mark.slow
def test_minibatches_lead_to_the_mode(data):
    slow = optax.adam(optax.linear_schedule(0.05, 0.0, 2000))
    draws = bnn.map_estimate(
        linear.model,
        key(),
        *data,
        batch_size=5,
        optimizer=slow,
        num_steps=2000,
        tolerance=-np.inf,
        **QUIET,
    )
    np.testing.assert_allclose(linear.weights(draws)[:, 0], [posterior(*data)[0]], atol=0.05)


def test_the_energy_has_the_precisions_integrated_out(data):
    """A group of n weights under Gamma(a, b) is a multivariate Student t, constants included."""
    z = {KERNEL: jnp.array([[0.4], [-0.7], [0.2]]), BIAS: jnp.array([0.3])}
    f = data[0] @ z[KERNEL][:, 0] + z[BIAS]
    expected = -dist.Normal(f, NOISE).log_prob(data[1]).sum()
    for w in z.values():
        flat = w.reshape(-1)
        expected -= dist.MultivariateStudentT(
            4.0, jnp.zeros(flat.size), (0.5 / 2.0) ** 0.5 * jnp.eye(flat.size)
        ).log_prob(flat)
    marginal = Marginal(hierarchical, data)
    np.testing.assert_allclose(jax.jit(marginal)(z), expected, rtol=1e-5)
    # Averaged over all minibatches of one row it is the same: the correction is not scaled.
    some = jax.jit(lambda z, i: marginal.minibatch(z, i, "data"))
    values = [some(z, jnp.array([i])) for i in range(20)]
    np.testing.assert_allclose(np.mean(values), expected, rtol=1e-5)


def test_precisions_of_samples_are_drawn_from_their_conditional(data):
    descent = linear.members(hierarchical, data)
    z = {KERNEL: np.float32([[0.4], [-0.7], [0.2]]), BIAS: np.float32([0.3])}
    many = {name: np.broadcast_to(v, (1, 4000, *v.shape)) for name, v in z.items()}
    draws = descent.draws(many, key())
    conditional = stats.gamma(2.0 + 3 / 2, scale=1 / (0.5 + (0.4**2 + 0.7**2 + 0.2**2) / 2))
    found = np.asarray(draws[f"{KERNEL}.precision"][0], np.float64)
    check_distribution(found[:, None], conditional.mean(), np.array([[conditional.var()]]))
    np.testing.assert_allclose(draws[KERNEL], many[KERNEL], rtol=1e-5)
    point = descent.draws({name: v[None, None] for name, v in z.items()}, None)
    np.testing.assert_allclose(point[f"{KERNEL}.precision"], conditional.mean(), rtol=1e-5)


def test_modes_of_randomised_problems_of_a_linear_model_are_posterior_draws(data):
    """Those that the noise of each member asks for; that members reach theirs is tested as well."""
    mean, precision = posterior(*data)
    check_distribution(linear.randomized_modes(1000, *data), mean, np.linalg.inv(precision))


@pytest.mark.slow
def test_randomised_modes_of_a_linear_model_are_posterior_draws(data):
    draws = bnn.randomized_map(linear.model, key(), *data, num_members=1000, **NEWTON)
    mean, precision = posterior(*data)
    assert draws[KERNEL].shape == (1000, 1, 3, 1)
    check_distribution(linear.weights(draws)[:, 0], mean, np.linalg.inv(precision))


def test_randomised_targets_follow_their_rows_in_a_minibatch(data):
    """With as many steps as it takes, minibatches find the modes that all rows give."""
    options = {"num_members": 4, "num_steps": 1500, "tolerance": -np.inf} | QUIET
    slow = optax.adam(optax.linear_schedule(0.05, 0.0, 1500))
    some = bnn.randomized_map(linear.model, key(), *data, batch_size=5, optimizer=slow, **options)
    all_rows = linear.randomized_modes(4, *data)
    gap = np.abs(linear.weights(some)[:, 0] - all_rows).max(0)
    assert (gap < 0.3 * all_rows.std(0)).all()


def test_randomised_modes_count_rows_and_priors_as_often_as_their_weights_say():
    """A posterior in closed form; a row without weight and a prior that counts twice among them."""
    x, y = np.linspace(-1, 2, 5), np.array([0.3, -0.2, 0.9, 1.5, 40.0])
    counts = np.array([1.0, 4.0, 0.25, 9.0, 0.0])

    def model(x, y=None, weights=None):
        with handlers.scale(scale=2.0):
            slope = numpyro.sample("slope", dist.Normal(0.5, 1.0))
        bnn.likelihoods.gaussian(slope * x, y, noise=0.7, weights=weights)

    draws = bnn.randomized_map(
        model, key(), x, y, weights=counts, num_members=1000, **NEWTON, tolerance=0.0
    )
    precision = 2 + np.sum(counts * x**2) / 0.7**2
    mean = (2 * 0.5 + np.sum(counts * x * y) / 0.7**2) / precision
    check_distribution(np.asarray(draws["slope"], np.float64), mean, np.array([[1 / precision]]))


def masked_rows(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.5, 1.0))
    with handlers.mask(mask=jnp.arange(len(x)) < 5):
        bnn.likelihoods.gaussian(slope * x, y, noise=0.7)


def correlated(x, y=None):
    """A prior and noise that are correlated, and known."""
    root = jnp.array([[1.0, 0.0], [0.9, 0.4]])
    w = numpyro.sample("w", dist.MultivariateNormal(jnp.zeros(2), scale_tril=root))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.MultivariateNormal(x[:, None] * w, scale_tril=root), obs=y)


def masked_prior(x, y=None):
    law = dist.Normal(jnp.ones(2), 1.0).mask(jnp.array([True, False]))
    w = numpyro.sample("w", law.to_event(1))
    bnn.likelihoods.gaussian(w[0] + w[1] * x, y, noise=0.7)


def test_randomised_modes_of_any_gaussian_model_are_posterior_draws():
    """Masks of rows and of priors, and correlations: each by its normal equations."""
    x, y = np.linspace(-1, 2, 9), np.cos(np.arange(9.0))
    options = {"num_members": 1000, **NEWTON, "tolerance": 0.0}
    draws = bnn.randomized_map(masked_rows, key(), x, y, **options)["slope"]
    precision = 1 + np.sum(x[:5] ** 2) / 0.49
    mean = (0.5 + np.sum(x[:5] * y[:5]) / 0.49) / precision
    check_distribution(np.asarray(draws, np.float64), mean, np.array([[1 / precision]]))
    two = np.stack([y, np.sin(3 * x)], 1)
    draws = bnn.randomized_map(correlated, key(), x, two, **options)["w"]
    covariance = np.array([[1.0, 0.9], [0.9, 0.97]])
    inverse = np.linalg.inv(covariance)
    posterior_of_both = np.linalg.inv(inverse * (1 + np.sum(x**2)))
    check_distribution(
        np.asarray(draws[:, 0], np.float64),
        posterior_of_both @ inverse @ (x @ two),
        posterior_of_both,
    )
    draws = bnn.randomized_map(masked_prior, key(), x, y, **options)["w"]
    rows = np.c_[np.ones(9), x]
    precision = np.diag([1.0, 0.0]) + rows.T @ rows / 0.49
    mean = np.linalg.solve(precision, rows.T @ y / 0.49 + [1.0, 0.0])
    check_distribution(np.asarray(draws[:, 0], np.float64), mean, np.linalg.inv(precision))


def test_rows_of_validation_count_as_often_as_their_weights_say():
    def model(x, y=None, weights=None):
        w = numpyro.sample("w", dist.Normal(0.0, 100.0))
        bnn.likelihoods.gaussian(w * x, y, noise=1.0, weights=weights)

    one = np.ones(4)
    held = np.ones(11), np.r_[np.zeros(10), 10.0], np.r_[np.ones(10), 1000.0]
    options = {"num_steps": 1000, "optimizer": optax.adam(0.03), "num_starts": 1, **QUIET}
    found = bnn.map_estimate(
        model,
        key(),
        one,
        20 * one,
        one,
        validation=held,
        init_params={"w": jnp.zeros(())},
        **options,
    )
    # Their weighted mean, which the path from 0 to 20 passes.
    assert float(found["w"][0, 0]) == pytest.approx(1000 * 10 / 1010, abs=0.5)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_noise_that_is_fitted_calls_for_weights_of_rows(data, weighted):
    """Newton and Raftery: maximise Σ w_i log p(y_i), w exponential; its law by the same weights.

    With a flat prior the weighted mean of y is the mode; its variance over the weights is known:
    Σ (y_i - ȳ)² / (n (n + 1)) for normalised exponential weights (the Bayesian bootstrap). A row that
    counts c times has the sum of c such weights: the normalised ones are Dirichlet(c).
    """
    y = data[1]
    counts = np.where(np.arange(len(y)) % 2, 3.0, 0.5) if weighted else np.ones(len(y))

    def model(y):
        mean = numpyro.sample("mean", dist.Uniform(-1000.0, 1000.0))
        scale = numpyro.sample("scale", dist.Uniform(0.01, 100.0))
        weights = counts if weighted else None
        bnn.likelihoods.gaussian(jnp.full(len(y), mean), y, noise=scale, weights=weights)

    draws = bnn.randomized_map(
        model,
        key(),
        y,
        num_members=600,
        optimizer=optax.lbfgs(),
        num_steps=60,
        init_params={"mean": jnp.array(0.1), "scale": jnp.array(2.0)},
        **QUIET,
    )
    found = np.asarray(draws["mean"], np.float64)[:, 0]
    share = counts / counts.sum()
    center = share @ y
    variance = share @ (y - center) ** 2 / (counts.sum() + 1)
    check_distribution(found[:, None], center, np.array([[variance]]))


def test_validation_keeps_each_members_best_parameters(data):
    """Held-out rows with a third of the slopes are likeliest early on the way from zero."""
    x, y = data
    held_out = (x[:6], 0.3 * y[:6])
    start = {KERNEL: jnp.zeros((3, 1)), BIAS: jnp.zeros(1)}
    options = {"optimizer": optax.sgd(1e-4), "init_params": start} | QUIET

    def score(draws):
        return bnn.scores.lppd(bnn.predict(None, draws, held_out[0]), held_out[1])

    kept = bnn.deep_ensemble(
        linear.model, key(), x, y, num_members=2, validation=held_out, num_steps=3000, **options
    )
    # Descent on a quadratic energy in closed form.
    mean, precision = posterior(x, y)
    step = np.eye(4) - 1e-4 * precision
    rows = np.c_[held_out[0], np.ones(6)]
    plain = []
    for n in range(0, 3001, 10):
        at = mean - np.linalg.matrix_power(step, n) @ mean
        plain.append(stats.norm(rows @ at, NOISE).logpdf(held_out[1]).mean())
    assert score(kept) == pytest.approx(max(plain), abs=1e-5)
    assert max(plain) > plain[-1] + 0.1


def shifted(x, y=None, offset=0.0, noise=1.0):
    b = numpyro.sample("b", dist.Normal(0.0, 30.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(b + offset, noise), obs=y)


ROWS, SHIFT = np.zeros((30, 1), np.float32), np.full(30, 10.0, np.float32)


def test_held_out_rows_have_their_own_arguments():
    """b is 5 in all rows; of the training rows alone the target is 10 more."""
    held = ROWS[:4], 0 * SHIFT[:4] + 5, 0 * SHIFT[:4]
    options = {
        "offset": SHIFT,
        "validation": held,
        "noise": 1.0,
        "init_params": {"b": jnp.zeros(())},
    }
    found = bnn.map_estimate(
        shifted, key(), ROWS, 5 + SHIFT, optimizer=optax.adam(0.05), **options, **QUIET
    )
    assert float(found["b"][0, 0]) == pytest.approx(5.0, abs=0.05)


@pytest.mark.parametrize("by_name", [True, False])
def test_arguments_of_training_rows_are_not_those_of_held_out_rows(by_name):
    held = ROWS, 0 * SHIFT + 5
    args, named = (ROWS, 5 + SHIFT), {"offset": SHIFT}
    args, named = (args, named) if by_name else ((*args, SHIFT), {})
    with pytest.raises(ValueError, match=r"offset has a .*validation=\(x_val, y_val, offset_val\)"):
        bnn.map_estimate(shifted, key(), *args, validation=held, **named, **QUIET)


def test_arguments_that_are_not_by_row_stay():
    constant = np.ones(3)
    call = partial(held_out_call, "map_estimate", shifted)
    assert call((1, 2, constant), {"noise": 3.0}, (4, 5)) == ((4, 5, constant), {"noise": 3.0})
    assert call((ROWS,), {"y": SHIFT, "noise": 3.0}, (4, 5)) == ((4, 5), {"noise": 3.0})


def test_a_member_that_failed_is_named_and_left_out(data):
    descent = linear.members(linear.model, data)
    z = {KERNEL: jnp.ones((4, 1, 3, 1)).at[1, 0, 2].set(jnp.nan), BIAS: jnp.zeros((4, 1, 1))}
    with pytest.warns(UserWarning, match=r"left out the members \[1, 3\] of 4.*smaller learning"):
        draws = descent.draws(z, None, np.array([0.0, 1.0, 2.0, np.inf]))
    assert draws.left_out == dict.fromkeys((1, 3), "its values or its energy are not finite")
    assert draws.num_chains == 2
    np.testing.assert_array_equal(draws.stats["potential_energy"], [[0.0], [2.0]])
    report = bnn.diagnose(draws, data[0])
    assert "chain 3 (its values or its energy are not finite)" in report.explanation
    idata = bnn.to_inference_data(draws, *data)
    np.testing.assert_array_equal(idata.posterior["chain"], [0, 2])


def test_when_all_fail_it_is_an_error(data):
    with pytest.raises(ValueError, match=r"no member stayed finite\. Use a smaller learning"):
        bnn.deep_ensemble(linear.model, key(), *data, optimizer=optax.sgd(1e10), **QUIET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_members": 1.5}, r"num_members must be .*got 1\.5"),
        ({"batch_size": 21}, "batch_size=21 is larger than the 20 rows"),
    ],
)
def test_bad_options_are_refused(data, change, message):
    with pytest.raises(ValueError, match=message):
        bnn.deep_ensemble(linear.model, key(), *data, **(QUIET | change))


def test_a_forgotten_key_is_noticed(data):
    with pytest.raises(TypeError, match=r"deep_ensemble: expected a random key.*comes before"):
        bnn.deep_ensemble(bnn.regression(bnn.MLP([2], 1), bnn.priors.FanIn()), *data)


BATCHES = {"batch_size": 4}
FUNCTIONS = {
    "optimize": {},
    "map_estimate": {},
    "deep_ensemble": {},
    "randomized_map": {},
    "laplace": {},
    "mean_field": {},
    "swag": BATCHES,
    "constant_sgd": BATCHES,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_named(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_step'"):
        getattr(bnn, name)(linear.model, key(), *linear.data(), num_step=3, **FUNCTIONS[name])


def test_a_ready_model_refuses_it_too():
    model = bnn.likelihoods.regression(bnn.MLP([2], 1), bnn.priors.Normal(1.0))
    with pytest.raises(TypeError, match="tolerence"):
        bnn.map_estimate(model, key(), *linear.data(), tolerence=0.1)
