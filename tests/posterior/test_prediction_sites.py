"""What a prediction is made from: latent sites come from draws, whatever is computed is computed anew."""

import inspect
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen as nn
from flax import nnx
from numpyro import handlers
from numpyro.infer import NUTS, Predictive
from numpyro.infer.reparam import LocScaleReparam
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.workflow.fit import Fit

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X, NEW = RNG.normal(size=(2, 6, 3)).astype("f")
Y = X.sum(1)
PRIORS = {
    "normal": bnn.priors.Normal(),
    "hierarchical": bnn.priors.Hierarchical(),
    "horseshoe": bnn.priors.Horseshoe(),
    "partly": bnn.priors.ByPath({"Dense_0.bias": None, "*": bnn.priors.Normal()}),
}


def recording(prior):
    """Records what depends on the inputs, before and inside of the likelihood."""

    def model(x, y=None):
        scaled = numpyro.deterministic("scaled", x / jnp.abs(x).max())
        fixed = {"Dense_0": {"bias": jnp.ones(1), "kernel": jnp.zeros((3, 1))}}
        net = bnn.random_module("net", nets.Linear(), prior, x[:1], params=fixed)
        with numpyro.plate("data", len(x)):
            f = numpyro.deterministic("f", net(scaled))
            numpyro.sample("y", dist.Normal(f, numpyro.deterministic("noise", 1.5)), obs=y)

    return model


def numpyros_draws(model, *args, num=4, seed=1):
    """Draws of every site on the training rows, by NumPyro alone, with an axis of chains."""
    drawn = Predictive(model, num_samples=num)(jax.random.key(seed), *args)
    return {name: value[None] for name, value in drawn.items() if name != "y"}


QUICK = {("normal", 4), ("hierarchical", 6), ("horseshoe", 7), ("partly", 4)}


@pytest.mark.parametrize(
    ("prior", "rows"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in itertools.product(PRIORS, [6, 4, 7])
    ],
)
def test_a_deterministic_site_is_computed_from_the_inputs(prior, rows):
    model = recording(PRIORS[prior])
    draws = numpyros_draws(model, X, Y)
    x = np.concatenate([NEW, X])[:rows]
    given = {k: v[0] for k, v in draws.items() if k not in ("f", "scaled", "noise")}
    expected = Predictive(model, given, return_sites=["f"])(KEY, x)["f"]
    for batch_size in (1000, 6):
        if rows > batch_size:
            continue
        found = bnn.predict(model, draws, x, batch_size=batch_size)
        np.testing.assert_allclose(found.mean[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bnn.average(found).mean, expected.mean(0), rtol=1e-4, atol=1e-5)


def test_diagnose_and_average_see_the_new_rows_after_a_run():
    model = recording(PRIORS["normal"])
    kernel = bnn.SGLD(model, step_size=1e-3)
    mcmc = bnn.MCMC(kernel, num_warmup=0, num_samples=4, num_chains=2, progress_bar=False)
    mcmc.run(KEY, X, Y, init_params=nets.starts(2, model, X, Y))
    given = {k: v for k, v in mcmc.get_samples().items() if "/" in k}
    expected = Predictive(model, given, return_sites=["f"])(KEY, NEW)["f"]
    found = bnn.predict(None, mcmc, NEW)
    np.testing.assert_allclose(found.mean.reshape(8, 6), expected, rtol=1e-4, atol=1e-5)
    judged = bnn.diagnose(mcmc, NEW).predictions
    weights = {k: v for k, v in mcmc.get_samples(True).items() if "/" in k}
    again = bnn.diagnose(weights, NEW, model=model)
    np.testing.assert_allclose(judged.groups[0].rhat, again.predictions.groups[0].rhat, rtol=1e-3)


def test_weights_that_are_computed_may_come_from_draws_alone():
    for prior in ("hierarchical", "horseshoe"):
        model = recording(PRIORS[prior])
        draws = numpyros_draws(model, X, Y)
        weights = {name: draws[name] for name in ("net/Dense_0.kernel", "net/Dense_0.bias")}
        expected = bnn.predict(model, draws, NEW).mean
        np.testing.assert_allclose(bnn.predict(model, weights, NEW).mean, expected, rtol=1e-5)


def test_reparametrised_sites_are_no_exception():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)

    other = handlers.reparam(model, {"w": LocScaleReparam(0)})
    draws = numpyros_draws(other, X, Y)
    np.testing.assert_allclose(
        bnn.predict(other, draws, NEW).mean[0], draws["w"][0] @ NEW.T, rtol=1e-4
    )


