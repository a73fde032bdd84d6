"""Values that ``condition`` gives to weights and scales are no data, wherever data are looked for."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.handlers import condition, substitute
from numpyro.infer import NUTS

import numpyro_bnn as bnn
from numpyro_bnn.posterior.training_data import training_data
from numpyro_bnn.potential.structure import structure_of

X = np.linspace(-1, 2, 12)
Y = 0.4 + 0.7 * X + 0.3 * np.cos(9 * X)


def line(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    bnn.likelihoods.gaussian(lambda x: intercept + slope * x, y, x=x, noise=0.5)


GIVEN = condition(line, {"intercept": jnp.array(0.4)})


def exact():
    """Mean and standard deviation of the slope, given the intercept."""
    precision = 1 + np.sum(X**2) / 0.25
    return np.sum(X * (Y - 0.4)) / 0.25 / precision, precision**-0.5


def test_a_given_weight_is_not_among_the_targets():
    for data in ((X, Y), tuple(bnn.OnHost(a.astype(np.float32)) for a in (X, Y))):
        structure = structure_of(GIVEN, data, {})
        assert structure.observed == ["intercept", "y"]
        assert structure.data == structure.targets == ["y"]
        assert structure.given == {"intercept"}
    data = training_data("test", GIVEN, None, X, Y)
    assert list(data.observed) == ["y"]
    assert data.targets == {"y": {"y"}}


def both(x, y=None, z=None):
    """Two targets, the second of which has a distribution that the first one is an argument of."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        first = numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
        numpyro.sample("z", dist.Normal(first, 1.0), obs=z)


def closed(start=0.3):
    """A walk whose values are constants of the model."""
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    place = start
    for i in range(3):
        place = numpyro.sample(f"y{i}", dist.Normal(place, spread), obs=Y[i])


def of_rows(x, y=None):
    """Values of single rows that the model knows by itself."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        known = numpyro.sample("known", dist.Normal(slope, 1.0), obs=jnp.asarray(Y))
        numpyro.sample("y", dist.Normal(known, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "arguments", "targets"),
    [
        (both, (X, Y, Y), ["y", "z"]),
        (closed, (), ["y0", "y1", "y2"]),
        (of_rows, (X, Y), ["known", "y"]),
        (condition(both, {"y": jnp.asarray(Y), "slope": 0.5}), (X, None, Y), ["y", "z"]),
    ],
)
def test_data_stay_targets(model, arguments, targets):
    assert structure_of(model, arguments, {}).targets == targets


def test_a_minibatch_counts_a_given_weight_once():
    """The mean of all minibatches is the energy of all rows, hence that of NumPyro."""
    potential = bnn.potential_of(GIVEN, X, Y)
    assert potential.data_plate()[1] == len(X)
    z = {"slope": jnp.array(0.2)}
    parts = [potential.minibatch(z, jnp.arange(i, i + 3), "data") for i in range(0, 12, 3)]
    np.testing.assert_allclose(np.mean(parts), potential(z), rtol=1e-5)
    normal = dist.Normal(0.4 + 0.2 * X, 0.5).log_prob(Y).sum()
    priors = dist.Normal(0.0, 1.0).log_prob(jnp.array([0.2, 0.4])).sum()
    np.testing.assert_allclose(potential(z), -normal - priors, rtol=1e-5)


def test_randomised_modes_leave_a_given_weight_where_it_is():
    draws = bnn.randomized_map(
        GIVEN,
        random.key(0),
        X,
        Y,
        num_members=400,
        num_steps=20,
        optimizer=optax.lbfgs(),
        progress_bar=False,
    )
    found = np.asarray(draws["slope"], np.float64).ravel()
    mean, sd = exact()
    assert abs(found.mean() - mean) < 4 * sd / 400**0.5
    # The standard error of a standard deviation is σ / √(2 n).
    assert abs(found.std() / sd - 1) < 4 / 800**0.5


def test_a_run_is_exported_checked_and_judged_by_its_target():
    kernel = bnn.BAOAB(GIVEN, step_size=0.1)
    mcmc = bnn.MCMC(kernel, num_warmup=100, num_samples=200, num_chains=2, progress_bar=False)
    mcmc.run(random.key(1), X, Y)
    exported = bnn.to_inference_data(mcmc)
    assert list(exported["log_likelihood"].data_vars) == ["y"]
    assert list(exported["observed_data"].data_vars) == ["y"]
    assert list(exported["log_prior"].data_vars) == ["slope"]
    assert bnn.check_fit(mcmc).loo.pareto_k.shape == (12,)
    assert bnn.diagnose(mcmc, X).verdict


def test_a_latent_site_that_substitute_sets_is_refused_and_condition_is_named():
    held = substitute(line, {"intercept": jnp.array(0.4)})
    with pytest.raises(ValueError, match=r"sets the latent sites \['intercept'\].*condition"):
        bnn.map_estimate(held, random.key(0), X, Y, progress_bar=False)
    mcmc = bnn.MCMC(NUTS(held), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match="sets the latent sites"):
        mcmc.run(random.key(0), X, Y)


def test_draws_from_the_prior_take_what_substitute_sets():
    held = substitute(line, {"intercept": jnp.array(5.0)})
    drawn = bnn.prior_predictive(held, random.key(0), X, 3)
    assert np.array_equal(np.unique(drawn["intercept"]), [5.0])


def with_names_of_arguments(x, y=None):
    """Sites that are called as arguments of Python functions often are."""
    fn = numpyro.sample("fn", dist.Normal(0.0, 1.0))
    numpyro.sample("name", dist.Normal(fn, 1.0), obs=0.5)
    bnn.likelihoods.gaussian(lambda x: fn * x, y, x=x, noise=0.5, name="latent")


def test_sites_may_have_any_name():
    assert structure_of(with_names_of_arguments, (X, Y), {}).targets == ["name", "latent"]
    assert training_data("test", with_names_of_arguments, None, X, Y).targets["latent"] == {"y"}
    predicted = bnn.predict(with_names_of_arguments, {"fn": np.ones((1, 2))}, X, site="latent")
    np.testing.assert_allclose(predicted.mean[0, 0], X, rtol=1e-6)
