"""The draws that stand for all: against every choice there is, and against draws that repeat."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

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