def local(x, y=None):
    w = numpyro.sample("w", dist.Normal())
    with numpyro.plate("data", len(x)):
        shift = numpyro.sample("shift", dist.Normal(0, 3))
        numpyro.sample("y", dist.Normal(w * x[:, 0] + shift, 1.0), obs=y)


LOCAL = {"w": jnp.ones((1, 4)), "shift": jnp.arange(24.0).reshape(1, 4, 6)}


def test_latent_values_of_rows_are_not_those_of_other_rows():
    kept = bnn.predict(local, LOCAL, X).mean
    np.testing.assert_allclose(kept[0], X[:, 0] + LOCAL["shift"][0], rtol=1e-5)
    for x in (np.concatenate([X, NEW]), X[:4]):
        with pytest.raises(ValueError, match=r"draws of 'shift' .*\(6,\).*rows of the fit alone"):
            bnn.predict(local, LOCAL, x, site="y", batch_size=6)
    with pytest.raises(ValueError, match=r"'shift' has a value for every row.*`batch_size=6`"):
        bnn.predict(local, LOCAL, X, batch_size=4)


def joint(x, y=None):  # Values of rows that are no plate's, as of a Gaussian process
    shift = numpyro.sample("shift", dist.Normal(jnp.zeros(len(x)), 3).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(shift, 1.0), obs=y)


@pytest.mark.parametrize("model", [local, joint])
def test_a_run_and_its_draws_know_which_rows_their_latent_values_belong_to(tmp_path, model):
    kernel = bnn.SGLD(model, step_size=1e-3)
    mcmc = bnn.MCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False)
    mcmc.run(KEY, X, Y, init_params=nets.weights(model, X, Y))
    stored = bnn.load(bnn.save(mcmc, tmp_path / "draws.npz"), model)
    fitted = Fit(model, None, mcmc, bnn.thin(mcmc, 1, X), None, None, {})
    for predicted in (
        partial(bnn.predict, None, mcmc),
        partial(bnn.predict, None, stored),
        fitted.predict,
    ):
        assert predicted(np.asarray(X, np.float64)).mean.shape[2] == 6
        with pytest.raises(ValueError, match=r"\['shift'\] have a value for every row of the fit"):
            predicted(NEW)


def test_latent_values_without_draws_come_from_their_prior_anew_in_every_draw():
    draws = {"w": jnp.ones((2, 400))}
    predicted = bnn.predict(local, draws, X, site="y", batch_size=3)
    shift = predicted.mean - X[:, 0]
    assert abs(shift.std() - 3) < 5 * 3 / np.sqrt(2 * shift.size)
    assert np.unique(shift).size == shift.size  # rows of another block are other rows
    np.testing.assert_allclose(
        predicted.log_prob(Y), dist.Normal(predicted.mean, 1.0).log_prob(Y), rtol=1e-4
    )


def factor(x, y):
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    f = numpyro.deterministic("f", x @ w)
    if y is not None:
        with numpyro.plate("data", len(x)):
            numpyro.factor("likelihood", -((y - f) ** 2))


