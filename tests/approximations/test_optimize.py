"""Optimised starts: the mode where there is one, precisions, and weights that outnumber the rows."""

import jax
import jax.numpy as jnp
import linear_gaussian as linear
import nets
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import NUTS
from quiet import together
from scipy import stats
from small_models import network_model

import numpyro_bnn as bnn
from numpyro_bnn import likelihoods, priors
from numpyro_bnn.approximations.finish import NoMode
from numpyro_bnn.approximations.marginal_energy import Marginal
from numpyro_bnn.approximations.stopping import row_numbers, rows_by_member
from numpyro_bnn.potential.potential import Potential
from numpyro_bnn.potential.starts import centered


@pytest.fixture(scope="module")
def data():
    return linear.data()


def model_with(prior):
    return network_model(nets.Linear(), prior, noise=linear.NOISE)


def optimize(model, *args, seed=0, **options):
    return bnn.optimize(model, jax.random.key(seed), *args, progress_bar=False, **options)


def test_every_start_of_a_linear_model_ends_within_reach_of_its_mode(data):
    """Of 16 of the 20 rows, those of each fold: between the mode and the start."""
    model = model_with(priors.Normal(linear.SCALE))
    z = optimize(model, *data, num_chains=3, optimizer=optax.adam(0.03), tolerance=1e-6)
    assert z["net/Dense_0.kernel"].shape == (3, 3, 1)
    found, (mode, precision) = linear.weights(z), linear.posterior(*data)
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.max(np.abs(found - mode) / spread) < 3
    assert len(np.unique(found)) == found.size


def test_precisions_end_at_their_conditional_means(data):
    model = model_with(priors.Hierarchical(2.0, 0.5))
    z = optimize(model, *data, optimizer=optax.adam(0.03), tolerance=1e-6)
    potential = bnn.potential_of(model, *data)
    assert z.keys() == set(potential.structure.latent)
    values = jax.jit(potential.constrain)({k: v[0] for k, v in z.items()})
    weights = {}
    for path, size in (("kernel", 3), ("bias", 1)):
        site = f"net/Dense_0.{path}"
        precision = values[f"{site}.precision"]
        weights[site] = values[f"{site}.base"] / precision**0.5
        conditional_mean = (2.0 + size / 2) / (0.5 + np.sum(weights[site] ** 2) / 2)
        np.testing.assert_allclose(precision, conditional_mean, rtol=1e-4)


def test_no_steps_return_gentle_draws_with_kernels_at_most_at_the_fan_in(data):
    z = optimize(model_with(priors.Normal(100.0)), *data, num_chains=4, num_steps=0)
    kernel, bias = z["net/Dense_0.kernel"], z["net/Dense_0.bias"]
    spread = np.sqrt(np.mean(np.square(kernel), (1, 2)))
    np.testing.assert_allclose(spread, 1 / np.sqrt(3), rtol=1e-5)
    assert np.abs(bias).min() > 0
    assert len(np.unique(kernel)) == kernel.size


def test_a_trained_network_is_where_it_begins(data):
    params = {"Dense_0": {"kernel": jnp.array([[1.0], [2.0], [3.0]]), "bias": jnp.array([4.0])}}
    given = bnn.from_params(params)
    model = model_with(priors.Hierarchical())
    z = optimize(model, *data, num_chains=2, num_steps=0, init_params=given)
    potential = bnn.potential_of(model, *data)
    values = jax.jit(jax.vmap(potential.constrain))(z)
    weights = (
        values["net/Dense_0.kernel.base"]
        / values["net/Dense_0.kernel.precision"][:, None, None] ** 0.5
    )
    np.testing.assert_allclose(weights, jnp.stack([given["net/Dense_0.kernel"]] * 2), rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"other/Dense_0.kernel": jnp.ones((3, 1))},
            r"init_params give the unknown sites .*other/Dense_0\.kernel",
        ),
        ({"net/Dense_0.kernel": jnp.ones((2, 3, 1))}, r"init_params.*\(2, 3, 1\).*\(3, 1\)"),
    ],
)
def test_starts_that_do_not_fit_are_refused(data, given, message):
    with pytest.raises(ValueError, match=message):
        optimize(model_with(priors.Normal(1.0)), *data, init_params=given)


