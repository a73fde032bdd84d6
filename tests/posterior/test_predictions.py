"""Predictions of draws, in the user's units, against NumPyro and closed forms, to the digits of the draws."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import HMC, MCMC
from scipy import special, stats
from small_models import network_model, row_model

import numpyro_bnn as bnn
from numpyro_bnn import priors
from numpyro_bnn.posterior import predictions
from numpyro_bnn.posterior.draws import Draws, draws_of
from numpyro_bnn.posterior.exported import _averaged
from numpyro_bnn.posterior.predictive_draws import Predictions

LEAD = (2, 3)


def some_draws(model, *args):
    """Made-up draws (chain, draw) of every latent site, positive where they must be."""
    each = [nets.weights(model, *args, seed=s) for s in range(LEAD[0] * LEAD[1])]
    stacked = {k: np.stack([d[k] for d in each]) for k in each[0]}
    stacked = {k: np.abs(v) if "net/" not in k else v for k, v in stacked.items()}
    return {k: v.reshape(*LEAD, *v.shape[1:]) for k, v in stacked.items()}


@pytest.fixture(scope="module")
def regression():
    """A fitted model, draws of it, and new inputs."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(5.0, 3.0, (8, 3)), rng.normal(-20.0, 7.0, 8)
    model = bnn.regression(nets.MLP(outputs=1), priors.Normal(0.5), x, y)
    return model, some_draws(model, x, y), rng.normal(5.0, 3.0, (5, 3)), (x, y)


def outputs(draws, x):
    """Outputs of the network (chain, draw, row, output) for standardised inputs."""
    params = bnn.to_params({k: v.reshape(-1, *v.shape[2:]) for k, v in draws.items()})
    last = params["Dense_0"]["kernel"].shape[-1]
    module = nets.MLP(outputs=last)
    f = jax.jit(jax.vmap(lambda p: module.apply({"params": p}, x)))(params)
    return np.asarray(f.reshape(*LEAD, len(x), last), np.float64)


def test_predictions_and_log_scores_are_in_the_users_units(regression):
    model, draws, new, (x, y) = regression
    predictions = bnn.predict(model, draws, new)
    f = outputs(draws, (new - x.mean(0)) / x.std(0))[..., 0]
    scale = np.broadcast_to(draws["y.scale"][..., None], f.shape)
    np.testing.assert_allclose(predictions.mean, y.mean() + y.std() * f, rtol=1e-4)
    np.testing.assert_allclose(predictions.scale, y.std() * scale, rtol=1e-4)
    targets = np.linspace(-30, -10, 5)
    expected = stats.norm(f, scale).logpdf((targets - y.mean()) / y.std()) - np.log(y.std())
    np.testing.assert_allclose(predictions.log_prob(targets), expected, rtol=1e-3, atol=1e-3)


def test_neither_batches_of_rows_nor_the_shape_of_draws_matter(regression):
    model, draws, new, _ = regression
    whole = bnn.predict(model, draws, new)
    pieces = bnn.predict(model, draws, new, batch_size=2)
    flat = bnn.predict(model, {k: v.reshape(-1, *v.shape[2:]) for k, v in draws.items()}, new)
    y = np.arange(5.0)
    np.testing.assert_allclose(pieces.mean, whole.mean, rtol=1e-5)
    np.testing.assert_allclose(pieces.log_prob(y), whole.log_prob(y), rtol=1e-5)
    np.testing.assert_allclose(flat.mean.reshape(whole.mean.shape), whole.mean, rtol=1e-5)
    assert flat.mean.shape[:2] == (1, 6)