def factor_without_target(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    numpyro.factor("likelihood", -jnp.sum((y - x @ w) ** 2))


def sized(x, y, width):
    net = bnn.random_module("net", bnn.MLP((width,), 1), bnn.priors.Normal(), x[:1])
    bnn.likelihoods.gaussian(net(x).squeeze(-1), y, noise=1.0)


def with_penalty(x, y=None):
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    numpyro.factor("penalty", -jnp.sum(w**4))
    numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


W = {"w": RNG.normal(size=(2, 8, 3)).astype("f")}


@pytest.mark.parametrize("judge", [bnn.predict, lambda m, s, x: bnn.diagnose(s, x, model=m)])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (factor, r"required positional argument: 'y'"),
        (partial(factor, y=None), r"no target.*pass `site='f'`.*has \['f'\]"),
        (sized, r"required positional argument"),
    ],
)
def test_a_model_that_needs_more_than_x_says_how_to_call_it(judge, model, message):
    with pytest.raises((TypeError, ValueError), match=f"(?s){message}"):
        judge(model, W, X)
    with pytest.raises(TypeError) as caught:
        judge(factor_without_target, W, X)
    assert (
        "without a target: give it the signature `def model(x, y=None)`"
        in caught.value.__notes__[-1]
    )


def test_a_model_with_a_factor_is_predicted_by_a_site():
    model = partial(factor, y=None)
    expected = np.einsum("csd,rd->csr", W["w"], X)
    found = bnn.predict(model, W, X, site="f", batch_size=4)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bnn.average(found).sd, expected.std((0, 1)), rtol=1e-3)
    assert bnn.diagnose(W, X, model=model, site="f").predictions.num_scalars == len(X)
    with pytest.raises(ValueError, match="log_prob: 'f' is computed and has no noise"):
        found.log_prob(Y)
    with pytest.raises(ValueError, match=r"no sample site named 'g'; there are \['w', 'f'\]"):
        bnn.predict(model, W, X, site="g")


def test_a_penalty_is_no_target():
    assert bnn.predict(with_penalty, W, X).mean.shape == (2, 8, 6)


def two_targets(x, y=None, z=None):
    """No plates: rows are as many entries as the distributions have."""
    w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
    f = numpyro.deterministic("f", x @ w)
    numpyro.sample("y", dist.Normal(f, 1.0), obs=y)
    numpyro.sample("z", dist.Bernoulli(logits=2 * f), obs=z)


def test_a_second_target_without_plates_is_no_latent_site():
    f = np.einsum("csd,rd->csr", W["w"], X)
    for site, expected in (("y", f), ("f", f)):
        found = bnn.predict(two_targets, W, X, site=site).mean
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    probs = bnn.predict(two_targets, W, X, site="z").probs[..., 1]
    np.testing.assert_allclose(probs, 1 / (1 + np.exp(-2 * f)), rtol=1e-4, atol=1e-5)


def through(kind):
    """A target that is computed from a site without draws: itself, or through others."""

    def model(x, y=None, z=None):
        w = numpyro.sample("w", dist.Normal().expand([3]).to_event(1))
        z = numpyro.sample("z", dist.Poisson(jnp.exp(w.sum())), obs=z)
        z = numpyro.deterministic("doubled", 2.0 * z) if kind == "deterministic" else z
        with numpyro.plate("data", len(x)):
            if kind == "local":
                z = numpyro.sample("own", dist.Normal(z, 1.0))
            numpyro.sample("y", dist.Normal(x @ w + z, 1.0), obs=y)

    return model


@pytest.mark.parametrize("kind", ["itself", "deterministic", "local"])
def test_a_site_that_the_target_is_computed_from_needs_draws(kind):
    with pytest.raises(ValueError, match=r"latent sites \['z'\], from which 'y' is .*condition"):
        bnn.predict(through(kind), W, X, site="y")
    if kind == "local":
        return
    known = handlers.condition(through(kind), {"z": jnp.array(4.0)})
    shift = 4.0 if kind == "itself" else 8.0
    expected = np.einsum("csd,rd->csr", W["w"], X) + shift
    np.testing.assert_allclose(bnn.predict(known, W, X, site="y").mean, expected, rtol=1e-4)


class Squeezed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x).squeeze()


