"""Stacking weights against optima known in closed form, and what is drawn with them."""

import numpy as np
import numpyro.distributions as dist
import pytest
from linear_gaussian import key
from scipy.optimize import minimize
from small_models import row_model

import numpyro_bnn as bnn


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