def test_the_average_has_the_moments_of_the_mixture(regression):
    model, draws, new, _ = regression
    predictions = bnn.predict(model, draws, new)
    average = bnn.average(predictions)
    mean, scale = predictions.mean.reshape(6, 5), predictions.scale.reshape(6, 5)
    np.testing.assert_allclose(average.mean, mean.mean(0), rtol=1e-5)
    second = (mean.astype(float) ** 2 + scale.astype(float) ** 2).mean(0)
    expected = np.sqrt(second - mean.astype(float).mean(0) ** 2)
    np.testing.assert_allclose(average.sd, expected, rtol=1e-3)


def test_targets_are_drawn_from_what_is_predicted(regression):
    model, draws, _, (x, _) = regression
    one_row = np.repeat(x[:1], 2000, 0)  # every row an independent draw
    predictions = bnn.predict(model, draws, one_row)
    sampled = predictions.sample(jax.random.key(0)).astype(float)
    assert sampled.shape == (*LEAD, 2000)
    standard = (sampled - predictions.mean) / predictions.scale
    assert np.abs(standard.mean(-1)).max() < 4 / np.sqrt(2000)
    assert np.abs((standard**2).mean(-1) - 1).max() < 4 * np.sqrt(2 / 2000)
    flat = standard.reshape(6, 2000)
    correlation = np.corrcoef(flat) - np.eye(6)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)  # no key used twice


def classification_model(outputs, likelihood):
    def model(x, y=None):
        net = bnn.random_module("net", nets.MLP(outputs=outputs), priors.Normal(0.5), x[:1])
        f = net(x)
        likelihood(f.squeeze(-1) if outputs == 1 else f, y)

    return model


@pytest.mark.parametrize("kinds", [1, 3])
def test_classes_are_predicted_as_probabilities(kinds):
    likelihood = bnn.likelihoods.bernoulli if kinds == 1 else bnn.likelihoods.categorical
    model = classification_model(kinds, likelihood)
    x, y = nets.inputs("rows", 4), np.array([0, 1, 1, 0])
    draws = some_draws(model, x, y)
    predictions = bnn.predict(model, draws, x)
    f = outputs(draws, x)
    f = np.concatenate([np.zeros_like(f), f], -1) if kinds == 1 else f
    expected = special.softmax(f, -1)
    np.testing.assert_allclose(predictions.probs, expected, rtol=1e-4)
    by_row = np.take_along_axis(np.log(expected), y[None, None, :, None], -1)[..., 0]
    np.testing.assert_allclose(predictions.log_prob(y), by_row, rtol=1e-4)
    np.testing.assert_allclose(bnn.average(predictions), expected.mean((0, 1)), rtol=1e-4)
    assert np.asarray(predictions).shape == (*LEAD, 4, max(kinds, 2))
    with pytest.raises(AttributeError, match="have 'probs'"):
        _ = predictions.mean
    with pytest.raises(ValueError, match="values from 0 to 3"):
        predictions.log_prob(y + np.array([0, 0, 2, 0]))
    with pytest.raises(ValueError, match=r"Take `y\.argmax\(-1\)` of one-hot"):
        predictions.log_prob(np.eye(4, dtype=int)[y])


def test_weights_alone_are_enough_under_a_hierarchical_prior():
    model = network_model(nets.Linear(), priors.Hierarchical(), noise=0.5)
    x = nets.inputs("rows", 4)
    draws = some_draws(bnn.parameterize(model, "centered"), x, np.zeros(4))
    weights = {k: v for k, v in draws.items() if not k.endswith("precision")}
    kernel, bias = weights["net/Dense_0.kernel"], weights["net/Dense_0.bias"]
    expected = np.einsum("rd,csd->csr", x, kernel[..., 0]) + bias
    np.testing.assert_allclose(bnn.predict(model, weights, x).mean, expected, rtol=1e-4, atol=1e-5)