class NNXSqueezed(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.layer(x).squeeze(-1)


@pytest.mark.parametrize("network", [Squeezed(), nets.Linear(), NNXSqueezed(nnx.Rngs(0))])
@pytest.mark.parametrize("ready", [bnn.regression, bnn.classification])
def test_a_network_that_returns_a_vector_is_told_to_return_a_column(ready, network):
    y = (Y > 0).astype(int) if ready is bnn.classification else Y
    model = ready(network, bnn.priors.Normal())
    with pytest.raises(ValueError, match=r"network gives shape \(\d,\).*Return a column"):
        bnn.optimize(model, KEY, X, y, progress_bar=False)


def test_two_sites_of_one_name_are_named():
    def networks(x, y=None):
        for _ in range(2):
            net = bnn.random_module("net", nets.Linear(), bnn.priors.Normal(), x[:1])
        bnn.likelihoods.gaussian(net(x), y, noise=1.0)

    def targets(x, y=None):
        for _ in range(2):
            bnn.likelihoods.gaussian(x[:, 0], y, noise=1.0)

    for model, name in ((networks, r"net/Dense_0\.bias"), (targets, "y")):
        for door in (
            lambda m: bnn.optimize(m, KEY, X, Y, progress_bar=False),
            lambda m: bnn.predict(m, W, X),
            lambda m: bnn.prior_predictive(m, KEY, X, 2),
        ):
            with pytest.raises(AssertionError, match=f"unique names but got `{name}`"):
                door(model)


def test_each_draw_drops_other_units():
    """Averages over draws of a network that drops half of its outputs."""

    class Drop(nn.Module):
        @nn.compact
        def __call__(self, x):
            layer = nn.Dense(1, use_bias=False)
            return nn.Dropout(0.5, deterministic=False)(layer(x))

    def model(x, y=None):
        net = bnn.random_module("net", Drop(), bnn.priors.Normal(1.0), x[:1], apply_rng=["dropout"])
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(net(x)[:, 0], 0.01), obs=y)

    draws = bnn.Draws({"net/Dense_0.kernel": np.ones((1, 400, 1, 1), np.float32)}, model)
    x = np.ones((6, 1), np.float32)
    found = bnn.predict(None, draws, x)
    # Kept outputs are doubled: each is 0 or 2, with a standard deviation of 1.
    assert set(np.unique(found.mean)) == {0.0, 2.0}
    assert (np.abs(found.mean.mean((0, 1)) - 1) < 5 / 20).all()
    # The density is that of the same masks.
    y = found.mean[0, 0]
    assert ((found.log_prob(y) > 0) == (found.mean == y)).all()


@pytest.mark.parametrize("distribution", ["classes", "labels", "counts"])
def test_a_mask_leaves_the_distribution_of_the_target_as_it_is(distribution):
    made = {
        "classes": lambda f: dist.Categorical(logits=jnp.stack([f, -f, 0 * f], -1)),
        "labels": lambda f: dist.Bernoulli(logits=f),
        "counts": lambda f: dist.Poisson(jnp.exp(f)),
    }[distribution]

    def model(x, y=None, masked=False):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            site = made(b * x[:, 0])
            numpyro.sample("y", site.mask(jnp.arange(len(x)) > 0) if masked else site, obs=y)

    draws = {"b": np.array([0.4, -1.2], np.float32)}
    plain = bnn.predict(model, draws, X)
    found = bnn.predict(partial(model, masked=True), draws, X)
    assert found.values.keys() == plain.values.keys()
    for name, values in plain.values.items():
        np.testing.assert_array_equal(found.values[name], values)
    y = np.ones(len(X), int)
    np.testing.assert_allclose(found.log_prob(y), plain.log_prob(y), rtol=1e-6)
    # A row that is hidden from the fit adds nothing to its likelihood.
    expected = np.where(np.arange(len(X)) > 0, plain.log_prob(y), 0.0)
    np.testing.assert_allclose(found.log_likelihood(y), expected, rtol=1e-6)
    if distribution == "counts":
        np.testing.assert_allclose(found.cdf(y), plain.cdf(y), rtol=1e-6)


