"""Latent sites without draws that a target is computed from: no densities of rows are known under a draw."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import condition
from scipy.special import logsumexp
from scipy.stats import norm
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.posterior.predictions import predictor_of

ROWS, DRAWS = 12, 500
rng = np.random.default_rng(0)
X = rng.normal(size=ROWS).astype(np.float32)
Y = (1.5 * X + rng.normal(size=ROWS)).astype(np.float32)
VARIANCE = 0.5**2 + 0.8**2


def local(x, y=None):
    """A latent value for each row."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        e = numpyro.sample("e", dist.Normal(0, 0.5))
        numpyro.sample("y", dist.Normal(w * x + e, 0.8), obs=y)


# The same model with that value integrated out.
whole = row_model(lambda x, w: dist.Normal(w * x, np.sqrt(VARIANCE)), w=dist.Normal(0, 1))


def discrete(x, y=None):
    """Good rows and noisy rows; which is which NumPyro would sum out."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(w * x, jnp.where(z == 1, 1.5, 0.5)), obs=y)


def mixture(x, y=None):
    """The same model, with the target as one distribution."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    parts = dist.Normal((w * x)[:, None], jnp.array([0.5, 1.5]))
    distribution = dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.full((x.shape[0], 2), 0.5)), parts
    )
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", distribution, obs=y)


def groups(x, y=None):
    """A latent value for each group of rows."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("groups", 2):
        effect = numpyro.sample("effect", dist.Normal(0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x + effect[jnp.arange(x.shape[0]) % 2], 0.8), obs=y)


def chained(x, y=None, other=None):
    """A target that is computed from another."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        given = numpyro.sample("other", dist.Normal(w, 1), obs=other)
        numpyro.sample("y", dist.Normal(w * x + given, 0.8), obs=y)


def beside(x, y=None, other=None):
    """Sites without draws that the target is not computed from."""
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, scale))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("unused", dist.Normal(0, 1))
        numpyro.sample("other", dist.Normal(w, 1), obs=other)
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


def exact_draws(with_local=False):
    """Draws of the posterior of `whole`, and of the values of rows given these."""
    precision = 1 + (X**2).sum() / VARIANCE
    sd, mean = precision**-0.5, (X @ Y) / VARIANCE / precision
    # The same draws in whatever order tests run: weights given values of rows have heavy tails.
    rng = np.random.default_rng(1)
    w = rng.normal(mean, sd, size=(2, DRAWS))
    if not with_local:
        return {"w": w}
    share = 0.5**2 / VARIANCE
    e = share * (Y - w[..., None] * X) + 0.8 * np.sqrt(share) * rng.normal(size=(2, DRAWS, ROWS))
    return {"w": w, "e": e}


def exact_elpd():
    total = 0.0
    for row in range(ROWS):
        kept = np.arange(ROWS) != row
        variance = 1 / (1 + (X[kept] ** 2).sum() / VARIANCE)
        mean = variance * (X[kept] @ Y[kept]) / VARIANCE
        total += norm(mean * X[row], np.sqrt(VARIANCE + variance * X[row] ** 2)).logpdf(Y[row])
    return total


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (local, ["e"]),
        (discrete, ["z"]),
        (groups, ["effect"]),
        (chained, ["other"]),
        (condition(chained, {"other": Y}), []),
        (beside, []),
        (mixture, []),
    ],
)
def test_sites_that_the_target_is_computed_from(model, expected):
    draws = bnn.Draws(exact_draws(), model)
    assert predictor_of(draws, X, site="y").sites_from_priors(draws) == expected


@pytest.mark.parametrize(("model", "name"), [(local, "e"), (discrete, "z"), (chained, "other")])
def test_leave_one_out_is_refused(model, name):
    """It would be wrong by dozens of nats, with each Pareto k good."""
    draws = bnn.Draws(exact_draws(), model)
    with pytest.raises(
        ValueError, match=rf"check_fit: there are no draws of .*\['{name}'\].*Record"
    ):
        bnn.check_fit(draws, X, Y, site="y")


def named_within(x, y=None):
    """A site whose name begins with that of another, as those do that belong to a weight."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    mean = w * x + numpyro.sample("w.offset", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def test_a_site_of_no_plate_is_refused_whatever_its_name_is():
    """A single value of its prior was taken for all draws."""
    with pytest.raises(ValueError, match=r"no draws for the latent sites \['w.offset'\]"):
        bnn.predict(named_within, exact_draws(), X)


def masked(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    mask = jax.random.bernoulli(numpyro.prng_key(), 0.5, x.shape)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mask * w * x, 1), obs=y)


def test_masks_of_dropout_give_no_densities_either():
    with pytest.raises(
        ValueError, match="check_fit: the model draws random numbers that are no si"
    ):
        bnn.check_fit(bnn.Draws(exact_draws(), masked), X, Y)
    group, _, told = densities(masked, exact_draws())
    assert group is None
    (told,) = told
    assert "Leave dropout out" in told


@pytest.mark.parametrize("model", [local, whole])
def test_with_these_draws_leave_one_out_is_exact(model):
    check = bnn.check_fit(bnn.Draws(exact_draws(model is local), model), X, Y, site="y")
    assert check.loo.elpd == pytest.approx(exact_elpd(), abs=0.4)


def densities(model, draws, **options):
    """The group of an export, None without it; and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = bnn.to_inference_data(bnn.Draws(draws, model), X, Y, log_prior=False, **options)
    names = set(found.children) if hasattr(found, "children") else set(found.groups())
    group = found["log_likelihood"]["y"].values if "log_likelihood" in names else None
    return group, names, [str(w.message) for w in caught if "log_likelihood" in str(w.message)]