def test_constrained_sites_come_back_unconstrained(data):
    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(0.0, scale).expand([20]).to_event(), obs=y)

    y = data[1]
    z = optimize(model, y, optimizer=optax.adam(0.05), tolerance=1e-7)
    # Of the 16 rows that were not held out, or on the way to them.
    assert np.exp(z["scale"][0]) == pytest.approx(np.sqrt(np.mean(y**2)), rel=0.3)


def test_the_centred_potential_is_the_same_for_models_without_a_hierarchy(data):
    potential = bnn.potential_of(model_with(priors.Normal(1.0)), *data)
    z = nets.weights(potential.model, *data)
    other = centered(potential.model, potential.args)
    both = jax.jit(lambda z: (potential(z), other(z)))(z)
    assert both[0] == both[1]


def test_a_wide_first_layer_does_not_end_at_zero_weights():
    """The density of 800 weights of one precision is highest at zero, where the network predicts nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 100)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    model = bnn.classification(bnn.MLP([8], 2), priors.Hierarchical())
    z = optimize(model, x, y, seed=1, num_chains=2, num_steps=600)
    potential = bnn.potential_of(model, x, y)
    values = jax.jit(jax.vmap(potential.constrain))(z)
    # The 99.9 % quantile of Gamma(1, 1) is log 1000; it was 350.
    assert (values["net/Dense_0.kernel.precision"] < 7).all()
    energies = jax.jit(jax.vmap(potential.energies))(z)
    # A fifth of the rows stops each start before it fits the others as well as a mode does.
    assert (energies[1] < 0.5 * 30 * np.log(2)).all()
    mode = bnn.map_estimate(model, jax.random.key(0), x, y, num_steps=1000, progress_bar=False)
    fitted = bnn.predict(None, mode, x).log_prob(y).sum()
    assert -fitted < 0.2 * 30 * np.log(2)


def test_small_weights_have_a_gaussian_prior_that_continues_the_marginal_one(double_precision):
    """Of no data the energy is that of the weights' prior: in s = |w|²/2 log (b + s) goes on as a line."""
    k, b = 2.0, 3.0

    def model():
        bnn.random_module("net", nets.Linear(), priors.Hierarchical(k, b), jnp.ones((1, 40)))

    marginal = Marginal(model)
    most = stats.gamma(k, scale=1 / b).ppf(0.999)
    end = (k + 20) / most - b
    direction = np.random.default_rng(0).normal(size=(40, 1))

    def energy(s):
        z = {"net/Dense_0.kernel": direction * jnp.sqrt(2 * s / np.sum(direction**2))}
        return marginal(z | {"net/Dense_0.bias": jnp.ones(1)})

    at = np.array([0.01, 0.5, 1.0, 1.5, 4.0]) * end
    found, slope = jax.jit(jax.vmap(jax.value_and_grad(energy)))(at)
    np.testing.assert_allclose(slope, (k + 20) / np.maximum(b + at, b + end), rtol=1e-6)
    expected = np.where(at < end, most * (at - end), (k + 20) * np.log((b + at) / (b + end)))
    np.testing.assert_allclose(found - found[2], expected, atol=1e-6)


@pytest.mark.slow
def test_nuts_from_these_starts_is_not_stuck_where_the_default_start_is(shared):
    """Airfoil, 16-16 relu: error of the posterior mean, in standard deviations of the target."""
    with np.load(shared / "data" / "mile" / "airfoil.npz") as table:
        table = np.c_[table["x"], table["y"].reshape(-1)]
    table = np.random.default_rng(0).permutation(table)
    fit, test = table[:1052], table[1052:]
    fit, test = ((part - fit.mean(0)) / fit.std(0) for part in (fit, test))

    def model(x, y=None):
        net = bnn.random_module("net", bnn.MLP([16, 16], 1, jax.nn.relu), priors.Normal(1.0), x[:1])
        noise = dist.HalfNormal(1.0)
        likelihoods.gaussian(lambda rows: net(rows).squeeze(-1), y, x=x, noise=noise)

    x, y = fit[:, :-1], fit[:, -1]
    starts = bnn.optimize(model, jax.random.key(1), x, y, num_chains=2, progress_bar=False)
    errors = {}
    for name, start in (("default", None), ("optimised", starts)):
        mcmc = together(NUTS(model, max_tree_depth=6), 60, 60, 2)
        mcmc.run(jax.random.key(0), x, y, init_params=start)
        errors[name] = bnn.scores.rmse(bnn.predict(model, mcmc, test[:, :-1]), test[:, -1])
    assert errors["optimised"] < 0.25
    assert errors["default"] > 1.5 * errors["optimised"]