def test_a_fit_says_that_it_keeps_one_mask():
    """By optimisation and by sampling; not where the model draws no random numbers of its own."""

    def model(x, y=None, rate=0.5):
        mask = jax.random.bernoulli(numpyro.prng_key(), rate, x.shape) if rate else 1.0
        numpyro.sample("y", dist.Normal(numpyro.sample("w", dist.Normal()) * mask, 1.0), obs=y)

    x = y = np.ones(3, np.float32)
    mcmc = bnn.MCMC(
        bnn.SGLD(model, step_size=0.01), num_warmup=0, num_samples=2, progress_bar=False
    )
    with pytest.warns(
        UserWarning, match="keeps one draw of them, such as one mask, for all its steps"
    ):
        bnn.optimize(model, jax.random.key(0), x, y, num_steps=0, progress_bar=False)
    with pytest.warns(
        UserWarning, match="Leave dropout out: the posterior over weights takes its place"
    ):
        mcmc.run(jax.random.key(0), x, y)
    mcmc.run(jax.random.key(0), x, y, rate=0.0)


ZEROS = np.zeros((3, 2), np.float32)

model = row_model(
    lambda x, w: dist.Normal(x @ w, 1.0), plate="rows", w=dist.Normal(0, 1).expand([2]).to_event(1)
)

DRAWS = bnn.Draws({"w": np.zeros((1, 5, 2))}, model)
MCMC = bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1)
EXPECTED = "expected an MCMC after `run`, what `fit` returned, a fitted estimator, or draws"
CALLS = {
    "predict without x": (lambda: bnn.predict(model, DRAWS), "argument: 'x'"),
    "predict without a model": (lambda: bnn.predict(DRAWS, ZEROS), "argument: 'x'"),
    "the run before the model": (
        lambda: bnn.predict(MCMC, model, ZEROS),
        f"predict: {EXPECTED} by site name, got function",
    ),
    "x before the draws": (
        lambda: bnn.predict(model, ZEROS, DRAWS),
        f"predict: {EXPECTED} by site name, got ndarray",
    ),
    "an unknown keyword": (
        lambda: bnn.predict(model, DRAWS, ZEROS, rows=2),
        "unexpected keyword argument 'rows'",
    ),
    "diagnose without x": (lambda: bnn.diagnose(DRAWS), "argument: 'x'"),
    "the model before the run": (
        lambda: bnn.diagnose(model, DRAWS, ZEROS),
        f"diagnose: {EXPECTED} by site name, got function",
    ),
    "x before the run": (
        lambda: bnn.diagnose(ZEROS, DRAWS),
        f"diagnose: {EXPECTED} by site name, got ndarray",
    ),
    "draws inside of jit": (
        lambda: jax.jit(lambda w: bnn.predict(model, {"w": w}, ZEROS).mean)(DRAWS["w"]),
        "traced array",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_right_call_is_shown(call):
    function, said = CALLS[call]
    with pytest.raises(TypeError, match=said):
        function()


def test_right_calls_and_signatures_stay_as_they_are():
    assert list(inspect.signature(bnn.predict).parameters)[:3] == ["model", "samples", "x"]
    assert list(inspect.signature(bnn.diagnose).parameters)[:3] == ["run", "x", "y"]
    found = bnn.predict(None, DRAWS, ZEROS)
    np.testing.assert_array_equal(found.mean, bnn.predict(model, dict(DRAWS), ZEROS).mean)
    assert bnn.diagnose(DRAWS, ZEROS).verdict == "too_short"


def test_an_error_inside_is_not_mistaken_for_a_wrong_call():
    def needs_more(x, z):
        model(x)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'z'"):
        bnn.predict(needs_more, {"w": np.zeros((1, 5, 2))}, ZEROS)
    with pytest.raises(ValueError, match="call `run` first"):
        bnn.predict(None, bnn.MCMC(NUTS(model), num_warmup=1, num_samples=1), ZEROS)


def test_a_run_without_a_model_is_sent_to_the_diagnosis_of_draws():
    run = bnn.Draws({"w": np.zeros((1, 5, 2))})
    with pytest.raises(ValueError, match=r"are for `bnn.diagnostics.diagnose_draws`"):
        bnn.diagnose(run, ZEROS)