@pytest.mark.parametrize(("model", "name"), [(local, "e"), (discrete, "z"), (groups, "effect")])
def test_an_export_has_no_densities_given_values_of_the_prior(model, name):
    group, names, told = densities(model, exact_draws(), posterior_predictive=False)
    assert group is None
    assert {"posterior", "observed_data"} <= names
    (told,) = told
    assert f"latent sites ['{name}']" in told
    assert "Record these sites" in told


@pytest.mark.parametrize("predictive", [False, True])
def test_an_export_with_all_draws_has_them(predictive):
    draws = exact_draws(with_local=True)
    group, names, told = densities(local, draws, posterior_predictive=predictive)
    expected = norm(draws["w"][..., None] * X + draws["e"], 0.8).logpdf(Y)
    np.testing.assert_allclose(group, expected, atol=1e-4)
    assert not told
    assert ("posterior_predictive" in names) == predictive


def test_a_mixture_has_its_density_in_the_export():
    draws = exact_draws()
    group, _, told = densities(mixture, draws)
    parts = [norm(draws["w"][..., None] * X, scale).logpdf(Y) for scale in (0.5, 1.5)]
    np.testing.assert_allclose(group, logsumexp(parts, axis=0) - np.log(2), atol=1e-4)
    assert not told


def test_log_scores_are_those_of_the_mixture_and_say_their_error():
    """The average of densities given values of the prior is the posterior predictive density."""
    draws = exact_draws()
    found = bnn.predict(None, bnn.Draws(draws, discrete), X, site="y")
    parts = [norm(draws["w"][..., None] * X, scale).pdf(Y) for scale in (0.5, 1.5)]
    exact = np.log(np.mean(parts, axis=(0, 1, 2))).mean()
    report = bnn.diagnose(bnn.Draws(draws, discrete), X, Y, site="y")
    error = report.monte_carlo_error.log_score
    assert 0.001 < error < 0.02
    assert bnn.scores.lppd(found, Y) == pytest.approx(exact, abs=4 * error)
    assert "no draws of z" in report.sentences[0]


def test_a_report_on_all_draws_says_nothing_of_priors():
    report = bnn.diagnose(bnn.Draws(exact_draws(with_local=True), local), X, site="y")
    assert not any("no draws of" in sentence for sentence in report.sentences)


def measured(x, y=None):
    """Inputs that were measured with an error."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        true = numpyro.sample("true", dist.Normal(0, 1))
        numpyro.sample("measured", dist.Normal(true, 0.5), obs=x)
        numpyro.sample("y", dist.Normal(w * true, 0.8), obs=y)


def by_a_factor(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        true = numpyro.sample("true", dist.Normal(0, 1))
        numpyro.factor("measured", -2 * (x - true) ** 2)
        numpyro.sample("y", dist.Poisson(jnp.exp(w * true)), obs=y)


def through_another(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        true = numpyro.sample("true", dist.Normal(0, 1))
        bias = numpyro.sample("bias", dist.Normal(true, 1))
        numpyro.sample("measured", dist.Normal(bias, 0.5), obs=x)
        numpyro.sample("y", dist.Bernoulli(logits=w * true), obs=y)


def around_the_measurement(x, y=None):
    """The value scatters around what was set: its prior is what is known at new rows."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        true = numpyro.sample("true", dist.Normal(x, 0.5))
        numpyro.sample("y", dist.Normal(w * true, 0.8), obs=y)


@pytest.mark.parametrize("model", [measured, by_a_factor, through_another])
def test_values_that_are_measured_at_new_rows_are_not_drawn_from_their_prior(model):
    draws = {"w": np.ones((1, 4))}
    for call in (
        lambda: bnn.predict(model, draws, X, site="y"),
        lambda: bnn.diagnose(draws, X, model=model, site="y"),
    ):
        with pytest.raises(ValueError, match="'measured' is observed at them and tells of"):
            call()


def test_the_advice_for_new_rows_names_no_way_that_ignores_x():
    with pytest.raises(ValueError, match="right where nothing that is observed at x tells of it"):
        bnn.predict(
            measured, {"w": np.ones((1, 4)), "true": np.ones((1, 4, ROWS))}, X[:3], site="y"
        )


def test_values_around_a_measurement_are_drawn_around_it():
    draws = {"w": np.ones((1, 400))}
    found = bnn.average(bnn.predict(around_the_measurement, draws, X, site="y"))
    assert np.allclose(found.mean, X, atol=5 * 0.5 / 20)