def test_inputs_may_be_a_tree_and_the_target_may_be_named():
    def model(inputs, y=None):
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("data", len(inputs["a"])):
            local = numpyro.sample("local", dist.Normal(10.0, 0.1))
            numpyro.sample("y", dist.Normal(w * inputs["a"] + inputs["b"], 1.0), obs=y)
            numpyro.deterministic("sum", local)

    inputs = {"a": np.arange(4.0), "b": np.ones(4)}
    draws = {"w": jnp.array([[1.0, 2.0]])}
    with pytest.raises(ValueError, match=r"the sites \['local', 'y'\] have no draws"):
        bnn.predict(model, draws, inputs)
    predictions = bnn.predict(model, draws, inputs, site="y")
    np.testing.assert_allclose(predictions.mean[0], np.outer([1, 2], np.arange(4)) + 1, rtol=1e-6)


def test_draws_in_memory_are_predicted_in_blocks_of_whole_vectors(regression, monkeypatch):
    model, draws, new, _ = regression
    host = {name: np.tile(value, (1, 3) + (1,) * (value.ndim - 2)) for name, value in draws.items()}
    of_one = sum(value[:, 0].size for value in host.values())
    # Room for five draws of two chains each; vectors of four hold two.
    monkeypatch.setattr(predictions, "_BLOCK_IN_MEMORY", 5 * of_one)
    monkeypatch.setattr(predictions, "VECTOR", 4)
    assert predictions.blocks_of_draws(host, (2, 12)) == [slice(0, 4), slice(4, 8), slice(8, 12)]
    expected = np.tile(bnn.predict(model, draws, new).mean, (1, 3, 1))
    np.testing.assert_allclose(bnn.predict(model, host, new).mean, expected, rtol=1e-5)


def test_prior_predictive_draws_weights_and_targets():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(3.0, 0.1))
        bnn.likelihoods.gaussian(w * x, y, noise=0.01)

    draws = bnn.prior_predictive(model, jax.random.key(0), jnp.array([1.0, 2.0]), 200)
    np.testing.assert_allclose(draws["y"] / draws["w"][:, None], [[1, 2]] * 200, rtol=0.03)
    assert abs(draws["w"].mean() - 3) < 4 * 0.1 / np.sqrt(200)


def test_prior_predictive_of_a_ready_model_is_in_units_under_another_name(regression):
    model, _, new, (_, y) = regression
    plain = bnn.prior_predictive(model, jax.random.key(0), new, 20)
    scoped = bnn.prior_predictive(handlers.scope(model, prefix="a"), jax.random.key(0), new, 20)
    assert {name.removeprefix("a/") for name in scoped} == set(plain)
    for draws in (plain["y"], scoped["a/y"]):
        assert abs(draws.mean() - y.mean()) < 3 * y.std()


def test_a_run_becomes_draws_that_carry_their_model():
    def model():
        numpyro.sample("w", dist.Normal())

    kernel = HMC(model, step_size=0.1, num_steps=2, trajectory_length=None, adapt_step_size=False)
    mcmc = MCMC(kernel, num_warmup=3, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match="predict: the MCMC has no draws yet"):
        bnn.predict(model, mcmc, np.ones(1))
    mcmc.run(jax.random.key(0), init_params={"w": np.zeros(())})
    draws = draws_of(mcmc)
    assert (draws.num_chains, draws.num_draws) == (1, 5)
    assert draws.model is model
    known = {"kernel": "HMC", "num_warmup": 3, "thinning": 1, "max_num_steps": None}
    assert draws.info == known | {"exact_energy": True, "fixed_anew": True}
    assert draws.stats["diverging"].shape == (1, 5)
    assert draws_of(draws) is draws
    with handlers.seed(rng_seed=0):
        assert list(draws) == ["w"]
    with pytest.raises(ValueError, match=r"two leading axes .*\{'w': \(5,\)\}"):
        Draws({"w": np.ones(5)})


