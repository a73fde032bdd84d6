"""Targets that a model transforms before it observes them, and observed values that are no data alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.posterior.training_data import observed_targets

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 1))
KEY = jax.random.key(0)
SLOPE = np.stack([np.full(200, -1.0), np.full(200, 1.0)]) + 0.01 * RNG.normal(size=(2, 200))
MEAN = X[:, 0] + 0.3 * RNG.normal(size=60)


def plain(x, y=None, transform=lambda y: y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(x)):
        observed = None if y is None else transform(y)
        numpyro.sample("y", dist.Normal(slope * x[:, 0], 0.3), obs=observed)


def standardised(x, y=None):
    plain(x, y, lambda y: (y - 50) / 20)


def logarithm(x, y=None):
    plain(x, y, jnp.log)


def of_a_column(x, y=None):
    plain(x, y, lambda y: y[:, 0])


def by_keyword(x, *, scale=1.0, y=None):
    plain(x, y, lambda y: y / scale)


# name: (the model, the target as it takes it)
MODELS = {
    "standardised": (standardised, 50 + 20 * MEAN),
    "logarithm": (logarithm, np.exp(MEAN)),
    "a column": (of_a_column, MEAN[:, None]),
    "by keyword": (functools.partial(by_keyword, scale=3.0), 3 * MEAN),
    "under a handler": (numpyro.handlers.scale(standardised, scale=0.5), 50 + 20 * MEAN),
}
DRAWS = {"slope": SLOPE}


def scores_of(model, y):
    """Of the draws: weights of chains, error of the log score, intervals, and their coverage."""
    draws = bnn.Draws(DRAWS, model)
    made = bnn.calibrate(draws, X, y)
    return (
        bnn.stack(draws, X, y, key=KEY).info["weights"],
        bnn.diagnose(draws, X, y).monte_carlo_error.log_score,
        made.predict_interval(X[:5]),
        np.array(made.evaluate(X, y).after),
    )


@pytest.fixture(scope="module")
def exact():
    return scores_of(plain, MEAN)


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_what_the_model_observes(name, exact):
    model, y = MODELS[name]
    observed = observed_targets("test", bnn.Draws(DRAWS, model), model, X, y, None)
    np.testing.assert_allclose(observed, MEAN, rtol=1e-4, atol=1e-5)
    found = scores_of(model, y)
    # The first chain is far off, so that little is left of it.
    np.testing.assert_allclose(found[0], exact[0], atol=1e-3)
    assert exact[0][0] < 0.05
    for one, other, rtol in zip(found[1:], exact[1:], (1e-2, 1e-3, 1e-3)):
        np.testing.assert_allclose(one, other, rtol=rtol)


def unstarted(model):
    kernel = bnn.BAOAB(model, step_size=0.02)
    return bnn.MCMC(kernel, num_warmup=20, num_samples=200, num_chains=2, progress_bar=False)


def run_of(model, *args, **named):
    mcmc = unstarted(model)
    mcmc.run(KEY, *args, **named)
    return mcmc


@pytest.mark.parametrize("name", ["standardised", "logarithm", "a column"])
def test_rows_of_a_run_are_known_by_its_own_targets(name):
    model, y = MODELS[name]
    run = run_of(model, X, y)
    whole = bnn.check_fit(run)
    given = bnn.check_fit(run, X, y)
    np.testing.assert_allclose(given.loo.by_row, whole.loo.by_row, atol=1e-4)
    with pytest.raises(ValueError, match="60 of 60 rows, such as row 0, are no training rows"):
        bnn.check_fit(run, X, y * 1.1)
    with pytest.raises(ValueError, match="calibrate: 60 of 60 calibration rows are training rows"):
        bnn.calibrate(run, X, y)


def test_a_comparison_and_a_stopping_rule_use_what_is_observed():
    tables = [
        bnn.compare(m, (X, t, X, t), {"one": DRAWS}, reference="one", progress_bar=False)
        for m, t in ((standardised, 50 + 20 * MEAN), (plain, MEAN))
    ]
    made, exact = (table["one"] for table in tables)
    assert made.log_score == pytest.approx(exact.log_score, rel=1e-3)
    assert made.error == pytest.approx(exact.error, rel=1e-3)
    loose = bnn.Tolerance(relative=100.0, log_score=100.0)
    scored = []
    for m, t in ((standardised, 50 + 20 * MEAN), (plain, MEAN)):
        mcmc = unstarted(m)
        mcmc.run_until(KEY, X, t, test_data=(X, t), until=loose)
        scored.append(mcmc.stopped.looks[-1].report.monte_carlo_error.log_score)
    assert scored[0] == pytest.approx(scored[1], rel=1e-2)


def test_given_rows_of_draws_are_checked_by_the_target_of_that_name():
    model, y = MODELS["by keyword"]
    found = bnn.check_fit(bnn.Draws(DRAWS, model, info={"kernel": "NUTS"}), X, y)
    exact = bnn.check_fit(bnn.Draws(DRAWS, plain, info={"kernel": "NUTS"}), X, MEAN)
    np.testing.assert_allclose(found.loo.by_row, exact.loo.by_row, atol=1e-3)


def moving(x, y=None):
    """The same posterior as with the shift in the mean."""
    shift = numpyro.sample("shift", dist.Normal(0.0, 3.0))
    plain(x, y, lambda y: y - shift)


def test_observed_values_that_change_from_draw_to_draw_are_refused():
    run = run_of(moving, X, MEAN)
    told = "observed values of 'y' are computed from latent sites"
    for call in (
        lambda: bnn.check_fit(run),
        lambda: bnn.check_fit(run, X, MEAN),
        lambda: bnn.to_inference_data(run),
        lambda: bnn.diagnose(run, X, MEAN),
        lambda: bnn.stack(run, X, MEAN, key=KEY),
        lambda: bnn.calibrate(bnn.Draws(run.get_samples(True), moving), X, MEAN),
    ):
        with pytest.raises(ValueError, match=told):
            call()
    assert "y" not in bnn.to_inference_data(run, log_likelihood=False).get("observed_data", {})
    assert bnn.diagnose(run, X).num_chains == 2


def test_targets_stay_as_they_are_where_the_model_needs_more():
    def needs_more(x, offset, y=None):
        plain(x, y, lambda y: y - offset)

    draws = bnn.Draws(DRAWS, needs_more)
    np.testing.assert_array_equal(observed_targets("test", draws, needs_more, X, MEAN, None), MEAN)
    run = run_of(needs_more, X, 2.0, MEAN)
    np.testing.assert_allclose(
        observed_targets("test", run, needs_more, X, MEAN, None), MEAN - 2.0, rtol=1e-5
    )


def filled(x, y=None):
    """Missing targets are masked, and their place is filled."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(x)):
        seen = True if y is None else ~jnp.isnan(y)
        with numpyro.handlers.mask(mask=seen):
            observed = None if y is None else jnp.where(seen, y, 0.0)
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 0.3), obs=observed)


