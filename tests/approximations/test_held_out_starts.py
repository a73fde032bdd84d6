"""Starts and ensembles where weights outnumber rows: held-out rows end the training before the noise is 0."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import numpyro_bnn as bnn
from numpyro_bnn.approximations.finish import NoMode
from numpyro_bnn.approximations.stopping import row_numbers, rows_by_member
from numpyro_bnn.potential.potential import Potential

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


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("gaussian", [40]), ("rows in one event", [40]), ("columns", [40]), ("factor", [40])],
)
def test_rows_are_found(name, sizes):
    if name == "gaussian":
        MODELS[name].learn(X, Y)
    assert row_numbers(Potential(MODELS[name], (X, Y))) == sizes


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


# -- no mode -----------------------------------------------------------------------------------


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
        function(MODELS["gaussian"], key(), X, Y, **(FAST | {"num_steps": 3000}))


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

    data = (X, Y, X[:10], Y[:10])
    with pytest.warns(UserWarning, match=r"compare: left out 'mode'\. map_estimate: no mode"):
        table = bnn.compare(
            MODELS["gaussian"], data, {"plain": plain, "mode": mode}, "plain", **QUIET
        )
    assert [row.method for row in table.rows] == ["plain"]