QUIET = {"progress_bar": False}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] + RNG.normal(size=40)).astype(np.float32)
FAST = {"optimizer": optax.adam(0.03), "num_steps": 1500} | QUIET


def key(seed=0):
    return jax.random.key(seed)


def ready(likelihood, prior=None):
    outputs = 2 if likelihood == "heteroscedastic" else 1
    network = bnn.MLP([20, 20], outputs, jnp.tanh)
    return bnn.regression(network, prior or bnn.priors.Normal(1.0), likelihood=likelihood)


def network(x):
    net = bnn.random_module("net", bnn.MLP([20, 20], 1, jnp.tanh), bnn.priors.Normal(1.0), x[:1])
    return net(x).squeeze(-1)


def without_plate(x, y=None):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    numpyro.sample("target", dist.Normal(network(x), spread), obs=y)


def in_one_event(x, y=None):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    numpyro.sample("target", dist.Normal(network(x), spread).to_event(1), obs=y)


def of_columns(x, y=None):
    """Rows along the second axis, beside a plate of two columns."""
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    mean, obs = network(x), None if y is None else jnp.stack([y, y])
    with numpyro.plate("columns", 2, dim=-2), numpyro.plate("rows", len(x), dim=-1):
        numpyro.sample("target", dist.Normal(mean, spread), obs=obs)


def factor_of_rows(x, y=None):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    mean = network(x)
    with numpyro.plate("rows", len(x)):
        numpyro.factor("target", dist.Normal(mean, spread).log_prob(y))


MODELS = {
    "gaussian": ready("gaussian"),
    "hierarchical": ready("gaussian", bnn.priors.Hierarchical()),
    "student_t": ready("student_t"),
    "heteroscedastic": ready("heteroscedastic"),
    "without a plate": without_plate,
    "rows in one event": in_one_event,
    "columns": of_columns,
    "factor": factor_of_rows,
}


def widths(model, starts):
    """e^(-l) / √(2πe) in spreads of the target, l the mean log density: the noise of each start."""
    potential = bnn.potential_of(model, X, Y)
    energy = jax.jit(jax.vmap(lambda z: potential.energies(z)[1]))(starts)
    values = 80 if model is of_columns else 40
    return np.exp(np.asarray(energy) / values) / np.sqrt(2 * np.pi * np.e) / Y.std()


@pytest.mark.parametrize("name", MODELS)
def test_no_chain_begins_at_a_noise_near_zero(name):
    """Half of the variance of the target is noise; trained to the end, weights leave none of it."""
    starts = bnn.optimize(MODELS[name], key(), X, Y, num_chains=3, **FAST)
    assert (widths(MODELS[name], starts) > 0.25).all()