def test_missing_targets_stay_missing_where_the_model_fills_them():
    missing = np.where(np.arange(60) % 2, MEAN, np.nan)
    draws = bnn.Draws(DRAWS, filled)
    np.testing.assert_allclose(
        observed_targets("test", draws, filled, X, missing, None), missing, rtol=1e-5
    )
    with pytest.raises(ValueError, match="30 of 60 rows are NaN"):
        bnn.stack(draws, X, missing, key=KEY)
    with pytest.warns(UserWarning, match="calibrate: 30 of 60 rows have no target"):
        assert bnn.calibrate(draws, X, missing).num_rows == 30


def anchored(x, exposure=1.0, counts=None):
    slope = numpyro.sample("slope", dist.Normal())
    numpyro.sample("anchor", dist.Normal(slope, 0.1), obs=0.0)
    with numpyro.plate("data", len(x)):
        numpyro.sample("counts", dist.Poisson(exposure * jnp.exp(slope * x[:, 0])), obs=counts)


def test_a_site_that_is_always_observed_is_not_the_target():
    y, draws = RNG.poisson(1.0, 60), bnn.Draws(DRAWS, anchored)
    np.testing.assert_array_equal(observed_targets("test", draws, anchored, X, y, None), y)


@jax.jit
def both(x, slope, y):
    return slope * x[:, 0], jnp.log(y)


def in_one_program(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    mean, observed = (slope * x[:, 0], None) if y is None else both(x, slope, y)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(mean, 0.3), obs=observed)


def test_targets_that_pass_through_a_program_with_weights_are_data():
    draws = bnn.Draws(DRAWS, in_one_program)
    np.testing.assert_allclose(
        observed_targets("test", draws, in_one_program, X, np.exp(MEAN), None), MEAN, rtol=1e-4
    )
