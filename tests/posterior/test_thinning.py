"""The draws that stand for all, against every choice; stacking weights against known optima."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from linear_gaussian import key
from scipy import stats
from scipy.optimize import minimize
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.posterior import thinning

X = np.linspace(-1.0, 1.0, 7)[:, None].astype(np.float32)


def _classes(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    numpyro.sample("y", dist.Categorical(logits=x * w), obs=y)


def _quantity(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x[:, 0] * w, 0.5), obs=y)


def _distance(draws, small):
    whole, few = (bnn.average(bnn.predict(None, d, X)) for d in (draws, small))
    return 0.5 * np.abs(whole - few).sum(-1)


def test_draws_that_repeat_are_kept_in_their_shares():
    values = np.repeat(
        np.array([[3.0, 0, 0], [0, 3.0, 0], [0, 0, 3.0]], np.float32), [10, 20, 30], 0
    )
    draws = bnn.Draws(
        {"w": np.random.default_rng(0).permutation(values).reshape(2, 30, 3)}, _classes
    )
    small = bnn.thin(draws, 6, X)
    assert small["w"].shape == (1, 6, 3)
    np.testing.assert_array_equal(sorted(small["w"][0].argmax(-1)), [0, 1, 1, 2, 2, 2])
    assert small.info["thinned"]["total_variation"] == pytest.approx(0, abs=1e-6)
    assert small.info["thinned"]["draws"] == 60


def test_the_loss_is_what_it_says_and_near_the_least_of_all_choices():
    draws = bnn.Draws(
        {"w": 2 * np.random.default_rng(1).normal(size=(2, 7, 3)).astype(np.float32)}, _classes
    )
    small = bnn.thin(draws, 4, X)
    by_row = _distance(draws, small)
    assert small.info["thinned"]["total_variation"] == pytest.approx(by_row.mean(), abs=1e-6)
    assert small.info["thinned"]["total_variation_99"] == pytest.approx(
        np.quantile(by_row, 0.99), abs=1e-6
    )
    probs = bnn.predict(None, draws, X).probs.reshape(14, 7, 3)
    losses = [
        0.5 * np.abs(probs[list(pick)].mean(0) - probs.mean(0)).sum(-1).mean()
        for pick in itertools.combinations(range(14), 4)
    ]
    # Among the best hundredth of the 1001 choices; a random one is at the half.
    assert np.mean(np.array(losses) < by_row.mean() - 1e-9) < 0.01


def test_all_draws_are_all_draws():
    values = np.random.default_rng(2).normal(size=(2, 5, 3)).astype(np.float32)
    small = bnn.thin(bnn.Draws({"w": values}, _classes), 10, X)
    np.testing.assert_array_equal(small["w"], values.reshape(1, 10, 3))
    assert small.info["thinned"]["total_variation"] == 0


def test_a_quantity_is_compared_over_its_whole_distribution():
    values = np.random.default_rng(3).normal(size=(4, 250)).astype(np.float32)
    draws = bnn.Draws({"w": values}, _quantity)
    small = bnn.thin(draws, 12, X)
    kept = small.info["thinned"]["total_variation"]
    random = [
        bnn.Draws({"w": np.random.default_rng(i).choice(values.ravel(), (1, 12))}, _quantity)
        for i in range(9)
    ]
    # Twelve draws at random, measured the same way: by the probabilities of the same 20 parts.
    parts = thinning._probabilities(bnn.predict(None, draws, X))
    edges = bnn.predict(None, draws, X).quantiles(np.arange(1, 20) / 20)

    def loss(other):
        cdf = np.stack([bnn.predict(None, other, X).cdf(edge) for edge in edges], -1).mean((0, 1))
        shares = np.diff(np.concatenate([np.zeros((7, 1)), cdf, np.ones((7, 1))], -1))
        return 0.5 * np.abs(shares - parts.mean(0)).sum(-1).mean()

    assert loss(small) == pytest.approx(kept, abs=1e-5)
    assert kept < 0.35 * np.median([loss(other) for other in random])
    # The spread of the mean goes with it, which draws near the mean alone would lose.
    assert small["w"].std() == pytest.approx(1.0, abs=0.25)


def test_the_inputs_of_a_run_serve_where_none_are_given():
    mcmc = bnn.MCMC(
        bnn.BAOAB(_quantity, step_size=0.1), num_warmup=10, num_samples=20, progress_bar=False
    )
    mcmc.run(jax.random.key(0), X, X[:, 0])
    small = bnn.thin(mcmc, 5)
    np.testing.assert_array_equal(small["w"], bnn.thin(mcmc, 5, X)["w"])
    assert bnn.predict(None, small, X).mean.shape == (1, 5, 7)


def test_inputs_may_be_a_mapping():
    def tree(x, y=None):
        _quantity(x["columns"] + x["shift"][:, None], y)

    values = np.random.default_rng(0).normal(size=(2, 20))
    inputs = {"columns": X - 1, "shift": np.ones(len(X), np.float32)}
    draws = bnn.Draws({"w": values.astype(np.float32)}, tree)
    plain = bnn.thin(bnn.Draws(draws, _quantity), 4, X)
    mcmc = SimpleNamespace(_args=(inputs, X[:, 0]), _kwargs={})
    for small in (bnn.thin(draws, 4, inputs), bnn.thin(SimpleNamespace(draws=draws, mcmc=mcmc), 4)):
        np.testing.assert_array_equal(small["w"], plain["w"])


@pytest.mark.parametrize(
    ("k", "message"),
    [(0, "k must be"), (11, "k=11 draws of 10 were asked for"), (2.5, "k must be")],
)
def test_numbers_of_draws_out_of_range(k, message):
    draws = bnn.Draws({"w": np.zeros((2, 5, 3), np.float32)}, _classes)
    with pytest.raises((ValueError, TypeError), match=message):
        bnn.thin(draws, k, X)


def test_draws_without_inputs_ask_for_them():
    with pytest.raises(ValueError, match="the inputs of these draws are not known"):
        bnn.thin(bnn.Draws({"w": np.zeros((2, 5, 3), np.float32)}, _classes), 2)


def _counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Poisson(jnp.exp(x[:, 0] * w)), obs=y)


def _times(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    bnn.likelihoods.survival(x[:, 0] * w, y)


@pytest.mark.parametrize("model", [_counts, _times])
def test_counts_and_times_are_compared_by_their_own_distributions(model):
    """Of two kinds of draws half of each are kept, and one kind alone is as far as its distribution is."""
    draws = bnn.Draws({"w": np.repeat(np.float32([[-1.0, 1.0]]), 10, 1)}, model)
    small = bnn.thin(draws, 2, X[5:])
    np.testing.assert_array_equal(np.sort(small["w"][0]), [-1.0, 1.0])
    assert small.info["thinned"]["total_variation"] == pytest.approx(0, abs=1e-6)
    alone = bnn.thin(draws, 1, X[5:]).info["thinned"]["total_variation"]
    rates = [np.exp(s * X[5:, 0].astype(float)) for s in (-1.0, 1.0)]
    if model is _counts:
        distributions = [stats.poisson(r).pmf(np.arange(60)[:, None]) for r in rates]
        assert alone == pytest.approx(
            np.abs(distributions[0] - distributions[1]).sum(0).mean() / 4, rel=0.05
        )
    else:
        # Densities of two exponentials cross once, where their distribution functions are furthest apart.
        at = np.log(rates[1] / rates[0]) / (rates[1] - rates[0])
        apart = np.exp(-rates[0] * at) - np.exp(-rates[1] * at)
        assert alone == pytest.approx(apart.mean() / 2, rel=0.05)


def test_two_components_and_two_kinds_of_rows():
    """.2 + .6 w = share of the rows that the first predicts with .8, the second with .2."""
    scores = np.log(np.where([[True] * 6 + [False] * 4], [[0.8], [0.2]], [[0.2], [0.8]]))
    weights = bnn.stacking_weights(scores, tolerance=1e-10)
    np.testing.assert_allclose(weights, [2 / 3, 1 / 3], atol=1e-4)


@pytest.mark.parametrize("extra", [0, 2])
def test_components_that_say_different_rows(extra):
    """Densities of rows that only one component can say: the weights are the shares of rows."""
    scores = np.full((3, 10), -np.inf)
    for k, rows in enumerate((range(5), range(5, 8), range(8, 10))):
        scores[k, list(rows)] = -30.0 * (k + 1)
    scores = np.concatenate([scores, np.full((extra, 10), -1000.0)])
    weights = bnn.stacking_weights(scores)
    np.testing.assert_allclose(weights, [0.5, 0.3, 0.2] + [0.0] * extra, atol=1e-5)


def test_many_components_reach_the_optimum_that_a_general_method_finds():
    rng = np.random.default_rng(0)
    scores = rng.normal(-1.0, 1.0, (8, 300)) + np.linspace(-0.3, 0.3, 8)[:, None]
    weights = bnn.stacking_weights(scores)
    densities = np.exp(scores)

    def loss(w):
        return -np.log(w @ densities).mean()

    found = minimize(
        loss,
        np.full(8, 1 / 8),
        bounds=[(0, 1)] * 8,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    assert loss(weights) <= found.fun + 1e-6
    assert weights.sum() == pytest.approx(1.0)


def test_draws_are_averaged_as_densities():
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(3, 7, 40))
    mean = np.log(np.exp(draws).mean(1))
    np.testing.assert_allclose(bnn.stacking_weights(draws), bnn.stacking_weights(mean), rtol=1e-9)


model = row_model(lambda x, mean: dist.Normal(mean + 0.0 * x, 1.0), mean=dist.Normal(0.0, 10.0))


def test_chains_are_drawn_in_proportion_to_their_weights():
    """Of three modes the one that predicts nothing is dropped, and the others share the rows."""
    y = np.r_[np.full(30, -5.0), np.full(10, 5.0)]
    means = np.array([-5.0, 5.0, 100.0])[:, None] + 0.001 * np.arange(20)
    run = bnn.Draws({"mean": means}, model)
    stacked = bnn.stack(run, np.zeros(40), y, key=key(), num_samples=40)
    np.testing.assert_allclose(stacked.info["weights"], [0.75, 0.25, 0.0], atol=1e-4)
    drawn = np.asarray(stacked["mean"])
    assert drawn.shape == (1, 40)
    assert abs((drawn < 0).sum() - 30) <= 1
    assert abs(((drawn > 0) & (drawn < 50)).sum() - 10) <= 1
    counts = np.unique(drawn[drawn < 0], return_counts=True)[1]
    assert len(counts) == 20
    assert counts.max() <= 2
    average = bnn.average(bnn.predict(None, stacked, np.zeros(1)))
    assert average.mean[0] == pytest.approx(-2.5, abs=0.3)
    assert bnn.stack(run, np.zeros(40), y, key=key())["mean"].shape == (1, 60)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([[0.0, np.nan], [0.0, 0.0]], r"must not be NaN .*components \[0\]"),
        ([[0.0, -np.inf], [0.0, -np.inf]], r"every component holds row 1 impossible"),
    ],
)
def test_bad_scores_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        bnn.stacking_weights(scores)


def test_no_draws_are_refused():
    run = bnn.Draws({"mean": np.zeros((2, 3))}, model)
    with pytest.raises(ValueError, match=r"stack: num_samples must be a positive integer, got 0"):
        bnn.stack(run, np.zeros(2), np.zeros(2), key=key(), num_samples=0)