@pytest.mark.parametrize("batch_size", [None, 10])
def test_an_average_of_members_is_no_worse_than_guessing(batch_size):
    """521 weights and 120 rows: trained to the end, the score of an average is below -100."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(520, 3)).astype(np.float32)
    y = x[:, 0] + rng.normal(size=520)
    train, test = slice(0, 120), slice(120, None)
    for likelihood in ("gaussian", "heteroscedastic"):
        members = bnn.deep_ensemble(
            ready(likelihood),
            key(1),
            x[train],
            y[train],
            num_members=4,
            batch_size=batch_size,
            **FAST,
        )
        score = bnn.scores.lppd(bnn.predict(None, members, x[test]), y[test])
        assert score > -1.77, likelihood  # of a normal distribution with the mean and sd of y


def test_each_member_holds_out_a_fold_of_its_own():
    held = rows_by_member(key(), [50], 5)["50"]
    np.testing.assert_array_equal(np.sum(held, 1), [10] * 5)
    np.testing.assert_array_equal(np.sum(held, 0), np.ones(50))
    assert np.sum(rows_by_member(key(), [10**5], 2)["100000"], 1).tolist() == [2000, 2000]


def test_a_held_out_row_does_not_move_its_member_and_ends_its_training():
    """One location: a member is near the mean of its own rows, of which one is far away."""
    y = np.r_[np.zeros(9), 1000.0].astype(np.float32)

    def model(y):
        b = numpyro.sample("b", dist.Normal(0.0, 1e4))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(b, 30.0), obs=y)

    options = {"optimizer": optax.adam(3.0), "num_steps": 2000, "init_params": {"b": jnp.ones(())}}
    found = bnn.optimize(model, key(), y, num_chains=5, **options, **QUIET)["b"]
    # Four folds of two rows are 0 and stop at once; the other holds 1000 out, and its own rows are at 0.
    assert np.max(np.abs(found)) < 35


@pytest.mark.parametrize("name", ["gaussian", "rows in one event", "columns", "factor"])
def test_rows_are_found(name):
    if name == "gaussian":
        MODELS[name].learn(X, Y)
    assert row_numbers(Potential(MODELS[name], (X, Y))) == [40]


def test_one_density_of_all_rows_has_none_to_hold_out():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.MultivariateNormal(mean * jnp.ones(5), jnp.eye(5)), obs=y)

    y = np.arange(5.0, dtype=np.float32)
    assert row_numbers(Potential(model, (y,))) == []
    options = {"optimizer": optax.adam(0.05), "tolerance": 1e-7}
    found = bnn.optimize(model, key(), y, **options, **QUIET)["mean"]
    assert float(found[0]) == pytest.approx(10 / 6, abs=0.02)


def test_a_constant_that_is_given_is_not_held_out():
    def model(y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([7]))
        with numpyro.plate("rows", 12):
            numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    given = numpyro.handlers.condition(model, {"w": jnp.ones(7)})

    def both(y):
        numpyro.sample("v", dist.Normal(0.0, 1.0))
        given(y)

    assert row_numbers(Potential(both, (np.ones(12, np.float32),))) == [12]


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "heteroscedastic"])
def test_where_there_is_no_mode_the_map_says_so(likelihood):
    """Twelve rows and some fifty weights: NaN on the way to the singularity is no warning of NumPy's."""
    network = bnn.MLP([10], 2 if likelihood == "heteroscedastic" else 1)
    model = bnn.regression(network, bnn.priors.Normal(1.0), likelihood=likelihood)
    with pytest.raises(NoMode, match=r"map_estimate: no mode .* noise of 'y' goes to 0"):
        bnn.map_estimate(model, key(), X[:12], Y[:12], **(FAST | {"num_steps": 3000}))


@pytest.mark.parametrize(
    "function", [bnn.laplace, pytest.param(bnn.randomized_map, marks=pytest.mark.slow)]
)
def test_what_is_built_on_a_mode_says_so(function):
    with pytest.raises(ValueError, match=r"no mode .*Hold out rows"):
        function(ready("gaussian"), key(), X[:12], Y[:12], **(FAST | {"num_steps": 3000}))


def line(noise=None):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0)) if noise is None else noise
        numpyro.sample("y", dist.Normal(x @ w, spread), obs=y)

    return model


def test_a_line_through_all_rows_has_no_mode_and_one_through_noise_has():
    w = np.array([1.0, -2.0, 0.5], np.float32)
    with pytest.raises(NoMode, match="noise of 'y'"):
        bnn.map_estimate(line(), key(), X, X @ w, **QUIET)
    noisy = X @ w + 0.01 * RNG.normal(size=40).astype(np.float32)
    found = bnn.map_estimate(line(), key(), X, noisy, **QUIET)
    assert float(found["spread"][0, 0]) == pytest.approx(0.01, rel=0.3)


def test_a_noise_that_is_known_has_a_mode_whatever_the_weights():
    """Ten thousandths of the spread of the target, and as many weights as rows."""
    few, y = X[:3], np.array([1.0, -2.0, 0.5], np.float32)
    found = bnn.map_estimate(line(1e-3), key(), few, y, **QUIET)
    np.testing.assert_allclose(few @ np.asarray(found["w"][0, 0]), y, atol=0.01)


@pytest.mark.slow
def test_a_comparison_goes_on_without_a_method_that_finds_no_mode():
    def plain(model, key, x, y, progress_bar):
        return bnn.deep_ensemble(model, key, x, y, num_members=1, **FAST)

    def mode(model, key, x, y, progress_bar):
        return bnn.map_estimate(model, key, x, y, **(FAST | {"num_steps": 3000}))

    data, methods = (X, Y, X[:10], Y[:10]), {"plain": plain, "mode": mode}
    with pytest.warns(UserWarning, match=r"compare: left out 'mode'\. map_estimate: no mode"):
        table = bnn.compare(ready("gaussian"), data, methods, "plain", **QUIET)
    assert [row.method for row in table.rows] == ["plain"]
