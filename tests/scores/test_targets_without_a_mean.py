"""Targets without a mean on a line (directions, heavy tails, censored times), and missing ones."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from small_models import row_model

import numpyro_bnn as bnn
from numpyro_bnn import scores

X = np.zeros((2, 1), np.float32)


def predicted(distribution, draws):
    model = row_model(lambda x, w: distribution(w + x[:, 0]), w=dist.Uniform(-4.0, 4.0))
    return bnn.predict(model, {"w": np.asarray(draws, np.float32)}, X)


def test_the_average_of_directions_is_circular():
    made = predicted(lambda w: dist.VonMises(w, 50.0), [3.1, -3.1])
    found = bnn.average(made)
    np.testing.assert_allclose(np.abs(found.mean), np.pi, atol=1e-5)
    vectors = stats.vonmises(50.0).expect(np.cos) * np.cos(np.pi - 3.1)
    np.testing.assert_allclose(found.sd, np.sqrt(-2 * np.log(vectors)), rtol=1e-4)
    assert np.isfinite(scores.lppd(made, np.full(2, 3.14)))


def two_directions(w):
    parts = dist.VonMises(jnp.stack([w, -w], -1), 5.0)
    return dist.MixtureSameFamily(dist.Categorical(probs=jnp.full((len(w), 2), 0.5)), parts)


@pytest.mark.parametrize("distribution", [lambda w: dist.VonMises(w, 5.0), two_directions])
@pytest.mark.parametrize("score", [scores.rmse, scores.coverage, scores.crps, scores.uncertainty])
def test_scores_on_a_line_refuse_directions(distribution, score):
    made = predicted(distribution, [3.0, -3.0])
    given = (made,) if score is scores.uncertainty else (made, np.full(2, 3.14))
    with pytest.raises(ValueError, match=r"targets are directions.*scores\.lppd"):
        score(*given)


def test_directions_of_unknown_circular_mean_are_refused():
    with pytest.raises(ValueError, match="no circular mean is known"):
        bnn.average(predicted(two_directions, [3.0, -3.0]))


DISTRIBUTIONS = {
    "cauchy": lambda w: dist.Cauchy(w, 1.0),
    "half-cauchy": lambda w: dist.HalfCauchy(jnp.exp(w)),
    "student": lambda w: dist.StudentT(1.0, w, 1.0),
    "pareto": lambda w: dist.Pareto(jnp.exp(w), 0.5),
    "inverse gamma": lambda w: dist.InverseGamma(1.0, jnp.exp(w)),
    "mixture": lambda w: dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.full((len(w), 2), 0.5)), dist.Cauchy(w[:, None], jnp.ones(2))
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_target_without_a_mean_has_no_average(name):
    made = predicted(DISTRIBUTIONS[name], [0.0, 0.5])
    with pytest.raises(ValueError, match=r"NaN or infinite in 2 of 2 rows.*without a mean"):
        bnn.average(made)
    with pytest.raises(ValueError, match="must be finite"):
        scores.rmse(made, np.ones(2))


def test_a_target_with_a_mean_and_no_variance_has_an_infinite_one():
    found = bnn.average(predicted(lambda w: dist.StudentT(1.5, w, 1.0), [0.0, 1.0]))
    np.testing.assert_allclose(found.mean, 0.5, rtol=1e-6)
    assert np.isinf(found.sd).all()


@pytest.mark.parametrize(
    "distribution", [lambda w: dist.Normal(w, 1.0), lambda w: dist.Bernoulli(logits=w)]
)
def test_draws_of_nan_are_named_by_chain_and_not_averaged(distribution):
    made = predicted(distribution, [[0.0, 1.0], [0.0, np.nan]])
    with pytest.raises(
        ValueError, match=r"2 of 2 rows \(the first is row 0\), in draws of chains \[1\]"
    ):
        bnn.average(made)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_draws_are_refused(shape):
    with pytest.raises(ValueError, match="hold no draws"):
        predicted(lambda w: dist.Normal(w, 1.0), np.zeros(shape))


@pytest.mark.parametrize(
    "score",
    [scores.rmse, scores.pit, scores.coverage, scores.crps, scores.uncertainty, scores.wasserstein],
)
def test_times_that_may_be_censored_are_refused(score):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        bnn.likelihoods.survival(w + x[:, 0], y)

    made = bnn.predict(model, {"w": np.zeros(4, np.float32)}, X)
    y = np.float32([[1.0, 1.0], [2.0, 0.0]])
    given = {scores.uncertainty: (made,), scores.wasserstein: (made, made)}.get(score, (made, y))
    with pytest.raises(ValueError, match=r"may be censored.*scores\.lppd"):
        score(*given)
    assert np.isfinite(scores.lppd(made, y))


@pytest.mark.parametrize("rows", [3, 5])
def test_one_hot_labels_of_an_own_model_are_named(rows):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("y", dist.Categorical(logits=x * w), obs=y)

    x, y = np.ones((rows, 1), np.float32), np.eye(3, dtype=int)[np.arange(rows) % 3]
    mcmc = bnn.MCMC(
        bnn.BAOAB(model, step_size=0.1), num_warmup=1, num_samples=1, progress_bar=False
    )
    with pytest.raises(ValueError, match="looks one-hot"):
        mcmc.run(jax.random.key(0), x, y)


@pytest.mark.parametrize("name", ["cauchy", "student"])
def test_the_fit_of_a_target_without_a_mean_is_checked(name):
    model = row_model(lambda x, w: DISTRIBUTIONS[name](w + x[:, 0]), w=dist.Normal())
    drawn = np.random.default_rng(0).normal(0, 0.5, (2, 100)).astype(np.float32)
    drawn[1] += 3
    checked = bnn.check_fit(bnn.Draws({"w": drawn}, model), X, np.zeros(2, np.float32))
    assert any("chains disagree" in doubt for doubt in checked.doubts)
    assert all(np.isfinite([one.observed, one.low, one.high]).all() for one in checked.quantities)


RNG = np.random.default_rng(0)
MEAN, SCALE = RNG.normal(size=(5, 4, 2)), RNG.uniform(0.5, 1, (5, 4, 2))
Y = RNG.normal(size=(4, 2))
Y[0, 0] = Y[2, 1] = np.nan
Y[3] = np.nan
KNOWN = [(0, 1), (1, 0), (1, 1), (2, 0)]
WARNING = r"scores.*: 1 of 4 rows have no target and are left out"
SCORES = {
    "crps": lambda m, y, s, **o: scores.crps(m, y, s, **o),
    "squared error": lambda m, y, s, **o: scores.rmse(m, y, pointwise=True),
    "coverage": lambda m, y, s, **o: scores.coverage(m, y, s, level=0.5, **o),
    "coverage at levels": lambda m, y, s, **o: scores.coverage(m, y, s, level=[0.2, 0.5], **o),
}


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_that_of_the_known_targets(name):
    score = SCORES[name]
    entry = {
        at: np.asarray(
            score(MEAN[:, *at][:, None], Y[at][None], SCALE[:, *at][:, None], pointwise=True)
        )[..., 0]
        for at in KNOWN
    }
    by_row = [entry[0, 1], (entry[1, 0] + entry[1, 1]) / 2, entry[2, 0]]
    with pytest.warns(UserWarning, match=WARNING):
        found = np.asarray(score(MEAN, Y, SCALE, pointwise=True))
    np.testing.assert_allclose(found[..., :3], np.stack(by_row, -1), rtol=1e-6)
    assert np.isnan(found[..., 3]).all()
    if name != "squared error":
        with pytest.warns(UserWarning, match=WARNING):
            np.testing.assert_allclose(score(MEAN, Y, SCALE), np.mean(by_row, 0), rtol=1e-6)
        return
    with pytest.warns(UserWarning, match=WARNING):
        assert scores.rmse(MEAN, Y) == pytest.approx(np.sqrt(np.mean(by_row)))
    expected = scores.standard_error(by_row, root=True)
    assert scores.standard_error(found, root=True) == pytest.approx(expected)
    difference = scores.paired_difference(found, 2 * found)
    assert difference.num_rows == 3
    assert difference.difference == pytest.approx(-np.mean(by_row))


def test_pit_of_a_missing_target_is_not_known():
    with pytest.warns(UserWarning, match=WARNING):
        np.testing.assert_array_equal(np.isnan(scores.pit(MEAN, Y, SCALE)), np.isnan(Y))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.full((4, 2), np.nan), "no value but NaN or another missing value in column 0"),
        (np.where(np.isnan(Y), np.inf, Y), "the target y must be finite"),
    ],
)
def test_targets_that_no_row_has_or_that_are_infinite_are_refused(y, said):
    for score in (scores.rmse, scores.crps):
        with pytest.raises(ValueError, match=said):
            score(MEAN, y)


LABELLED = {
    "accuracy": lambda p, y: scores.accuracy(p, y, pointwise=True),
    "brier": lambda p, y: scores.brier(p, y, pointwise=True),
    "expected_calibration_error": scores.expected_calibration_error,
    "reliability": scores.reliability,
}


@pytest.mark.parametrize("name", LABELLED)
def test_rows_without_a_label_are_left_out(name):
    score, probs = LABELLED[name], RNG.dirichlet(np.ones(3), (5, 4))
    y = np.array([0, 2, 1, 1])
    right = score(probs[:, :3], y[:3])
    with pytest.warns(UserWarning, match=rf"^scores\.{name}: 1 of 4 rows have no target"):
        found = score(probs, np.where(np.arange(4) == 3, np.nan, y))
    if name in ("accuracy", "brier"):
        right = [*right, np.nan]
    np.testing.assert_equal(found, right)
    with (
        pytest.warns(UserWarning, match="1 of 4 rows"),
        pytest.raises(TypeError, match=rf"^scores\.{name}: y has dtype"),
    ):
        score(probs, [0.5, 1.0, 2.0, np.nan])
