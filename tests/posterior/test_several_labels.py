"""Rows with several labels each: predicted, scored by log density, checked and diagnosed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import log_softmax
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn.diagnostics.monte_carlo.agreement import agreement

RNG = np.random.default_rng(0)
X = RNG.normal(size=(9, 1)).astype(np.float32)
B = RNG.normal(size=(4, 200)).astype(np.float32)
SLOPES = np.array([1.0, -1.0, 0.5], np.float32)

binary = row_model(lambda x, b: dist.Bernoulli(logits=b * x * SLOPES).to_event(1), b=dist.Normal())


def of_three(x, y=None):
    b = numpyro.sample("b", dist.Normal())
    with numpyro.plate("data", x.shape[0]):
        logits = b * x[..., None] * jnp.stack([SLOPES, -SLOPES])
        numpyro.sample("y", dist.Categorical(logits=logits).to_event(1), obs=y)


def logits(model):
    """Logits of all classes, (chain, draw, row, label, class)."""
    f = B[..., None, None] * X * SLOPES
    if model is binary:
        return np.stack([np.zeros_like(f), f], -1)
    return np.stack([f, -f], -2)


Y = {binary: RNG.integers(0, 2, (9, 3)), of_three: RNG.integers(0, 3, (9, 2))}


def draws(model):
    return bnn.Draws({"b": B}, model, info={"kernel": "NUTS"})


def exact(model):
    """Log probabilities of the labels of each row, (chain, draw, row)."""
    of_labels = log_softmax(logits(model).astype(np.float64), -1)
    return np.take_along_axis(of_labels, Y[model][None, None, :, :, None], -1)[..., 0].sum(-1)


@pytest.mark.parametrize("model", Y)
def test_log_densities_of_all_labels_of_a_row(model):
    predictions = bnn.predict(None, draws(model), X)
    np.testing.assert_allclose(predictions.probs.sum(-1), 1.0, rtol=1e-5)
    assert predictions.probs.shape == logits(model).shape
    np.testing.assert_allclose(predictions.log_prob(Y[model]), exact(model), rtol=1e-4)
    lppd = np.log(np.exp(exact(model)).mean((0, 1))).mean()
    assert bnn.scores.lppd(predictions, Y[model]) == pytest.approx(lppd, rel=1e-4)
    idata = bnn.to_inference_data(draws(model), X, Y[model])
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values, exact(model), rtol=1e-4)


@pytest.mark.parametrize("model", Y)
def test_runs_of_several_labels_are_checked_stacked_and_diagnosed(model):
    y = Y[model]
    check = bnn.check_fit(draws(model), X, y)
    assert check.loo.by_row.shape == (9,)
    assert check.calibration is None
    (share,) = (q.observed for q in check.quantities if q.name == "share of class 0")
    assert share == pytest.approx((y == 0).mean())
    report = bnn.diagnose(draws(model), X, y)
    assert report.monte_carlo_error.by_row["total_variation"].shape == (9,)
    stacked = bnn.stack(draws(model), X, y, key=jax.random.key(0))
    assert stacked.info["weights"] == pytest.approx(bnn.stacking_weights(exact(model)), abs=1e-3)


SLOPES_OF_TWO = np.array([1.0, -2.0], np.float32)


def outputs_in_plates(kind, joint, x, y=None):
    """Several outputs a row, as one event or under plates of their own: the same density of a row."""
    b = numpyro.sample("b", dist.Normal())
    f = b * x * SLOPES_OF_TWO
    distribution = dist.Bernoulli(logits=f) if kind == "probs" else dist.Normal(f, 0.5)
    if joint:
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", distribution.to_event(1), obs=y)
    else:
        with numpyro.plate("data", x.shape[0], dim=-2), numpyro.plate("outputs", 2, dim=-1):
            numpyro.sample("y", distribution, obs=y)


@pytest.mark.parametrize("kind", ["probs", "mean"])
def test_outputs_under_plates_of_their_own_are_scored_as_those_of_one_event(kind):
    y = RNG.integers(0, 2, (9, 2)) if kind == "probs" else RNG.normal(size=(9, 2))
    event, plates = (
        bnn.Draws({"b": B}, partial(outputs_in_plates, kind, joint), info={"kernel": "NUTS"})
        for joint in (True, False)
    )
    one, other = bnn.predict(None, event, X), bnn.predict(None, plates, X)
    assert other.log_prob(y).shape == (4, 200, 9)
    np.testing.assert_allclose(other.log_prob(y), one.log_prob(y), rtol=1e-4)
    scored = [bnn.scores.lppd]
    scored += [bnn.scores.rmse, bnn.scores.crps, bnn.scores.coverage] if kind == "mean" else []
    for score in scored:
        expected = score(one, y, pointwise=True)
        assert expected.shape == (9,)
        np.testing.assert_allclose(score(other, y, pointwise=True), expected, rtol=1e-4)
    # Whoever takes the log density of a row has it: a report, the mixture of chains, ArviZ.
    assert bnn.diagnose(plates, X, y).monte_carlo_error.log_score == pytest.approx(
        bnn.diagnose(event, X, y).monte_carlo_error.log_score, rel=1e-3
    )
    assert "weights" in bnn.stack(plates, X, y, key=jax.random.key(0)).info
    likelihood = bnn.to_inference_data(plates, X, y)["log_likelihood"]["y"]
    np.testing.assert_allclose(likelihood.values, one.log_likelihood(y), rtol=1e-4)


def test_rows_are_as_far_apart_as_the_label_that_differs_most():
    chances = np.full((2, 400, 5, 3), 0.5)
    chances[1, :, 2, 1] = chances[1, :, 3, 2] = 0.9
    chances += 0.001 * RNG.normal(size=chances.shape)
    found = agreement({"probs": np.stack([1 - chances, chances], -1)})
    assert found.total_variation == pytest.approx(0.8 / 5, abs=1e-3)


def test_what_does_not_fit_says_so():
    predictions = bnn.predict(None, draws(binary), X)
    with pytest.raises(ValueError, match=r"y has shape \(9,\), but .* of shape \(9, 3\)"):
        predictions.log_prob(Y[binary][:, 0])
    with pytest.raises(ValueError, match="values from 3 to 4"):
        predictions.log_prob(3 + Y[binary])
    with pytest.raises(
        ValueError, match=r"scores\.accuracy: expected predictions of one label a row"
    ):
        bnn.scores.accuracy(predictions, Y[binary])
    bnn.scores.accuracy(predictions.probs[..., 1, :], Y[binary][:, 1])