def test_a_distribution_that_a_plate_expands_has_its_own_distribution_function():
    heavy = row_model(lambda x, df: dist.StudentT(df, 0.0, 1.0), df=dist.Gamma(2.0, 1.0))
    df, y = np.array([[2.5, 4.0]], np.float32), np.array([-1.0, 0.0, 2.5])
    found = bnn.predict(heavy, {"df": df}, np.zeros((3, 1))).cdf(y)
    np.testing.assert_allclose(found[0], stats.t.cdf(y, df[0][:, None]), atol=1e-6)


def test_classes_are_drawn_by_their_probabilities():
    probs = np.array([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0]], np.float32)
    predictions = Predictions({"probs": np.broadcast_to(probs, (2, 20_000, 2, 3))}, None)
    drawn = predictions.sample(jax.random.key(0))
    assert drawn.shape == (2, 20_000, 2)
    shares = (drawn[..., None] == np.arange(3)).mean((0, 1))
    assert (np.abs(shares - probs) <= 4 * np.sqrt(probs * (1 - probs) / 40_000)).all()


def test_blocks_of_rows_have_one_size(monkeypatch):
    """One program serves seven rows in blocks of four, of which the second repeats one."""
    rows = []

    def model(x, y=None):
        rows.append(len(x))
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    monkeypatch.setattr("numpyro_bnn.posterior.predictions._ROWS", 4)
    x, w = np.arange(7.0)[:, None], np.array([1.0, 2.0])
    predictions = bnn.predict(model, {"w": w}, x)
    np.testing.assert_allclose(predictions.mean[0], w[:, None] * x[:, 0])
    rows.clear()
    expected = stats.norm(w[:, None] * x[:, 0]).logpdf(x[:, 0])
    np.testing.assert_allclose(predictions.log_prob(x[:, 0])[0], expected, rtol=1e-5)
    assert rows == [4]


X = np.zeros((2, 1), np.float32)
RNG = np.random.default_rng(0)

far = row_model(lambda x, mean: dist.Normal(mean + x[:, 0], 0.1), mean=dist.Normal(1000.0, 100.0))
sure = row_model(lambda x, logit: dist.Bernoulli(logits=logit + x[:, 0]), logit=dist.Normal())

MEANS = np.float32(1013.2 + 0.02 * RNG.normal(size=(4, 10_000)))
LOGITS = np.float32(5.0 + 0.1 * RNG.normal(size=(4, 10_000)))


def test_a_mean_that_is_far_from_zero_keeps_its_digits():
    """In single precision the sum of these draws is off by many Monte Carlo errors, 0.0001."""
    found = bnn.average(bnn.predict(far, {"mean": MEANS}, X))
    np.testing.assert_allclose(found.mean, MEANS.mean(dtype=np.float64), rtol=0, atol=1e-6)
    within = np.hypot(0.1, MEANS.std(dtype=np.float64))
    np.testing.assert_allclose(found.sd, within, rtol=1e-5)


def test_probabilities_add_up_to_one():
    exact = 1 / (1 + np.exp(-LOGITS.astype(np.float64))).ravel()
    found = bnn.average(bnn.predict(sure, {"logit": LOGITS}, X))
    np.testing.assert_allclose(found[0], [1 - exact.mean(), exact.mean()], rtol=1e-5)


@pytest.mark.parametrize("count", [1, 7, 40_000])
def test_exported_programs_average_alike(count):
    means, probs = MEANS.reshape(-1)[:count], RNG.uniform(0.9, 1.0, (count, 3)).astype(np.float32)
    scale = jnp.full(count, 0.5)
    found = jax.jit(_averaged)({"mean": jnp.asarray(means), "scale": scale})
    exact = means.astype(np.float64)
    np.testing.assert_allclose(found["mean"], exact.mean(), rtol=1e-7)
    np.testing.assert_allclose(found["sd"], np.hypot(0.5, exact.std()), rtol=1e-5)
    found = jax.jit(_averaged)({"probs": jnp.asarray(probs)})
    np.testing.assert_allclose(found["probs"], probs.mean(0, dtype=np.float64), rtol=3e-7)
